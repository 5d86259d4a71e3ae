"""Predicted against measured peaks of memory: `memory_model.py [--layout NAME ...] [--attention NAME ...] [--whole]`.

An engine of made-up weights at the published sizes (`made_set`: no file is written, loading is the engine's own), and
for every case one JSON object as soon as it is done; a table at the end. A case that fails prints its error; the others
run. Sampling is stopped after a few blocks, which are all alike: about a second a case and ten a layout, so that a grid
of layouts, attention backends and sizes takes a minute and a half on an H200.

    layout       how a set is stored, and the linear backend that it is loaded for (`LAYOUTS`)
    predicted    GiB of the whole engine while it samples, as admission counts them
    measured     the same by PyTorch's allocator
    above        predicted over measured, both without what the engine holds between requests
    features     the same of one attention backend: an adapter of rank 3 x 128 on q, k and v and 128 beside the other
                 linears, each cache mode, sparse attention as far into a run as it is sparse, the upscaler alone
    whole requests, every stage measured, are three with the first layout, one of them refined; with `--whole` all,
                 three minutes more
    `--tiny`     small models and requests, on a CPU too, to try the script itself
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import made_set
from benchmarks.made_media import write_clip, write_picture, write_sound
from h3runtime.checkpoint import load
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.partition import FL2VA, REF2VA
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, UpscalerSizes, upscaler_shapes
from h3runtime.checkpoint.synthetic.published import SetFormat
from h3runtime.checkpoint.synthetic.synthesis import TINY
from h3runtime.cli.report import say
from h3runtime.core import (
    REUSE_THRESHOLDS,
    AdapterUse,
    CacheMode,
    ClipInput,
    GenerateSpec,
    MediaFile,
    Progress,
    ReferenceInput,
    RefinePass,
    SamplerSettings,
    SoundInput,
    StepReuse,
    Task,
)
from h3runtime.engine import resident
from h3runtime.engine.demand import demand_of
from h3runtime.engine.load import Loader, Models
from h3runtime.engine.refine_estimate import upscaling_bytes
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import JobCancelled, JobError
from h3runtime.packing.geometry import latent_frames, latent_side
from h3runtime.settings import default_cache_dir, resolve
from h3runtime.vae.upscaler import upscale

GIB: Final = 2**30
ADAPTER: Final = "zeros"
RESIDENT: Final = ("weights", "adapters", "upscaler", "process")
SMALL_UPSCALER: Final = UpscalerSizes(channels=16, embedding=8, blocks=(1, 1), kernel=3)
CALLS: Final = 4
"""Of attention, after which a run is stopped: three blocks are done, and all are alike."""
SPARSE: Final = ("sla_topk_25", "sla8_topk_25")
"""Attention that is dense in its first step and block: measured from the second step on."""
RANK: Final = 128
"""Of the public turbo adapters; q, k and v together have three times as much (checkpoint-formats §6)."""


@dataclass(frozen=True)
class Layout:
    """kind: of the stored set. linear: backend that it is loaded for. beside: backends that a request may name then."""

    kind: SetFormat
    linear: str
    beside: tuple[str, ...] = ()


LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "nvfp4": Layout("nvfp4", "dequant", ("nvfp4_emulated",)),
        "bf16": Layout("bf16", "resident_bf16"),
        "fp8": Layout("nvfp4", "fp8"),
        "int8": Layout("int8_convrot", "int8"),
        "fp8_scaled": Layout("fp8_scaled", "fp8"),
    }
)
USUAL: Final = ("nvfp4", "bf16", "fp8", "int8")
ATTENTION: Final = ("sdpa", "cudnn_sdpa", "fa4", "sage2", "h3_attn8")
"""With every layout; the first one is run with all that can run there."""


@dataclass(frozen=True)
class Case:
    """width, height: of the clip. brief, quick: of whole requests, run in any case, and with every layout. attention,
    linear: that it names. refined: twice the canvas that is sampled first."""

    width: int
    height: int
    frames: int
    steps: int
    references: bool = False
    prompt: str = "a red ball bouncing on a blue floor"
    brief: bool = False
    quick: bool = True
    n: int = 1
    attention: str | None = None
    linear: str | None = None
    reuse: CacheMode | None = None
    adapter: bool = False
    refined: bool = False

    @property
    def name(self) -> str:
        told = f"{self.width}x{self.height}x{self.frames}, {self.steps} steps"
        told += ", references" * self.references + ", long text" * (len(self.prompt) > 1000) + ", n" * (self.n > 1)
        told += ", adapter" * self.adapter + ", refined" * self.refined
        return ", ".join([told, *filter(None, (self.attention, self.linear, self.reuse))])


SIZES: Final = (Case(1344, 768, 124, 12), Case(640, 384, 39, 12))
SMALL_SIZES: Final = (Case(128, 96, 22, 2), Case(64, 64, 5, 2))
CASES: Final = (
    Case(320, 192, 22, 12, brief=True),
    Case(1344, 768, 124, 2),
    Case(960, 544, 124, 1, references=True, brief=True),
    Case(1280, 768, 39, 1, refined=True, brief=True),
    Case(960, 544, 124, 2),
    Case(320, 192, 22, 1, prompt="word " * 1300),
    Case(864, 480, 141, 1, quick=False),
    Case(320, 192, 22, 1, quick=False, n=2),
    Case(1344, 768, 362, 1, quick=False),
)
SMALL: Final = (Case(64, 64, 5, 1), Case(128, 96, 22, 2), Case(128, 96, 22, 1, references=True))


def main() -> None:
    given = _parser().parse_args()
    found = []
    for index, name in enumerate(given.layout):
        with tempfile.TemporaryDirectory(prefix="h3-memory-") as folder:
            for told in _layout(given, name, Path(folder), first=index == 0):
                found.append({"layout": name, **told})
                print(json.dumps(found[-1]), flush=True)
    print(table(found))


def _layout(given: argparse.Namespace, name: str, folder: Path, *, first: bool) -> Iterator[dict[str, Any]]:
    """One that can't be loaded is told; the others are run."""
    try:
        yield from measured(given, name, folder, first=first)
    except Exception as error:
        yield {"case": "loading", "error": f"{type(error).__name__}: {error}"}


