"""How the joint training steps: Muon for the matrices of the blocks, AdamW for all else, one learning rate.

The orthogonal step itself is `orthogonal`'s, as for the video VAE. Matrices of one shape go through it together, since
at this size launches cost more than arithmetic; fused projections are split into the matrices that they are (q, k, v;
gate, value).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import nn

from h3runtime.nano.training.orthogonal import STEP, orthogonalised

FUSED: Final = {"qkv_proj.weight": 3, "fc1.weight": 2}


class Optimiser:
    """Steps the parameters of the modules given. `rate` is set by the caller before each step."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        *,
        momentum: float = 0.95,
        decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
    ) -> None:
        self.momentum, self.decay = momentum, decay
        self.stacks: dict[tuple[int, int], list[tuple[nn.Parameter, int]]] = {}
        rest: list[nn.Parameter] = []
        for module in modules:
            for name, value in module.named_parameters():
                if not value.requires_grad:
                    continue
                if _is_matrix(name, value):
                    parts = next((n for end, n in FUSED.items() if name.endswith(end)), 1)
                    self.stacks.setdefault((value.shape[0] // parts, value.shape[1]), []).append((value, parts))
                else:
                    rest.append(value)
        self.parameters = [p for stack in self.stacks.values() for p, _ in stack] + rest
        self.velocities = {
            shape: torch.zeros(sum(n for _, n in stack), *shape, device=stack[0][0].device)
            for shape, stack in self.stacks.items()
        }
        cuda = any(p.is_cuda for p in rest)
        self.adam = torch.optim.AdamW(rest, lr=0.0, betas=betas, weight_decay=decay, fused=cuda)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the gradients that are there; clears them."""
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        for shape, stack in self.stacks.items():
            gradient = torch.cat([_gradient(p).view(n, *shape) for p, n in stack])
            velocity = self.velocities[shape]
            velocity.lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp(velocity, self.momentum)) * (STEP * max(shape) ** 0.5 * rate)
            self._apply(stack, update, rate)
        for value in self.parameters:
            value.grad = None

    def _apply(self, stack: list[tuple[nn.Parameter, int]], update: torch.Tensor, rate: float) -> None:
        values = [p.detach() for p, _ in stack]
        split = torch.split(update, [n for _, n in stack])
        parts = [u.reshape(p.shape) for p, u in zip(values, split, strict=True)]
        torch._foreach_mul_(values, 1 - rate * self.decay)
        torch._foreach_sub_(values, parts)


def _is_matrix(name: str, value: torch.Tensor) -> bool:
    """Matrices inside blocks; not embeddings, projections of patches, AdaLN or heads."""
    inside = any(part in name for part in ("blocks.", "layers."))
    return value.ndim == 2 and inside and "adaln" not in name and "embed" not in name


def _gradient(value: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad
