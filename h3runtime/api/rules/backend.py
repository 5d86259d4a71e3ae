"""Whether a backend that a request names can run here."""

from __future__ import annotations

from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import BackendChoice


def judge_backend(field: str, name: str | None, choice: BackendChoice, verdict: Verdict) -> None:
    if name is None or name in choice.available:
        return
    why = choice.unavailable.get(name, "is not known")
    verdict.refuse(field, f"{ascii(name)[:60]}: {why}", ", ".join(choice.available))
