"""Which engine makes which side, and a side put in place on its engine.

    one engine     where both sides have the same settings, but for the linear backend, and the weights that A loaded
                   serve B's as well: they are loaded once, and a side is what the layers are switched to
    both at once   where they don't, and the loader finds room for B's weights beside A's, with what a clip takes
    in turn        where it doesn't: A's engine is closed before B's is loaded

Backends are judged when engines are made, before any weights are read; what only loaded weights can tell (adapters,
formats) when they are there. Fed by the command line with what `asked` judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from h3runtime.backends.linear.adapted import adapted
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.select import choose_linear
from h3runtime.backends.linear.switching import LoadedLinears, use
from h3runtime.cli.generation.judging import judge_with_engine, settled
from h3runtime.cli.sides.asked import Half
from h3runtime.cli.sides.given import told_by
from h3runtime.core import GenerateSpec, OnProgress
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.adapters import Taken
from h3runtime.engine.faults import give_back
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointError, OutOfMemory
from h3runtime.observe.cores import engine_threads
from h3runtime.quality.shelf import Shelf

Way = Literal["shared", "beside", "in turn"]
NO_ROOM = "memory"
"""The field of the loader's fault where weights find no room."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Both engines, which may be one. way, why: how they came to be there. Of `in turn`, B's isn't loaded yet."""

    a: ResidentEngine
    b: ResidentEngine
    way: Way
    why: str


def engine_of(half: Half, loglevel: str, on_line: Callable[[str], None]) -> ResidentEngine:
    """Without weights. InvalidRequest, BackendUnavailable, SettingsError for what can't run here."""
    with told_by(half.side):
        engine = ResidentEngine(
            half.settings,
            engine_threads(),
            ffmpeg_loglevel=loglevel,
            on_ffmpeg_line=on_line,
            warm_up=False,
            partitions=(half.task.runs_on,),
        )
        for name in _attentions(half):
            engine.attentions.resolve(name)
        return engine


def place(first: Half, second: Half, engines: tuple[ResidentEngine, ResidentEngine], on_progress: OnProgress) -> Placed:
    """Load A, and B where that is possible at once. Errors of loading, told by side."""
    a, b = engines
    with told_by(first.side):
        a.load(on_progress)
    why = _why_apart(first, second, a, b)
    if why is None:
        return Placed(a, a, "shared", "both sides' backends read the same loaded weights")
    try:
        with told_by(second.side):
            b.load(on_progress)
    except (CheckpointError, OutOfMemory) as error:
        if isinstance(error, CheckpointError) and not any(o.field == NO_ROOM for o in error.offences):
            raise
        short = error.message
    else:
        return Placed(a, b, "beside", f"{why}; there is room for both")
    give_back(a.device)
    return Placed(a, b, "in turn", f"{why}; together they don't fit: {short}")


def spec_of(half: Half, engine: ResidentEngine, spec: GenerateSpec) -> GenerateSpec:
    """`spec` with what the loaded engine has to say: adapters, and the backends that a level of quality chooses."""
    with told_by(half.side):
        facts, held = engine.facts(), Shelf(engine.settings.data_dir).held
        (loras,) = judge_with_engine([half.ruling], facts, is_chain=False, held=held)
        chosen = settled(replace(spec, loras=loras), half.ruling, facts, held)
        return replace(chosen, linear=chosen.linear or _shared(half, engine))


@contextmanager
def in_place(network: Dit, linear: LinearBackend[Any], taken: Taken) -> Iterator[Dit]:
    """A transformer as a side has it: linears switched, adapters beside them, until the context ends."""
    use(network, linear)
    with adapted(network, taken.changes):
        yield network


def linear_of(engine: ResidentEngine, spec: GenerateSpec) -> LinearBackend[Any]:
    """What multiplies for `spec` on its engine."""
    networks = engine.models.transformers.values()
    return LoadedLinears(engine.linear, engine.linear_why, engine.linears, networks, engine.device).named(spec.linear)


def _attentions(half: Half) -> list[str]:
    """That the side's request names; of a plan too."""
    body = half.ruling.read.body
    return [name for name in (body.attention, *(entry.attention for entry in body.attention_plan or ())) if name]


def _why_apart(first: Half, second: Half, a: ResidentEngine, b: ResidentEngine) -> str | None:
    """Why one engine can't make both; None if it can."""
    ours, theirs = (half.settings.model_dump() for half in (first, second))
    differ = sorted(name for name in ours if ours[name] != theirs[name] and name != "linear")
    if differ:
        return f"the sides differ in {', '.join(differ)}"
    if first.settings.linear == second.settings.linear:
        return None
    choice = a.facts().linear
    wanted = b.linear.name
    if wanted in choice.available:
        return None
    return f"weights loaded for {choice.default} don't serve {wanted}"


def _shared(half: Half, engine: ResidentEngine) -> str | None:
    """The linear backend of a side that names none, on an engine that was loaded for the other side's."""
    if half.settings.linear == engine.settings.linear:
        return None
    return choose_linear(half.settings.linear, engine.device, engine.linears)[0].name
