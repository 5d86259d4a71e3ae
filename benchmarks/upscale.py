"""What upscaling and refining do to a clip: `upscale.py OUT [--prompts 16] [--size 128x128x22] [--second 4:0.25 ...]`.

Prompts of the little world go through the runtime's own passes with the embedded model, and their scenes' own pictures,
drawn at both sizes and coded by the video VAE, through the same upscaler and second pass: of these the truth is known.

    small      the clip of the first pass                            resize     its pixels enlarged, bicubic
    upscaled   its latents upscaled, decoded as they are             refined    after the second pass STEPS:DENOISE
    native     the prompt made at the larger size from noise         coded      the truth through the VAE at that size

Made clips: the judge's shares, how often an item is judged as the small clip's is (identity), and pictures against the
small clip's enlarged ones. Drawn clips: pictures against those drawn at the larger size. The sound of every refined
clip must be the small clip's bit for bit, or the script ends with an error. Writes OUT/upscale.json and OUT/upscale.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.quality_plan import Size, size_of
from benchmarks.quality_prompts import SPLITS, TASKS, Prompt, draw_prompt, ends_of, request_of
from benchmarks.script import measured_here
from benchmarks.upscale_measures import Pictures, compare, enlarged
from h3runtime.cli.generation.judging import rule_on
from h3runtime.core import GenerateSpec, Latents
from h3runtime.engine.clip import decode_frames, decode_sound
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.refine import Refiner
from h3runtime.engine.refine_passes import passes_of
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.run import FIRST_GUESS, WHOLE, Run
from h3runtime.engine.sampling import Conditioned, Sampler, attention_of
from h3runtime.media import sound
from h3runtime.nano.judge import Verdict, judge
from h3runtime.nano.pictures import render
from h3runtime.settings import resolve

FIGURES = ("overshoot", "high_frequency", "chroma_edge", "psnr", "ssim")


@dataclass(frozen=True, slots=True)
class Second:
    """A second pass. steps 0: none, the upscaled latents as they are."""

    steps: int
    denoise: float = 1.0

    @property
    def name(self) -> str:
        return f"refined {self.steps}:{self.denoise:g}" if self.steps else "upscaled"


UPSCALED = Second(0)


def second_of(text: str) -> Second:
    steps, _, denoise = text.partition(":")
    return Second(int(steps), float(denoise))


class Bench:
    """One engine with the embedded model, or what the settings name."""

    def __init__(self, device: str, threads: int, scratch: Path) -> None:
        self.scratch = scratch
        (scratch / "inputs").mkdir()
        self.engine = ResidentEngine(resolve({"device": device, "data_dir": scratch}), threads, warm_up=False)
        self.engine.load(lambda _: None)
        self.run = Run(lambda _: None, lambda: False, FIRST_GUESS)

    def spec(self, request: dict[str, Any]) -> GenerateSpec:
        ruling = rule_on(request, self.scratch, self.scratch / "inputs", self.engine.settings)
        ruling.faults.raise_any()
        return ruling.spec(self.scratch / "none.mp4", self.scratch)

    def conditioned(self, spec: GenerateSpec) -> Conditioned:
        engine = self.engine
        encoder = MediaEncoder(engine.models.vaes, engine.device, engine.media_cache, self.run)
        conditions = conditions_of(spec, encoder)
        return Conditioned.of(spec, engine.conditioner.condition(conditions.pieces, self.run.should_stop), conditions)

    def sampler(self, spec: GenerateSpec) -> Sampler:
        engine = self.engine
        network = engine.models.transformer_of(spec.task)
        attention = attention_of(spec, engine.attention, engine.attentions)
        return Sampler(network, attention, engine.device, COMPUTE_DTYPE, None, engine.attentions.tally)

    def made(self, spec: GenerateSpec) -> Latents:
        return self.sampler(spec).sample(spec, self.conditioned(spec), self.run, Diagnosis(spec))

    def refined(self, first: Latents, spec: GenerateSpec, second: Second) -> Latents:
        """Upscaled, and sampled again if there is anything to sample."""
        assert spec.refine is not None
        model = self.engine.upscaler.take(spec.refine)
        refine = replace(spec.refine, steps=max(1, second.steps), denoise=second.denoise)
        again = passes_of(replace(spec, refine=refine))[1]
        vae = self.engine.models.vaes.video
        refiner = Refiner(refine, model, vae, self.conditioned(again), self.sampler(again), WHOLE)
        if not second.steps:
            return Latents(refiner.upscaled(first.video, again, self.run), first.audio)
        return refiner.refined(first, again, self.run, Diagnosis(again))[0]

    def pictures(self, latents: Latents) -> Pictures:
        vaes, blend = self.engine.models.vaes, self.engine.settings.vae_blend
        return np.concatenate([chunk.pixels.copy() for chunk in decode_frames(latents, vaes, blend, self.run)])

    def judged(self, prompt: Prompt, frames: Pictures, latents: Latents) -> Verdict:
        heard = sound.prepare(decode_sound(latents, self.engine.models.vaes), len(frames), "comfyui")
        return judge(prompt.scene, frames, heard)

    def coded(self, frames: torch.Tensor, audio: torch.Tensor) -> Latents:
        """uint8 [F, H, W, 3] through the encoder."""
        return Latents(self.engine.models.vaes.video.encode_clip(frames.to(self.engine.device)), audio)


@dataclass(frozen=True, slots=True)
class Record:
    """One clip of one prompt. kind: made or drawn. verdict, same: of made clips alone, `same` by item."""

    kind: str
    way: str
    figures: Mapping[str, float]
    verdict: Verdict | None = None
    same: Mapping[str, bool] | None = None


def of_prompt(
    bench: Bench, prompt: Prompt, size: Size, scale: float, steps: int, seconds: Sequence[Second]
) -> list[Record]:
    ends = ends_of(prompt, size)
    request = request_of(prompt, size, ends, bench.scratch) | {"steps": steps}
    spec = bench.spec(request | {"refine": {"scale": scale}})
    first = bench.made(passes_of(spec)[0])
    return [*_made(bench, prompt, spec, first, seconds), *_drawn(bench, prompt, spec, first, seconds)]


def _made(
    bench: Bench, prompt: Prompt, spec: GenerateSpec, first: Latents, seconds: Sequence[Second]
) -> Iterable[Record]:
    small = bench.pictures(first)
    plain = enlarged(small, spec.width, spec.height)
    verdict = bench.judged(prompt, small, first)
    yield Record("made", "small", {}, verdict, _same(verdict, verdict))
    for way, latents, frames in _ways(bench, spec, first, plain, seconds):
        if not torch.equal(latents.audio, first.audio):
            raise SystemExit(f"{way}: the sound of {prompt.caption!r} has changed")
        found = bench.judged(prompt, frames, latents)
        yield Record("made", way, compare(frames, plain), found, _same(verdict, found))
    native = bench.made(replace(spec, refine=None))
    frames = bench.pictures(native)
    found = bench.judged(prompt, frames, native)
    yield Record("made", "native", {}, found, _same(verdict, found))


def _drawn(
    bench: Bench, prompt: Prompt, spec: GenerateSpec, first: Latents, seconds: Sequence[Second]
) -> Iterable[Record]:
    small = passes_of(spec)[0]
    truth = render([prompt.scene], spec.width, spec.height, spec.frames)[0]
    coded = bench.coded(render([prompt.scene], small.width, small.height, spec.frames)[0], first.audio)
    plain = enlarged(bench.pictures(coded), spec.width, spec.height)
    for way, _, frames in _ways(bench, spec, coded, plain, seconds):
        yield Record("drawn", way, compare(frames, truth.numpy()))
    ceiling = bench.pictures(bench.coded(truth, first.audio))
    yield Record("drawn", "coded", compare(ceiling, truth.numpy()))


def _ways(
    bench: Bench, spec: GenerateSpec, first: Latents, plain: Pictures, seconds: Sequence[Second]
) -> Iterable[tuple[str, Latents, Pictures]]:
    yield "resize", first, plain
    for second in (UPSCALED, *seconds):
        latents = bench.refined(first, spec, second)
        yield second.name, latents, bench.pictures(latents)


def _same(one: Verdict, other: Verdict) -> dict[str, bool]:
    """Of the items that are judged in the first clip."""
    return {item: other[item] == value for item, value in one.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Row:
    """Means over prompts. judged, identity: shares of all items of all clips, of which there are `items`."""

    kind: str
    way: str
    clips: int
    items: int
    judged: float | None
    identity: float | None
    figures: Mapping[str, float]


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [_row(kind, way, records) for kind, way in dict.fromkeys((r.kind, r.way) for r in records)]


def _row(kind: str, way: str, records: Sequence[Record]) -> Row:
    same = [record for record in records if (record.kind, record.way) == (kind, way)]
    verdicts = [value for r in same if r.verdict for value in r.verdict.values() if value is not None]
    alike = [value for r in same if r.same is not None for value in r.same.values()]
    figures = {name: float(np.mean([r.figures[name] for r in same])) for name in FIGURES if same[0].figures}
    return Row(kind, way, len(same), len(verdicts), _share(verdicts), _share(alike), figures)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def markdown(rows: Sequence[Row]) -> str:
    heads = ("clips", "way", "n", "judged right", "as the small clip", *FIGURES)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        shares = ["" if share is None else f"{share:.3f}" for share in (row.judged, row.identity)]
        figures = [f"{row.figures[name]:.3f}" if name in row.figures else "" for name in FIGURES]
        lines.append("| " + " | ".join([row.kind, row.way, str(row.clips), *shares, *figures]) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(given.device, given.threads, Path(scratch))
        head = measured_here(bench.engine.place.name, bench.engine.device) | {
            "checkpoint": bench.engine.facts().checkpoint
        }
        for index in tqdm(range(given.first, given.first + given.prompts), unit="prompt"):
            for split in given.split:
                prompt = draw_prompt(given.task, split, index, given.seed)
                records += of_prompt(bench, prompt, given.size, given.scale, given.steps, given.second)
    rows = rows_of(records)
    told = {"size": given.size.name, "scale": given.scale, "steps": given.steps, "task": given.task}
    listed = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
    (given.output / "upscale.json").write_text(json.dumps(head | told | {"rows": listed}, indent=1))
    (given.output / "upscale.md").write_text(markdown(rows))
    print(markdown(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--prompts", type=int, default=16, help="of each split; default 16")
    parser.add_argument("--first", type=int, default=0, help="index of the first prompt")
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=["trained"])
    parser.add_argument("--task", choices=TASKS, default="t2va")
    parser.add_argument(
        "--size", type=size_of, metavar="WxHxF", default=size_of("128x128x22"), help="of the first pass"
    )
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=8, help="of the first pass")
    parser.add_argument("--second", type=second_of, nargs="+", metavar="STEPS:DENOISE", default=[second_of("3:0.15")])
    parser.add_argument("--seed", type=int, default=0, help="of scenes, captions and noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
