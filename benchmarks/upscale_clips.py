"""Every clip of one prompt that `upscale` compares, a JSON line each.

    made    small      the clip of the first pass                      resize     its pixels enlarged, bicubic
            upscaled   its latents upscaled, decoded as they are       refined    after a second pass STEPS:DENOISE
            native     the prompt made at the larger size from noise
    drawn   the scene's own pictures at the small size, through encoder and decoder, enlarged or on the same ways
            coded      those of the larger size, through encoder and decoder: what no way can be better than

Figures of made clips are against the small clip's enlarged pictures, of drawn ones against the pictures drawn at the
larger size. SystemExit if the sound of a refined clip isn't the small one's bit for bit. A folder holds files
`clips*.jsonl`; each process that runs appends to its own and begins with those of its prompts that aren't there yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.quality_plan import Size
from benchmarks.quality_prompts import Prompt, ends_of, request_of
from benchmarks.upscale_measures import Pictures, compare, enlarged
from benchmarks.upscale_passes import UPSCALED, Bench, Second
from h3runtime.core import GenerateSpec, Latents
from h3runtime.engine.refine_passes import passes_of
from h3runtime.nano.judge import Verdict
from h3runtime.nano.pictures import render

SMALL, RESIZE, NATIVE, CODED = "small", "resize", "native", "coded"


@dataclass(frozen=True, slots=True)
class Record:
    """One clip of one prompt. size: of the first pass. kind: made or drawn. verdict, same: of made clips alone; `same`
    says of each item that is judged in the small clip whether it is judged alike in this one."""

    size: str
    split: str
    index: int
    kind: str
    way: str
    figures: Mapping[str, float]
    verdict: Verdict | None = None
    same: Mapping[str, bool] | None = None

    @property
    def prompt(self) -> tuple[str, str, int]:
        return self.size, self.split, self.index


class Clips:
    """Of a folder. part: names the file that is written to."""

    def __init__(self, folder: Path, part: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._path = folder, folder / f"clips{part}.jsonl"

    def read(self) -> Iterator[Record]:
        """A line that was cut off by a crash is no record."""
        for path in sorted(self._folder.glob("clips*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    yield Record(**json.loads(line))
                except (ValueError, TypeError):
                    continue

    def add(self, records: Iterable[Record]) -> None:
        """All of a prompt at once."""
        lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of a prompt. steps: of the first pass. others: make the native and the coded clip too."""

    scale: float
    steps: int
    seconds: Sequence[Second]
    others: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A prompt's clips ahead of upscaling: what every way begins with and is compared with.

    first: of the first pass; small: its pictures, judged in `verdict`. drawn: the scene's own pictures as latents,
    beside the same sound; truth: as drawn at the larger size.
    """

    bench: Bench
    prompt: Prompt
    spec: GenerateSpec
    first: Latents
    small: Pictures
    verdict: Verdict
    drawn: Latents
    truth: torch.Tensor

    def small_record(self) -> Record:
        return self._record("made", SMALL, {}, self.verdict)

    def resized(self) -> Iterator[Record]:
        enlarged = self._enlarged(self.small)
        verdict = self.bench.judged(self.prompt, enlarged, self.first)
        yield self._record("made", RESIZE, compare(enlarged, enlarged), verdict)
        yield self._record(
            "drawn", RESIZE, compare(self._enlarged(self.bench.pictures(self.drawn)), self.truth.numpy())
        )

    def upscaled(self, second: Second | None) -> Iterator[Record]:
        """Made and drawn, sampled again if there is a second pass."""
        way = UPSCALED if second is None else second.name
        made, drawn = (self._upscaled(latents, second) for latents in (self.first, self.drawn))
        if not torch.equal(made.audio, self.first.audio):
            raise SystemExit(f"{way}: the sound of {self.prompt.caption!r} has changed")
        frames = self.bench.pictures(made)
        verdict = self.bench.judged(self.prompt, frames, made)
        yield self._record("made", way, compare(frames, self._enlarged(self.small)), verdict)
        yield self._record("drawn", way, compare(self.bench.pictures(drawn), self.truth.numpy()))

    def others(self) -> Iterator[Record]:
        native = self.bench.made(replace(self.spec, refine=None))
        yield self._record("made", NATIVE, {}, self.bench.judged(self.prompt, self.bench.pictures(native), native))
        ceiling = self.bench.pictures(self.bench.coded(self.truth, self.first.audio))
        yield self._record("drawn", CODED, compare(ceiling, self.truth.numpy()))

    def _upscaled(self, latents: Latents, second: Second | None) -> Latents:
        if second is None:
            return self.bench.upscaled(latents, self.spec)
        return self.bench.refined(latents, self.spec, second)

    def _enlarged(self, frames: Pictures) -> Pictures:
        return enlarged(frames, self.spec.width, self.spec.height)

    def _record(self, kind: str, way: str, figures: Mapping[str, float], verdict: Verdict | None = None) -> Record:
        alike = None if verdict is None else same(self.verdict, verdict)
        small = passes_of(self.spec)[0]
        name = Size(small.width, small.height, small.frames).name
        return Record(name, self.prompt.split, self.prompt.index, kind, way, figures, verdict, alike)


def begun(bench: Bench, prompt: Prompt, size: Size, plan: Plan) -> Begun:
    request = request_of(prompt, size, ends_of(prompt, size), bench.scratch) | {"steps": plan.steps}
    spec = bench.spec(request | {"refine": {"scale": plan.scale}})
    first = bench.made(passes_of(spec)[0])
    small = bench.pictures(first)
    drawn = bench.coded(render([prompt.scene], size.width, size.height, size.frames)[0], first.audio)
    truth = render([prompt.scene], spec.width, spec.height, spec.frames)[0]
    return Begun(bench, prompt, spec, first, small, bench.judged(prompt, small, first), drawn, truth)


def of_prompt(bench: Bench, prompt: Prompt, size: Size, plan: Plan) -> list[Record]:
    clips = begun(bench, prompt, size, plan)
    found = [clips.small_record(), *clips.resized()]
    for second in (None, *plan.seconds):
        found += clips.upscaled(second)
    return [*found, *clips.others()] if plan.others else found


def same(one: Verdict, other: Verdict) -> dict[str, bool]:
    """Of the items that are judged in the first clip."""
    return {item: other[item] == value for item, value in one.items() if value is not None}
