"""`h3runtime compare A B`: how far two results are apart, as JSON, a table, a plot and an exit code.

`compare --a SIDE --b SIDE` makes the two results first, from one request, and tells where they part (`compare_sides`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3runtime.cli import compare_sides
from h3runtime.cli.comparison.limits import Limits, require_legal
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result, say
from h3runtime.cli.stopping import Stopping
from h3runtime.core import Progress
from h3runtime.errors import Offence, invalid

if TYPE_CHECKING:
    from h3runtime.cli.comparison.found import Found, Kind

OF_FILES = frozenset({"a", "b", "output", "plot", "worst"})
WORST = 5
MOST_WORST = 1000
DESCRIPTION = """\
Compare two clips, sounds, folders of frames or latent files; A is the reference. Prints one line of JSON on stdout, or
a table if that is a terminal. Differences of pictures are in 8-bit levels, of sound in samples of -1..1. PSNR is on
RGB, SSIM on luma (11x11 Gaussian); the sound's distance is the mean absolute log-mel difference in dB. Frames that the
VAE decoder made by fading one chunk into the next are marked. Exit code 1 if a limit is broken.

With --a and --b instead of A and B, one request is made in two ways, which may differ in backends, adapters, steps,
caches or weights: how far they part step by step, in which block of the transformer and which of its parts, and how far
the clips are apart, with a plot and both side by side as a clip."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare", help="tell how far two clips, folders of frames or latent files are apart", description=DESCRIPTION
    )
    parser.add_argument(
        "a", type=Path, metavar="A", nargs="?", help="The reference: a clip, a folder or a .safetensors file."
    )
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="What is compared with it, of the same kind.")
    parser.add_argument("--output", type=Path, metavar="PATH", help="Also write the JSON to a file.")
    parser.add_argument(
        "--plot", type=Path, metavar="PATH.png|svg", help="Draw PSNR and SSIM (of latents: relative L2) over time."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing report or plot.")
    parser.add_argument(
        "--worst", type=int, default=WORST, metavar="N", help=f"How many of the worst frames to list. Default: {WORST}."
    )
    _add_limits(parser.add_argument_group("limits", "A broken one is told on stderr and makes the exit code 1."))
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="The line of JSON, on a terminal too.")
    shown.add_argument("--table", action="store_true", help="The table, into a file or pipe too.")
    shown.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")
    own = {action.dest for action in parser._actions}
    compare_sides.add_side_flags(parser)
    of_sides = [action for action in parser._actions if action.dest not in own]
    parser.set_defaults(run=partial(run, parser=parser, of_sides=of_sides))


def run(arguments: argparse.Namespace, *, parser: argparse.ArgumentParser, of_sides: Sequence[argparse.Action]) -> int:
    """Two files, or two sides. The flags of one are no flags of the other."""
    limits = Limits(arguments.min_psnr, arguments.min_ssim, arguments.max_rel_l2, arguments.max_log_mel)
    if arguments.side_a is None and arguments.side_b is None:
        if missing := [name for name in "AB" if getattr(arguments, name.lower()) is None]:
            parser.error(f"the following arguments are required: {', '.join(missing)} (or --a and --b)")
        _refuse(arguments, of_sides, "is for two ways of making a request", "--a and --b beside it")
        return _run_files(arguments, limits)
    _refuse(arguments, [a for a in parser._actions if a.dest in OF_FILES], "is for two files", "leave it out")
    require_legal(limits, "clips")
    return compare_sides.run(arguments, limits)


def _run_files(arguments: argparse.Namespace, limits: Limits) -> int:
    from h3runtime.cli.comparison.kinds import kind_of_both
    from h3runtime.cli.report_files import require_names

    if not 0 <= arguments.worst <= MOST_WORST:
        raise invalid([Offence("worst", f"{arguments.worst} is out of range", f"0..{MOST_WORST}")])
    inputs = arguments.a, arguments.b
    require_names(arguments.output, arguments.plot, inputs, overwrite=arguments.overwrite)
    kind = kind_of_both(*inputs)
    require_legal(limits, kind)
    with Stopping() as stopping:
        with ProgressBar(quiet=arguments.quiet, steps=False) as bar:
            found = _compare(kind, arguments, limits, bar, stopping)
        return _tell(found, limits, arguments, stopping)


def _refuse(arguments: argparse.Namespace, actions: Sequence[argparse.Action], why: str, legal: str) -> None:
    """InvalidRequest naming every one of them that was given."""
    given = [a for a in actions if getattr(arguments, a.dest, a.default) != a.default]
    if given:
        names = (a.option_strings[0] if a.option_strings else str(a.metavar) for a in given)
        raise invalid([Offence(name, why, legal) for name in names])


def _add_limits(group: Any) -> None:
    for name, unit, text in (
        ("--min-psnr", "DB", "Of all frames together."),
        ("--min-ssim", "X", "Mean over the frames."),
        ("--max-rel-l2", "X", "Of every stream."),
        ("--max-log-mel", "DB", "Of the sound."),
    ):
        group.add_argument(name, type=float, metavar=unit, help=text)


def _compare(kind: Kind, arguments: argparse.Namespace, limits: Limits, bar: ProgressBar, stopping: Stopping) -> Found:
    def on_part(done: int, parts: int) -> None:
        bar(Progress("comparing", done, parts, done / max(parts, 1)))

    if kind in ("latents", "steps"):
        with stopping.loading():
            from h3runtime.cli.comparison.tensors import compare_latents, compare_steps
        on_part(0, 1)
        return (compare_latents if kind == "latents" else compare_steps)(arguments.a, arguments.b, on_part)
    with stopping.loading():
        from h3runtime.cli.comparison.inputs import media_of
        from h3runtime.cli.comparison.limits import require_streams
        from h3runtime.cli.comparison.media import compare_media
    on_part(0, 1)
    first, second = media_of(kind, arguments.a, arguments.b)
    require_streams(limits, first.streams)
    if arguments.plot is not None and first.pictures is None:
        raise invalid([Offence("plot", "the inputs have no pictures to draw figures of", "clips with pictures")])
    return compare_media(kind, first, second, on_part)


def _tell(found: Found, limits: Limits, arguments: argparse.Namespace, stopping: Stopping) -> int:
    """Files first, so that whoever reads stdout finds them."""
    with stopping.loading():
        from h3runtime.cli.comparison.plot import plot_of
        from h3runtime.cli.comparison.report import facts_of
        from h3runtime.cli.comparison.table import table_of
        from h3runtime.cli.report_files import write_report, write_whole
    facts = facts_of(found, limits, arguments.worst)
    if arguments.plot is not None:
        with stopping.loading():
            # As it draws, matplotlib imports what it draws with.
            drawn = plot_of(found, arguments.plot.suffix.lower().removeprefix("."))
        write_whole(arguments.plot, drawn, overwrite=arguments.overwrite)
    if arguments.output is not None:
        write_report(arguments.output, facts, overwrite=arguments.overwrite)
    if arguments.table or (sys.stdout.isatty() and not (arguments.json or arguments.quiet)):
        print(table_of(found, facts), flush=True)
    else:
        print_result(facts, quiet=arguments.quiet)
    if not facts["passed"]:
        say("failed: " + "; ".join(facts["failures"]))
    return 0 if facts["passed"] else 1
