"""What a step of the few-step rule has to come to: where many small steps of the teacher lead from the same state.

    x_0 noise;  y = teacher from x_i at b_i to b_{i+1}, in k Euler steps;  v_i = (x_i - y) / (sigma_i - sigma_{i+1})

so that Euler with v_i lands on y. x_{i+1} is y in some sequences and where the student's own step lands in the others:
it learns on its teacher's way and on the one that it takes. From there the teacher goes on, or, with `home`, stays on
its own way from the noise, so that what one step missed is the next one's to make good. No data but captions (and the
pictures that keyframes show) is in it. A lesson holds B sequences at all N states, in the order [N * B]. Fed by
`distilling`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from h3runtime.denoiser.dit import Dit
from h3runtime.nano.training.lectern import Batch
from h3runtime.nano.training.transformer import BlockForward, Rows, block_forward, predict, refine
from h3runtime.nano.training.turbo.schedule import bases, between, lengths

Pair = tuple[torch.Tensor, torch.Tensor]
"""Audio rows [B, 2A, 32] and video rows [B, V, 96]."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A DiT with one batch's text, asked for velocities u = x0 - noise."""

    dit: Dit
    text: torch.Tensor
    batch: Batch
    through: BlockForward = block_forward

    @classmethod
    def of(cls, dit: Dit, hidden: torch.Tensor, batch: Batch, through: BlockForward = block_forward) -> Asked:
        """hidden [B, L, text_dim]: the encoder's."""
        return cls(dit, refine(dit, hidden, batch.rows.text_mask), batch, through)

    def at(self, state: Pair, base: torch.Tensor) -> Pair:
        """base [B]."""
        given = self.batch
        return predict(self.dit, given.rows, self.text, given.visual, given.audible, *state, base, self.through)

    def stepped(self, state: Pair, now: float, after: float) -> Pair:
        """One Euler step on both clocks."""
        return moved(state, self.at(state, _everywhere(now, state)), now, after)

    def walked(self, state: Pair, visited: tuple[float, ...]) -> Pair:
        """Euler from base to base."""
        for now, after in pairwise(visited):
            state = self.stepped(state, now, after)
        return state


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """hidden [B, L, text_dim]. states, velocities: [N * B, ...], base [N * B]."""

    batch: Batch
    hidden: torch.Tensor
    states: Pair
    velocities: Pair
    base: torch.Tensor


def moved(state: Pair, velocity: Pair, now: float, after: float) -> Pair:
    video, audio = lengths(now, after)
    return state[0] + audio * velocity[0], state[1] + video * velocity[1]


def landed(state: Pair, end: Pair, now: float, after: float) -> Pair:
    """The velocity with which one step leads from a state to an end."""
    video, audio = lengths(now, after)
    return (end[0] - state[0]) / audio, (end[1] - state[1]) / video


@torch.no_grad()
def lesson(
    teacher: Asked,
    student: Asked,
    hidden: torch.Tensor,
    noise: Pair,
    own: torch.Tensor,
    forwards: int,
    parts: int,
    *,
    home: bool = False,
) -> Lesson:
    """own: bool [B], which sequences go on from the student's own step. parts: the teacher's steps for one. home: where
    to the teacher's way from the noise leads, from every state, and not the one that begins there."""
    state, end, states, velocities = noise, noise, list[Pair](), list[Pair]()
    visited, choose = bases(forwards), own.view(-1, 1, 1)
    for now, after in pairwise(visited):
        end = teacher.walked(end if home else state, between(now, after, parts))
        states.append(state)
        velocities.append(landed(state, end, now, after))
        if after:
            ventured = student.stepped(state, now, after)
            state = torch.where(choose, ventured[0], end[0]), torch.where(choose, ventured[1], end[1])
    told = torch.cat([_everywhere(base, noise) for base in visited[:-1]])
    return Lesson(teacher.batch, hidden, _joined(states), _joined(velocities), told)


def repeated(batch: Batch, times: int) -> Batch:
    """The same sequences that often, one set behind the other; its text stays."""

    def again(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x.repeat(times, *[1] * (x.ndim - 1))

    rows: Rows = batch.rows
    if rows.cos.ndim == 3:
        rows = replace(rows, cos=rows.cos.repeat(times, 1, 1), sin=rows.sin.repeat(times, 1, 1), mask=again(rows.mask))
    return replace(batch, rows=rows, visual=again(batch.visual), audible=again(batch.audible))


def _everywhere(base: float, state: Pair) -> torch.Tensor:
    """[B], made on the device: nothing is copied there, so that a step can be recorded."""
    return torch.full((len(state[0]),), base, device=state[0].device)


def _joined(pairs: list[Pair]) -> Pair:
    audio, video = zip(*pairs, strict=True)
    return torch.cat(audio), torch.cat(video)
