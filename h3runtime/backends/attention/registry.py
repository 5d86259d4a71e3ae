"""All attention backends, as an operator's options make them: one list, in the order in which `/ready` shows them.

Two of them hand calls to another by name, `kj_head_sliced` and `sol_attn`, which must be one of the others; the sparse
ones of `sparse` hand what is dense to `sdpa` or, those of 8 bits, to `h3_attn8`. Fed with options by `select`; makes
nothing but the objects, imports no library.
"""

from __future__ import annotations

from collections.abc import Sequence

from h3runtime.backends.attention.attn8 import H3Attn8Attention
from h3runtime.backends.attention.base import Candidate
from h3runtime.backends.attention.ck_int8 import CkInt8Attention
from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.cudnn_fp8 import CudnnFp8Attention
from h3runtime.backends.attention.cudnn_sdpa import CudnnSdpaAttention
from h3runtime.backends.attention.fa4 import Fa4Attention
from h3runtime.backends.attention.head_sliced import HeadSlicedAttention
from h3runtime.backends.attention.kj_sage import KERNELS, KjSageAttention
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.sage1 import Sage1Attention
from h3runtime.backends.attention.sage2 import Sage2Attention
from h3runtime.backends.attention.sage3 import Sage3Attention
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sol_attn import SolAttention
from h3runtime.backends.attention.sparse import sla8_topk, sla_topk, vsa
from h3runtime.errors import Offence, SettingsError


def simple_backends(options: AttentionOptions) -> tuple[Candidate, ...]:
    """Those that run every call on their own. options: settled by `on`."""
    layout = options.sage_layout
    assert layout != "auto"
    return (
        SdpaAttention(),
        CudnnSdpaAttention(),
        Fa4Attention(),
        Sage2Attention(layout),
        Sage1Attention(layout),
        Sage3Attention(),
        CkInt8Attention(),
        CudnnFp8Attention(),
        H3Attn8Attention(),
        *(KjSageAttention(name, layout) for name in KERNELS),
    )


def attention_backends(options: AttentionOptions, tally: Tally) -> tuple[Candidate, ...]:
    """All there are. SettingsError where an option names none that calls can be handed to."""
    simple = simple_backends(options)
    inner = _named("H3_HEAD_SLICE_BACKEND", options.slice_backend, simple)
    fallback = _named("H3_SOL_FALLBACK", options.sol.fallback, simple)
    return (
        *simple,
        HeadSlicedAttention(inner, Counted(inner, tally), options.slice_size),
        SolAttention(options.sol, fallback, tally, Counted(fallback, tally)),
        *_sparse(tally),
    )


def _sparse(tally: Tally) -> tuple[Candidate, ...]:
    dense = SdpaAttention()
    rest = dense, tally, Counted(dense, tally)
    shares = (sla_topk.SlaTopkAttention(sla_topk.name_of(p), p / 100, *rest) for p in sla_topk.PERCENTS)
    eight = H3Attn8Attention()
    both = dense, eight, tally, Counted(dense, tally), Counted(eight, tally)
    in_8_bits = (sla8_topk.Sla8TopkAttention(sla8_topk.name_of(p), p / 100, *both) for p in sla8_topk.PERCENTS)
    return (*shares, *in_8_bits, vsa.VsaAttention(vsa.NAME, vsa.SHARE, *rest))


def _named(setting: str, name: str, backends: Sequence[Candidate]) -> Candidate:
    found = next((backend for backend in backends if backend.name == name), None)
    if found is None:
        legal = ", ".join(backend.name for backend in backends)
        raise SettingsError(
            f"{setting}: {name!r} is no backend that calls can be handed to (legal: {legal})",
            [Offence(setting, f"{name!r} is no backend that calls can be handed to", legal)],
        )
    return found
