"""`h3runtime calibrate --prompts FILE`: measure the quality levels on what is loaded here, and keep the evidence.

    exact clips of every prompt and seed -> for each level the fastest choice whose clips stay close to them -> a file

Loads the engine with the same settings as a server would. Where these load the weights for something that can't be
exact (`--linear fp8`), the exact clips come first, from an engine that is closed again.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from h3runtime.cli.calibration.prompts import read_prompts
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result, say
from h3runtime.cli.stopping import Stopping
from h3runtime.core import Progress, SamplerSettings
from h3runtime.errors import Offence, invalid
from h3runtime.observe.cores import engine_threads
from h3runtime.quality.evidence import LEAST
from h3runtime.quality.levels import LEVELS
from h3runtime.settings import SERVICE_ONLY, Settings, add_flags, resolve

READ_HERE = frozenset({"data_dir", "url_allow", "max_upload_bytes"})
MOST_SEEDS = 1000
DEFAULT_SIZE = "1344x768x124"
SCHEDULE = ("steps", "sampler", "scheduler", "shift", "audio_shift")
DESCRIPTION = """\
Make clips of every prompt exactly, and by the candidates of each quality level, and keep as evidence the fastest that
stays as close to the exact clips as the level promises (95 % bound of the mean over all of them). Requests may then ask
for the level, on the same weights, device and version, for clips of up to twice the size and steps. A run that was
stopped goes on where it was. Exit code 1 if a level has no candidate that is close enough."""


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
        "--size", action="append", metavar="WxHxF", help=f"Of the clips; may be given again. Default: {DEFAULT_SIZE}."
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
    sizes = tuple(_size(text) for text in arguments.size or [DEFAULT_SIZE])
    prompts = read_prompts(arguments.prompts, LEAST.prompts)
    levels = tuple(level for name, level in LEVELS.items() if name in (arguments.level or LEVELS))
    sampling = SamplerSettings(**{name: getattr(arguments, name) for name in SCHEDULE})
    with Stopping() as stopping, ProgressBar(quiet=arguments.quiet, steps=False) as bar:
        with stopping.loading():
            from h3runtime.cli.calibration.running import Asked, Calibration
            from h3runtime.engine.resident import ResidentEngine

        def load(settings: Settings, partition: str) -> ResidentEngine:
            engine = ResidentEngine(settings, engine_threads(), warm_up=False, partitions=(partition,))
            engine.load(bar)
            return engine

        asked = Asked(prompts, sizes, sampling, levels, arguments.seeds)
        with stopping.gently():
            told = Calibration(asked, settings, load, stopping, _Told(bar)).run()
    print_result({"evidence": told}, quiet=arguments.quiet)
    missed = [f"{row['size']}: nothing keeps {row['level']!r}" for row in told if row["file"] is None]
    for line in missed:
        say(line)
    return 1 if missed else 0


def _size(text: str) -> Size:
    """`192x192x39`; whether a request may have it is its own rules' to say."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,5})", text)
    if found is None:
        raise invalid([Offence("size", f"{ascii(text)[:60]} is no size", "WIDTHxHEIGHTxFRAMES")])
    return Size(*map(int, found.groups()))


class _Told:
    """Clips that are there, on the bar of all commands."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar, self._what = bar, ""

    def __call__(self, what: str, done: int, clips: int) -> None:
        if what != self._what:
            self._bar.begin_part(what)
            self._what = what
        self._bar(Progress("clips", done, clips, done / clips))
