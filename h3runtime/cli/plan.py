"""`h3runtime plan`: what checkpoints would take of a machine's memory, and what it could make with them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from h3runtime.cli.report import print_result
from h3runtime.cli.stopping import Stopping
from h3runtime.cli.synth import FORMATS, PARTITIONS
from h3runtime.core import CHUNK_FRAMES, MIN_FRAMES, MIN_SIDE, SIDE_MULTIPLE
from h3runtime.errors import Offence, invalid
from h3runtime.settings import ATTENTION_ONLY, Settings, add_flags, resolve

if TYPE_CHECKING:
    from h3runtime.checkpoint.synthetic.published import SetFormat
    from h3runtime.engine.planning import Plan

READ = ATTENTION_ONLY | {
    "model_path",
    "ref2va_model_path",
    "text_encoder_path",
    "video_vae_path",
    "audio_vae_path",
    "tokenizer_path",
    "qkv_order",
    "linear",
    "fused",
    "nvfp4_scale_backend",
    "nvfp4_modulate_fusion",
    "nvfp4_swiglu_fusion",
    "nvfp4_fc2_lt_splitk1",
    "mlp_chunks",
    "vae_dtype",
    "vae_linear",
    "vae_tile_size",
    "vae_tile_force",
    "max_frames",
    "system_reserve_bytes",
    "cuda_graphs",
    "cuda_graph_bytes",
    "lora_dir",
    "lora_cache_bytes",
}
"""Settings that decide what is held and what a request takes."""
VIDEO_VAES = ("fp16", "int8_convrot")
DEFAULT_FORMAT: Final = "nvfp4"
DEFAULT_PARTITION: Final = "both"
DESCRIPTION = """\
Say what checkpoints would take of a machine's memory, component by component, which H3_RESIDENCY it allows, and the
longest clip on each canvas: by headers and the arithmetic of loading and admission, so that neither the machine nor the
weights need be there. Without named files (H3_MODEL_PATH, ...) it is about the published ones. Exit code 1 if a server
would refuse to start with them there."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan", help="tell what checkpoints would take of a machine's memory", description=DESCRIPTION
    )
    parser.add_argument(
        "--device",
        dest="machine",
        default="here",
        metavar="NAME",
        help="gb10 (spark), rtx-pro-6000 (96gb), 5090 (32gb), h200, or here, this machine as it is. Default: here.",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help=f"Of the published set, as of synth. Default: {DEFAULT_FORMAT}."
    )
    parser.add_argument(
        "--partition", choices=PARTITIONS, help=f"Its transformers. Default: {DEFAULT_PARTITION} for one server."
    )
    parser.add_argument("--unpruned", action="store_true", help="Its transformers with full AdaLN.")
    parser.add_argument("--video-vae", choices=VIDEO_VAES, help=f"Its video VAE. Default: {VIDEO_VAES[0]}.")
    parser.add_argument(
        "--size", action="append", metavar="WxHxFRAMES", help="A clip to judge, in place of the usual ones; repeatable."
    )
    parser.add_argument("--json", action="store_true", help="One JSON object on stdout.")
    add_flags(parser.add_argument_group("settings"), frozenset(Settings.model_fields) - READ, frozenset({"device"}))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    shapes = [_shape(text) for text in arguments.size or ()]
    with Stopping() as stopping:
        with stopping.loading():
            from h3runtime.cli.planning.document import document
            from h3runtime.cli.planning.text import text
        found = planned(settings, arguments, shapes)
        if arguments.json:
            print_result(document(found), quiet=False)
        else:
            print(text(found), flush=True)
    return 0 if found.chosen else 1


def planned(settings: Settings, arguments: argparse.Namespace, shapes: list[tuple[int, int, int]]) -> Plan:
    """Of the named files, else of the published set that the arguments tell."""
    from h3runtime.engine.places import place_named
    from h3runtime.engine.planned_set import named_parts, names_files, published_parts, vae_linear_of
    from h3runtime.engine.planning import plan
    from h3runtime.engine.resident import COMPUTE_DTYPE

    place, vae_linear = place_named(arguments.machine, settings), vae_linear_of(settings)
    if names_files(settings):
        _require_no_set(arguments)
        return plan(named_parts(settings, COMPUTE_DTYPE, vae_linear), place, settings, shapes)
    kind: SetFormat = arguments.format if arguments.format is not None else DEFAULT_FORMAT
    parts = published_parts(
        kind,
        PARTITIONS[arguments.partition or DEFAULT_PARTITION],
        settings,
        COMPUTE_DTYPE,
        vae_linear,
        pruned=not arguments.unpruned,
        video_vae=arguments.video_vae or VIDEO_VAES[0],
    )
    return plan(parts, place, settings, shapes)


def _require_no_set(arguments: argparse.Namespace) -> None:
    """InvalidRequest for words about published files beside named ones."""
    given = {"--format": arguments.format, "--partition": arguments.partition, "--video-vae": arguments.video_vae}
    given |= {"--unpruned": arguments.unpruned or None}
    told = "is about published files, and others are named by settings"
    if offences := [Offence(flag, told, "one of both") for flag, value in given.items() if value is not None]:
        raise invalid(offences)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        width, height, frames = (int(number) for number in text.split("x"))
    except ValueError:
        width = height = frames = 0
    sides = min(width, height) >= MIN_SIDE and width % SIDE_MULTIPLE == 0 and height % SIDE_MULTIPLE == 0
    if not sides or frames < MIN_FRAMES or frames % CHUNK_FRAMES != MIN_FRAMES:
        legal = "WIDTHxHEIGHTxFRAMES; sides multiples of 32 from 64, frames 17n+5"
        raise invalid([Offence("size", f"{text} is no shape", legal)])
    return width, height, frames
