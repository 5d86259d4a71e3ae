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


def of_prompt(bench: Bench, prompt: Prompt, size: Size, plan: Plan) -> list[Record]:
    ends = ends_of(prompt, size)
    request = request_of(prompt, size, ends, bench.scratch) | {"steps": plan.steps}
    spec = bench.spec(request | {"refine": {"scale": plan.scale}})
    first = bench.made(passes_of(spec)[0])
    made, drawn = _made(bench, prompt, spec, first, plan), _drawn(bench, prompt, spec, first, plan)
    return [replace(record, size=size.name) for record in (*made, *drawn)]


def _made(bench: Bench, prompt: Prompt, spec: GenerateSpec, first: Latents, plan: Plan) -> Iterator[Record]:
    small = bench.pictures(first)
    plain = enlarged(small, spec.width, spec.height)
    verdict = bench.judged(prompt, small, first)
    yield _record(prompt, "made", SMALL, {}, verdict, same(verdict, verdict))
    for way, latents, frames in _ways(bench, spec, first, plain, plan.seconds):
        if not torch.equal(latents.audio, first.audio):
            raise SystemExit(f"{way}: the sound of {prompt.caption!r} has changed")
        found = bench.judged(prompt, frames, latents)
        yield _record(prompt, "made", way, compare(frames, plain), found, same(verdict, found))
    if plan.others:
        native = bench.made(replace(spec, refine=None))
        found = bench.judged(prompt, bench.pictures(native), native)
        yield _record(prompt, "made", NATIVE, {}, found, same(verdict, found))


def _drawn(bench: Bench, prompt: Prompt, spec: GenerateSpec, first: Latents, plan: Plan) -> Iterator[Record]:
    small = passes_of(spec)[0]
    truth = render([prompt.scene], spec.width, spec.height, spec.frames)[0]
    drawn = bench.coded(render([prompt.scene], small.width, small.height, spec.frames)[0], first.audio)
    plain = enlarged(bench.pictures(drawn), spec.width, spec.height)
    for way, _, frames in _ways(bench, spec, drawn, plain, plan.seconds):
        yield _record(prompt, "drawn", way, compare(frames, truth.numpy()))
    if plan.others:
        ceiling = bench.pictures(bench.coded(truth, first.audio))
        yield _record(prompt, "drawn", CODED, compare(ceiling, truth.numpy()))


def _ways(
    bench: Bench, spec: GenerateSpec, first: Latents, plain: Pictures, seconds: Sequence[Second]
) -> Iterator[tuple[str, Latents, Pictures]]:
    yield RESIZE, first, plain
    latents = bench.upscaled(first, spec)
    yield UPSCALED, latents, bench.pictures(latents)
    for second in seconds:
        latents = bench.refined(first, spec, second)
        yield second.name, latents, bench.pictures(latents)


def _record(
    prompt: Prompt,
    kind: str,
    way: str,
    figures: Mapping[str, float],
    verdict: Verdict | None = None,
    alike: Mapping[str, bool] | None = None,
) -> Record:
    return Record("", prompt.split, prompt.index, kind, way, figures, verdict, alike)


def same(one: Verdict, other: Verdict) -> dict[str, bool]:
    """Of the items that are judged in the first clip."""
    return {item: other[item] == value for item, value in one.items() if value is not None}
