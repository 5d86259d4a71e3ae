"""What takes the place of a kernel that failed: the next one that `auto` takes, or nothing, and then no engine starts.

A backend asked for by name is never replaced. Fed by `resident` with what its self-test found; gives it what to run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from h3runtime.backends.fused.select import SWITCHES
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.fc2_schedule import Fc2Schedule
from h3runtime.backends.linear.nvfp4_base import SCALE_SETTING
from h3runtime.backends.linear.switching import LoadedLinears
from h3runtime.backends.select import AUTO
from h3runtime.core import SelfTest
from h3runtime.engine.self_test import encoder, fc2, fused, linear, packing
from h3runtime.errors import BackendUnavailable, Offence
from h3runtime.settings import variable

KITCHEN: Final = "kitchen"
"""Who packs unless somebody else is asked for."""
log = logging.getLogger("h3runtime.self_test")


def failed_of(found: SelfTest, family: str) -> Mapping[str, str]:
    """Why, by name."""
    return {kernel: reason for (of, kernel), reason in found.failed.items() if of == family}


def warnings_of(found: SelfTest) -> tuple[str, ...]:
    """For people: what was disabled."""
    return tuple(f"{family}: {kernel} is disabled: it {why}" for (family, kernel), why in found.failed.items())


def failed_linears(found: SelfTest, candidates: Iterable[Any]) -> Mapping[str, str]:
    """Why, by name: those that multiply wrongly, and those whose packer packs wrongly."""
    packers = failed_of(found, packing.FAMILY)
    by = {each.name: str(getattr(each, "scale_backend", "")) for each in candidates}
    packed = {name: f"packs by {packer}, which {packers[packer]}" for name, packer in by.items() if packer in packers}
    return packed | dict(failed_of(found, linear.FAMILY))


def require_packer(found: SelfTest, asked: str) -> None:
    """BackendUnavailable if who packs was asked for by name, and packs wrongly. asked: `H3_NVFP4_SCALE_BACKEND`."""
    reason = failed_of(found, packing.FAMILY).get(asked)
    if reason is not None and asked != KITCHEN:
        field = variable(SCALE_SETTING)
        raise BackendUnavailable(f"{field}: {asked} can't run here: {reason}", [Offence(field, reason, KITCHEN)])


def require_fusions(found: SelfTest, packs: Iterable[str]) -> None:
    """BackendUnavailable, naming the switches, if producers hand on other bytes than a linear would pack. packs: what
    the chosen ones do (`fused.base`)."""
    settings = [SWITCHES[made] for made in sorted(packs)]
    for kernel, reason in failed_of(found, fused.PACKING).items():
        told = ", ".join(f"{variable(setting)}=true" for setting in settings)
        offences = [Offence(variable(setting), reason, "false") for setting in settings]
        raise BackendUnavailable(f"{told}: {kernel} can't pack NVFP4 here: it {reason} (legal: false)", offences)


def without_schedule(found: SelfTest, schedule: Fc2Schedule | None) -> None:
    """What FC2 had before takes the place of a schedule that failed; `/ready` says that the switch does nothing."""
    reason = failed_of(found, linear.FAMILY).get(fc2.KERNEL)
    if schedule is not None and reason is not None:
        schedule.fail(reason)


def require_encoder(found: SelfTest) -> None:
    """BackendUnavailable: what the text encoder runs is PyTorch's own, and nothing can take its place."""
    for reason in failed_of(found, encoder.FAMILY).values():
        raise BackendUnavailable(f"{encoder.FAMILY}: PyTorch's own kernels {reason}", [Offence(encoder.FAMILY, reason)])


def next_linear(
    loaded: LoadedLinears, why: str, asked: str, failed: Mapping[str, str]
) -> tuple[LinearBackend[Any], str]:
    """What multiplies from now on, and why: the chosen one if it passed, else the next exact one that reads the weights
    as they are. why: the chosen one was chosen. asked: `H3_LINEAR`. BackendUnavailable if there is none."""
    chosen = loaded.chosen.name
    if chosen not in failed:
        return loaded.chosen, why
    reason = failed[chosen]
    able = {name for name in loaded.choice().available if name not in failed}
    if asked != AUTO:
        raise _unavailable(f"{linear.FAMILY}: {chosen} can't run here: {reason}", reason, able)
    found = next((b for b in loaded.candidates if b.name in able and b.grade == "reference"), None)
    if found is None:
        raise _unavailable(f"{linear.FAMILY}: no backend can run here: {chosen}: {reason}", reason, able)
    log.error("self-test: %s multiplies in place of %s, which %s", found.name, chosen, reason)
    return found, f"auto: the next exact one that reads the loaded weights, since {chosen} {reason}"


def _unavailable(message: str, reason: str, able: set[str]) -> BackendUnavailable:
    return BackendUnavailable(message, [Offence(linear.FAMILY, reason, ", ".join([AUTO, *sorted(able)]))])
