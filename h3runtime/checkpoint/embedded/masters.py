"""The masters: four small safetensors files and a tokenizer in the package, read whole and known by their SHA-256.

    transformer     BF16, pruned; patch projections, heads F16 or F32; `rope.inv_freq`, `adaln_t_table` F32
    text_encoder    BF16; `model.embed_tokens.weight` [rows, hidden] has the rows of a small vocabulary alone, and the
                    integers `token_ids` [rows] say which rows of the published table [151936, hidden] they are
    video_vae       F16; statistics F16 or F32          audio_vae    F16 or F32
    upscaler        F16, if one was trained: a latent upscaler, kept beside the rest, of which no set is made

Names are ComfyUI's (checkpoint-formats §2.3, §5). What leaves here are the published files' own tensors: the table is
full, zeros where no token is. Written by `adopting`; read by `deriving`. They are data of the package, found by path.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from h3runtime.checkpoint.embedded.listing import REMEDY, Listing
from h3runtime.checkpoint.families import Component
from h3runtime.checkpoint.header import FILE, HeaderError, header_length, parse_header
from h3runtime.checkpoint.tensor_file import checkpoint_error, reason
from h3runtime.errors import Offence

COMPONENTS: tuple[Component, ...] = ("transformer", "text_encoder", "video_vae", "audio_vae")
UPSCALER = "upscaler.safetensors"
TOKENIZER = "tokenizer"
TOKENIZER_FILES = ("merges.txt", "tokenizer_config.json", "vocab.json")
TABLE, TOKEN_IDS = "model.embed_tokens.weight", "token_ids"
VOCABULARY = 151_936
"""Rows of a published embedding table (conditioning contract §1.1)."""

Weights = dict[str, torch.Tensor]


def file_name(component: Component) -> str:
    return f"{component}.safetensors"


def paths(folder: Path) -> tuple[str, ...]:
    """Of everything that belongs into `folder`, relative to it; of the upscaler only if it is there."""
    upscaler = [UPSCALER] if (folder / UPSCALER).is_file() else []
    tokenizer = (f"{TOKENIZER}/{name}" for name in TOKENIZER_FILES)
    return (*(file_name(component) for component in COMPONENTS), *upscaler, *tokenizer)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 by path of what is in `folder` now. CheckpointError if some of it isn't there."""
    return {name: hashlib.sha256(_content(folder / name)).hexdigest() for name in paths(folder)}


def parsed(path: Path) -> Weights:
    """All tensors of a file, whichever it is. CheckpointError if it isn't there or can't be understood."""
    return _parsed(path, _content(path))


def read_weights(component: Component, listing: Listing) -> Weights:
    """The component's tensors in their stored dtypes, as its published file names and shapes them.

    CheckpointError for a master that isn't the listed one or can't be understood.
    """
    path = listing.folder / file_name(component)
    weights = _parsed(path, read_known(listing, path.name))
    return _with_full_table(path, weights) if component == "text_encoder" else weights


def read_known(listing: Listing, name: str) -> bytes:
    """Bytes of the listed file `name`; CheckpointError if they are others."""
    content = _content(listing.folder / name)
    found, listed = hashlib.sha256(content).hexdigest(), listing.masters.get(name)
    if found != listed:
        told = f"is damaged or another file: SHA-256 is {found}, but the package lists {listed}"
        raise checkpoint_error(listing.folder / name, [Offence(FILE, told, REMEDY)])
    return content


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be read: {reason(error)}", REMEDY)]) from None


def _parsed(path: Path, content: bytes) -> Weights:
    try:
        start = 8 + header_length(content[:8], len(content))
        header = parse_header(content[8:start], len(content))
    except HeaderError as fault:
        raise checkpoint_error(path, fault.offences) from None
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:]
    return {n: data[e.start : e.stop].clone().view(e.dtype).reshape(e.shape) for n, e in header.entries.items()}


def _with_full_table(path: Path, weights: Weights) -> Weights:
    """`TABLE` with the published number of rows, without `TOKEN_IDS`."""
    rows, ids = weights.get(TABLE), weights.get(TOKEN_IDS)
    if rows is None or ids is None or ids.is_floating_point() or ids.shape != rows.shape[:1]:
        raise checkpoint_error(path, [Offence(TOKEN_IDS, f"doesn't name the rows of {TABLE}")])
    ids = ids.long()
    if len(set(ids.tolist())) < len(ids) or not bool(((ids >= 0) & (ids < VOCABULARY)).all()):
        raise checkpoint_error(path, [Offence(TOKEN_IDS, "has ids twice or outside the table", f"0..{VOCABULARY - 1}")])
    table = rows.new_zeros(VOCABULARY, rows.shape[1])
    table[ids] = rows
    return {**{name: tensor for name, tensor in weights.items() if name != TOKEN_IDS}, TABLE: table}
