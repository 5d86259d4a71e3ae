"""How many clips one request makes: `n`, and whether its seeds stay in range."""

from __future__ import annotations

from h3runtime.api.request import MAX_SEED, RANDOM_SEED, GenerateBody
from h3runtime.api.rules.verdict import Verdict


def judge_count(body: GenerateBody, verdict: Verdict) -> None:
    """Clip i has seed + i, which must be a seed as well. Told of `seed`: `n` alone is legal."""
    if verdict.broken & {"seed", "n"} or body.seed == RANDOM_SEED:
        return
    highest = MAX_SEED + 1 - body.n
    if body.seed > highest:
        told = f"{body.seed} and the {body.n - 1} after it go beyond {MAX_SEED}"
        verdict.refuse("seed", told, f"0..{highest} for {body.n} clips")
