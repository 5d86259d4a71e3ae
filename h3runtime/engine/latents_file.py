"""Final latents on disk: what `save_latents` writes and `h3runtime decode` reads.

    video  fp32 [1, 24, T, h, w], normalised
    audio  fp32 [1, 32, 2, A], normalised, the stream's own units
    metadata `request`: the request as JSON; `loras`: its adapters as they were applied, with their files' SHA-256

It is an ordinary safetensors file, so that any tool can open it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h3runtime.core import LATENTS_SUFFIX, AdapterUse, Latents
from h3runtime.errors import CheckpointError, Offence


def latents_path(output: Path) -> Path:
    """`cat.mp4` -> `cat.mp4.latents.safetensors`, beside it (service-contract, `save_latents`)."""
    return output.with_name(output.name + LATENTS_SUFFIX)


def write_latents(path: Path, latents: Latents, request: Mapping[str, Any], loras: Sequence[AdapterUse] = ()) -> None:
    """Written and synced; giving it its final name is the caller's. OSError where the disk says no."""
    tensors = {"video": latents.video.float().cpu().contiguous(), "audio": latents.audio.float().cpu().contiguous()}
    metadata = {"request": json.dumps(dict(request))}
    if loras:
        metadata["loras"] = json.dumps([asdict(use) for use in loras])
    write_tensors(path, tensors, metadata)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file like any other file of ours: readable as the umask has it, its faults OSError.

    The library makes it private to the user and reports a full disk as an error of the format.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_latents(path: Path) -> tuple[Latents, dict[str, Any]]:
    """The latents and the request they came from. CheckpointError names what is wrong with the file."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path.name} is no latents file: {error}") from error
    request, offences = _request(metadata), _offences(tensors)
    if request is None:
        offences.append(Offence("request", "its request is no JSON object"))
    if request is None or offences:
        raise CheckpointError(f"{path.name} is no latents file: " + "; ".join(o.message for o in offences), offences)
    return Latents(tensors["video"].float(), tensors["audio"].float()), request


def _request(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        request = json.loads(metadata.get("request", "{}"))
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _offences(tensors: Mapping[str, torch.Tensor]) -> list[Offence]:
    wanted = {"video": (5, "[1, 24, T, h, w]"), "audio": (4, "[1, 32, 2, A]")}
    found = []
    for name, (dimensions, legal) in wanted.items():
        if name not in tensors:
            found.append(Offence(name, f"tensor {name} is missing", legal))
        elif tensors[name].ndim != dimensions or tensors[name].shape[0] != 1:
            found.append(Offence(name, f"tensor {name} has shape {list(tensors[name].shape)}", legal))
        elif not torch.isfinite(tensors[name]).all():
            found.append(Offence(name, f"tensor {name} is not finite", "finite values"))
    if not found and tensors["audio"].shape[2] != 2:
        found.append(Offence("audio", f"{tensors['audio'].shape[2]} channels", "2 channels"))
    return found
