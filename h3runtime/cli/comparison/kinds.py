"""What an input of `compare` is: a clip or sound, a folder of frames, saved latents, the latents of every step.

A folder is frames, a `.safetensors` file is latents or steps by the names of its tensors, any other file is a clip.
Reads at most the header of a file.
"""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from h3runtime.cli.comparison.found import Kind
from h3runtime.errors import CheckpointError, Offence, invalid

STEP = re.compile(r"step(\d+)\.(x|denoised)")
"""Names of the tensors that `diagnostics: {"latents": true}` leaves."""
LEGAL = "a clip, a sound, a folder of frames, a .latents.safetensors or a .steps.safetensors file"
NAMES = {
    "clips": "a clip",
    "frames": "a folder of frames",
    "latents": "saved latents",
    "steps": "the latents of steps",
}


def kind_of_both(a: Path, b: Path) -> Kind:
    """InvalidRequest if one is missing or they are of different kinds; CheckpointError for another safetensors file."""
    missing = [
        Offence(field, f"there is no {path}", LEGAL) for field, path in (("a", a), ("b", b)) if not _is_there(path)
    ]
    if missing:
        raise invalid(missing)
    first, second = kind_of(a, "a"), kind_of(b, "b")
    if first != second:
        told = f"{a} is {NAMES[first]} and {b} is {NAMES[second]}"
        raise invalid([Offence("b", told, "two inputs of one kind")])
    return first


def kind_of(path: Path, field: str) -> Kind:
    if path.is_dir():
        return "frames"
    if path.suffix != ".safetensors":
        return "clips"
    names = tensor_names(path, field)
    if names and all(STEP.fullmatch(name) for name in names):
        return "steps"
    if missing := {"video", "audio"} - names:
        offences = [Offence(f"{field}.{name}", f"tensor {name} is missing", LEGAL) for name in sorted(missing)]
        told = "; ".join(o.message for o in offences)
        raise CheckpointError(f"{field}: {path} holds neither latents nor steps: {told}", offences)
    return "latents"


def tensor_names(path: Path, field: str) -> frozenset[str]:
    """CheckpointError naming `field` if the header is no safetensors header."""
    try:
        with safe_open(path, "np") as file:
            return frozenset(file.keys())
    except (OSError, SafetensorError) as error:
        raise unreadable(path, field, error) from error


def unreadable(path: Path, field: str, error: Exception) -> CheckpointError:
    why = f"{path} can't be read: {error}"
    return CheckpointError(f"{field}: {why}", [Offence(field, why, "a whole safetensors file")])


def _is_there(path: Path) -> bool:
    """A pipe or a device is not: it can't be read twice."""
    return path.is_file() or path.is_dir()
