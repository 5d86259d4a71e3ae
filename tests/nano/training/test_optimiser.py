"""The optimiser of the joint training: AdamW as PyTorch's, matrices orthogonal whatever stack they lie in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from h3runtime.nano.training.optimiser import Betas, Optimiser, clipped
from h3runtime.nano.training.orthogonal import STEP, orthogonalised


def named() -> list[tuple[str, nn.Parameter]]:
    """Vectors, a table, a fused pair, a wide matrix, and one of less than half the size of the others."""
    shapes = {
        "head.bias": (5,),
        "blocks.0.mlp.fc1.weight": (48, 16),
        "embed.weight": (7, 3),
        "blocks.0.mlp.fc2.weight": (16, 24),
        "layers.0.k_proj.weight": (6, 8),
    }
    generator = torch.Generator().manual_seed(0)
    return [(name, nn.Parameter(torch.randn(shape, generator=generator))) for name, shape in shapes.items()]


def test_what_is_no_matrix_moves_as_under_adamw() -> None:
    mine, theirs = (dict(named()) for _ in range(2))
    optimiser, rate = Optimiser(list(mine.items()), Betas(decay=0.1)), torch.tensor(0.03)
    rest = [theirs["head.bias"], theirs["embed.weight"]]
    adam = torch.optim.AdamW(rest, lr=0.03, betas=(0.9, 0.98), weight_decay=0.1)
    for seed in range(4):
        torch.manual_seed(seed)
        for value, other in ((mine["head.bias"], rest[0]), (mine["embed.weight"], rest[1])):
            value.grad = torch.randn(value.shape)
            other.grad = value.grad.clone()
        optimiser.step(optimiser.weights.gradient(), rate)
        adam.step()
    assert all(torch.allclose(mine[n], theirs[n], rtol=1e-5, atol=1e-6) for n in ("head.bias", "embed.weight"))


def test_matrices_move_by_the_nearest_orthogonal_one() -> None:
    values = dict(named())
    before = {name: value.detach().clone() for name, value in values.items()}
    optimiser = Optimiser(list(values.items()), Betas(momentum=0.0, decay=0.0))
    gradients = {name: torch.randn(value.shape) for name, value in values.items()}
    for name, value in values.items():
        value.grad = gradients[name].clone()
    optimiser.step(optimiser.weights.gradient(), torch.tensor(0.5))
    assert len(optimiser.stacks) == 2  # the fused halves with the wide one turned over, and the small one

    def expected(gradient: torch.Tensor) -> torch.Tensor:
        return 0.5 * STEP * max(gradient.shape) ** 0.5 * orthogonalised(gradient.unsqueeze(0))[0]

    for name in ("blocks.0.mlp.fc2.weight", "layers.0.k_proj.weight"):
        assert torch.allclose(before[name] - values[name], expected(gradients[name]), atol=2e-5)
    halves = (before["blocks.0.mlp.fc1.weight"] - values["blocks.0.mlp.fc1.weight"]).chunk(2)
    for moved, gradient in zip(halves, gradients["blocks.0.mlp.fc1.weight"].chunk(2), strict=True):
        assert torch.allclose(moved, expected(gradient), atol=2e-5)


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    values = dict(named())
    optimiser = Optimiser(list(values.items()))
    values["head.bias"].grad = torch.ones(5)
    parts = optimiser.weights.named(optimiser.weights.gradient())
    assert parts["head.bias"].tolist() == [1.0] * 5 and not parts["embed.weight"].any()
    assert values["head.bias"].grad is None


def test_gradients_are_clipped_by_their_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert float(clipped(gradient, 1.0)) == pytest.approx(5.0) and float(gradient.norm()) == pytest.approx(
        1.0, rel=1e-5
    )
    assert float(clipped(gradient, 10.0)) == pytest.approx(1.0, rel=1e-5)
