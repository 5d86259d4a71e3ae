"""`h3runtime decode FILE`: saved latents to a clip, to its sound alone, to its frames as pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from h3runtime.cli.options import add_encoder_flags, add_run_flags, encode_settings, format_of, output_path
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result
from h3runtime.cli.stopping import Stopping
from h3runtime.errors import Offence, invalid
from h3runtime.media.formats import container_of, suffix_of
from h3runtime.observe.cores import engine_threads
from h3runtime.settings import ATTENTION_ONLY, SERVICE_ONLY, add_flags, resolve

SAMPLING_ONLY = ATTENTION_ONLY | frozenset(
    {
        "model_path",
        "ref2va_model_path",
        "text_encoder_path",
        "tokenizer_path",
        "qkv_order",
        "mlp_chunks",
        "residency",
        "prompt_cache_bytes",
        "max_area",
        "max_frames",
    }
)
"""Settings of what comes before the VAEs."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="make a clip (or sound, or frames) of saved latents",
        description="Decode latents that `save_latents` wrote. Writes a clip, unless told to write sound or frames.",
    )
    parser.add_argument("latents", type=Path, metavar="FILE", help="A .latents.safetensors file.")
    parser.add_argument(
        "--output", type=Path, metavar="OUT.mp4|mov|mkv|webm", help="The clip. Default: named after FILE."
    )
    parser.add_argument(
        "--audio-only", type=Path, metavar="OUT.wav|flac", help="Write the sound; a clip only with --output."
    )
    parser.add_argument(
        "--frames", type=Path, dest="frames_folder", metavar="DIR", help="Write PNG files; a clip only with --output."
    )
    add_encoder_flags(parser)
    add_run_flags(parser)
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY | SAMPLING_ONLY)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    alone = arguments.audio_only is not None or arguments.frames_folder is not None
    named = arguments.output if arguments.output is not None or alone else _named_after(arguments.latents)
    offences: list[Offence] = []
    encode = encode_settings(format_of(arguments, named), offences)
    if offences:
        raise invalid(offences)
    clip = named if arguments.output is not None or named is None else named.with_suffix(suffix_of(encode.container))
    output = None if clip is None else output_path(clip, encode.container, overwrite=arguments.overwrite)
    with Stopping() as stopping, ProgressBar(quiet=arguments.quiet, steps=arguments.progress) as bar:
        with stopping.loading():
            from h3runtime.engine.decode import DecodeJob, decode
        job = DecodeJob(
            latents=arguments.latents,
            clip=output,
            sound=_whole(arguments.audio_only),
            frames=_whole(arguments.frames_folder),
            encode=encode,
            overwrite=arguments.overwrite,
            ffmpeg_loglevel=arguments.ffmpeg_loglevel,
            on_ffmpeg_line=bar.say,
        )
        with stopping.gently():
            facts = decode(settings, job, bar, engine_threads(), stopping)
    print_result(facts, quiet=arguments.quiet)
    return 0


def _whole(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _named_after(latents: Path) -> Path:
    """`cat.webm.latents.safetensors` -> `cat.webm` in the current folder, `cat.safetensors` -> `cat.mp4`."""
    if not latents.name.endswith(".safetensors"):
        told = f"{latents} doesn't look like saved latents, so it names no clip"
        raise invalid([Offence("latents", told, "a .latents.safetensors file, or --output")])
    name = latents.name.removesuffix(".safetensors").removesuffix(".latents")
    return Path(name if container_of(Path(name).suffix) is not None else name + suffix_of("mp4"))
