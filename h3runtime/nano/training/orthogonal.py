"""Updates of matrices by their orthogonalised momentum ("Muon"): all directions of a weight learn at the same pace.

    momentum m <- b m + (1 - b) gradient;  look ahead: u = b m + (1 - b) gradient
    step     w <- w - rate * 0.2 sqrt(longer side) * nearest orthogonal matrix of u

The factor gives a step the size of AdamW's, so both share one rate. Newton and Schulz's iteration finds the matrix
without a decomposition: X <- a X + (b + c X X') X X' X, with the coefficients that its authors published (K. Jordan,
2024), which end near 1 after five rounds. Kernels of convolutions are matrices of [out, all the rest]; matrices of one
shape are updated together. Fed by `video_vae` with the parameters that are no biases, scales, inputs or outputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
STEP = 0.2
"""Of one element, root mean square: about what AdamW's has."""


class Orthogonal:
    """An optimiser of matrices on one device. Call `step` with the rate, a number or on the device; gradients stay."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], momentum: float, weight_decay: float) -> None:
        groups: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            matrix = parameter.detach().flatten(1)
            groups[(matrix.shape[0], matrix.shape[1])].append(parameter)
        self.groups = list(groups.values())
        self.moments = [torch.zeros_like(torch.stack([p.detach().flatten(1) for p in g])) for g in self.groups]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, rate: torch.Tensor | float) -> None:
        for group, moment in zip(self.groups, self.moments, strict=True):
            gradient = torch.stack([p.grad.flatten(1) for p in group if p.grad is not None])
            moment.lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp_(moment, self.momentum))
            update = update * (rate * STEP * math.sqrt(max(update.shape[1:])))
            matrices = [parameter.detach().view(len(parameter), -1) for parameter in group]
            torch._foreach_mul_(matrices, 1 - rate * self.weight_decay)
            torch._foreach_sub_(matrices, list(update.unbind()))


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """[N, rows, columns] -> matrices with the same singular vectors and all singular values near 1 (0.7 to 1.2).

    On a GPU products are bf16, for which the coefficients were made.
    """
    given, matrices = matrices, matrices.bfloat16() if matrices.is_cuda else matrices
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if matrices.shape[1] > matrices.shape[2] else x).to(given.dtype)
