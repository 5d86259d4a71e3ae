"""What a training left -> the masters of the package, in fewer bytes: 20 MB have to hold all of it.

    text encoder   rows of the table that are zero are left out: the full table has zeros there anyhow
    transformer    patch projections and heads F32 -> F16 (11 bits of mantissa, three more than all other weights have);
                   `rope.inv_freq` and `adaln_t_table` are no weights and stay
    all else       as it is; a latent upscaler only if there is one

Run once after a training, by the command of this package; what is measured afterwards is measured on what it wrote.
"""

from __future__ import annotations

from pathlib import Path

import torch

from h3runtime.checkpoint.embedded.masters import TABLE, TOKEN_IDS, UPSCALER, Weights, file_name, parsed
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.writer import write_file, write_whole
from h3runtime.errors import Offence

NO_WEIGHTS = ("rope.inv_freq", "adaln_t_table")


def adopt(run: Path, folder: Path) -> None:
    """Replaces the masters in `folder`, whose tokenizer stays. CheckpointError for a run that lacks a part of them, or
    whose values F16 can't hold."""
    transformer, encoder = (file_name(component) for component in ("transformer", "text_encoder"))
    slim = {
        transformer: _halved(run / transformer, parsed(run / transformer)),
        encoder: _without_empty_rows(run / encoder, parsed(run / encoder)),
    }
    plain = [file_name(component) for component in ("video_vae", "audio_vae")]
    plain += [UPSCALER] if (run / UPSCALER).is_file() else []
    copies = {name: (run / name).read_bytes() for name in plain if parsed(run / name)}
    for name, weights in slim.items():
        write_file(folder / name, weights)
    for name, content in copies.items():
        write_whole(folder / name, content)


def _halved(path: Path, weights: Weights) -> Weights:
    found = {
        name: weight.half() if weight.dtype is torch.float32 and name not in NO_WEIGHTS else weight
        for name, weight in weights.items()
    }
    if offences := [Offence(n, "doesn't fit into F16") for n, w in found.items() if not bool(torch.isfinite(w).all())]:
        raise checkpoint_error(path, offences)
    return found


def _without_empty_rows(path: Path, weights: Weights) -> Weights:
    table, ids = weights.get(TABLE), weights.get(TOKEN_IDS)
    if table is None or ids is None or ids.shape != table.shape[:1]:
        raise checkpoint_error(path, [Offence(FILE, f"has no {TABLE} with {TOKEN_IDS}")])
    told = table.any(dim=1)
    return {**weights, TABLE: table[told], TOKEN_IDS: ids[told].int()}
