"""Which backends loaded weights serve, and giving a model another of them for a request.

Weights are kept once. A backend can serve a request if it can run here and reads every switched layer's resident form
as it is: `dequant`, `nvfp4` and its emulation all read stored NVFP4; what was encoded anew for one is of no use to
others. To switch is to set a reference in each layer, before sampling; a call costs what it did. Fed by `engine` with
the loaded transformers; read by `/ready` and by every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.adapted import BELOW
from h3runtime.backends.linear.base import STORED, BackendLinear, LinearBackend
from h3runtime.backends.select import NONE_FAILED, notes_of
from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence


class LoadedLinears:
    """chosen: what the weights were loaded for, and a request without a wish gets; why: chosen so. failed: names of
    those that this machine runs wrongly, and what was found."""

    def __init__(
        self,
        chosen: LinearBackend[Any],
        why: str,
        candidates: Sequence[LinearBackend[Any]],
        models: Iterable[nn.Module],
        device: torch.device,
        failed: Mapping[str, str] = NONE_FAILED,
    ) -> None:
        self.chosen, self.why, self.device = chosen, why, device
        self._candidates = {candidate.name: candidate for candidate in candidates} | {chosen.name: chosen}
        self._failed = failed
        self._layers = [layer for model in models for _, layer in switched(model)]

    @property
    def candidates(self) -> tuple[LinearBackend[Any], ...]:
        """All there are, the one that `auto` prefers first."""
        return tuple(self._candidates.values())

    def choice(self) -> BackendChoice:
        """The family as `/ready` shows it: `available` is what a request may name."""
        reasons = {name: self.why_not(candidate) for name, candidate in self._candidates.items()}
        return BackendChoice(
            default=self.chosen.name,
            why=self.why,
            available=tuple(name for name, reason in reasons.items() if reason is None),
            grades={name: candidate.grade for name, candidate in self._candidates.items()},
            unavailable={name: reason for name, reason in reasons.items() if reason is not None},
            notes=notes_of(self._candidates.values()),
        )

    def named(self, name: str | None) -> LinearBackend[Any]:
        """For a request; InvalidRequest for a name that there isn't, BackendUnavailable with the reason."""
        if name is None or name == self.chosen.name:
            return self.chosen
        found = self._candidates.get(name)
        legal = ", ".join(self.choice().available)
        if found is None:
            told = f"no backend {name!r}"
            raise InvalidRequest(f"linear: there is {told}", [Offence("linear", told, legal)])
        if (why := self.why_not(found)) is not None:
            raise BackendUnavailable(f"linear: {name}: {why}", [Offence("linear", why, legal)])
        return found

    def why_not(self, candidate: LinearBackend[Any]) -> str | None:
        """Why `candidate` can't serve a request now."""
        if (found := self._failed.get(candidate.name)) is not None:
            return found
        if candidate is self.chosen:
            return None
        if (why := candidate.why_unavailable(self.device)) is not None:
            return why
        if all(_reads(candidate, layer) for layer in self._layers) and self._layers:
            return why_idle(candidate, [layer.resident for layer in self._layers])
        return f"the weights were loaded for {self.chosen.name}; a server started with linear {candidate.name} has it"


def why_idle(candidate: LinearBackend[Any], weights: Sequence[Any]) -> str | None:
    """Why there is nothing to do for `candidate`, if it leaves every one of `weights` to the definition."""
    reasons = [candidate.why_unfit(weight) for weight in weights]
    if not reasons or any(reason is None for reason in reasons):
        return None
    most, _ = Counter(reasons).most_common(1)[0]
    return f"it has no layer among the loaded weights: of most, {most}"


def _reads(candidate: LinearBackend[Any], layer: BackendLinear) -> bool:
    return layer.form in candidate.reads if layer.form != STORED else candidate.form(layer.resident) == STORED


def switched(model: nn.Module) -> list[tuple[str, BackendLinear]]:
    """The layers that follow the choice, by the names that the model has for them; those below an adapter too."""
    found = [(n, part) for n, part in model.named_modules() if isinstance(part, BackendLinear) and part.switched]
    return [(n.removesuffix(BELOW), part) for n, part in found]


def use(model: nn.Module, backend: LinearBackend[Any]) -> None:
    """Let every layer that follows the choice multiply by `backend`, which can read it."""
    for _, layer in switched(model):
        layer.backend = backend


def told_layers(model: nn.Module) -> dict[str, Any]:
    """What `diagnostics` says of a run on `model`: what multiplied its layers, why some were left to the definition,
    and what encoding anew cost each weight, relative L2."""
    layers = switched(model)
    left = Counter(why for _, layer in layers if (why := layer.backend.why_unfit(layer.resident)) is not None)
    errors = {name: round(float(layer.error), 6) for name, layer in layers if layer.error is not None}
    return {
        "backend": layers[0][1].backend.name if layers else None,
        "layers": len(layers),
        "left_to_dequant": dict(left),
        "weight_errors": errors,
    }
