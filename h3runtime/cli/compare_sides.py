"""`h3runtime compare --a SIDE --b SIDE --out FOLDER`: one request made in two ways, and where and how far they part.

Has the flags, judges where the files go, and tells what was found; `sides` does the work, in the order of
`sides.session`. Fed by `compare`, which judges what the two ways of comparing have in common.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from h3runtime.cli.comparison.limits import Limits
from h3runtime.cli.generation.flags import add_request_flags
from h3runtime.cli.generation.scratch import remove, scratch_folder
from h3runtime.cli.options import LOGLEVELS
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result, say
from h3runtime.cli.sides.asked import halves_of
from h3runtime.cli.sides.given import read_side
from h3runtime.cli.sides.names import AUTO, BLOCKS_LEGAL, FILM, PLOT, REPORT
from h3runtime.cli.stopping import Stopping
from h3runtime.errors import Offence, OutputExists, invalid
from h3runtime.settings import SERVICE_ONLY, add_flags

READ_HERE = frozenset({"url_allow", "max_upload_bytes", "data_dir"})
"""Settings of the service that count here too: of a request's media, and where evidence of quality levels lies."""


def add_side_flags(parser: argparse.ArgumentParser) -> None:
    """Of this way of comparing alone."""
    group = parser.add_argument_group("two ways of making one request")
    for name in "ab":
        group.add_argument(
            f"--{name}",
            dest=f"side_{name}",
            action="append",
            metavar="FIELD=VALUE,..",
            help=f"Side {name.upper()}: what it changes of the request (linear, attention, attention_plan, quality, "
            "cache_mode, steps, sampler, scheduler, lora=NAME:STRENGTH..) or of the settings (model_path, fused, "
            "vae_dtype..); embedded=FORMAT is the embedded model in that format. Default: nothing.",
        )
    group.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"Gets both clips, {FILM}, {PLOT} and {REPORT}. It is new or empty."
    )
    group.add_argument(
        "--blocks-at", default=None, metavar="N,N..", help=f"Where blocks are compared: {BLOCKS_LEGAL}. Default: auto."
    )
    group.add_argument(
        "--request", type=Path, metavar="REQUEST.json", help="As `generate` takes it; flags are defaults."
    )
    group.add_argument(
        "--ffmpeg-loglevel", choices=LOGLEVELS, default=None, help="What ffmpeg may say on stderr. Default: error."
    )
    add_request_flags(group)  # type: ignore[arg-type]  # a group takes arguments as a parser does
    add_flags(parser.add_argument_group("settings of both ways"), SERVICE_ONLY - READ_HERE)


def run(arguments: argparse.Namespace, limits: Limits) -> int:
    sides = read_side("a", arguments.side_a or []), read_side("b", arguments.side_b or [])
    folder = _folder(arguments)
    with Stopping() as stopping:
        with scratch_folder(folder) as scratch, ProgressBar(quiet=arguments.quiet, steps=False) as bar:
            halves = halves_of(arguments, sides, scratch)
            with stopping.loading(clean=partial(remove, scratch)):
                from h3runtime.cli.sides.session import Session
                from h3runtime.cli.sides.table import table_of
            session = Session(halves, scratch, stopping, bar, arguments.ffmpeg_loglevel or "error")
            found = session.compare(arguments.blocks_at or AUTO)
            facts = session.write(found, folder, limits)
        return _tell(partial(table_of, facts), facts, arguments)


def _folder(arguments: argparse.Namespace) -> Path:
    """Absolute; new, empty, or to be written over."""
    if arguments.out is None:
        raise invalid([Offence("out", "is missing: two sides make several files", "--out FOLDER, new or empty")])
    folder: Path = arguments.out.absolute()
    if folder.exists() and not folder.is_dir():
        raise OutputExists(f"out: {arguments.out} is a file", [Offence("out", "is a file", "a folder, new or empty")])
    if folder.is_dir() and any(folder.iterdir()) and not arguments.overwrite:
        told = f"{arguments.out} holds files already"
        raise OutputExists(f"out: {told}", [Offence("out", told, "another name, or --overwrite")])
    return folder


def _tell(table: Callable[[], str], facts: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.table or (sys.stdout.isatty() and not (arguments.json or arguments.quiet)):
        print(table(), flush=True)
    else:
        print_result(facts, quiet=arguments.quiet)
    if not facts["passed"]:
        say("failed: " + "; ".join(facts["failures"]))
    return 0 if facts["passed"] else 1
