"""`h3runtime generate`: one clip from the command line, with the rules of `POST /generate`, without a server.

The flags become a request body and are judged by the same code as a client's, so that both agree in every word.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h3runtime.api.faults import Faults
from h3runtime.api.inputs import open_inputs, verify_inputs
from h3runtime.api.judging import Judged, judge_clip
from h3runtime.api.media import Intake, MediaSource
from h3runtime.api.request import ReadBody, read_body
from h3runtime.api.resolve import sampling_of
from h3runtime.cli.options import (
    add_encoder_flags,
    add_run_flags,
    encode_settings,
    output_path,
    refuse_taken,
    unwritable,
)
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result
from h3runtime.cli.result import clip_facts
from h3runtime.cli.stopping import Stopping
from h3runtime.core import EncodeSettings, GenerateSpec
from h3runtime.errors import Offence, invalid
from h3runtime.jobs.queue import outputs_of
from h3runtime.observe.cores import engine_threads
from h3runtime.settings import SERVICE_ONLY, Settings, add_flags, flag, resolve

FIELDS = {
    "prompt": (str, "What happens in the clip, and what is heard."),
    "task": (str, "t2va, i2va, l2va or fl2va. Default: what the pictures say."),
    "width": (int, "Pixels, a multiple of 32."),
    "height": (int, "Pixels, a multiple of 32."),
    "aspect_ratio": (str, "W:H, instead of width and height."),
    "short_edge": (int, "Pixels of the shorter side, with --aspect-ratio or a picture. Default: 768."),
    "frames": (int, "17n+5 frames at 24 a second. Default: 124."),
    "seconds": (float, "Instead of frames: the least legal length that is as long."),
    "steps": (int, "Evaluations of the model. Default: 12."),
    "sampler": (str, "res_multistep (the default) or euler."),
    "scheduler": (str, "beta (the default), simple or linear."),
    "shift": (float, "Sigma shift of the picture. Default: 12."),
    "audio_shift": (float, "Sigma shift of the sound. Default: 3."),
    "seed": (str, "0..2^64-1; -1, the default, draws one."),
}
"""Request field -> type of its flag, help. Defaults are the request's."""
PICTURES = ("first_frame", "last_frame")


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="make one clip",
        description="Make one clip. Prints one line of JSON on stdout; progress and everything else goes to stderr.",
    )
    add_request_flags(parser)
    parser.add_argument("--output", type=Path, metavar="OUT.mp4", help="Default: h3-<seed>.mp4 in the current folder.")
    parser.add_argument("--save-latents", action="store_true", help="Also write OUT.mp4.latents.safetensors.")
    parser.add_argument("--diagnostics", action="store_true", help="Step times, hashes and inputs in the JSON.")
    add_encoder_flags(parser)
    add_run_flags(parser)
    parser.add_argument("--profile-memory", action="store_true", help="Peak bytes of every stage in the JSON.")
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY)
    parser.set_defaults(run=run)


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    for name, (kind, help_text) in FIELDS.items():
        parser.add_argument(flag(name), type=kind, metavar="VALUE", help=help_text, required=name == "prompt")
    for name in PICTURES:
        parser.add_argument(flag(name), type=Path, metavar="PICTURE", help=f"The {name[:-6]} frame.")


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    make(arguments, settings)
    return 0


def make(arguments: argparse.Namespace, settings: Settings) -> None:
    """Judge the request, load the engine in this process, make the clip, print what became of it."""
    with Stopping() as stopping, scratch_folder(arguments.output) as scratch:
        spec, warnings = spec_of(arguments, settings, scratch)
        from h3runtime.engine.resident import ResidentEngine

        with ProgressBar(quiet=arguments.quiet, steps=arguments.progress) as bar:
            engine = ResidentEngine(
                settings,
                engine_threads(),
                ffmpeg_loglevel=arguments.ffmpeg_loglevel,
                on_ffmpeg_line=bar.say,
                profile_memory=arguments.profile_memory,
                warm_up=False,
                partitions=(spec.task.runs_on,),
            )
            engine.load(bar)
            with stopping.gently():
                clip = engine.generate(spec, bar, stopping)
    print_result(clip_facts(spec, clip, warnings, engine.facts()), quiet=arguments.quiet)


@contextmanager
def scratch_folder(output: Path | None) -> Iterator[Path]:
    """A hidden folder beside the output, so that the finished clip can be renamed into place."""
    parent = Path.cwd() if output is None else output.absolute().parent
    if not parent.is_dir():
        raise invalid([Offence("output", f"{parent} is not a folder", "a folder that exists")])
    try:
        folder = Path(tempfile.mkdtemp(prefix=".h3runtime-", dir=parent))
    except OSError as error:
        raise unwritable(parent) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spec_of(arguments: argparse.Namespace, settings: Settings, scratch: Path) -> tuple[GenerateSpec, tuple[str, ...]]:
    """The judged request and its warnings. One InvalidRequest lists everything wrong with it."""
    given = {name: getattr(arguments, name) for name in FIELDS}
    raw = {name: value for name, value in given.items() if value is not None}
    raw |= {name: {"path": str(path)} for name in PICTURES if (path := getattr(arguments, name)) is not None}
    read = read_body(raw)
    faults = Faults(read.offences)
    source = MediaSource({}, Path.cwd(), settings.max_upload_bytes, is_own=True)
    inputs = verify_inputs(open_inputs(read.body, Intake(source, scratch / "inputs"), None, faults), faults)
    judged = judge_clip(read, inputs, settings.max_area, settings.max_frames)
    faults.offences += judged.verdict.offences
    encode = encode_settings(arguments, faults.offences)
    faults.raise_any()
    spec = _spec(arguments, read, judged, encode, raw, scratch)
    for path in sorted(outputs_of(spec)):
        refuse_taken(path, overwrite=spec.overwrite)
    return spec, tuple(judged.verdict.warnings)


def _spec(
    arguments: argparse.Namespace,
    read: ReadBody,
    judged: Judged,
    encode: EncodeSettings,
    raw: dict[str, Any],
    scratch: Path,
) -> GenerateSpec:
    sampling, resolved = sampling_of(read.body), judged.resolved
    output = arguments.output or Path(f"h3-{sampling.seed}.mp4")
    return GenerateSpec(
        job_id="command-line",
        task=resolved.task,
        prompt=judged.prompt,
        width=resolved.size.width,
        height=resolved.size.height,
        frames=resolved.frames,
        sampling=sampling,
        output=output_path(output, overwrite=arguments.overwrite),
        scratch=scratch,
        guides=judged.guides,
        encode=encode,
        overwrite=arguments.overwrite,
        save_latents=arguments.save_latents,
        diagnostics=arguments.diagnostics,
        request={name: value for name, value in raw.items() if name not in PICTURES} | {"seed": str(sampling.seed)},
    )
