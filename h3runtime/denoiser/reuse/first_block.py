"""`first_block`: a network that runs its first block at every step and compares what it adds.

    r    = h1 - h0        what the first block adds to the target's rows, each `subsample`-th of them compared
    rest = hN - h1        what all later blocks add to them, of the last computed step, in the compute dtype

    change of r since the last computed step below the threshold   h1 + rest is headed, the later blocks don't run
    else                                                           they run; r and rest are kept

The head is the step's own: its timestep, its modulation, its masks. Only the target's rows are kept, since nothing else
is headed: S_target x hidden once, 0.4 GB at S = 37,810 of the published sizes. A reused step costs one block of N.
Picture and sound rows are compared separately. The host waits for the device once a step within the window, while the
first block is all that was launched. Wrapped around the DiT by `wrapping`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from h3runtime.core import StepReuse
from h3runtime.denoiser.dit import Passage, Prepared
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.reuse.change import Pair, Weights, relative_change
from h3runtime.denoiser.reuse.log import ReuseLog
from h3runtime.denoiser.reuse.rule import Rule, Window
from h3runtime.denoiser.rows import audio_mask_rows, video_mask_rows


@runtime_checkable
class Staged(Protocol):
    """A network whose forward can be taken in parts, as the DiT's."""

    def begin(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
    ) -> Passage: ...

    def advance(self, way: Passage, stop: int | None = None) -> Passage: ...

    def finish(
        self,
        prepared: Prepared,
        way: Passage,
        video: torch.Tensor,
        sigma: float,
        *,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def __call__(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
        begun: Passage | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class FirstBlockReuse:
    """One run's: not for a second one. shift: the run's. A computed step is a call of the network, as ever; a reused
    one takes parts of it."""

    def __init__(self, network: Staged, settings: StepReuse, shift: float, log: ReuseLog) -> None:
        self._network = network
        self._factor = settings.subsample
        self._window = Window.of(settings, shift)
        self._rule = Rule.of(settings)
        self._added: Pair | None = None
        self._rest: torch.Tensor | None = None
        self._weights: Weights | None = None
        self._log = log

    def __call__(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        network = self._network
        begun = network.begin(prepared, video, audio, sigma, step=step, masks=masks)
        entered = self._thinned(begun.h, prepared)
        way = network.advance(begun, 1)
        added = self._added_to(entered, way.h, prepared)
        target = way.h[prepared.layout.segments[-2].start :]
        if self._rest is not None and self._reuses(added, sigma, step, masks):
            self._log.reused.add(step)
            target.add_(self._rest)
            return network.finish(prepared, way, video, sigma, masks=masks, sigma_next=sigma_next)
        self._added, self._rest = added, None
        first = target.clone()
        way = network.advance(way)
        self._rest = torch.sub(way.h[prepared.layout.segments[-2].start :], first, out=first)
        return network(prepared, video, audio, sigma, step=step, masks=masks, sigma_next=sigma_next, begun=way)

    def _reuses(self, added: Pair, sigma: float, step: int, masks: TokenMasks | None) -> bool:
        if self._added is None or not self._window.holds(sigma):
            return False
        if self._weights is None:
            self._weights = self._row_masks(masks)
        change = relative_change(added, self._added, self._weights)
        self._log.changes[step] = change
        return self._rule.allows(change)

    def _added_to(self, entered: Pair, h: torch.Tensor, prepared: Prepared) -> Pair:
        """h less what entered, which is overwritten: all later blocks run beside it."""
        left = self._thinned(h, prepared)
        return Pair(
            torch.sub(left.video, entered.video, out=entered.video),
            torch.sub(left.audio, entered.audio, out=entered.audio),
        )

    def _thinned(self, h: torch.Tensor, prepared: Prepared) -> Pair:
        """Of rows [S, hidden], those compared, fp32."""
        sound, picture = prepared.layout.segments[-2:]
        rows = h[picture.start : picture.stop : self._factor], h[sound.start : sound.stop : self._factor]
        return Pair(*(part.to(torch.float32, copy=True) for part in rows))

    def _row_masks(self, masks: TokenMasks | None) -> Weights:
        """Of the same rows, [n, 1]."""
        if masks is None:
            return Weights()
        video = None if masks.video is None else video_mask_rows(masks.video)[:: self._factor, None].float()
        audio = None if masks.audio is None else audio_mask_rows(masks.audio)[:: self._factor, None].float()
        return Weights(video, audio)
