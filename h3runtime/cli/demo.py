"""`h3runtime demo`: the quick start. A small clip and its contact sheet on whatever the settings name, the embedded
model by default."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from h3runtime.cli import generate
from h3runtime.cli.generation import flags
from h3runtime.cli.options import add_encoder_flags, add_run_flags
from h3runtime.cli.report import say
from h3runtime.settings import SERVICE_ONLY, add_flags, resolve

PROMPT = "a red ball bouncing on a blue floor"
"""A sentence of the little world that the embedded model was trained on."""
NAME = "demo"
WIDTH, HEIGHT, FRAMES, STEPS = 192, 192, 39, 12
"""A size of the training, small enough for two cores of a laptop and long enough to have a join of two decoded chunks
in it."""
TURBO = {"steps": 4, "sampler": "euler", "scheduler": "simple"}
"""What the embedded model's own adapter was trained for, and is refused without."""
MADE_BY = (
    "made by h3-nano, the small trained model inside this package, which knows a little world of shapes that move and "
    "sound; --model-path names H3's own weights"
)


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="make a small clip, on the embedded model unless told otherwise",
        description="Make a small clip with sound, and a picture that shows both at a glance. Needs no files and no "
        "network: the embedded model is a part of this package.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="OUT.mp4|mov|mkv|webm",
        help=f"Default: {NAME}.mp4, which is replaced; a file of another name needs --overwrite. The contact sheet "
        f"lies beside it as {NAME}.png: the prompt, frames with their times, the waveform.",
    )
    parser.add_argument("--no-sheet", action="store_true", help="The clip alone, without its contact sheet.")
    parser.add_argument("--prompt", default=PROMPT, help="What happens in the clip.")
    parser.add_argument("--seed", default="440407", help="0..2^64-1; -1 draws one. Default: 440407.")
    flags.add_lora_flag(parser)
    flags.add_refine_flags(parser)
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
    fixed["sheet"] = not arguments.no_sheet
    if any(lora.name == flags.OWN_TURBO for lora in arguments.loras or ()):
        fixed |= TURBO
    settings = resolve(vars(arguments), arguments.config)
    generate.make(argparse.Namespace(**(flags.blank() | vars(arguments) | fixed)), settings)
    if settings.model_path is None and not arguments.quiet:
        say(MADE_BY)
    return 0