def measured(given: argparse.Namespace, name: str, folder: Path, *, first: bool) -> Iterator[dict[str, Any]]:
    """first: the layout with which all is run that is run once."""
    layout, began = LAYOUTS[name], time.monotonic()
    engine = made_engine(given.device, layout, folder, tiny=given.tiny, fused=given.fused)
    warm_up(engine, folder)
    yield {"held_bytes": held(engine), "made_seconds": round(time.monotonic() - began, 1)}
    sizes = SMALL_SIZES if given.tiny else SIZES
    if not given.features:
        for case in grid(layout, sizes, attentions(engine, given.attention, first=first)):
            yield _told(engine, case, folder, sampled)
    for case in features(sizes[0]):
        yield _told(engine, case, folder, sampled)
    yield _told(engine, replace(sizes[0], refined=True), folder, upscaled)
    for case in whole(given, first=first):
        yield _told(engine, case, folder, figures)
    # Last, and once, for it is no layout's matter: the newest kernels may lose a device.
    for name in SPARSE if first else ():
        yield _told(engine, replace(sizes[0], attention=name), folder, sampled)
    engine.close()
    del engine
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def attentions(engine: ResidentEngine, asked: Sequence[str] | None, *, first: bool) -> tuple[str, ...]:
    if asked:
        return tuple(asked)
    able = [b.name for b in engine.attentions.backends if engine.attentions.why_unavailable(b) is None]
    return (*ATTENTION, *(name for name in able if first and name not in ATTENTION))


def grid(layout: Layout, sizes: Sequence[Case], names: Sequence[str]) -> Iterator[Case]:
    for size in sizes:
        for name in names:
            yield replace(size, attention=name)
        for linear in layout.beside:
            yield replace(size, linear=linear)


def features(size: Case) -> Iterator[Case]:
    """What a request may have besides attention and linears, on one canvas."""
    yield replace(size, adapter=True)
    for mode in REUSE_THRESHOLDS:
        yield replace(size, reuse=mode)


def whole(given: argparse.Namespace, *, first: bool) -> tuple[Case, ...]:
    if given.tiny:
        return SMALL if given.whole else ()
    if given.stages_only:
        return ()
    wanted = (case for case in CASES if case.quick or first)
    return tuple(case for case in wanted if given.whole or (first and case.brief))


