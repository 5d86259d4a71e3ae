"""A comparison of two sides from judged requests to written files: the order of the work, and its progress.

    engines -> load -> A -> B -> blocks -> steps, clips -> plot, film, report

Does none of the work itself: `sides` lists who does. Fed by `compare_sides`, which has the flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from h3runtime.cli.comparison.limits import Limits
from h3runtime.cli.progress import LOADING, ProgressBar
from h3runtime.cli.report_files import write_report
from h3runtime.cli.sides import spool
from h3runtime.cli.sides.asked import Half
from h3runtime.cli.sides.attribution import StepBlocks, Walker, attribute, walker, why_unlike
from h3runtime.cli.sides.chart import chart_png
from h3runtime.cli.sides.clips import compare_clips
from h3runtime.cli.sides.engines import Placed, engine_of, place
from h3runtime.cli.sides.film import write_film
from h3runtime.cli.sides.found import SidesFound
from h3runtime.cli.sides.given import told_by
from h3runtime.cli.sides.making import Made, make, planned
from h3runtime.cli.sides.names import AUTO, BLOCKS_LEGAL, FILM, NONE, PLOT, REPORT
from h3runtime.cli.sides.report import facts_of
from h3runtime.cli.sides.steps import compare_steps
from h3runtime.cli.stopping import Stopping
from h3runtime.core import GenerateSpec, OnProgress, Progress
from h3runtime.denoiser.schedule import forwards
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.errors import JobCancelled, Offence, invalid

Blocks = tuple[tuple[Made, Made], list[StepBlocks], str]
SHARES: Final[Mapping[str, tuple[float, float]]] = {
    "side a": (0.0, 0.36),
    "side b": (0.36, 0.72),
    "blocks": (0.72, 0.88),
    "comparing": (0.88, 0.95),
    "writing": (0.95, 1.0),
}
"""What of the whole each part takes, about."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the command has while it runs."""

    halves: tuple[Half, Half]
    scratch: Path
    stopping: Stopping
    bar: ProgressBar
    loglevel: str

    def compare(self, blocks_at: str) -> SidesFound:
        """blocks_at: `--blocks-at`. Everything that can be judged without weights is judged before they load."""
        first, second = (engine_of(half, self.loglevel, self.bar.say) for half in self.halves)
        steps = chosen_steps(blocks_at, self._forwards())
        placed = place(*self.halves, (first, second), self.bar)
        with self.stopping.gently():
            made, blocks, why = (self._in_turn if placed.way == "in turn" else self._at_once)(placed, steps)
            return self._measured(placed, made, blocks, why)

    def write(self, found: SidesFound, folder: Path, limits: Limits) -> dict[str, Any]:
        """Every file under its name, the report last, so that whoever finds it finds the others."""
        (self.scratch / PLOT).write_bytes(chart_png(found))
        with self.stopping.gently():
            write_film(found, self.scratch / FILM, self._on_part("writing"), self.stopping)
        names = [made.spec.output.name for made in (found.a, found.b)]
        names += [made.latents.name for made in (found.a, found.b)]
        facts = facts_of(found, folder, [*names, FILM, PLOT, REPORT], limits)
        folder.mkdir(exist_ok=True)
        for name in (*names, FILM, PLOT):
            (self.scratch / name).replace(folder / name)
        write_report(folder / REPORT, facts, overwrite=True)
        self.bar(Progress("done", fraction=1.0))
        return facts

    def _forwards(self) -> int:
        """Of A's walk."""
        return forwards(self.halves[0].ruling.spec(self.scratch / "none.mp4", self.scratch).sampling)

    def _at_once(self, placed: Placed, steps: tuple[int, ...]) -> Blocks:
        """Both sides are judged by their engines before either is made."""
        specs = self._planned(0, placed), self._planned(1, placed)
        a, b = (self._made(index, placed, spec) for index, spec in enumerate(specs))
        first, second = (self._walker(index, placed, spec, a) for index, spec in enumerate(specs))
        if why := why_unlike(first.network.config, second.network.config):
            return (a, b), [], why
        count = len(steps) * len(first.network.blocks)
        return (a, b), attribute(first, second, a, steps, self._counting("blocks", count)), ""

    def _in_turn(self, placed: Placed, steps: tuple[int, ...]) -> Blocks:
        """A's blocks wait in files while its weights make way for B's."""
        folder, spec = self.scratch / "blocks", self._planned(0, placed)
        config = placed.a.models.transformer_of(spec.task).config
        spool.require_disk(self.scratch, config, sum(placed.a.estimate(spec).rows.values()), steps)
        a = self._made(0, placed, spec)
        on_block = self._counting("blocks", 2 * len(steps) * config.layers)
        spool.write_steps(folder, self._walker(0, placed, spec, a), a, steps, on_block)
        placed.a.close()
        with told_by(self.halves[1].side):
            placed.b.load(self.bar)
        spec = self._planned(1, placed)
        b = self._made(1, placed, spec)
        second = self._walker(1, placed, spec, a)
        if why := why_unlike(config, second.network.config):
            return (a, b), [], why
        return (a, b), spool.compare_steps(folder, second, a, steps, on_block), ""

    def _planned(self, index: int, placed: Placed) -> GenerateSpec:
        return planned(self.halves[index], (placed.a, placed.b)[index], self.scratch)

    def _made(self, index: int, placed: Placed, spec: GenerateSpec) -> Made:
        half, engine = self.halves[index], (placed.a, placed.b)[index]
        return make(half, spec, engine, self._on_progress(f"side {half.side.name}"), self.stopping)

    def _walker(self, index: int, placed: Placed, spec: GenerateSpec, a: Made) -> Walker:
        run = Run(lambda _: None, self.stopping, FIRST_GUESS)
        return walker((placed.a, placed.b)[index], spec, a.spec.sampling, run)

    def _measured(
        self, placed: Placed, made: tuple[Made, Made], blocks: list[StepBlocks], why_no_blocks: str
    ) -> SidesFound:
        a, b = made
        clips = compare_clips(a.lossless, b.lossless, self._on_part("comparing"))
        steps = compare_steps(a, b)
        return SidesFound(a, b, placed.way, placed.why, steps, clips, tuple(blocks), why_no_blocks)

    def _on_progress(self, part: str) -> OnProgress:
        """A part's own progress, as a share of the whole. Loading has a bar of its own."""
        low, high = SHARES[part]
        self.bar.begin_part(part)

        def pass_on(progress: Progress) -> None:
            if progress.stage in LOADING:
                self.bar(progress)
            elif progress.stage != "done":
                self.bar(replace(progress, fraction=low + (high - low) * progress.fraction))

        return pass_on

    def _on_part(self, name: str) -> Callable[[int, int], None]:
        low, high = SHARES[name]
        self.bar.begin_part("")

        def pass_on(done: int, parts: int) -> None:
            if self.stopping():
                raise JobCancelled("the comparison was stopped", stage=name)
            self.bar(Progress(name, done, parts, low + (high - low) * min(1.0, done / max(parts, 1))))

        return pass_on

    def _counting(self, name: str, count: int) -> Callable[[], None]:
        on_part, done = self._on_part(name), 0

        def one() -> None:
            nonlocal done
            done += 1
            on_part(done, count)

        return one


def chosen_steps(text: str, count: int) -> tuple[int, ...]:
    """InvalidRequest for what is no step of `count`."""
    if text == NONE:
        return ()
    if text == AUTO:
        return tuple(dict.fromkeys((0, (count - 1) // 2, count - 1)))
    try:
        steps = tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        raise invalid([Offence("blocks_at", f"{text!r} is no list of steps", BLOCKS_LEGAL)]) from None
    if wrong := [step for step in steps if not 0 <= step < count]:
        told = f"side A has no step {', '.join(map(str, wrong))}: it takes {count}"
        raise invalid([Offence("blocks_at", told, f"0..{count - 1}")])
    return tuple(sorted(steps))
