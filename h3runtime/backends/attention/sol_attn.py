"""Sparse attention of comfy-kitchen (`sol_attn`, arXiv 2607.24027): blocks of 64 keys that score high are read whole,
the others as one pooled term each, without training.

Read in the source of comfy-kitchen 0.2.40 (`comfy_kitchen/__init__.py`, `backends/cuda/__init__.py`,
`backends/eager/sol_attn.py`): `sol_attn(q, k, v, tau=1.0, scale=None, sink_blocks=None, sink_q=None, ...)` on
[B, S, H, 128], BF16 or FP16, SM 8.0 and later. Strided views go in without a copy while base and strides are multiples
of 16 bytes. A block is read whole where its score is above `tau` standard deviations, which come from the diagonal of
the keys' covariance (`diag`); q, k and v are rounded to INT8 in any case. So `H3_SOL_THRESH_TYPE=exact` and an INT8
switched off can't be had of it, and are reasons why this backend isn't available.

    exact rows          text, guides, references, the target's sound (`base.exact_rows`), whatever tau is
    sink_blocks [0, n)  n = ceil(exact rows / 64): keys that every query reads whole
    sink_q [0, n)       queries that read everything

What it isn't made for goes to `H3_SOL_FALLBACK`, counted with its reason, or is an error with `H3_SOL_STRICT`: a call
without a layout, whose last rows are no pictures, below `H3_SOL_MIN_TOKENS` rows, of another head size or dtype.
Measured on one H200: 17.3 ms at S = 37,810 with tau 1.3. Experimental until its quality table says otherwise.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch

from h3runtime.backends.attention.base import AttentionBackend, Candidate, Kernel, exact_rows
from h3runtime.backends.attention.counting import Fallback, Tally
from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.options import SolOptions
from h3runtime.core import PackedLayout, SegmentKind
from h3runtime.errors import BackendUnavailable, Offence

BLOCK: Final = 64
HEAD_DIM: Final = 128
DTYPES: Final = (torch.bfloat16, torch.float16)
MOST_ROWS: Final = BLOCK * 2**16
"""Its blocks have 16-bit numbers."""


class SolAttention(Kernel):
    """fallback: of the calls it isn't made for; attend_fallback: how it is called in a run, which counts."""

    name = "sol_attn"
    grade = "experimental"
    head_dims = (HEAD_DIM,)
    copies = 4.0
    counts_itself = True

    def __init__(
        self,
        options: SolOptions,
        fallback: Candidate,
        tally: Tally,
        attend_fallback: AttentionBackend | None = None,
    ) -> None:
        self._options, self._fallback, self._tally = options, fallback, tally
        self._attend_fallback = attend_fallback or fallback

    @property
    def hands_to(self) -> tuple[str, ...]:
        return () if self._options.strict else (self._fallback.name,)

    @property
    def note(self) -> str:
        """With what changes its numbers: evidence of a quality level counts for these alone."""
        options = self._options
        told = f"tau {options.tau:g}, {options.min_tokens} rows or more; calls that it isn't made for"
        return f"{told} fail the job" if options.strict else f"{told}: {self._fallback.name}"

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if no_cuda := device.why_no_cuda():
            return no_cuda
        if device.capability is None or device.capability < (8, 0):
            return f"needs SM 8.0, and this is {device.told_capability}"
        return (
            device.why_without("comfy_kitchen", "backends/cuda/_C")
            or self._why_not_as_asked()
            or self._of_fallback(self._fallback.why_unavailable(device))
        )

    def why_unfit(self, head_dim: int) -> str | None:
        return super().why_unfit(head_dim) or self._of_fallback(self._fallback.why_unfit(head_dim))

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        own = super().workspace_bytes(rows, heads, head_dim)
        return own if self._options.strict else max(own, self._fallback.workspace_bytes(rows, heads, head_dim))

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Every block read whole."""
        return self._sparse(q, k, v, blocks_of(q.shape[1]))

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        why_not = self._why_not_made_for(q, layout)
        if why_not is not None or layout is None:
            return self._given_away(why_not or "no layout", q, k, v, layout, step)
        self._tally.dispatches[self.name] += 1
        return self._sparse(q, k, v, blocks_of(exact_rows(layout)))

    def _sparse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, exact_blocks: int) -> torch.Tensor:
        function: Any = import_module("comfy_kitchen").sol_attn
        sink = [0, exact_blocks]
        out: torch.Tensor = function(
            *(aligned(x) for x in (q, k, v)), tau=self._options.tau, sink_blocks=sink, sink_q=sink
        )
        return out

    def _given_away(
        self,
        why: str,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: PackedLayout | None,
        step: int,
    ) -> torch.Tensor:
        if self._options.strict:
            message = f"attention: sol_attn isn't made for this call ({why}), and H3_SOL_STRICT is on"
            raise BackendUnavailable(message, [Offence("attention", why, self._fallback.name)])
        self._tally.fallbacks[Fallback(self.name, self._fallback.name, why)] += 1
        return self._attend_fallback.attend(q, k, v, layout=layout, step=step)

    def _why_not_made_for(self, q: torch.Tensor, layout: PackedLayout | None) -> str | None:
        rows = q.shape[1]
        if layout is None:
            return "no layout"
        if layout.segments[-1].kind is not SegmentKind.VIDEO:
            return f"its last rows are {layout.segments[-1].kind.value}"
        if rows < self._options.min_tokens:
            return f"{rows} rows are below H3_SOL_MIN_TOKENS={self._options.min_tokens}"
        if rows > MOST_ROWS:
            return f"{rows} rows are above {MOST_ROWS}"
        if q.shape[-1] != HEAD_DIM:
            return f"heads of {q.shape[-1]}, not {HEAD_DIM}"
        return None if q.dtype in DTYPES else f"{q.dtype}"

    def _why_not_as_asked(self) -> str | None:
        if self._options.thresh_type != "diag":
            asked = f"H3_SOL_THRESH_TYPE={self._options.thresh_type}"
            return f"{asked} can't be had: comfy-kitchen's kernel estimates the threshold from the diagonal alone"
        for name, is_on in (("H3_SOL_INT8_QK", self._options.int8_qk), ("H3_SOL_INT8_PV", self._options.int8_pv)):
            if not is_on:
                return f"{name}=0 can't be had: comfy-kitchen's kernel always multiplies in INT8"
        return None

    def _of_fallback(self, why_not: str | None) -> str | None:
        if why_not is None or self._options.strict:
            return None
        return f"H3_SOL_FALLBACK={self._fallback.name} can't run: {why_not}"


def blocks_of(rows: int) -> int:
    return -(-rows // BLOCK)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x itself where base and strides are multiples of 16 bytes, else a copy that has them."""
    strides = (x.stride(dim) * x.element_size() for dim in range(3) if x.shape[dim] > 1)
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(stride % 16 == 0 for stride in strides)
    return x if fits else x.clone(memory_format=torch.contiguous_format)
