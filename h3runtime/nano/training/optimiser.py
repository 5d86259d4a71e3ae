"""How the joint training steps: Muon for the matrices of the blocks, AdamW for all else, one learning rate.

    flat gradient [N] -> clipped by its norm
      matrices  momentum, gathered into stacks of one shape, made orthogonal together, put back in order
      the rest  AdamW's arithmetic on one vector
    values <- values (1 - rate decay) - update

Everything is a few operations on vectors, for at this size launches cost more than arithmetic; the rate and the age lie
on the device, so that a step can be recorded. Fused projections are split into the matrices that they are (q, k, v;
gate, value), wide ones are turned over, and the encoder's smaller ones lie in stacks with zeros around them: neither
changes the orthogonal matrix that is found. The vision tower is AdamW's: most batches show no picture, and a momentum
that is made orthogonal would step as far without gradients as with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from h3runtime.nano.training.flat import FlatWeights
from h3runtime.nano.training.orthogonal import STEP, orthogonalised

FUSED: Final = {"qkv_proj.weight": 3, "fc1.weight": 2}
EPSILON: Final = 1e-8


@dataclass(frozen=True, slots=True)
class Betas:
    """Decays of the running means. momentum: Muon's; first, second: AdamW's. decay: of the weights, a unit of rate."""

    momentum: float = 0.95
    first: float = 0.9
    second: float = 0.98
    decay: float = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Matrices [n, rows, columns] that are stepped together. index int64: where each element lies in the vector, its
    end (a zero) for those around a smaller matrix. scale fp32 [n, 1, 1]: of an orthogonal matrix, for rate 1."""

    index: torch.Tensor
    scale: torch.Tensor


class Optimiser:
    """Steps parameters given by name, which lie in one vector from then on, matrices first."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], betas: Betas | None = None) -> None:
        self.betas = betas or Betas()
        matrices = [(name, value) for name, value in named if is_matrix(name, value)]
        self.weights = FlatWeights(matrices + [pair for pair in named if not is_matrix(*pair)])
        self.bound = sum(value.numel() for _, value in matrices)
        device = self.weights.values.device
        self.stacks = _stacks(matrices, device)
        self.order = _order(self.stacks, self.bound, device)
        self.momentum = torch.zeros(self.bound, device=device)
        self.first = torch.zeros(len(self.weights.values) - self.bound, device=device)
        self.second = torch.zeros_like(self.first)
        self.age = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self, gradient: torch.Tensor, rate: torch.Tensor) -> None:
        """One update. gradient [N], overwritten; rate: on the device, []."""
        self.age += 1
        update = torch.cat([self._orthogonal(gradient[: self.bound]), self._adam(gradient[self.bound :])])
        self.weights.values.mul_(1 - rate * self.betas.decay).sub_(update.mul_(rate))

    def reset(self) -> None:
        """Forget all running means, in place."""
        for value in (self.momentum, self.first, self.second, self.age):
            value.zero_()

    def _orthogonal(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self.stacks:
            return gradient
        self.momentum.lerp_(gradient, 1 - self.betas.momentum)
        ahead = torch.cat([gradient.lerp_(self.momentum, self.betas.momentum), gradient.new_zeros(1)])
        steps = [(orthogonalised(ahead[stack.index]) * stack.scale).flatten() for stack in self.stacks]
        stepped: torch.Tensor = torch.cat(steps)[self.order]
        return stepped

    def _adam(self, gradient: torch.Tensor) -> torch.Tensor:
        betas = self.betas
        self.first.lerp_(gradient, 1 - betas.first)
        self.second.mul_(betas.second).addcmul_(gradient, gradient, value=1 - betas.second)
        first, second = (1 - torch.pow(beta, self.age) for beta in (betas.first, betas.second))
        stepped: torch.Tensor = (self.first / first).div_((self.second / second).sqrt_().add_(EPSILON))
        return stepped


def clipped(gradient: torch.Tensor, most: float) -> torch.Tensor:
    """Scale a gradient in place to a norm of at most `most`; the norm that it had."""
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    gradient.mul_((most / (norm + 1e-6)).clamp_(max=1.0))
    return norm


def is_matrix(name: str, value: nn.Parameter) -> bool:
    """Matrices inside blocks that every batch uses; not embeddings, AdaLN, heads, or what only pictures meet."""
    inside = any(part in name for part in ("blocks.", "layers."))
    return value.ndim == 2 and inside and not any(part in name for part in ("adaln", "embed", "visual"))


def _stacks(matrices: list[tuple[str, nn.Parameter]], device: torch.device) -> list[Stack]:
    """Those of at most half the largest's elements together, as large as the largest of them; all others by shape."""
    begin, pieces = 0, list[torch.Tensor]()
    for name, value in matrices:
        parts = next((n for end, n in FUSED.items() if name.endswith(end)), 1)
        whole = torch.arange(begin, begin + value.numel()).view(parts, -1, value.shape[1])
        pieces += [part if part.shape[0] >= part.shape[1] else part.mT for part in whole]
        begin += value.numel()
    most = max((piece.numel() for piece in pieces), default=0)
    small = [piece for piece in pieces if 2 * piece.numel() < most]
    groups = {shape: [p for p in pieces if p.shape == shape and 2 * p.numel() >= most] for shape in _shapes(pieces)}
    return [_stack(group, begin, device) for group in [*groups.values(), small] if group]


def _shapes(pieces: list[torch.Tensor]) -> list[torch.Size]:
    return sorted({piece.shape for piece in pieces})


def _stack(pieces: list[torch.Tensor], end: int, device: torch.device) -> Stack:
    """Positions of matrices in the vector; `end` where there is none."""
    rows, columns = (max(piece.shape[i] for piece in pieces) for i in (0, 1))
    index = torch.full((len(pieces), rows, columns), end)
    for place, piece in zip(index, pieces, strict=True):
        place[: piece.shape[0], : piece.shape[1]] = piece
    scale = torch.tensor([STEP * max(piece.shape) ** 0.5 for piece in pieces]).view(-1, 1, 1)
    return Stack(index.to(device), scale.to(device))


def _order(stacks: list[Stack], bound: int, device: torch.device) -> torch.Tensor:
    """int64 [bound]: where in the stacks, one behind the other, each element of the vector is."""
    order = torch.empty(bound + 1, dtype=torch.int64, device=device)
    if stacks:
        places = torch.cat([stack.index.flatten() for stack in stacks])
        order[places] = torch.arange(len(places), device=device)
    return order[:bound]
