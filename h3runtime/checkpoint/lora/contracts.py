"""What the published few-step adapters were trained for: forwards, shifts, sampler, task, alpha; as data with sources.

A distilled adapter run with other steps or another shift gives a quietly worse clip, so a request that names one is
held to it. An adapter is recognised by what its metadata says; by its shape where one publication has that shape to
itself; or by the published name (of the file, or in its metadata) together with the shape of that publication: a name
alone is nothing, and Turbo's versions share one shape. Read by `engine.adapters`; enforced at admission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from h3runtime.checkpoint.lora.layout import PDD_BLOCK, PDD_STEPS, has_blocks_alone, is_fasth3, is_pdd
from h3runtime.checkpoint.lora.scales import common_rank
from h3runtime.checkpoint.lora.stored import StoredAdapter
from h3runtime.core import AdapterContract

FL2VA_TASKS: Final = ("t2va", "i2va", "l2va", "fl2va")
REF2VA_TASKS: Final = ("ref2va",)
EULER: Final = ("euler",)
EVEN: Final = ("simple", "linear")
"""Schedulers that visit S_s((N - i) / N) (dit-contract §5.1, §7.2)."""
MODELTC: Final = "ModelTC/Minimax-H3-Turbo; vllm-project/vllm-omni#7062"


@dataclass(frozen=True, slots=True)
class Published:
    """name: pattern of the published file's name, whatever stands around it. shift: of the picture; two where its
    publishers name two. alpha: at `rank`; None where no source has it."""

    name: str
    steps: tuple[int, ...]
    shift: tuple[float, ...]
    tasks: tuple[str, ...]
    alpha: float | None
    source: str = MODELTC
    rank: int = 128

    def contract(self, told_by: str, rank: int) -> AdapterContract:
        """rank: of the file. With another it was made anew of the published one, and nobody says by which alpha."""
        return AdapterContract(
            name=self.name.replace("\\", ""),
            told_by=told_by,
            source=self.source,
            steps=self.steps,
            shift=self.shift,
            audio_shift=(3.0,),
            samplers=EULER,
            schedulers=EVEN,
            tasks=self.tasks,
            alpha=self.alpha if rank == self.rank else None,
        )


TURBO: Final = (
    Published(r"fl2v_turbo_4step_v0\.1", (4,), (12.0,), FL2VA_TASKS, 8.0, "ModelTC/Minimax-H3-Turbo; sglang#34359"),
    Published(r"fl2v_turbo_4step_v1\.0_768p", (4,), (6.0,), FL2VA_TASKS, 128.0),
    Published(r"fl2v_turbo_4step_v1\.1_768p", (4,), (6.0,), FL2VA_TASKS, 128.0),
    Published(r"fl2v_turbo_4step_v1\.2_768p", (4,), (6.0,), FL2VA_TASKS, 8.0),
    Published(r"fl2v_turbo_8step_v1\.0_768p", (8,), (6.0,), FL2VA_TASKS, 8.0),
    Published(r"fl2v_turbo_8step_v1\.0", (8, 4), (12.0,), FL2VA_TASKS, 8.0),
    Published(r"ref2v_turbo_4step_v0\.1", (4,), (12.0,), REF2VA_TASKS, 8.0),
    Published(
        r"ref2v_turbo_8step_v1\.0_768p",
        (8,),
        (6.0, 12.0),
        REF2VA_TASKS,
        None,
        "ModelTC/Minimax-H3-Turbo#15; lightx2v/Minimax-h3-Turbo#51",
    ),
    Published(r"h3_nano_turbo_4step", (4,), (12.0,), FL2VA_TASKS, 48.0, "h3runtime.nano.training.turbo", rank=48),
)
"""LightX2V's (dit-contract §7.2), and what the package distils from the embedded model in the same layout
by the same rule. The longer of two names that begin alike stands first. Of `ref2v_turbo_8step_v1.0_768p` one thread of
its publishers says shift 6, another 12."""

LARRYVRH: Final = AdapterContract(
    name="MiniMax-H3-Turbo-Lora",
    told_by="its shape",
    source="larryvrh/MiniMax-H3-Turbo-Lora; dit-contract §7.2",
    steps=(4, 5, 6, 7, 8),
    shift=(12.0,),
    audio_shift=(3.0,),
    samplers=EULER,
    schedulers=EVEN,
    tasks=FL2VA_TASKS,
    alpha=64.0,
)
LARRYVRH_PAIRS, LARRYVRH_RANK, LARRYVRH_WIDTH = 259, 64, 2688
"""50 blocks of five, two refiner blocks of four, the final AdaLN, of the full one's width (checkpoint-formats §6)."""

FASTH3: Final = AdapterContract(
    name="FastH3 Preview v1",
    told_by="its metadata",
    source="FastVideo/FastVideo-FastH3-4-step-Preview-v1-LoRA; vllm-project/vllm-omni#6714; sgl-project/sglang#37139",
    steps=(4,),
    shift=(12.0,),
    audio_shift=(3.0,),
    samplers=EULER,
    schedulers=EVEN,
    tasks=("t2va",),
)
PDD: Final = AdapterContract(
    name="MiniMax-H3-Acc-LoRAs (PDD)",
    told_by="its metadata",
    source="alibaba-pai/MiniMax-H3-Acc-LoRAs; arXiv 2607.26004; Comfy-Org/ComfyUI#15908",
    shift=(12.0,),
    audio_shift=(3.0,),
    samplers=EULER,
    advised=EVEN,
)
"""A head is a mean velocity over its stretch, which is what an Euler step takes; a multistep one would mix it with the
last stretch's. Heads are mixed for any step, but whole ones are only met on even steps (dit-contract §4.7)."""
PDD_DEFAULTS: Final = (32, 4)
"""Intervals and how many of them a step decodes, where the metadata is gone and a bank is there."""


def contract_of(stored: StoredAdapter, name: str) -> AdapterContract | None:
    """name: of the file, without its suffix. None for what is no published few-step adapter."""
    if is_fasth3(stored):
        return FASTH3
    if is_pdd(stored):
        return replace(PDD, steps=_pdd_steps(stored))
    if has_blocks_alone(stored):
        return next(_turbo(stored, name), None)
    return LARRYVRH if _is_larryvrh(stored) else None


def _turbo(stored: StoredAdapter, name: str) -> Iterator[AdapterContract]:
    rank = common_rank(stored)
    for published in TURBO:
        if any(re.search(published.name, value) for value in stored.metadata.values()):
            yield published.contract("its metadata and its shape", rank)
        elif re.search(published.name, name):
            yield published.contract("its published name and its shape", rank)


def _pdd_steps(stored: StoredAdapter) -> tuple[int, ...]:
    """As many as the release decodes whole blocks in, and half as many of twice the block, which the method allows."""
    steps, block = (
        int(text) if (text := stored.metadata.get(key, "")).isdecimal() and int(text) > 0 else usual
        for key, usual in zip((PDD_STEPS, PDD_BLOCK), PDD_DEFAULTS, strict=True)
    )
    released = max(1, steps // block)
    return (released, released // 2) if released % 2 == 0 else (released,)


def _is_larryvrh(stored: StoredAdapter) -> bool:
    adaln = stored.pairs.get("final_layer.adaln_proj.linear")
    return (
        adaln is not None
        and not stored.prefix
        and (len(stored.pairs), common_rank(stored)) == (LARRYVRH_PAIRS, LARRYVRH_RANK)
        and adaln.down.shape[1] == LARRYVRH_WIDTH
    )
