"""One known schedule of cuBLASLt for the MLP's second product, taken where everything is as it was known, else nothing.

    y [37810, 5376] = x [37810, 14336] w^T in NVFP4, on SM 12.1      algorithm 70, tile 20 (128x128), stages 37
                                                                     (256xAUTO), split-K 1, no workspace

performance.md, GB10: 8.2 % less time for a whole sampling at those rows; at neighbouring ones its results differ from
the usual product's by up to two BF16 elements, so that no other number of rows takes it. None of that was run by us.

`prepare`, as weights are loaded, makes the handle, the descriptors and the algorithm, and asks the library whether it
has that algorithm with that tile and those stages and runs it without a workspace (`cublaslt.Plan`). A request makes
none of these: `product` multiplies, or gives None, and the caller multiplies as usual. Each call of an FC2 is counted:
dispatched, or fallen back with the reason; nothing here is ever an error. One is held by
`nvfp4` and `nvfp4_lt` alike (`ScheduledLinear`); diagnostics read its counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.backends.linear.nvfp4_packing import ScaleBackend
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.slices import round_up
from h3runtime.quant.stored import Nvfp4Weight, StoredWeight

if TYPE_CHECKING:
    from h3_kernels.cublaslt import CublasLt, Plan

SETTING: Final = "H3_NVFP4_FC2_LT_SPLITK1"


@dataclass(frozen=True, slots=True)
class Known:
    """What the schedule is, and for what alone. versions: of cuBLAS, with why each is taken for one whose algorithms
    have these numbers."""

    m: int
    n: int
    k: int
    algorithm: int
    tile: int
    stages: int
    split_k: int
    workspace: int
    capability: tuple[int, int]
    versions: Mapping[int, str]


SPARK: Final = Known(
    m=37_810,
    n=5376,
    k=14_336,
    algorithm=70,
    tile=20,
    stages=37,
    split_k=1,
    workspace=0,
    capability=(12, 1),
    versions=MappingProxyType(
        {
            130400: "CUDA 13.2 Update 1, on which the image's base is built (pytorch:26.04-py3)",
            130401: "NVIDIA's patch of 13.4.0",
            130402: "NVIDIA's patch of 13.4.0",
            130403: "NVIDIA's patch of 13.4.0",
        }
    ),
)
"""performance.md, GB10. No version is told there: those of the image's base are taken, and the library must still say
that it has the algorithm."""


@dataclass(slots=True)
class Calls:
    """Of an FC2 since the start. fallbacks: by reason."""

    dispatches: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)

    def look(self) -> Calls:
        return Calls(self.dispatches, Counter(self.fallbacks))

    def since(self, before: Calls) -> Calls:
        return Calls(self.dispatches - before.dispatches, self.fallbacks - before.fallbacks)

    def add(self, more: Calls) -> None:
        """What a recorded forward calls without the host."""
        self.dispatches += more.dispatches
        self.fallbacks += more.fallbacks

    def put_back(self, before: Calls) -> None:
        self.dispatches, self.fallbacks = before.dispatches, Counter(before.fallbacks)

    def told(self) -> dict[str, Any]:
        """As diagnostics have it."""
        return {
            "dispatches": self.dispatches,
            "fallbacks": [{"why": why, "count": count} for why, count in self.fallbacks.items()],
        }


class Fc2Schedule:
    """known: the schedule. facts: of a device."""

    def __init__(self, known: Known = SPARK, facts: Callable[[torch.device], LinearFacts] = linear_facts) -> None:
        self.known, self.calls = known, Calls()
        self._facts = facts
        self._lt: CublasLt | None = None
        self._plan: Plan | None = None
        self._why_not = f"no loaded layer is {known.n} by {known.k}, or its weights were loaded for another backend"

    @property
    def why_not(self) -> str | None:
        """Why every call falls back; None where the schedule is ready."""
        return None if self._plan is not None else self._why_not

    @property
    def told(self) -> str:
        """What is ready, for people."""
        known = self.known
        schedule = f"algorithm {known.algorithm}, tile {known.tile}, stages {known.stages}, split-K {known.split_k}"
        return f"FC2 at {known.m} rows by cuBLASLt's {schedule}"

    def fail(self, why: str) -> None:
        """From now on every call falls back: it multiplies wrongly here."""
        self._plan, self._why_not = None, why

    def prepare(self, weight: Any, device: torch.device) -> None:
        """As a layer is loaded onto `device`; the first one that is an FC2 makes what there is to make."""
        if self._plan is None and self._lt is None and self._is_fc2(weight):
            self._why_not = self._prepared(device) or ""

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor | None:
        """[M, N] in `rows.dtype`, or None: multiply as usual. Counts whatever is an FC2."""
        if not self._is_fc2(weight):
            return None
        why_not = self._why_not if self._plan is None else self._why_unlike(rows, weight)
        if why_not:
            self.calls.fallbacks[why_not] += 1
            return None
        return self._multiplied(rows, weight)

    def _is_fc2(self, weight: Any) -> bool:
        return isinstance(weight, Nvfp4Weight) and weight.shape == (self.known.n, self.known.k)

    def _prepared(self, device: torch.device) -> str | None:
        """Why the schedule can't be had; None, and it is there."""
        known, facts = self.known, self._facts(device)
        if facts.capability != known.capability:
            found = "no CUDA device" if facts.capability is None else "SM {}.{}".format(*facts.capability)
            return "it is known on SM {}.{}, and this is {}".format(*known.capability, found)
        if facts.cublaslt not in known.versions:
            return f"it isn't known of {facts.told_cublaslt}"
        from h3_kernels import cublaslt
        from h3_kernels.cublaslt_api import CublasLtError

        shape = cublaslt.Product(known.m, known.n, known.k)
        schedule = cublaslt.Schedule(known.algorithm, known.tile, known.stages, known.split_k, known.workspace)
        try:
            self._lt = cublaslt.on_device(device)
            self._plan = self._lt.plan(shape, schedule)
        except (CublasLtError, cublaslt.ScheduleUnfit, LookupError) as error:
            return f"cuBLASLt hasn't got it here: {error}"
        return None

    def _why_unlike(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> str | None:
        """Why these operands aren't those that it is known for."""
        known, blocks = self.known, round_up(self.known.k // 16, 4)
        if rows.rows != known.m:
            return f"{rows.rows} rows, and it is known for {known.m} alone"
        if rows.dtype is not torch.bfloat16:
            return f"x is {rows.dtype}, and it is known for torch.bfloat16"
        tensors = {
            "x": (rows.codes[: known.m], (known.m, known.k // 2)),
            "x's scales": (rows.block_scale, (round_up(known.m, 128), blocks)),
            "the weight": (weight.codes, (known.n, known.k // 2)),
            "the weight's scales": (weight.block_scale, (round_up(known.n, 128), blocks)),
        }
        for name, (tensor, shape) in tensors.items():
            if tuple(tensor.shape) != shape or not tensor.is_contiguous():
                return f"{name}: {list(tensor.shape)}, and it is known for {list(shape)}, contiguous"
        return None

    def _multiplied(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor | None:
        from h3_kernels.cublaslt_api import CublasLtError

        assert self._lt is not None and self._plan is not None
        alpha = rows.tensor_scale * weight.tensor_scale.reshape(())
        scales = {"x_scale": rows.block_scale, "w_scale": weight.block_scale}
        try:
            y = self._lt.multiply(self._plan, rows.codes[: self.known.m], weight.codes, alpha, **scales)
        except CublasLtError as error:
            # Once refused it would be refused again, 50 times a forward.
            self._plan, self._why_not = None, f"it was refused: {error}"
            self.calls.fallbacks[self._why_not] += 1
            return None
        self.calls.dispatches += 1
        return y


class ScheduledLinear(Nvfp4LinearBase):
    """An `nvfp4` linear that asks `fc2` first, if there is one. A backend is its `usual` product. proof: what is known
    of it by having been run."""

    proof = ""

    def __init__(self, scale_backend: ScaleBackend = "kitchen", fc2: Fc2Schedule | None = None) -> None:
        super().__init__(scale_backend)
        self.fc2 = fc2

    @property
    def note(self) -> str:
        """For `/ready`; of a schedule that is ready too, since evidence for quality is of one note."""
        ready = self.fc2.told if self.fc2 is not None and self.fc2.why_not is None else ""
        return "; ".join(filter(None, [self.proof, ready]))

    def prepare(self, stored: StoredWeight, device: torch.device) -> Any:
        there = super().prepare(stored, device)
        if self.fc2 is not None and self.why_unfit(there) is None:
            self.fc2.prepare(there, there.codes.device)
        return there

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        if self.fc2 is not None and (made := self.fc2.product(rows, weight)) is not None:
            return made
        return self.usual(rows, weight)

    @abstractmethod
    def usual(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        """As `product`."""


def schedule_in(backends: Iterable[LinearBackend[Any]]) -> Fc2Schedule | None:
    """The one that they share; None where none of them has one."""
    return next((found for backend in backends if (found := getattr(backend, "fc2", None)) is not None), None)


def schedule_of(model: nn.Module) -> Fc2Schedule | None:
    """Of the backends that multiply `model`'s layers now."""
    return schedule_in(part.backend for part in model.modules() if isinstance(part, BackendLinear) and part.switched)


def told_since(schedule: Fc2Schedule | None, before: Calls | None) -> dict[str, Any]:
    """What `diagnostics` says of it beside a run's linears: {fc2_schedule: {dispatches, fallbacks: [{why, count}]}}, or
    nothing where there is none."""
    if schedule is None or before is None:
        return {}
    return {"fc2_schedule": schedule.calls.since(before).told()}
