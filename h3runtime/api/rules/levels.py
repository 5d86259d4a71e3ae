"""`quality: exact` and step reuse: what of them this server can do, and what contradicts what.

The other levels need evidence of what is loaded, which `quality` asks for (service-contract, `quality`, `cache_mode`).
"""

from __future__ import annotations

from collections.abc import Sequence

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.reuse import judge_reuse
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import BackendChoice

EXACT_GRADE = "reference"


def judge_levels(body: GenerateBody, verdict: Verdict) -> None:
    """What needs no server to decide."""
    judge_reuse(body, verdict)


def exact_backend(named: Sequence[tuple[str, str]], choice: BackendChoice, verdict: Verdict) -> str | None:
    """What `quality: "exact"` takes of a family of backends; None for the server's own choice.

    named: fields and the backends they name beside it, which must be as exact.
    """
    plain = (name for name in choice.available if choice.grades.get(name) == EXACT_GRADE)
    exact = list(dict.fromkeys([*choice.exact, *plain]))
    for field, name in named:
        if name in choice.available and name not in exact:
            legal = ", ".join(exact) or "leave it out"
            verdict.refuse(field, f"{ascii(name)[:60]} is not exact, which contradicts quality 'exact'", legal)
    if not exact and not named:
        told = f"nothing exact can run on what is loaded, only {', '.join(choice.available)}"
        verdict.refuse("quality", told, "leave it out")
    return None if choice.default in exact or not exact else exact[0]
