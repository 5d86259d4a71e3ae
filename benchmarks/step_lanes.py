"""The lanes of the benchmark of a step: what each may use, and a network made ready with the best of it that runs here.

    exact    BF16 products on resident weights, attention of 16 bits, fused producers
    high     FP8 products, attention of 8 bits, producers that round to FP8
    reuse    high with steps that are made of earlier ones
    sparse   high with attention that reads a share of the pictures' keys (`--share`), whatever they are: how many are
             read is fixed, so that time doesn't depend on numbers (that of `sol_attn` does)
    medium   both: sparse attention, where it is faster than all of it in 8 bits, and reuse

What reuse saves shows in a whole sampling alone (`step_sampling`); forwards of lanes that have the same attention and
products are timed once. Of several attentions the fastest on the workload's own rows is taken; what the others took, or
why they can't run, is kept. `sdpa` stands in where none can, and the definition for producers, so that every lane runs
anywhere: the report names what ran. Fed by `step`; all lanes stand on the same weights (`engine.made_network`), and
those whose products are the same on the same network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import torch

from benchmarks.step_times import once
from benchmarks.step_workload import Workload
from benchmarks.watched import Beat
from h3runtime.backends.attention.base import AttentionBackend, Place, attend_at
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.fused.base import Producers
from h3runtime.backends.fused.select import choose_producers
from h3runtime.backends.linear.select import choose_linear
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.core import SamplerSettings, StepReuse
from h3runtime.denoiser.dit import Dit, Prepared
from h3runtime.denoiser.reuse.outlook import likely_skips
from h3runtime.engine.gates import why_no_gates
from h3runtime.engine.made_network import made_network
from h3runtime.engine.resident import COMPUTE_DTYPE
from h3runtime.errors import BackendUnavailable, H3Error

SIGMA: Final = 0.9
"""Of the forward that is timed, in the middle of a run: video and audio read a timestep each."""
STEP: Final = 4
"""Of a run, one in which sparse attention is sparse."""
Velocities = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Lane:
    """attentions: to choose the fastest of. linear: one, since it decides what the lane is. producers: by preference.
    required: an attention that can't run is an error, and nothing stands in for it. reuse: of its whole samplings.
    skipped: steps that these reuse whatever `reuse` would decide, None to let it decide."""

    name: str
    attentions: tuple[str, ...]
    linear: str
    producers: tuple[str, ...] = ("triton", "cpu", "torch")
    required: bool = False
    reuse: StepReuse | None = None
    skipped: tuple[int, ...] | None = None

    def likely_skips(self, sampling: SamplerSettings) -> int:
        return likely_skips(sampling, self.reuse) if self.skipped is None else len(self.skipped)


NARROW: Final = ("h3_attn8", "sage2", "sage1")
EASY: Final = StepReuse("easycache", 0.15)
SHARE: Final = 50
"""Per cent of the pictures' cubes that are read. With FP8 products and that reuse h3-nano's clips of 9,310 rows keep an
SSIM of 0.979, and their sound misses what `medium` promises by 0.01 dB: 1.42 on average, 1.51 at the 95 % bound, where
1.5 is promised. INT8 products and 25 % keep both (benchmarks/LOG.md)."""


def sparse_attentions(percent: int) -> tuple[str, ...]:
    """Those that read the same share: of 8 bits, of 16."""
    return f"sla8_topk_{percent}", f"sla_topk_{percent}"


LANES: Final[Mapping[str, Lane]] = MappingProxyType(
    {
        "exact": Lane("exact", ("fa4", "cudnn_sdpa"), "resident_bf16"),
        "high": Lane("high", NARROW, "fp8"),
        "reuse": Lane("reuse", NARROW, "fp8", reuse=EASY),
        "sparse": Lane("sparse", sparse_attentions(SHARE), "fp8"),
        "medium": Lane("medium", (*sparse_attentions(SHARE), *NARROW), "fp8", reuse=EASY),
    }
)
DEFAULT: Final = ("exact", "high")
FALLBACK: Final = "sdpa"
TRIALS: Final = 3
"""Calls of an attention before it is chosen; the last counts."""


def lane_of(name: str, percent: int, reuse: StepReuse) -> Lane:
    """A lane by name, with these in the place of its own share and reuse, where it has any."""
    lane = LANES[name]
    own, others = sparse_attentions(SHARE), sparse_attentions(percent)
    lane = replace(lane, attentions=tuple(dict(zip(own, others, strict=True)).get(one, one) for one in lane.attentions))
    return lane if lane.reuse is None else replace(lane, reuse=reuse)


@dataclass(frozen=True, slots=True)
class Ready:
    """A lane on one workload. passed: what was not chosen and why; for attention also how long each took. tally: of all
    lanes' attentions."""

    lane: Lane
    network: Dit
    attention: AttentionBackend
    prepared: Prepared
    given: Workload
    passed: tuple[str, ...]
    tally: Tally

    def forward(self) -> Velocities:
        return self.network(self.prepared, self.given.video, self.given.audio, SIGMA, step=STEP)  # type: ignore[no-any-return]

    def few(self, blocks: int) -> Velocities:
        """The same with its first blocks alone."""
        way = self.network.begin(self.prepared, self.given.video, self.given.audio, SIGMA, step=STEP)
        return self.network.finish(self.prepared, self.network.advance(way, blocks), self.given.video, SIGMA)

    def on(self, given: Workload) -> Ready:
        """The same lane on another workload."""
        prepared = prepared_on(self.network, self.attention, given)
        return replace(self, prepared=prepared, given=given)

    def is_twin(self, other: Ready) -> bool:
        """Whether a forward of the other is the same."""
        return self.network is other.network and self.attention.name == other.attention.name