Measure = Callable[[ResidentEngine, GenerateSpec], dict[str, Any]]


def _told(engine: ResidentEngine, case: Case, folder: Path, measure: Measure) -> dict[str, Any]:
    try:
        return {"case": case.name, **measure(engine, spec_of(case, folder))}
    except Exception as error:
        return {"case": case.name, "error": f"{type(error).__name__}: {error}"}


def write_adapter(folder: Path, sizes: TransformerSizes, rank: int) -> None:
    """As large as a public one in ComfyUI's layout, all of zeros, and so a file that takes no disk."""
    folder.mkdir()
    inner = sizes.heads * sizes.head_dim
    linears = {
        "attn.qkv_proj": (3 * inner, sizes.hidden, 3 * rank),
        "attn.out_proj": (sizes.hidden, inner, rank),
        "mlp.fc1": (2 * sizes.ffn, sizes.hidden, rank),
        "mlp.fc2": (sizes.hidden, sizes.ffn, rank),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for block in range(sizes.layers):
        for linear, (rows, columns, own) in linears.items():
            name = f"diffusion_model.blocks.{block}.{linear}"
            shapes |= {f"{name}.lora_A.weight": (own, columns), f"{name}.lora_B.weight": (rows, own)}
    write_zeros(folder / f"{ADAPTER}.safetensors", shapes, "BF16", {"alpha": str(rank)})


def write_upscaler(path: Path, sizes: UpscalerSizes) -> None:
    write_zeros(path, upscaler_shapes(sizes), "F16", {})


def write_zeros(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, metadata: Mapping[str, str]) -> None:
    """A safetensors file of two-byte values whose data is a hole."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(told)) + told)
        out.truncate(8 + len(told) + end)


class OneTransformer(Loader):
    """The FL2VA transformer in both places, so that references can be run without a second one's memory."""

    def models(self, compute_dtype: torch.dtype) -> Models:
        found = super().models(compute_dtype)
        (only,) = found.transformers.values()
        twin = replace(found.facts[0], partition=REF2VA, bytes=0)
        return replace(found, transformers={FL2VA: only, REF2VA: only}, facts=(*found.facts, twin))


def made_engine(
    device: str, layout: Layout, folder: Path, *, tiny: bool = False, fused: str = "auto"
) -> ResidentEngine:
    """Loaded, ready to generate; both partitions are one and the same transformer. Nothing has been run yet."""
    paths = made_set.holes(folder / "set", layout.kind, tiny=tiny)
    choices = {"device": device, "linear": layout.linear, "fused": fused}
    beside = {"lora_dir": folder / "loras", "upscaler_path": folder / "upscaler.safetensors"}
    write_adapter(beside["lora_dir"], TINY.transformer if tiny else TransformerSizes(), 4 if tiny else RANK)
    write_upscaler(beside["upscaler_path"], SMALL_UPSCALER if tiny else UpscalerSizes())
    settings = resolve({"data_dir": folder / "data", **choices, **paths, **beside})
    engine = ResidentEngine(settings, profile_memory=True, warm_up=False, partitions=(FL2VA,))
    with patch.object(load, "stream", made_set.stream), patch.object(resident, "Loader", OneTransformer):
        engine.load(lambda _: None)
    return engine


def warm_up(engine: ResidentEngine, folder: Path) -> None:
    """As an engine does before it is ready: workspaces of libraries are there from then on. Without an encoder that
    works, which only whole requests need, it ends early and says so."""
    try:
        engine.generate(spec_of(Case(64, 64, 5, 1), folder), lambda _: None, lambda: False)
    except JobError as error:
        say(f"the warm-up ended in {error.stage}: {error.message}")
    engine.estimator.begin()


def held(engine: ResidentEngine) -> int:
    told = engine.estimate(spec_of(Case(64, 64, 5, 1), Path("/"))).memory
    return told["weights_bytes"] + told["process_bytes"]


class _Stopper:
    """Lets a run sample a few blocks and takes the peak that the allocator had in them. skipped: blocks before them."""

    def __init__(self, engine: ResidentEngine, skipped: int = 0) -> None:
        self.peak, self._device, self._tally = 0, engine.device, engine.attentions.tally
        self._before, self._stage, self._skipped, self._counts = self._calls(), "", skipped, skipped == 0

    def on_progress(self, progress: Progress) -> None:
        self._stage = progress.stage

    def should_stop(self) -> bool:
        done = self._calls() - self._before - self._skipped
        if self._stage == "sampling" and done > 0 and not self._counts:
            self._counts = True
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)
        if self._stage != "sampling" or done < CALLS:
            return False
        if self._device.type == "cuda":
            self.peak = int(torch.cuda.max_memory_allocated(self._device))
        return True

    def _calls(self) -> int:
        return sum(self._tally.dispatches.values())


