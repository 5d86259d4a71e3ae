"""alpha / rank of every pair: what an adapter is multiplied with at strength 1.

    a layer's own `.alpha`      alpha_l / r_l
    metadata, PEFT's            lora_alpha / r, or / sqrt(r), by its patterns
    metadata, an alpha          alpha / r where the file tells its rank, else alpha / r_l; a fused q, k, v of three
                                times the rank counts as three of that rank
    metadata, baked_scale       1, and so is FastVideo's `W_base + lora_B @ lora_A`
    the request                 alpha / R for all layers that have none of their own

R is the rank that most layers have, the one that `/ready` tells. Nothing is ever guessed: where neither the file nor
the request has an alpha there is no scale, since files without one were trained with 8 and with 128 at the same rank,
and the wrong one is 16 times too strong (checkpoint-formats §6, G15).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from h3runtime.checkpoint.lora.stored import StoredAdapter, StoredPair

PEFT_KEY: Final = "lora_adapter_metadata"
"""Metadata entry in which Diffusers keeps PEFT's configuration, as JSON with the component's name before each key."""
ALPHA_KEYS: Final = ("alpha", "lora_alpha", "training_alpha", "network_alpha")
RANK_KEYS: Final = ("lora_rank", "rank")
BAKED: Final = "baked_scale"
FASTVIDEO: Final = ("format", "fastvideo-lora-v2")
"""Its metadata states the sum without any factor."""
SAME: Final = 1e-6
FUSED: Final = "qkv_proj"


@dataclass(frozen=True, slots=True)
class Scales:
    """rank: R. alpha: of that rank, None where layers differ or none is known. ratio: alpha / rank of all pairs, None
    where they differ. by_layer: of each pair. missing: pairs without any."""

    rank: int
    alpha: float | None
    ratio: float | None
    by_layer: Mapping[str, float]
    missing: tuple[str, ...] = ()


def scales_of(stored: StoredAdapter, explicit: float | None = None) -> Scales:
    """explicit: the request's alpha, for the pairs that the file has none for."""
    rank = common_rank(stored)
    told = _told(stored, rank)
    found: dict[str, float] = {}
    for layer in stored.pairs:
        ratio = told.get(layer)
        if ratio is None and explicit is not None:
            ratio = explicit / rank
        if ratio is not None:
            found[layer] = ratio
    missing = tuple(layer for layer in stored.pairs if layer not in found)
    ratio = _uniform(found) if not missing else None
    return Scales(rank, None if ratio is None or not rank else ratio * rank, ratio, found, missing)


def common_rank(stored: StoredAdapter) -> int:
    """The rank of most pairs, the smaller of two that are as common; 0 without pairs."""
    counted = Counter(pair.rank for pair in stored.pairs.values())
    return min(counted, key=lambda rank: (-counted[rank], rank)) if counted else 0


def _told(stored: StoredAdapter, rank: int) -> dict[str, float]:
    """What the file says, by layer."""
    file_wide = _file_wide(stored, rank)
    return file_wide | {layer: pair.alpha / pair.rank for layer, pair in stored.pairs.items() if pair.alpha is not None}


def _file_wide(stored: StoredAdapter, rank: int) -> dict[str, float]:
    metadata = stored.metadata
    if metadata.get(FASTVIDEO[0]) == FASTVIDEO[1] or _number(metadata.get(BAKED)) is not None:
        return dict.fromkeys(stored.pairs, 1.0)
    if PEFT_KEY in metadata:
        return _peft(stored)
    alpha = next((a for key in ALPHA_KEYS if (a := _number(metadata.get(key))) is not None), None)
    if alpha is None:
        return {}
    told = next((r for key in RANK_KEYS if (r := _number(metadata.get(key))) is not None), None)
    return {layer: alpha / (told or _own_rank(pair, rank)) for layer, pair in stored.pairs.items()}


def _own_rank(pair: StoredPair, rank: int) -> int:
    return rank if pair.rank == 3 * rank and pair.layer.endswith(FUSED) else pair.rank


def _peft(stored: StoredAdapter) -> dict[str, float]:
    """Nothing for a configuration that can't be read: then an alpha has to be named."""
    config = _peft_config(stored.metadata)
    if config is None:
        return {}
    found = {}
    for layer, pair in stored.pairs.items():
        alpha = _number(_patterned(config.get("alpha_pattern"), layer, config.get("lora_alpha")))
        rank = _number(_patterned(config.get("rank_pattern"), layer, config.get("r"))) or pair.rank
        if alpha is not None:
            found[layer] = alpha / (math.sqrt(rank) if config.get("use_rslora") is True else rank)
    return found


def _peft_config(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        table = json.loads(metadata[PEFT_KEY])
    except (ValueError, RecursionError):
        return None
    if not isinstance(table, dict):
        return None
    return {key.removeprefix("transformer_ref.").removeprefix("transformer."): value for key, value in table.items()}


def _patterned(patterns: Any, layer: str, otherwise: Any) -> Any:
    """PEFT's rule: a pattern is the end of a layer's name; one that begins with ^ is all of it."""
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        try:
            matches = re.match(pattern if pattern.startswith("^") else rf"(.*\.)?({pattern})$", layer)
        except re.error:
            continue
        if matches:
            return value
    return otherwise


def _number(value: Any) -> float | None:
    """A positive number, or a text of one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if 0 < found < math.inf else None


def _uniform(found: Mapping[str, float]) -> float | None:
    values = list(found.values())
    same = bool(values) and all(math.isclose(value, values[0], rel_tol=SAME) for value in values)
    return values[0] if same else None