class Lanes:
    """Makes lanes ready, one after the other, on the same weights."""

    def __init__(
        self,
        sizes: TransformerSizes,
        weights: Mapping[str, torch.Tensor],
        device: torch.device,
        without: Mapping[str, str] = MappingProxyType({}),
        beat: Beat | None = None,
    ) -> None:
        """without: attentions that are left out, and why. beat: told which is being tried."""
        self._sizes, self._weights, self._device = sizes, weights, device
        self._without, self._beat = without, beat or Beat(None)
        self._attentions = Attentions(device, AttentionOptions())
        self._networks: dict[tuple[str, tuple[str, ...]], tuple[Dit, list[str]]] = {}
        self._chosen: dict[tuple[tuple[str, ...], bool], tuple[AttentionBackend, list[str]]] = {}

    def ready(self, lane: Lane, given: Workload) -> Ready:
        """InvalidRequest or BackendUnavailable for a lane of which something can't run here."""
        network, more = self._network(lane)
        self._attentions.fit({network.config.head_dim}, why_no_gates([network]))
        asked = lane.attentions, lane.required
        if asked not in self._chosen:
            self._chosen[asked] = self._attention(lane, given, network.config.heads, network.config.head_dim)
        attention, told = self._chosen[asked]
        self._beat.at(attention.name)
        prepared = prepared_on(network, attention, given)
        return Ready(lane, network, attention, prepared, given, (*told, *more), self._attentions.tally)

    def _network(self, lane: Lane) -> tuple[Dit, list[str]]:
        """One for all lanes of the same products: what a linear encodes is held once."""
        key = lane.linear, lane.producers
        if key not in self._networks:
            linear, _ = choose_linear(lane.linear, self._device)
            made = made_network(self._sizes, self._weights, linear=linear, device=self._device, dtype=COMPUTE_DTYPE)
            made.producers, told = _producers(lane.producers, self._device)
            self._networks[key] = made, told
        return self._networks[key]

    def _attention(self, lane: Lane, given: Workload, heads: int, head_dim: int) -> tuple[AttentionBackend, list[str]]:
        """The fastest on the workload's rows; what is known of all."""
        made = torch.empty(1, given.layout.rows, 3, heads, head_dim, dtype=COMPUTE_DTYPE, device=self._device)
        qkv = made.normal_(generator=torch.Generator(self._device).manual_seed(0)).unbind(2)
        took: dict[str, float] = {}
        told: list[str] = []
        for name in lane.attentions:
            try:
                if name in self._without:
                    raise BackendUnavailable(f"attention: {name} {self._without[name]}")
                self._beat.at(name)
                backend, _ = self._attentions.choose(name)
                took[name] = self._tried(backend, qkv, given)
                told.append(f"attention: {name} takes {took[name]:.1f} ms")
            except torch.AcceleratorError:
                raise
            except Exception as error:
                if lane.required and len(lane.attentions) == 1:
                    raise
                told.append(str(error).partition("\n")[0])
        best = min(took, key=lambda name: took[name], default=FALLBACK)
        return self._attentions.choose(best)[0], told

    def _tried(self, backend: AttentionBackend, qkv: Sequence[torch.Tensor], given: Workload) -> float:
        q, k, v = qkv
        place = Place(self._sizes.layers // 2)
        call = partial(attend_at, backend, q, k, v, layout=given.layout, step=STEP, place=place)
        return [once(call, self._device) for _ in range(TRIALS)][-1]


def prepared_on(network: Dit, attention: AttentionBackend, given: Workload) -> Prepared:
    settings = given.settings
    return network.prepare(
        given.layout,
        network.refine(given.text.hidden, attention),
        (),
        given.references,
        settings.seed,
        (SIGMA, 0.0),
        shift=settings.shift,
        audio_shift=settings.audio_shift,
        attention=attention,
    )


def _producers(names: Sequence[str], device: torch.device) -> tuple[Producers, list[str]]:
    """The first that can run, the last of all is asked for."""
    told: list[str] = []
    for name in names[:-1]:
        try:
            return choose_producers(name, device)[0], told
        except H3Error as error:
            told.append(error.message)
    return choose_producers(names[-1], device)[0], told
