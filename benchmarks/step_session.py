"""One run of the benchmark of a step: builds lanes and peers, times them in rounds, then takes lanes apart.

Every figure is in `Found` as soon as it is there, and in a report after every round and every phase. What fails costs
itself alone and is kept as a fault; a device that is lost ends the run, and `watched` starts another without its cause.
Prints progress to stderr. Fed by `step`, which says what the figures mean.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from benchmarks.attention import PEERS, ceilings_of
from benchmarks.contract import read_contract
from benchmarks.script import measured_here
from benchmarks.step_floor import Part, parts_of
from benchmarks.step_lanes import SIGMA, Lane, Lanes, Ready, Velocities
from benchmarks.step_loop import Loop, run_loop
from benchmarks.step_peer import peer_model, peer_of, peer_weights
from benchmarks.step_report import Growth, Measured, Work, report_of
from benchmarks.step_sampling import Sampling, approximations, sampled, sampled_by_peer
from benchmarks.step_times import once
from benchmarks.step_workload import Workload, workload_of
from benchmarks.watched import Beat
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.cli.report import say
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.engine.made_network import made_weights
from h3runtime.errors import BackendUnavailable, H3Error
from h3runtime.observe.cores import engine_threads

SIZES: Final[Mapping[str, TransformerSizes]] = MappingProxyType(
    {
        "published": TransformerSizes(curve=None),
        "few": TransformerSizes(curve=None, layers=4),
        "small": TransformerSizes(
            hidden=128,
            layers=3,
            refiner_layers=1,
            heads=2,
            head_dim=64,
            ffn=192,
            text_dim=96,
            rope_freqs=8,
            curve=None,
            sinusoid=32,
            time_hidden=64,
            time_dim=48,
        ),
    }
)
FEW: Final = 2
"""Blocks that are run before anything is timed."""
COMPILED: Final = "diffusers, compiled"
BETWEEN: Final = 4
"""Forwards of the peer between samplings, behind the first ones."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A whole sampling. name: of a lane or peer. skipped: steps to reuse whatever its rule decides, None to ask it."""

    name: str
    skipped: tuple[int, ...] | None = None

    @classmethod
    def of(cls, text: str) -> Wanted:
        """`medium`, or `medium@3+5+7`. ValueError for steps that have none before them."""
        name, given, steps = text.partition("@")
        skipped = tuple(int(step) for step in steps.split("+")) if given else None
        if skipped is not None and min(skipped) < 1:
            raise ValueError(text)
        return cls(name, skipped)

    @property
    def told(self) -> str:
        return self.name if self.skipped is None else f"{self.name}@{'+'.join(map(str, self.skipped))}"


@dataclass(frozen=True, slots=True)
class Asked:
    """steps: of the loop, 0 for none. scaling: another workload, or None. seconds: after which nothing new begins.
    without: lanes, attentions and peers that are left out, and why. samplings: whose whole ones, in their order.
    sampling_steps: of these, in the place of the contract's."""

    workload: str
    sizes: str
    lanes: tuple[Lane, ...]
    peer: str | None
    compiled: bool
    rounds: int
    floor: bool
    steps: int
    scaling: str | None
    seconds: float | None
    without: Mapping[str, str] = field(default_factory=dict)
    samplings: tuple[Wanted, ...] = ()
    sampling_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """forward: what is timed; velocities: what its result means. few: velocities with the first blocks alone.
    risk: what a watched run is to leave out if this one hangs: the lane's attention, or the peer."""

    name: str
    forward: Callable[[], Any]
    velocities: Callable[[Any], Velocities]
    few: Callable[[int], Velocities]
    risk: str = ""


@dataclass(slots=True)
class Found:
    """What is known so far, by runner's name. between: milliseconds of the peer's forwards between samplings."""

    measured: dict[str, Measured] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    floors: dict[str, list[Part]] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    samplings: dict[str, list[Sampling]] = field(default_factory=dict)
    between: list[float] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


@torch.no_grad()
def measure(asked: Asked, device_name: str, write: Callable[[dict[str, Any]], None], beat: Beat) -> dict[str, Any]:
    """The report, ready for JSON; `write` gets it as it is after every round and at the end."""
    determinism.pin()
    place = choose_device(device_name)
    if place.device.type == "cpu":
        torch.set_num_threads(engine_threads())
    session = Session(asked, place.device, measured_here(place.name, place.device), write, beat)
    try:
        return session.run()
    except torch.AcceleratorError as fault:
        beat.lost(f"lost the device: {_first_line(fault)}")
        raise


