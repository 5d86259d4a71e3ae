"""`h3runtime calibrate --prompts FILE`: measure the quality levels on what is loaded here, and keep the evidence.

    exact clips of every prompt and seed -> for each level the fastest choice whose clips stay close to them -> a file

What it found of a level is told on stderr as soon as it is settled; stdout has all of it as JSON.

Loads the engine with the same settings as a server would. Where these load the weights for something that can't be
exact (`--linear fp8`), the exact clips come first, from an engine that is closed again.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from h3runtime.cli.calibration.outlook import View
from h3runtime.cli.calibration.prompts import read_prompts
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result
from h3runtime.cli.stopping import Stopping
from h3runtime.core import Progress, SamplerSettings
from h3runtime.errors import Offence, invalid
from h3runtime.observe.cores import engine_threads
from h3runtime.quality.evidence import LEAST
from h3runtime.quality.levels import LEVELS, REUSE, Choice
from h3runtime.settings import PARTITION_PATHS, SERVICE_ONLY, Settings, add_flags, resolve

READ_HERE = frozenset({"data_dir", "url_allow", "max_upload_bytes"})
MOST_SEEDS = 1000
DEFAULT_SIZE, EMBEDDED_SIZE = "1344x768x124", "192x192x39"
"""H3's own canvas, and the demo's for the embedded model."""
SCHEDULE = ("steps", "sampler", "scheduler", "shift", "audio_shift")
TRIED = (
    ("attention", None, "attention backend"),
    ("linear", None, "linear backend"),
    ("reuse", (*REUSE, "none"), f"cache mode ({', '.join(REUSE)} or none)"),
)
"""Flags that narrow the search: their names, legal values where these need no engine, and what they name."""
DESCRIPTION = """\
Make clips of every prompt exactly, and by the candidates of each quality level, and keep as evidence the fastest that
stays as close to the exact clips as the level promises (95 % bound of the mean over all of them). Requests may then ask
for the level, on the same weights, device and version, for clips of up to twice the size and steps. A few clips of each
candidate say which are fast; those are measured with all prompts and seeds, fastest first, until one is close enough. A
run that was stopped goes on where it was. Exit code 1 if a level has no candidate that is close enough."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "calibrate", help="measure quality levels, so that requests may ask for them", description=DESCRIPTION
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"At least {LEAST.prompts} prompts, one a line; or a JSON list of prompts and requests with media.",
    )
    parser.add_argument("--seeds", type=int, default=LEAST.seeds, metavar="N", help=f"Of each. Default: {LEAST.seeds}.")
    parser.add_argument(
        "--level", action="append", choices=tuple(LEVELS), help="May be given again. Default: all of them."
    )
    parser.add_argument(
        "--size",
        action="append",
        metavar="WxHxF",
        help=f"Of the clips; may be given again. Default: {DEFAULT_SIZE}, {EMBEDDED_SIZE} for the embedded model.",
    )
    for what, choices, more in TRIED:
        parser.add_argument(
            f"--try-{what}",
            action="append",
            metavar="NAME",
            choices=choices,
            help=f"Try this {more} alone; may be given again. Default: all that the level may take and that can run.",
        )
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="Evaluations of the model. Default: 12.")
    parser.add_argument("--sampler", default="res_multistep", metavar="NAME", help="Default: res_multistep.")
    parser.add_argument("--scheduler", default="beta", metavar="NAME", help="Default: beta.")
    parser.add_argument("--shift", type=float, default=12.0, metavar="X", help="Of the picture. Default: 12.")
    parser.add_argument("--audio-shift", type=float, default=3.0, metavar="X", help="Of the sound. Default: 3.")
    parser.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY - READ_HERE)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    if not LEAST.seeds <= arguments.seeds <= MOST_SEEDS:
        raise invalid([Offence("seeds", f"{arguments.seeds} is out of range", f"{LEAST.seeds}..{MOST_SEEDS}")])
    sizes = tuple(_size(text) for text in arguments.size or [_usual_size(settings)])
    prompts = read_prompts(arguments.prompts, LEAST.prompts)
    levels = tuple(level for name, level in LEVELS.items() if name in (arguments.level or LEVELS))
    sampling = SamplerSettings(**{name: getattr(arguments, name) for name in SCHEDULE})
    with Stopping() as stopping, ProgressBar(quiet=arguments.quiet, steps=False) as bar:
        with stopping.loading():
            from h3runtime.cli.calibration.narrowing import Narrowed
            from h3runtime.cli.calibration.running import Asked, Calibration
            from h3runtime.engine.resident import ResidentEngine

        def load(settings: Settings, partition: str) -> ResidentEngine:
            engine = ResidentEngine(settings, engine_threads(), warm_up=False, partitions=(partition,))
            engine.load(bar)
            return engine

        tried = (arguments.try_linear, arguments.try_attention, arguments.try_reuse)
        asked = Asked(
            prompts, sizes, sampling, levels, arguments.seeds, Narrowed(*(tuple(each or ()) for each in tried))
        )
        shown = _Shown(bar, quiet=arguments.quiet)
        with stopping.gently():
            found = Calibration(asked, settings, load, stopping, shown, shown.tell).run()
    print_result({"evidence": found}, quiet=arguments.quiet)
    return 1 if any(row["file"] is None for row in found) else 0


def _usual_size(settings: Settings) -> str:
    is_embedded = all(getattr(settings, path) is None for path in PARTITION_PATHS.values())
    return EMBEDDED_SIZE if is_embedded else DEFAULT_SIZE


def _size(text: str) -> Size:
    """`192x192x39`; whether a request may have it is its own rules' to say."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,5})", text)
    if found is None:
        raise invalid([Offence("size", f"{ascii(text)[:60]} is no size", "WIDTHxHEIGHTxFRAMES")])
    return Size(*map(int, found.groups()))


class _Shown:
    """What a calibration is at, on the bar of all commands; and what it found, a line a level."""

    def __init__(self, bar: ProgressBar, *, quiet: bool) -> None:
        self._bar, self._quiet, self._what = bar, quiet, ""
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, view: View) -> None:
        if view.what != self._what:
            self._bar.begin_part(f"{view.what}:")
            self._what = view.what
        # In a file a line is written where the stage stays the same for a while; a terminal shows every clip.
        stage = view.told if self._is_terminal else f"{view.count} clips"
        self._bar(Progress(stage, view.done, 1, view.fraction))

    def tell(self, row: dict[str, Any]) -> None:
        """Above the bar; of a level that nothing keeps even if all else is quiet."""
        if row["evidence"] is None or not self._quiet:
            self._bar.say(_line(row))


def _line(row: dict[str, Any]) -> str:
    found = row["evidence"]
    if found is None:
        return f"{row['size']}: nothing keeps {row['level']!r}"
    ssim, sound, choice = found["ssim"], found["audio_db"], Choice(**found["choice"])
    close = f"SSIM {ssim['mean']:.4f} ({ssim['bound']:.4f} or more), sound {sound['mean']:.2f} dB"
    return f"{row['size']}: {row['level']} is {choice.told}, {found['time_ratio']:.2f} times as fast as exact; {close}"