def sampled(engine: ResidentEngine, spec: GenerateSpec) -> dict[str, Any]:
    """The sampling's peak, of as much of it as was run. On a CPU there is none."""
    estimate, began = engine.estimate(spec), time.monotonic()
    # A first call of a backend may compile, and compares it with fp32: no part of what it takes.
    if spec.attention is not None:
        engine.attentions.choose(spec.attention)
    is_sparse = spec.attention in SPARSE
    stopper = _Stopper(engine, engine.models.transformer_of(spec.task).config.layers if is_sparse else 0)
    with suppress(JobCancelled):
        engine.generate(spec, stopper.on_progress, stopper.should_stop)
    memory = estimate.memory
    predicted = sum(memory[f"{part}_bytes"] for part in RESIDENT) + memory["sampling_bytes"]
    # An adapter may be smaller than its file, whose zeros beside q, k and v are left out: known once it is read.
    base = sum(engine.estimate(spec).memory[f"{part}_bytes"] for part in RESIDENT)
    return {
        "rows": sum(estimate.rows.values()),
        "predicted_bytes": predicted,
        "measured_bytes": stopper.peak,
        "above": round(memory["sampling_bytes"] / max(1, stopper.peak - base), 3),
        "sampling_bytes": memory["sampling_bytes"],
        "measured_above_bytes": stopper.peak - base,
        "seconds": round(time.monotonic() - began, 2),
    }


def upscaled(engine: ResidentEngine, spec: GenerateSpec) -> dict[str, Any]:
    """The upscaler alone: its widest place as predicted, and as the allocator counts it on a device."""
    assert spec.refine is not None
    model, vae, began = engine.upscaler.take(spec.refine), engine.models.vaes.video, time.monotonic()
    height, width = latent_side(spec.refine.height), latent_side(spec.refine.width)
    video = torch.zeros(1, vae.config.latent_channels, latent_frames(spec.frames), height, width, device=engine.device)
    mean, std = (vae.get_buffer(name) for name in ("latents_mean", "latents_std"))
    is_device, base = engine.device.type == "cuda", 0
    if is_device:
        torch.cuda.reset_peak_memory_stats(engine.device)
        base = torch.cuda.memory_allocated(engine.device)
    upscale(model, video, mean, std, spec.refine.scale)
    peak = torch.cuda.max_memory_allocated(engine.device) if is_device else 0
    predicted = upscaling_bytes(model.config, demand_of(spec, ()), on_host=not is_device)
    return {
        "rows": 0,
        "predicted_bytes": base + predicted,
        "measured_bytes": peak,
        "above": round(predicted / max(1, peak - base), 3),
        "sampling_bytes": predicted,
        "measured_above_bytes": peak - base,
        "seconds": round(time.monotonic() - began, 2),
    }


def figures(engine: ResidentEngine, spec: GenerateSpec) -> dict[str, Any]:
    """`ratio`: predicted / measured; `above`: the same without what the engine holds anyway."""
    # Nothing is known of a request's conditions when it is admitted.
    engine.conditioner.cache.clear()
    engine.media_cache.clear()
    estimate = engine.estimate(spec)
    base = sum(estimate.memory[f"{part}_bytes"] for part in RESIDENT)
    began = time.monotonic()
    clip = engine.generate(spec, lambda _: None, lambda: False)
    peak = clip.memory["peak_allocated_bytes"]
    stages = {
        name.removeprefix("peak_").removesuffix("_allocated_bytes"): count - base
        for name, count in clip.memory.items()
        if name.endswith("_allocated_bytes") and name != "peak_allocated_bytes"
    }
    return {
        "rows": sum(estimate.rows.values()),
        "predicted_bytes": estimate.peak_bytes,
        "measured_bytes": peak,
        "reserved_bytes": clip.memory["peak_reserved_bytes"],
        "capacity_bytes": estimate.capacity_bytes,
        "ratio": round(estimate.peak_bytes / peak, 4),
        "above": round((estimate.peak_bytes - base) / max(1, peak - base), 3),
        "predicted": {
            name: count for name, count in estimate.memory.items() if name.startswith(("cond", "samp", "dec"))
        },
        "measured_above": stages,
        "seconds": round(time.monotonic() - began, 2),
        "timings": {stage: round(seconds, 2) for stage, seconds in clip.timings.items()},
    }


