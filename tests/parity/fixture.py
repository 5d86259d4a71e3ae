"""One recorded case of ComfyUI's own code: inputs, weights, expected outputs. See the README beside the files."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY.parent / "shared" / "fixtures" / "comfyui"
"""The files that the tests of single bits name, whatever folder `H3_FIXTURES` names."""
DIRECTORY = Path(os.environ.get("H3_FIXTURES") or RECORDED)

CPU = torch.device("cpu")
DRAWN_ON_CPU = ("in.noise_", "in.sigma", "in.video_mask", "in.audio_mask")
"""Inputs that reach us on the CPU whatever device computes: noise, schedules, masks at the size a user gives them."""


@dataclass(frozen=True)
class Fixture:
    """device: where weights and what networks read are put. Integers and expected values stay on the CPU."""

    path: Path
    device: torch.device = CPU

    @cached_property
    def meta(self) -> dict[str, Any]:
        if self.path.suffix == ".json":
            return json.loads(self.path.read_text())
        with safe_open(self.path, "pt") as file:
            return json.loads(file.metadata()["fixture"])

    @property
    def kind(self) -> str:
        return self.meta.get("kind", self.path.stem)

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        with safe_open(self.path, "pt") as file:
            return {name: self._placed(name, file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  # not a dict

    def _placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        read = name.startswith("in.") and tensor.is_floating_point() and not name.startswith(DRAWN_ON_CPU)
        return tensor.to(self.device) if read or name.startswith("w.") else tensor

    def under(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors whose names begin with `prefix`, without it: `under("w.")` are the weights."""
        return {name[len(prefix) :]: t for name, t in self.tensors.items() if name.startswith(prefix)}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


def rel_l2(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want|; infinite for a wrong shape or anything non-finite in `got`."""
    if got.shape != want.shape or not torch.isfinite(got.float()).all():
        return float("inf")
    got, want = got.to(want.device).double(), want.double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def assert_close(what: str, got: torch.Tensor, want: torch.Tensor, *, rel: float, max_abs: float | None = None) -> None:
    error = rel_l2(got, want)
    assert error <= rel, f"{what}: relative L2 {error:.3g}, allowed {rel:.3g}"
    if max_abs is not None:
        worst = float((got.to(want.device).double() - want.double()).abs().max())
        assert worst <= max_abs, f"{what}: largest difference {worst:.3g}, allowed {max_abs:.3g}"


def assert_equal(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    got = got.to(want.device)
    assert torch.equal(got, want), f"{what}: {int((got != want).sum())} of {want.numel()} values differ"
