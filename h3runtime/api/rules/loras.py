"""Whether the adapters that a request names are there, fit its task's transformer, and are used as they were trained.

Names, alphas and fits are the loaded engine's to tell (`AdapterFacts`); a published adapter's contract is held against
the request's own steps, sampler, scheduler, shifts and task. Every fault is told under the field that is wrong: an
adapter for four forwards with `steps` 5 is an offence of `steps`. Fed by `admission` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h3runtime.api.request import GenerateBody, LoraBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import AdapterContract, AdapterFacts, AdapterFit, AdapterUse, EngineFacts, Task

SHOWN = 8
CLOSE = 1e-6
"""Relative: two numbers that are meant to be the same one."""
NO_FOLDER = "this server has none: H3_LORA_DIR names a folder of them"


def judge_loras(body: GenerateBody, task: Task, facts: EngineFacts, verdict: Verdict) -> tuple[AdapterUse, ...]:
    """What runs the request; means nothing while the verdict holds offences."""
    known = {adapter.name: adapter for adapter in facts.adapters}
    uses = []
    for index, lora in enumerate(body.loras):
        if any(lora.name == other.name for other in body.loras[:index]):
            verdict.refuse(f"loras[{index}].name", f"{_quoted(lora.name)} is named twice", "each adapter once")
            continue
        named = _Named(f"loras[{index}]", lora, known.get(lora.name), task, verdict)
        if (use := named.judged(list(known))) is not None:
            uses.append(use)
            if lora.strength and named.facts is not None and named.facts.contract is not None:
                _hold(body, task, lora.name, named.facts.contract, verdict)
    return tuple(uses)


@dataclass(frozen=True, slots=True)
class _Named:
    """One entry of `loras`. facts: None where there is no such adapter."""

    field: str
    lora: LoraBody
    facts: AdapterFacts | None
    task: Task
    verdict: Verdict

    def judged(self, names: list[str]) -> AdapterUse | None:
        facts, name = self.facts, f"{self.field}.name"
        if facts is None:
            legal = ", ".join(names[:SHOWN]) + ("..." if len(names) > SHOWN else "") if names else NO_FOLDER
            self.verdict.refuse(name, f"there is no adapter {_quoted(self.lora.name)}", legal)
            return None
        if facts.fault:
            self.verdict.refuse(name, f"{_quoted(facts.name)} can't be used: {facts.fault}", "another adapter")
            return None
        fit = facts.fits.get(self.task.runs_on)
        if fit is None or not self._fits(fit, facts):
            return None
        return self._use(facts, fit) if self._alpha_is_known(facts) else None

    def _fits(self, fit: AdapterFit, facts: AdapterFacts) -> bool:
        if fit.fault:
            told = f"{_quoted(facts.name)} doesn't fit the {self.task.runs_on} transformer: {fit.fault}"
            self.verdict.refuse(f"{self.field}.name", told, "an adapter of this transformer")
            return False
        if fit.unmatched and not self.lora.partial:
            told = f"{_quoted(facts.name)} matches {fit.matched} of {fit.total} layers; not {_some(fit.unmatched)}"
            self.verdict.refuse(f"{self.field}.partial", told, "true, to apply what matches")
            return False
        self.verdict.warnings.extend(_warnings(facts.name, fit))
        return True

    def _alpha_is_known(self, facts: AdapterFacts) -> bool:
        """What the file says can't be said otherwise; what it doesn't say has to be."""
        field, given = f"{self.field}.alpha", self.lora.alpha
        published = "" if facts.contract is None or facts.contract.alpha is None else f"{facts.contract.alpha:g}"
        if given is None:
            if facts.needs_alpha:
                told = f"{_quoted(facts.name)} has no alpha in its file, which has rank {facts.rank}"
                legal = f"{published}, as published" if published else "the alpha that it was trained with"
                self.verdict.refuse(field, told, legal)
            return not facts.needs_alpha
        if facts.needs_alpha:
            if published and not _same(given, float(published)):
                self.verdict.refuse(field, f"{given:g}: {_quoted(facts.name)} was trained with another", published)
                return False
            return True
        own = "its own" if facts.alpha is None else f"{facts.alpha:g}"
        if facts.alpha is None or not _same(given, facts.alpha):
            self.verdict.refuse(field, f"{given:g}: the file of {_quoted(facts.name)} says {own}", "leave it out")
            return False
        return True

    def _use(self, facts: AdapterFacts, fit: AdapterFit) -> AdapterUse:
        given = self.lora.alpha if facts.needs_alpha else None
        alpha, ratio = facts.alpha, facts.ratio
        if given is not None and not facts.mixed_alpha:
            alpha, ratio = given, given / max(facts.rank, 1)
        # Without pairs there is nothing that alpha would scale.
        scale = 1.0 if not facts.rank else ratio
        return AdapterUse(
            name=facts.name,
            strength=self.lora.strength,
            sha256=facts.sha256,
            alpha=alpha,
            rank=facts.rank,
            scale=None if scale is None else self.lora.strength * scale,
            matched=fit.matched,
            total=fit.total,
            alpha_given=given,
        )


def _hold(body: GenerateBody, task: Task, name: str, contract: AdapterContract, verdict: Verdict) -> None:
    """The request to what the adapter was trained for."""
    told = f"the adapter {_quoted(name)} ({contract.name}, told by {contract.told_by}) was trained"
    held = (
        ("steps", body.steps, contract.steps, "with {} forwards"),
        ("sampler", body.sampler, contract.samplers, "with the sampler {}"),
        ("scheduler", body.scheduler, contract.schedulers, "with the scheduler {}"),
        ("shift", body.shift, contract.shift, "with shift {}"),
        ("audio_shift", body.audio_shift, contract.audio_shift, "with audio shift {}"),
        ("task", task.value, contract.tasks, "for {}"),
    )
    for field, value, legal, how in held:
        if legal and field not in verdict.broken and not any(_same(value, one) for one in legal):
            shown = " or ".join(map(_shown, legal))
            verdict.refuse(field, f"{_shown(value)}: {told} {how.format(shown)}", shown)
    if contract.advised and body.scheduler not in contract.advised:
        verdict.warnings.append(f"{told} with the scheduler {' or '.join(contract.advised)}, not {body.scheduler}")


def _warnings(name: str, fit: AdapterFit) -> Iterator[str]:
    if fit.skipped:
        told = f"of the adapter {_quoted(name)}, {len(fit.skipped)} AdaLN layers are for another width and are left out"
        yield f"{told}: {_some(fit.skipped)}"
    if fit.unmatched:
        yield f"of the adapter {_quoted(name)}, {len(fit.unmatched)} layers match nothing: {_some(fit.unmatched)}"


def _same(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= CLOSE * max(abs(one), abs(other))
    return one == other


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _some(layers: tuple[str, ...]) -> str:
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return ", ".join(layers[:SHOWN]) + more


def _quoted(name: str) -> str:
    return ascii(name)[:80]