def spec_of(case: Case, folder: Path) -> GenerateSpec:
    spec = GenerateSpec(
        job_id="memory",
        task=Task.T2VA,
        prompt=case.prompt,
        width=case.width,
        height=case.height,
        frames=case.frames,
        sampling=SamplerSettings(steps=case.steps, seed=1),
        output=folder / "clip.mp4",
        scratch=folder,
        n=case.n,
        overwrite=True,
        attention=case.attention,
        linear=case.linear,
        reuse=None if case.reuse is None else StepReuse(case.reuse, 0.0),
        loras=(adapter_use(folder),) if case.adapter else (),
        refine=RefinePass(case.width // 2, case.height // 2, 2.0, 1, 0.15) if case.refined else None,
    )
    if not case.references:
        return spec
    return replace(spec, task=Task.REF2VA, references=tuple(references(folder, case.width, case.height)))


def adapter_use(folder: Path) -> AdapterUse:
    digest = sha256_of(folder / "loras" / f"{ADAPTER}.safetensors", default_cache_dir())
    return AdapterUse(ADAPTER, 1.0, digest, None, RANK, None, 0, 0, alpha_given=float(RANK))


def references(folder: Path, width: int, height: int) -> Iterator[ReferenceInput]:
    """Two pictures, a clip of 39 frames with its track on the target's canvas, a voice of three seconds."""
    for index in range(2):
        name = f"references[{index}]"
        picture = write_picture(folder / f"{index}.png", width, height, index)
        yield ReferenceInput(name, "image", width, height, picture=MediaFile(picture, name))
    clip = MediaFile(write_clip(folder / "clip-in.mp4", width, height, 39 / 24 + 0.1, sound=True), "references[2]")
    yield ReferenceInput("references[2]", "video", width, height, clip=ClipInput(clip, 0, 39), sound=SoundInput(clip))
    voice = MediaFile(write_sound(folder / "voice.wav", 3.0), "references[3]")
    yield ReferenceInput("references[3]", "audio", sound=SoundInput(voice))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """For people, in Markdown."""
    lines = ["| layout | case | rows | predicted GiB | measured GiB | above |", "|" + "---|" * 6]
    for told in found:
        if "error" in told:
            lines.append(f"| {told['layout']} | {told['case']} | {told['error']} | | | |")
        elif "case" in told:
            sizes = (f"{told[name] / GIB:.2f}" for name in ("predicted_bytes", "measured_bytes"))
            cells = [told["layout"], told["case"], f"{told['rows']:,}", *sizes, f"{told['above']:.3f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memory_model.py", description="Predicted against measured peaks of memory.")
    parser.add_argument("--device", default="cuda", help="Default: cuda.")
    parser.add_argument(
        "--layout", nargs="+", choices=tuple(LAYOUTS), default=USUAL, help=f"Default: {' '.join(USUAL)}."
    )
    parser.add_argument("--attention", nargs="+", metavar="NAME", help="Default: five, and the first layout with all.")
    parser.add_argument(
        "--fused", default="auto", metavar="NAME", help="Producers, as `serve` has them. Default: auto."
    )
    parser.add_argument("--features", action="store_true", help="Leave out the grid of attention and linear backends.")
    parser.add_argument("--stages-only", action="store_true", help="No whole requests at all.")
    parser.add_argument("--whole", action="store_true", help="All whole requests, three minutes more.")
    parser.add_argument("--tiny", action="store_true", help="Small models and requests, to try the script itself.")
    return parser


if __name__ == "__main__":
    main()
