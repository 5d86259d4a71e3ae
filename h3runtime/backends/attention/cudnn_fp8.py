"""cuDNN's FP8 attention through `nvidia-cudnn-frontend` (1.32, import name `cudnn`): E4M3 q, k, P and v, a scale each.

Read in its source (`cudnn/_pygraph.py`, the docstring of `sdpa_fp8`): a graph of q, k, v [B, H, S, D] with any strides,
six fp32 scalars [1, 1, 1, 1] on the device (descale_q, descale_k, descale_v, descale_s, scale_s, scale_o), attn_scale;
it gives (O, Stats, Amax_S, Amax_O). Hopper's kernel gives O in E4M3, Blackwell's in BF16 too. A graph is planned once
per shape and executed with a dict of its tensors, a workspace and a handle whose stream was set.

    x8 = round(x * 448/amax|x|), descale = amax/448;  k without its mean over the rows, which softmax doesn't see
    v without its mean over the rows, which is added to the result: each row of P sums to 1
    P is in [0, 1]: scale_s = 448, descale_s = 1/448, as the documentation has it for E4M3 without dropout
    |O| <= amax|v|, so scale_o = 448/amax|v| can't overflow, and the result is divided by it again

Hopper adds FP8 products up in some 14 bits and cuts off the rest, so a mean of v that stays costs more with every row:
on h3-nano's q, k, v the error was 3.5 % at 540 rows and 10 % at 9,400, where rounding alone gives 3 %.

Measured on one H200 (cuDNN 9.19) before v lost its mean: 56.8 ms at S = 37,810 with all rounding, 6.0 % relative error;
the kernel alone takes 50.0. 24 clips of h3-nano at 199 rows kept every verdict of the judge at SSIM 0.9985.
Experimental until the error at thousands of rows was measured again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.facts import DeviceFacts

LARGEST: Final = 448.0
"""Of E4M3."""
SMALLEST_AMAX: Final = 1e-12
"""A tensor of zeros has a scale too."""
KEPT: Final = 4
"""Planned graphs: a server sees few shapes, and each holds a workspace."""
SCALARS: Final = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
MAXIMA: Final = ("amax_s", "amax_o")
"""Outputs that nobody reads here: the samples of cudnn-frontend give every graph a place for them."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """values E4M3 [B, S, H, D], contiguous; amax fp32 scalar on the device: values * amax/448 is what was rounded."""

    values: torch.Tensor
    amax: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor) -> Quantised:
        low, high = torch.aminmax(x)
        amax = torch.maximum(-low, high).float().clamp(min=SMALLEST_AMAX)
        return cls((x * (LARGEST / amax)).to(torch.float8_e4m3fn, memory_format=torch.contiguous_format), amax)

    @property
    def descale(self) -> torch.Tensor:
        return (self.amax / LARGEST).reshape(1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph of one shape; its tensors by name, `o` among them."""

    graph: Any
    tensors: dict[str, Any]
    workspace: torch.Tensor
    out_dtype: torch.dtype


class CudnnFp8Attention(Kernel):
    name = "cudnn_fp8"
    grade = "experimental"
    tolerance = 0.15
    head_dims = (64, 128)
    copies = 7.0
    """q and k in FP8, v without its mean, that scaled, and in FP8; the result in FP8 and again in BF16 is less."""

    def __init__(self) -> None:
        self._planned: OrderedDict[tuple[int, ...], Planned] = OrderedDict()
        self._handle: Any = None

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        if no_cuda := device.why_no_cuda():
            return no_cuda
        if device.capability is None or device.capability < (9, 0):
            return f"needs SM 9.0, and this is {device.told_capability}"
        return device.why_without("cudnn")

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mean = v.mean(dim=1, keepdim=True)
        q8, k8, v8 = Quantised.of(q), Quantised.of(k - k.mean(dim=1, keepdim=True)), Quantised.of(v - mean)
        with torch.cuda.device(q.device):
            planned = self._plan(q8.values)
            out = torch.empty(q.shape, dtype=planned.out_dtype, device=q.device)
            self._run(planned, q8, k8, v8, out)
        scale = v8.descale if planned.out_dtype is torch.float8_e4m3fn else torch.ones_like(v8.descale)
        return torch.addcmul(mean, out.to(q.dtype), scale.to(q.dtype))

    def _run(self, planned: Planned, q: Quantised, k: Quantised, v: Quantised, out: torch.Tensor) -> None:
        one = torch.ones_like(q.descale)
        in_fp8 = planned.out_dtype is torch.float8_e4m3fn
        given = {
            "q": _heads_first(q.values),
            "k": _heads_first(k.values),
            "v": _heads_first(v.values),
            "descale_q": q.descale,
            "descale_k": k.descale,
            "descale_v": v.descale,
            "descale_s": one / LARGEST,
            "scale_s": one * LARGEST,
            "scale_o": 1 / v.descale if in_fp8 else one,
            "o": _heads_first(out),
        } | {name: torch.empty_like(one) for name in MAXIMA}
        stream = torch.cuda.current_stream(out.device).cuda_stream
        import_module("cudnn").set_stream(handle=self._handle, stream=stream)
        pack = {planned.tensors[name]: tensor for name, tensor in given.items()}
        planned.graph.execute(pack, planned.workspace, handle=self._handle)

    def _plan(self, q: torch.Tensor) -> Planned:
        """The graph of q's shape, planned at its first call and again after `KEPT` others."""
        shape = tuple(q.shape)
        if self._handle is None:
            self._handle = import_module("cudnn").create_handle()
        if shape not in self._planned:
            self._planned[shape] = _planned(q, self._handle)
        self._planned.move_to_end(shape)
        while len(self._planned) > KEPT:
            self._planned.popitem(last=False)
        return self._planned[shape]


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2)


def _planned(q: torch.Tensor, handle: Any) -> Planned:
    """q E4M3 [B, S, H, D], contiguous; k, v and O have its shape and strides."""
    cudnn = import_module("cudnn")
    types, on_hopper = cudnn.data_type, torch.cuda.get_device_capability(q.device)[0] == 9
    graph = cudnn.pygraph(
        io_data_type=types.FP8_E4M3, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, handle=handle
    )
    dim, stride = list(_heads_first(q).shape), list(_heads_first(q).stride())
    scalar = {"dim": [1, 1, 1, 1], "stride": [1, 1, 1, 1]}
    tensors = {n: graph.tensor(name=n, dim=dim, stride=stride, data_type=types.FP8_E4M3) for n in ("q", "k", "v")}
    tensors |= {name: graph.tensor(name=name, data_type=types.FLOAT, **scalar) for name in SCALARS}
    o, _, *amax = graph.sdpa_fp8(**tensors, attn_scale=q.shape[-1] ** -0.5, generate_stats=False, name="sdpa_fp8")
    o.set_output(True).set_dim(dim).set_stride(stride)
    o.set_data_type(types.FP8_E4M3 if on_hopper else types.BFLOAT16)
    for unread in amax:
        unread.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(types.FLOAT)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=q.device)
    tensors |= {"o": o, **dict(zip(MAXIMA, amax, strict=True))}
    return Planned(graph, tensors, workspace, torch.float8_e4m3fn if on_hopper else torch.bfloat16)
