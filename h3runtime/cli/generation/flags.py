"""The flags of `generate` that say what to make, and the request that they mean.

Each becomes a field of `POST /generate` under the same name; nothing is judged here but the form of a flag. Files are
named from the current folder and go into the request by their whole path. Fed by the command line; `entries` puts them
under the requests of a file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from h3runtime.cli.generation.file_kinds import kind_of
from h3runtime.cli.options import ENCODER, format_of
from h3runtime.settings import flag

FIELDS = {
    "prompt": (str, "What happens in the clip, and what is heard."),
    "task": (str, "t2va, i2va, l2va, fl2va or ref2va. Default: what the inputs say."),
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
    "quality": (str, "exact, or high, medium or low with evidence: chooses attention, linear and reuse."),
    "cache_mode": (str, "Make some steps from earlier ones: easycache, h3_cache or first_block. Default: none."),
    "cache_threshold": (
        float,
        "Change of the model's answer below which a step is reused, 0..3; 0 reuses none. Default: the mode's.",
    ),
    "cache_start_percent": (float, "Share of the run, 0..1, before which every step is computed. Default: 0.15."),
    "cache_end_percent": (float, "Share of the run from which on every step is computed. Default: 0.95."),
    "cache_subsample_factor": (int, "Each how many-th latent or row is compared. Default: 8."),
    "cache_forecast": (str, "What a reused step is made of: taylor, hold or delta. Default: taylor."),
}
"""Request field -> type of its flag, help. Defaults are the request's."""
MEDIA = {
    "first_frame": ("PICTURE", "The first frame."),
    "last_frame": ("PICTURE", "The last frame."),
    "continue_from": ("CLIP", "Its last 22 frames and their sound are where this clip begins."),
    "source": ("CLIP", "A clip to edit; see --mask."),
    "mask": ("FILE", "A picture or clip: where it is white, --source is made anew, where it is black it stays."),
}
"""Field (`mask` is `masks.video`) -> what it takes, help."""
REFINE = {
    "refine": (float, "SCALE", "A second pass on a canvas of 1.5 to 2 times the sides. The sound is the first pass's."),
    "refine_steps": (int, "VALUE", "Evaluations of the model in the second pass. Default: 3."),
    "refine_denoise": (float, "VALUE", "How much of the picture the second pass makes anew, 0.001..1. Default: 0.1."),
}
"""Flag of `refine` (its scale, else the part after the underscore) -> type, what it takes, help."""
OWN_TURBO = "h3_nano_turbo_4step"
"""The embedded model's own adapter (`nano.training.turbo.schedule.NAME`, which would take torch along)."""
SWITCHES = ("save_latents", "diagnostics", "overwrite")


class KeyframeFlag(NamedTuple):
    frame: int
    file: Path


class LoraFlag(NamedTuple):
    name: str
    strength: float | None = None
    alpha: float | None = None


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    for name, (kind, help_text) in FIELDS.items():
        parser.add_argument(flag(name), type=kind, metavar="VALUE", help=help_text)
    parser.add_argument(
        "-n",
        "--variants",
        dest="n",
        type=int,
        metavar="N",
        help="Clips to make of the same conditions, with seeds from --seed on: OUT-0.mp4, OUT-1.mp4... Default: 1.",
    )
    for name, (metavar, help_text) in MEDIA.items():
        parser.add_argument(flag(name), type=Path, metavar=metavar, help=help_text)
    parser.add_argument(
        "--keyframe",
        dest="keyframes",
        type=_keyframe,
        action="append",
        metavar="FRAME=FILE",
        help="A picture, clip or sound at this frame; --keyframe=-1=FILE is the last one. May be given again.",
    )
    parser.add_argument(
        "--reference",
        dest="references",
        type=Path,
        action="append",
        metavar="FILE",
        help="A picture, clip or voice to take after: <Picture 1>, <Video 1>, <Audio 1> of the prompt, each kind "
        "numbered in the order given. May be given again.",
    )
    add_lora_flag(parser)
    add_refine_flags(parser)
    parser.add_argument("--save-latents", action="store_true", help="Also write OUT.mp4.latents.safetensors.")
    parser.add_argument("--diagnostics", action="store_true", help="Step times, hashes and inputs in the JSON.")


