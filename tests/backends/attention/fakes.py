"""Stand-ins for GPU libraries: they take what the real functions take, note it, and compute in fp32."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> torch.Tensor:
    """NHD or HND in, the same out, contiguous, in q's dtype."""
    heads_first = (x.float() if layout == "HND" else x.float().transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*heads_first)
    return (out if layout == "HND" else out.transpose(1, 2)).contiguous().to(q.dtype)


class Recorded:
    """A function of a library. seen: strides and arguments of each call."""

    def __init__(self, layout: str | None = None, wrap: Callable[[torch.Tensor], Any] = lambda out: out) -> None:
        self.seen: list[SimpleNamespace] = []
        self._layout, self._wrap = layout, wrap

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any) -> Any:
        strides = tuple(x.stride() for x in (q, k, v))
        self.seen.append(SimpleNamespace(q=q, k=k, v=v, strides=strides, arguments=arguments))
        layout = self._layout or arguments["tensor_layout"]
        return self._wrap(attention(q, k, v, layout))


def module(name: str, **functions: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(functions)
    return made


def qkv(rows: int = 70, heads: int = 3, head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    """Strided views [1, S, H, D] of one projection."""
    made = torch.randn(1, rows, 3, heads, head_dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    return made.unbind(2)


class FakeCudnn(ModuleType):
    """As much of `cudnn` 1.32 as an FP8 graph needs; computes what the graph says, scales included."""

    class data_type:  # noqa: N801
        FP8_E4M3, BFLOAT16, FLOAT = torch.float8_e4m3fn, torch.bfloat16, torch.float32

    heur_mode = SimpleNamespace(A="a", FALLBACK="fallback")

    def __init__(self) -> None:
        super().__init__("cudnn")
        self.built: list[FakeGraph] = []
        self.streams: list[int] = []

    def create_handle(self) -> object:
        return object()

    def set_stream(self, handle: object, stream: int) -> None:  # noqa: ARG002
        self.streams.append(stream)

    def pygraph(self, **kinds: Any) -> FakeGraph:
        assert kinds["handle"] is not None and kinds["compute_data_type"] is torch.float32
        self.built.append(FakeGraph())
        return self.built[-1]


class FakeTensor:
    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def _set(self, name: str, value: Any) -> FakeTensor:
        self.facts[name] = value
        return self

    def set_output(self, value: bool) -> FakeTensor:
        return self._set("output", value)

    def set_dim(self, value: list[int]) -> FakeTensor:
        return self._set("dim", value)

    def set_stride(self, value: list[int]) -> FakeTensor:
        return self._set("stride", value)

    def set_data_type(self, value: torch.dtype) -> FakeTensor:
        return self._set("data_type", value)


class FakeGraph:
    def __init__(self) -> None:
        self.ports: dict[str, FakeTensor] = {}
        self.executed = 0

    def tensor(self, **facts: Any) -> FakeTensor:
        return FakeTensor(**facts)

    def sdpa_fp8(self, *, attn_scale: float, generate_stats: bool, name: str, **ports: FakeTensor) -> tuple[Any, ...]:
        assert not generate_stats and name
        made = {name: FakeTensor() for name in ("o", "amax_s", "amax_o")}
        self.scale, self.ports = attn_scale, ports | made
        return made["o"], None, made["amax_s"], made["amax_o"]

    def build(self, modes: list[str]) -> None:
        assert modes == ["a", "fallback"]
        assert all(self.ports[name].facts["output"] for name in ("o", "amax_s", "amax_o"))

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, pack: dict[FakeTensor, torch.Tensor], workspace: torch.Tensor, handle: object) -> None:
        assert handle is not None and workspace.numel() == 1
        given = {name: pack[port] for name, port in self.ports.items()}
        for name, tensor in given.items():
            facts = self.ports[name].facts
            assert facts["dim"] == list(tensor.shape) and facts["data_type"] == tensor.dtype
            assert all(tensor.shape[i] == 1 or facts["stride"][i] == tensor.stride(i) for i in range(4))
        q, k, v = (given[n].float() * given[f"descale_{n}"] for n in ("q", "k", "v"))
        p = (torch.softmax(q @ k.transpose(-1, -2) * self.scale, -1) * given["scale_s"]).to(torch.float8_e4m3fn)
        o = (p.float() * given["descale_s"]) @ v * given["scale_o"]
        given["o"].copy_(o.to(given["o"].dtype))
        self.executed += 1