class Session:
    """One run of the benchmark."""

    def __init__(
        self,
        asked: Asked,
        device: torch.device,
        head: dict[str, Any],
        write: Callable[[dict[str, Any]], None],
        beat: Beat,
    ) -> None:
        self.asked, self.device, self.head, self.write, self.beat = asked, device, head, write, beat
        self.began = time.monotonic()
        self.sizes = SIZES[asked.sizes]
        self.found = Found()
        self.lanes: list[Ready] = []
        self.models: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self.given = self._workload(self.asked.workload)
        runners = self._runners()
        self._tell(f"{self.given.layout.rows} rows, {len(runners)} ready: {self._held()}")
        runners = self._warmed(runners)
        self._rounds(runners)
        self._samplings(runners)
        runners.clear()
        self.models.clear()
        self.found.ceilings = ceilings_of(self.device)
        for phase in (self._floors, self._loops, self._growths):
            phase()
            report = self._report()
            self.write(report)
        return report

    def _workload(self, name: str) -> Workload:
        return workload_of(read_contract(name).contract, self.sizes.text_dim, self.device)

    def _runners(self) -> dict[str, Runner]:
        """Lanes and peers that can be built; a lane that was asked for part by part has to be."""
        weights = made_weights(self.sizes, self.device)
        self._tell(f"weights made: {self._held()}")
        lanes = Lanes(self.sizes, weights, self.device, self.asked.without, self.beat)
        runners = [self._built(lane.name, partial(self._lane, lanes, lane), lane.required) for lane in self.asked.lanes]
        if self.asked.peer is not None:
            theirs = peer_weights(weights)
            for name in (self.asked.peer, COMPILED)[: 1 + self.asked.compiled]:
                runners.append(self._built(name, partial(self._peer, name, theirs, weights["rope.inv_freq"])))
        return {runner.name: runner for runner in runners if runner is not None}

    def _built(self, name: str, build: Callable[[], Runner], required: bool = False) -> Runner | None:
        try:
            if name in self.asked.without:
                raise BackendUnavailable(self.asked.without[name])
            self.beat.at(name)
            return build()
        except torch.AcceleratorError:
            raise
        except Exception as fault:
            if required and isinstance(fault, H3Error):
                raise
            self.found.faults[name] = told = _told(fault)
            self._tell(f"{name}: {told}")
            return None

    def _lane(self, lanes: Lanes, lane: Lane) -> Runner:
        ready = lanes.ready(lane, self.given)
        self.lanes.append(ready)
        told = f"{ready.attention.name}, {lane.linear}, {ready.network.producers.name}"
        self._tell(f"{lane.name}: {'; '.join([told, *ready.passed])}")
        return Runner(lane.name, ready.forward, _same, ready.few, ready.attention.name)

    def _peer(self, name: str, theirs: Mapping[str, torch.Tensor], frequencies: torch.Tensor) -> Runner:
        model = peer_model(self.sizes, theirs, frequencies)
        if name == COMPILED:
            model.compile_repeated_blocks()
        self.models[name] = model
        peer = peer_of(model, self.given, SIGMA)

        def few(blocks: int) -> Velocities:
            with peer.few(blocks):
                return peer.velocities(peer.forward())

        return Runner(name, peer.forward, peer.velocities, few, name)

    def _warmed(self, runners: dict[str, Runner]) -> dict[str, Runner]:
        """Those whose first blocks give numbers; what is wrong with the others is kept. A lost device ends it all."""
        wanted: Velocities | None = None
        for name in sorted(runners, key=lambda name: not name.startswith(PEERS)):
            began = time.monotonic()
            self.beat.at(runners[name].risk)
            made = self._tried(name, partial(runners[name].few, FEW))
            if made is None:
                continue
            wanted = wanted or made
            took = time.monotonic() - began
            self._tell(f"{name}: {FEW} blocks differ by {error_of(made, wanted):.2e}, first call {took:.1f} s")
        return {name: runner for name, runner in runners.items() if name not in self.found.faults}

    def _tried(self, name: str, call: Callable[[], Velocities]) -> Velocities | None:
        try:
            made = call()
            finite = all(bool(torch.isfinite(stream).all()) for stream in made)
        except torch.AcceleratorError:
            raise
        except Exception as fault:
            told = _told(fault)
        else:
            if finite:
                return made
            told = "gives what is no number"
        self.found.faults[name] = told
        self._tell(f"{name}: {told}")
        return None

    def _rounds(self, runners: dict[str, Runner]) -> None:
        made: dict[str, Velocities] = {}
        for number in range(self.asked.rounds):
            if number and self._is_late(f"{self.asked.rounds - number} of {self.asked.rounds} rounds"):
                break
            order = [name for name in runners if name not in self.found.faults and self._twin(name) is None]
            turn = number % max(1, len(order))
            for name in [*order[turn:], *order[:turn]]:
                self._tried(name, partial(self._timed, runners[name], made))
            self._share_with_twins()
            if not number:
                self._judge(made)
            times = (f"{name} {found.times[-1]:.1f}" for name, found in self.found.measured.items())
            self._tell(f"round {number + 1} of {self.asked.rounds}, ms: {', '.join(times)}")
            self.write(self._report())

    def _twin(self, name: str) -> str | None:
        """An earlier lane whose forward is the same: one of both is timed."""
        own = next((lane for lane in self.lanes if lane.lane.name == name), None)
        if own is None:
            return None
        earlier = self.lanes[: self.lanes.index(own)]
        names = (lane.lane.name for lane in earlier if lane.is_twin(own))
        return next((other for other in names if other not in self.found.faults), None)

    def _share_with_twins(self) -> None:
        for lane in self.lanes:
            twin = self._twin(lane.lane.name)
            if twin in self.found.measured and lane.lane.name not in self.found.faults:
                self.found.measured[lane.lane.name] = self.found.measured[twin]

    def _timed(self, runner: Runner, made: dict[str, Velocities]) -> Velocities:
        held: list[Any] = []
        self.beat.at(runner.risk)
        before = self._reset_peak()
        took = once(lambda: held.append(runner.forward()), self.device)
        peak = None if before is None else torch.cuda.max_memory_allocated(self.device) - before
        velocities = runner.velocities(held.pop())
        made.setdefault(runner.name, velocities)
        self.found.measured.setdefault(runner.name, Measured()).add(took, peak)
        return velocities

    def _judge(self, made: dict[str, Velocities]) -> None:
        base = next((name for name in made if name in PEERS), next(iter(made), ""))
        for name, velocities in made.items():
            self.found.measured[name].error = error_of(velocities, made[base])
        self._tell(", ".join(f"{name} differs by {self.found.measured[name].error:.2e}" for name in made))

    def _samplings(self, runners: Mapping[str, Runner]) -> None:
        """In the order asked for; behind the first of ours a forward of the peer each, as both share the machine."""
        if self.asked.sampling_steps is not None:
            settings = replace(self.given.settings, steps=self.asked.sampling_steps)
            self.given = replace(self.given, settings=settings)
        for wanted in self.asked.samplings:
            what = f"sampling of {wanted.told}"
            if wanted.name in self.found.faults or wanted.name not in self.found.measured:
                self.found.left_out.append(f"{what}: there is no such lane or peer here")
                continue
            expected = self._expected_s(wanted)
            if self._is_late(what, expected):
                continue
            self._tell(f"{what}: about {expected:.0f} s")
            self._sampling(wanted, what, runners)
            self.write(self._report())

    def _sampling(self, wanted: Wanted, what: str, runners: Mapping[str, Runner]) -> None:
        try:
            made = self._sampled(wanted, runners[wanted.name].risk)
        except torch.AcceleratorError:
            raise
        except Exception as fault:
            self.found.faults[what] = _told(fault)
            self._tell(f"{what}: {self.found.faults[what]}")
            return
        self.found.samplings.setdefault(wanted.told, []).append(made)
        steps = ", ".join(f"{step.ms:.0f}{'r' * step.reused}" for step in made.steps)
        self._tell(f"{what}: {made.wall_ms:.0f} ms, {made.forwards} forwards; steps (r: reused): {steps}")
        peer = runners.get(self.asked.peer or "")
        if wanted.name not in self.models and peer is not None and len(self.found.between) < BETWEEN:
            self.beat.at(peer.risk)
            self.found.between.append(once(peer.forward, self.device))
            self._tell(f"{peer.name}: a forward {self.found.between[-1]:.1f} ms")

    def _sampled(self, wanted: Wanted, risk: str) -> Sampling:
        alive = partial(self.beat.at, risk)
        alive()
        if wanted.name in self.models:
            return sampled_by_peer(self.models[wanted.name], self.given, self.device, alive)
        return sampled(replace(self._lane_of(wanted), given=self.given), self.device, alive)

    def _lane_of(self, wanted: Wanted) -> Ready:
        lane = next(lane for lane in self.lanes if lane.lane.name == wanted.name)
        return replace(lane, lane=replace(lane.lane, skipped=wanted.skipped))

    def _expected_s(self, wanted: Wanted) -> float:
        """As long as the last one, or as all of its forwards."""
        if before := self.found.samplings.get(wanted.told):
            return before[-1].wall_ms / 1e3
        settings = self.given.settings
        reused = 0 if wanted.name in self.models else self._lane_of(wanted).lane.likely_skips(settings)
        return self.found.measured[wanted.name].ms * (settings.steps - reused) / 1e3

    def _floors(self) -> None:
        def measured(lane: Ready) -> None:
            self.found.floors[lane.lane.name] = parts_of(lane, self.device)

        if self.asked.floor:
            self._each("floor", measured)

    def _loops(self) -> None:
        def measured(lane: Ready) -> None:
            self.found.loops[lane.lane.name] = run_loop(lane, self.asked.steps, self.device)

        if self.asked.steps:
            self._each("loop", measured)

    def _growths(self) -> None:
        if self.asked.scaling is None:
            return
        given = self._workload(self.asked.scaling)

        def measured(lane: Ready) -> None:
            self._free()
            there = lane.on(given)
            there.few(1)
            took = once(there.forward, self.device)
            works = (Work.of(self.sizes, one.layout.rows) for one in (given, self.given))
            self.found.growths.append(Growth.of(lane.lane.name, given, took, self.found.measured, *works))

        self._each("scaling", measured)

    def _each(self, phase: str, measure: Callable[[Ready], None]) -> None:
        """Of lanes that were timed, as long as there is time for it. A fault costs itself alone."""
        for lane in self.lanes:
            name = lane.lane.name
            if name not in self.found.measured or self._twin(name) is not None:
                continue
            if self._is_late(f"{phase} of {name}"):
                continue
            self.beat.at(lane.attention.name)
            try:
                measure(lane)
            except torch.AcceleratorError:
                raise
            except Exception as fault:
                self.found.faults[f"{phase} of {name}"] = _told(fault)
            self._tell(f"{phase} of {name}: {self.found.faults.get(f'{phase} of {name}', 'measured')}")

    def _is_late(self, what: str, takes: float = 0.0) -> bool:
        """takes: seconds, as far as that is known."""
        seconds = self.asked.seconds
        if seconds is None or time.monotonic() - self.began + takes <= seconds:
            return False
        self.found.left_out.append(f"{what}: {seconds:.0f} s were over")
        return True

    def _report(self) -> dict[str, Any]:
        asked = {**asdict(self.asked), "lanes": [lane.name for lane in self.asked.lanes]}
        asked["samplings"] = [one.told for one in self.asked.samplings]
        work = Work.of(self.sizes, self.given.layout.rows)
        chosen = {
            lane.lane.name: (lane.attention.name, lane.lane.linear, lane.network.producers.name) for lane in self.lanes
        }
        told = {lane.lane.name: list(lane.passed) for lane in self.lanes}
        names = {lane.lane.name for lane in self.lanes}
        sampled_ones = [Wanted.of(told) for told in self.found.samplings]
        near = {one.told: approximations(self._lane_of(one)) for one in sampled_ones if one.name in names}
        return report_of(
            {**self.head, "asked": asked, "passed": told, "approximations": near}, work, chosen, self.found
        )

    def _reset_peak(self) -> int | None:
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _free(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _held(self) -> str:
        if self.device.type != "cuda":
            return "memory isn't counted here"
        return f"{torch.cuda.memory_allocated(self.device) / 1e9:.1f} GB held"

    def _tell(self, line: str) -> None:
        say(f"{time.monotonic() - self.began:6.1f} s  {line}")


def _same(made: Velocities) -> Velocities:
    return made


def _told(fault: Exception) -> str:
    return f"{type(fault).__name__}: {_first_line(fault)}"


def _first_line(fault: Exception) -> str:
    return str(fault).strip().partition("\n")[0][:200]


def error_of(made: Velocities, wanted: Velocities) -> float:
    """Relative L2, of the stream that is farther off."""
    pairs = [(one.float(), other.float()) for one, other in zip(made, wanted, strict=True)]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)
