"""Whether the backends that a request names can run here, and which ones a quality level chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.levels import exact_backend
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import BackendChoice, EngineFacts


@dataclass(frozen=True, slots=True)
class Backends:
    """What runs the request; None for the server's own choice."""

    attention: str | None = None
    linear: str | None = None


def judge_backends(body: GenerateBody, facts: EngineFacts, verdict: Verdict) -> Backends:
    """Every backend that a request names, against what is loaded."""
    named = {"attention": list(_named_attention(body)), "linear": [("linear", body.linear)] if body.linear else []}
    choices = {"attention": facts.attention, "linear": facts.linear}
    chosen: dict[str, str | None] = {}
    for family, choice in choices.items():
        for field, name in named[family]:
            judge_backend(field, name, choice, verdict)
        chosen[family] = getattr(body, family)
        if body.quality == "exact":
            exact = exact_backend(named[family], choice, verdict)
            chosen[family] = chosen[family] or exact
    return Backends(**chosen)


def judge_backend(field: str, name: str | None, choice: BackendChoice, verdict: Verdict) -> None:
    if name is None or name in choice.available:
        return
    why = choice.unavailable.get(name, "is not known")
    verdict.refuse(field, f"{ascii(name)[:60]}: {why}", ", ".join(choice.available))


def _named_attention(body: GenerateBody) -> Iterator[tuple[str, str]]:
    if body.attention is not None:
        yield "attention", body.attention
    for index, entry in enumerate(body.attention_plan or ()):
        yield f"attention_plan[{index}].attention", entry.attention
