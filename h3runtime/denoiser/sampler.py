"""The samplers: from a packed noisy latent to a clean one, along falling sigmas.

Does the updates only; what a denoised estimate is, which streams the latent holds, progress and stopping are the
caller's. Fed by the denoising loop, which takes one `Step` at a time.

    euler:          x <- x + (x - D) / sigma * (sigma' - sigma)
    res_multistep:  lam = -log sigma; h = lam' - lam; c2 = (lam_prev - lam) / h; phi1 = (e^-h - 1) / -h;
                    phi2 = (phi1 - 1) / -h; x <- e^-h x + h ((phi1 - phi2 / c2) D + (phi2 / c2) D_prev)
                    Euler on the first step and on the one that ends at 0          (dit-contract §5.4, §5.5)

x and D are fp32. Scalars are fp32 on the CPU, whatever device samples, and each operation rounds: h and c2 are
differences of fp32 logs, since the log of a ratio moves x by 1e-7, enough to flip roundings of a bf16 network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.errors import Offence, invalid

Denoiser = Callable[[torch.Tensor, int], torch.Tensor]
"""(x fp32 [N], step) -> D fp32 [N], the estimate of the clean latent."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step taken, fp32 [N] each: `x` before it, `denoised` at x, `after` it. `sigma` -> `sigma_next`.

    reused: its estimate was made of earlier ones (`reuse`); an update reads it, now and as the one before, like any
    other. change: relative, of picture and sound, by which that was decided.
    """

    index: int
    sigma: float
    sigma_next: float
    x: torch.Tensor
    denoised: torch.Tensor
    after: torch.Tensor
    reused: bool = False
    change: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """What an update reads. sigmas: fp32 [n + 1] on the CPU. divisor: sigma of this step, fp32 [] on x's device, since
    a division by a number from elsewhere is a product with its reciprocal on CUDA."""

    x: torch.Tensor
    denoised: torch.Tensor
    denoised_before: torch.Tensor | None
    sigmas: torch.Tensor
    divisor: torch.Tensor
    step: int


Update = Callable[[Point], torch.Tensor]
"""-> the next x."""


def sample(sampler: str, x: torch.Tensor, sigmas: torch.Tensor, denoiser: Denoiser) -> Iterator[Step]:
    """Walk x, fp32 [N], along `sigmas`, fp32 [n + 1] on the CPU, and yield every step as it is taken.

    Raises InvalidRequest for an unknown sampler, before the first network call.
    """
    update = find_sampler(sampler)
    levels, divisors = sigmas.tolist(), sigmas.to(x.device, non_blocking=True)
    before = None
    for index in range(len(levels) - 1):
        denoised = denoiser(x, index)
        after = update(Point(x, denoised, before, sigmas, divisors[index], index))
        yield Step(index, levels[index], levels[index + 1], x, denoised, after)
        x, before = after, denoised


def find_sampler(name: str) -> Update:
    """The update called `name`, or InvalidRequest."""
    if name not in SAMPLERS:
        raise invalid([Offence("sampler", f"{name!r} is unknown", ", ".join(SAMPLERS))])
    return SAMPLERS[name]


def _euler(at: Point) -> torch.Tensor:
    gap = at.sigmas[at.step + 1] - at.sigmas[at.step]
    return at.x + (at.x - at.denoised) / at.divisor * float(gap)


def _res_multistep(at: Point) -> torch.Tensor:
    if at.denoised_before is None or at.sigmas[at.step + 1] == 0:
        return _euler(at)
    # One logarithm at a time: a vectorised one may round its last bit differently.
    previous, here, following = (-at.sigmas[i].log() for i in (at.step - 1, at.step, at.step + 1))
    h = following - here
    c2 = (previous - here) / h
    phi1 = torch.expm1(-h) / -h
    phi2 = (phi1 - 1.0) / -h
    now, then = phi1 - phi2 / c2, phi2 / c2
    return float(torch.exp(-h)) * at.x + float(h) * (float(now) * at.denoised + float(then) * at.denoised_before)


SAMPLERS: Final[Mapping[str, Update]] = {"res_multistep": _res_multistep, "euler": _euler}