def add_lora_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lora",
        dest="loras",
        type=_lora,
        action="append",
        metavar="NAME[:STRENGTH][/ALPHA]",
        help="An adapter by its name, which is its file's in H3_LORA_DIR without .safetensors; the embedded model has "
        f"one of its own, {OWN_TURBO}, for four forwards. ALPHA is for a file that has none. May be given again.",
    )


def add_refine_flags(parser: argparse.ArgumentParser) -> None:
    for name, (number, metavar, help_text) in REFINE.items():
        parser.add_argument(flag(name), type=number, metavar=metavar, help=help_text)


def blank() -> dict[str, Any]:
    """Every flag of `add_request_flags` as if it weren't given: for commands that make a clip without them."""
    names = [*FIELDS, "n", *MEDIA, "keyframes", "references", "loras", *REFINE, *SWITCHES, *ENCODER]
    return dict.fromkeys(names)


def request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The raw request that the given flags mean; what isn't given isn't in it."""
    given = {name: getattr(arguments, name) for name in (*FIELDS, "n", *SWITCHES, *MEDIA)}
    raw = {name: _value(value) for name, value in given.items() if value is not None and value is not False}
    if "mask" in raw:
        raw["masks"] = {"video": raw.pop("mask")}
    if arguments.keyframes:
        raw["keyframes"] = [_as_keyframe(item) for item in arguments.keyframes]
    if arguments.references:
        raw["references"] = [
            {"type": kind_of(file) or "image", "source": _value(file)} for file in arguments.references
        ]
    if arguments.loras:
        raw["loras"] = [_as_lora(item) for item in arguments.loras]
    if refine := {_part_of(name): value for name in REFINE if (value := getattr(arguments, name)) is not None}:
        raw["refine"] = refine
    if form := format_of(arguments, getattr(arguments, "output", None)):
        raw["format"] = form
    return raw


def _part_of(name: str) -> str:
    return name.partition("_")[2] or "scale"


def _value(value: Any) -> Any:
    return {"path": str(value.absolute())} if isinstance(value, Path) else value


def _as_keyframe(item: KeyframeFlag) -> dict[str, Any]:
    """A file of no kind is judged as a picture, and refused as one."""
    name = {"video": "video", "audio": "audio"}.get(kind_of(item.file) or "", "image")
    return {"frame": item.frame, name: _value(item.file)}


def _as_lora(item: LoraFlag) -> dict[str, Any]:
    given = {"strength": item.strength, "alpha": item.alpha}
    return {"name": item.name} | {name: value for name, value in given.items() if value is not None}


def lora_of(text: str) -> dict[str, Any]:
    """An entry of a request's `loras`, as `--lora` writes it."""
    return _as_lora(_lora(text))


def _lora(text: str) -> LoraFlag:
    """NAME[:STRENGTH][/ALPHA]. What follows the last colon is a strength if it is a number; a name may have colons of
    its own, but no slash, being a file's."""
    named, slash, behind = text.rpartition("/")
    alpha = _number(behind) if slash and named else None
    if alpha is not None:
        text = named
    name, colon, behind = text.rpartition(":")
    strength = _number(behind) if colon and name else None
    return LoraFlag(text if strength is None else name, strength, alpha)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _keyframe(text: str) -> KeyframeFlag:
    frame, _, file = text.partition("=")
    try:
        number = int(frame)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with a frame's number and =") from None
    if not file:
        raise argparse.ArgumentTypeError(f"{text!r} names no file")
    return KeyframeFlag(number, Path(file))
