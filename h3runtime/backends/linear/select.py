"""The linear backends and the choice among them. Read by `engine`, which loads a transformer with the one chosen.

`auto` is exact: BF16 GEMM on weights that are decoded once, or at every call where memory is too short for that
(`spare_linear`). On a GPU that multiplies FP4 it is the row of the architecture's instead (`policy`), for transformers
that are stored as NVFP4 (`native_linear`). Which of these, `engine.load` knows once it has read the headers. Anything
else must be asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.fc2_schedule import Fc2Schedule
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.linear.int8 import Int8Linear
from h3runtime.backends.linear.nvfp4 import SMALLEST_CAPABILITY, Nvfp4Linear
from h3runtime.backends.linear.nvfp4_base import FORMAT, SCALE_SETTING, Nvfp4LinearBase
from h3runtime.backends.linear.nvfp4_cutlass import Nvfp4CutlassLinear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_lt import Nvfp4LtLinear
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.nvfp4_packing import ScaleBackend
from h3runtime.backends.linear.nvfp4_te import Nvfp4TeLinear
from h3runtime.backends.linear.resident import Fp32Linear, ResidentBf16Linear
from h3runtime.backends.policy import row_of
from h3runtime.backends.select import AUTO, choose, listing
from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, Offence
from h3runtime.settings import variable

EXPERIMENTAL = "experimental"


def linear_backends(options: Nvfp4Options | None = None) -> tuple[LinearBackend[Any], ...]:
    """All there are, the one that `auto` prefers first. options: what an operator says of the NVFP4 path."""
    told = options or Nvfp4Options()
    packer, fc2 = told.scale_backend, Fc2Schedule() if told.fc2_lt_splitk1 else None
    return (
        ResidentBf16Linear(),
        DequantLinear(),
        Fp32Linear(),
        Fp8Linear(),
        Int8Linear(),
        Nvfp4Linear(packer, fc2),
        Nvfp4LtLinear(packer, fc2),
        Nvfp4CutlassLinear(packer),
        Nvfp4TeLinear(packer),
        Nvfp4EmulatedLinear(packer),
    )


def choose_linear(
    name: str, device: torch.device, backends: Sequence[LinearBackend[Any]] | None = None
) -> tuple[LinearBackend[Any], str]:
    """The backend called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`.
    backends: those there are, all by default."""
    able = linear_backends() if backends is None else backends
    for asked in (backend for backend in able if backend.name == name):
        require_packer(asked, device)
    chosen, why = choose("linear", able, name, device)
    return chosen, why_auto(linear_facts(device)) if name == AUTO else why


def require_packer(linear: LinearBackend[Any], device: torch.device) -> None:
    """BackendUnavailable, naming the setting, where all that `linear` lacks on `device` is who packs."""
    why = linear.why_unpacked(linear_facts(device)) if isinstance(linear, Nvfp4LinearBase) else None
    if why is None or linear.why_unavailable(device) != why:
        return
    legal = ", ".join(get_args(ScaleBackend))
    told = f"{linear.name} can't pack its input here: {why} (legal: {legal})"
    raise BackendUnavailable(told, [Offence(variable(SCALE_SETTING), why, legal)])


def why_auto(facts: LinearFacts) -> str:
    """Why `auto` takes weights that are decoded once."""
    why = f"auto: BF16 GEMM on weights decoded once, the fastest exact way on {facts.kind}"
    if facts.bf16_units:
        return why
    return f"{why}; this CPU multiplies BF16 in software, so fp32 is faster, with sums in another order"


@dataclass(frozen=True, slots=True)
class NativeLinear:
    """What `auto` takes for transformers that are all stored as NVFP4. why: it is, or, where `backend` is None, why
    none is; "" where nothing is to be said. formats: of each transformer, how the layers that follow the choice are
    stored."""

    backend: LinearBackend[Any] | None = None
    why: str = ""

    def serves(self, formats: Collection[frozenset[str]]) -> bool:
        return self.backend is not None and _all_nvfp4(formats)

    def why_passed(self, formats: Collection[frozenset[str]]) -> str:
        """Why it isn't taken, where the architecture has one."""
        if self.backend is None:
            return self.why if _all_nvfp4(formats) else ""
        return "" if self.serves(formats) else f"{self.backend.name}: not all transformers are stored as {FORMAT}"


NO_NATIVE = NativeLinear()


def _all_nvfp4(formats: Collection[frozenset[str]]) -> bool:
    return bool(formats) and all(FORMAT in found for found in formats)


def native_linear(
    name: str, device: torch.device, backends: Sequence[LinearBackend[Any]] | None = None
) -> NativeLinear:
    """Of `auto` on that device. backends: as of `choose_linear`."""
    return native_by_facts(name, linear_facts(device), linear_backends() if backends is None else backends)


def native_by_facts(name: str, facts: LinearFacts, backends: Sequence[LinearBackend[Any]]) -> NativeLinear:
    """By the row of the architecture, and the words of its backends on those facts alone."""
    row, passed = row_of(facts.kind, facts.capability), list[str]()
    if name == AUTO and not row.nvfp4.value and facts.why_older_than(SMALLEST_CAPABILITY) is None:
        return NativeLinear(None, row.nvfp4.source)
    by_name: dict[str, Any] = {backend.name: backend for backend in backends}
    for backend in (by_name[wanted] for wanted in (row.nvfp4.value if name == AUTO else ()) if wanted in by_name):
        why_not = EXPERIMENTAL if backend.grade == EXPERIMENTAL else backend.why_not(facts)
        if why_not is None:
            told = f"auto: weights stored as {FORMAT} are multiplied as such on {row.told} ({row.nvfp4.source})"
            return NativeLinear(backend, "; ".join([told, *passed]))
        passed.append(f"{backend.name}: {why_not}")
    return NativeLinear(None, "; ".join(passed))


def vae_linear_backends() -> tuple[LinearBackend[Any], ...]:
    """Of the video decoder's blocks, in FP16 or FP32: as stored, which is what `auto` takes, or in 8 bits."""
    return (DequantLinear(), Fp8Linear(), Int8Linear())


def choose_vae_linear(name: str, device: torch.device) -> tuple[LinearBackend[Any], str]:
    """As `choose_linear`."""
    chosen, why = choose("vae_linear", vae_linear_backends(), name, device)
    return chosen, "auto: exact, weights as they are stored" if name == AUTO else why


def vae_linear_choice(chosen: LinearBackend[Any], why: str, device: torch.device) -> BackendChoice:
    """What `/ready` shows."""
    return listing(vae_linear_backends(), chosen.name, why, device)


def spare_linear(name: str) -> LinearBackend[Any] | None:
    """What takes the place of the one that `name` chose where its weights don't fit into memory; only of `auto`'s."""
    return DequantLinear() if name == AUTO else None


def linear_choice(chosen: LinearBackend[Any], why: str, device: torch.device) -> BackendChoice:
    """The family as it is before anything is loaded; `switching` tells what of it loaded weights serve."""
    return listing(linear_backends(), chosen.name, why, device)
