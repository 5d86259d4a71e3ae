"""What is wrong with a result: fields that aren't what they should be, and stages that became slower.

Does: compare a result with its contract, with a baseline of the same kind of machine, and with the contract's figures
where those come from such a machine. Does not: read files or print. Fed and read by `compare`; `report` words it.

Times are compared only between runs of the same work: one mismatch, and no time is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contract import STAGES, Contract, Figure, Signed, Stage, Strict
from benchmarks.result import Machine, Result


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field that isn't what it should be."""

    field: str
    ran: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.field}: ran {plain(self.ran)}, should be {plain(self.wanted)}"


@dataclass(frozen=True, slots=True)
class Regression:
    """change: of the median; 0.03 is 3 % slower than `than`."""

    stage: Stage
    change: float
    than: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.change:+.1%} against {self.than}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Empty twice is as it should be."""

    mismatches: tuple[Mismatch, ...]
    regressions: tuple[Regression, ...]


def judge(result: Result, signed: Signed, baseline: Result | None, tolerance: float) -> Verdict:
    """Everything that is wrong with a result. tolerance: how much slower is fine, 0.02 is 2 %."""
    mismatches = list(against_contract(result, signed))
    if baseline is not None:
        mismatches += against_baseline(result, baseline)
    if mismatches:
        return Verdict(tuple(mismatches), ())
    regressions = list(against_figures(result, signed.contract, tolerance))
    if baseline is not None:
        regressions += slower_than(result, baseline, tolerance)
    return Verdict((), tuple(regressions))


def against_contract(result: Result, signed: Signed) -> Iterator[Mismatch]:
    """What of the run isn't what the contract says."""
    contract, run, measuring = signed.contract, result.run, signed.contract.measuring
    yield from _differs("contract_sha256", result.contract_sha256, signed.sha256)
    for name in ("task", "width", "height", "frames"):
        yield from _differs(name, getattr(run, name), getattr(contract, name))
    for name in ("latents", "rows", "sampling"):
        yield from _fields_differ(name, getattr(run, name), getattr(contract, name))
    yield from _differs("prompt_cache", run.prompt_cache, measuring.prompt_cache)
    yield from _fewer("warm_up_runs", run.warm_up_runs, measuring.warm_up_runs)
    yield from _fewer("samples", result.repeats, measuring.minimum_samples)
    used = {"precision": result.precision.transformer, **result.backends.model_dump()}
    for name, wanted in contract.requires.model_dump().items():
        if wanted is not None:
            yield from _differs(name, used[name], wanted)
    if (peer := result.peer) is not None:
        yield from _differs("peer.forwards", peer.forwards, run.sampling.forwards)
        yield from _differs("peer.rows", peer.rows, run.rows.total)


def against_baseline(result: Result, baseline: Result) -> Iterator[Mismatch]:
    """Why the two may not be compared."""
    for name in ("contract", "contract_sha256"):
        yield from _differs(f"baseline.{name}", getattr(baseline, name), getattr(result, name))
    if baseline.machine.kind != result.machine.kind:
        here = f"{machine_of(result.machine)}; times of different machines are not comparable"
        yield Mismatch("baseline.machine", machine_of(baseline.machine), here)
    for name in ("latents", "rows", "sampling"):
        yield from _fields_differ(f"baseline.{name}", getattr(baseline.run, name), getattr(result.run, name))
    yield from _differs("baseline.checkpoints", _sizes(baseline), _sizes(result))


def against_figures(result: Result, contract: Contract, tolerance: float) -> Iterator[Regression]:
    """Figures of this kind of machine; from others nothing follows."""
    for figure in contract.figures:
        if figure.stage is not None and is_judged(figure, result, contract):
            than = f"the figure of {figure.value:g} s on {figure.machine}"
            yield from _slower(figure.stage, result.median(figure.stage), figure.value, than, tolerance)


def is_judged(figure: Figure, result: Result, contract: Contract) -> bool:
    """Of one stage, on the same device, in the same number format, for a workload that is known to the last row."""
    same_device = figure.device.lower() in result.machine.device.lower()
    same_format = figure.precision in (None, result.precision.transformer)
    return same_device and same_format and figure.stage is not None and contract.rows.references is not None


def slower_than(result: Result, baseline: Result, tolerance: float) -> Iterator[Regression]:
    """Stages whose median is slower by more than the tolerance."""
    for stage in STAGES:
        yield from _slower(stage, result.median(stage), baseline.median(stage), "the baseline", tolerance)


def machine_of(machine: Machine) -> str:
    """For people: the device, and the processor beside it."""
    count = f"{machine.device_count} x " if machine.device_count > 1 else ""
    return f"{count}{machine.device} ({machine.cpu}, {machine.threads} of {machine.cores} cores)"


def plain(value: object) -> str:
    """A value of a contract or a result in one line."""
    if isinstance(value, Strict):
        return plain(value.model_dump())
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(entry)}" for key, entry in value.items())
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value)


def _slower(stage: Stage, seconds: float, before: float, than: str, tolerance: float) -> Iterator[Regression]:
    # The product and not the quotient, so that 2 % more is within 2 % whatever the last bit says.
    if seconds > before * (1 + tolerance):
        yield Regression(stage, seconds / before - 1, than)


def _differs(field: str, ran: object, wanted: object) -> Iterator[Mismatch]:
    if ran != wanted:
        yield Mismatch(field, ran, wanted)


def _fewer(field: str, ran: int, least: int) -> Iterator[Mismatch]:
    if ran < least:
        yield Mismatch(field, ran, f"at least {least}")


def _fields_differ(name: str, ran: Strict, wanted: Strict) -> Iterator[Mismatch]:
    """Field by field. References that are left open may have any rows, and the total has them too."""
    has, wants = ran.model_dump(), wanted.model_dump()
    if "references" in wants and wants["references"] is None:
        wants |= {"references": has["references"], "total": wants["total"] + has["references"]}
    for field, value in wants.items():
        yield from _differs(f"{name}.{field}", has[field], value)


def _sizes(result: Result) -> dict[str, str]:
    """Made-up weights are as fast as real ones of the same sizes; other sizes are another model."""
    return {file.component: f"{file.format} of {file.bytes} bytes" for file in result.checkpoints}
