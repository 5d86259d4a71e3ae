"""`h3runtime demo`: the quick start. A small clip on whatever the settings name, the embedded model by default."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from h3runtime.cli import generate
from h3runtime.cli.generation import flags
from h3runtime.cli.options import add_encoder_flags, add_run_flags
from h3runtime.cli.report import say
from h3runtime.settings import SERVICE_ONLY, add_flags, resolve

PROMPT = "A red lantern swings over a still harbour at dusk; water laps at the quay and a bell rings far away."
NAME = "demo"
WIDTH, HEIGHT, FRAMES, STEPS = 320, 192, 39, 8
"""Small enough for two cores of a laptop and long enough to have a join of two decoded chunks in it."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="make a small clip, on the embedded model unless told otherwise",
        description="Make a small clip with sound. Needs no files: the embedded model is made at first use.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="OUT.mp4|mov|mkv|webm",
        help=f"Default: {NAME}.mp4, which is replaced; a file of another name needs --overwrite.",
    )
    parser.add_argument("--prompt", default=PROMPT, help="What happens in the clip.")
    parser.add_argument("--seed", default="440407", help="0..2^64-1; -1 draws one. Default: 440407.")
    add_encoder_flags(parser)
    add_run_flags(parser)
    parser.add_argument("--profile-memory", action="store_true", help="Peak bytes of every stage in the JSON.")
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    fixed: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "frames": FRAMES, "steps": STEPS}
    # The quick start is run again and again: its own file is in nobody's way. Another name may be somebody's work.
    output = arguments.output or Path(f"{NAME}.{arguments.container or 'mp4'}")
    fixed |= {"output": output, "overwrite": arguments.overwrite or output.stem == NAME}
    settings = resolve(vars(arguments), arguments.config)
    generate.make(argparse.Namespace(**(flags.blank() | vars(arguments) | fixed)), settings)
    if settings.model_path is None and not arguments.quiet:
        say("the embedded model has made-up weights: its clip shows that the pipeline works")
    return 0
