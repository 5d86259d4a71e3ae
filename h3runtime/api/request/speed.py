"""Bodies of a request that trade exactness for speed, or add to the model: plans, adapters, refining.

What the loaded server has of it (names of backends and adapters, evidence) is judged by `rules`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from h3runtime.api.strict import Strict, refusal, shown
from h3runtime.core import MAX_STEPS

MAX_ENTRIES = MAX_STEPS
"""Of a plan: each entry runs at least one step."""
MAX_LORAS = 16
STEPS_LEGAL = '"a" or "a-b", steps counted from 0, both ends included'
SUBSAMPLE_FACTORS = (1, 64)
REFINE_SCALES = (1.5, 2.0)
LEAST_DENOISE = 1e-3


def _steps(value: Any) -> Any:
    found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", value) if isinstance(value, str) else None
    if found is None:
        raise refusal(f"{shown(value)} is no range of steps", STEPS_LEGAL)
    if found[2] is not None and int(found[2]) < int(found[1]):
        raise refusal(f"{shown(value)} ends before it begins", STEPS_LEGAL)
    return value


class PlanBody(Strict):
    """Which attention backend runs some of the steps."""

    steps: Annotated[str, BeforeValidator(_steps)] = Field(
        description='"a" or "a-b": steps from 0, both ends included.', pattern=r"^[0-9]{1,6}(-[0-9]{1,6})?$"
    )
    every: int = Field(
        1, ge=1, le=MAX_STEPS, description="Each how many-th step of the range; the next entry fills the rest."
    )
    attention: str = Field(description="A name that `/ready` lists.")

    @property
    def range(self) -> range:
        first, _, last = self.steps.partition("-")
        return range(int(first), int(last or first) + 1)


class LoraBody(Strict):
    """An adapter that the server knows, and how much of it."""

    name: str = Field(description="A name that `/ready` lists.")
    strength: float = Field(1.0, ge=-100, le=100, description="1 is the adapter as it was trained.")
    alpha: float | None = Field(None, gt=0, description="Where the adapter's file has none.")
    partial: bool = Field(False, description="Apply what matches of an adapter that the model lacks layers of.")


class RefineBody(Strict):
    """A second pass on a larger canvas."""

    scale: float = Field(
        2.0, ge=REFINE_SCALES[0], le=REFINE_SCALES[1], description="Of each side, which is rounded to 32 pixels."
    )
    steps: int | None = Field(None, ge=1, le=MAX_STEPS, description="Model evaluations of the second pass. Default: 3.")
    denoise: float | None = Field(
        None,
        ge=LEAST_DENOISE,
        le=1,
        description="How much of the picture is made anew: the last `steps` of a schedule of steps / denoise are run. "
        "Default: 0.1.",
    )
