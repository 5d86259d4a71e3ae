"""What `H3_RESIDENCY` costs and spares: `residency.py FOLDER [--device cuda:0]`, FOLDER made by `h3runtime synth`.

One engine, which starts as a server with `encoder_host` would (on a CPU: with `all`); then its text encoder alone is
loaded again for every other residency. For each, one JSON object as soon as it is done:

    conditioning_seconds   of a prompt, of another one, and of the first again, which is remembered; a clip of 320x192,
                           22 frames and two steps each, and one more ahead of them all that is not counted
    moving_seconds         of the encoder's weights from the host, once from end to end, with nothing computed
    device_bytes           by PyTorch's allocator: held between requests, held as sampling begins, and at the peak of
                           the conditioning and of the sampling
    predicted_bytes        of the whole request, as admission counts them
    host_locked_bytes      page-locked on the host; host_resident_bytes: the process
    latents_sha256         of the first two clips; `same` at the end says whether all residencies gave the same
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.load import load_module
from h3runtime.conditioning.conditioner import Conditioner
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.prompt_cache import PromptCache
from h3runtime.core import GenerateSpec, Progress, SamplerSettings, Task
from h3runtime.engine import components
from h3runtime.engine.estimating import Estimator
from h3runtime.engine.load import HOMES, Models
from h3runtime.engine.residency import ALL, ENCODER_DISK, ENCODER_HOST
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.visits import HostSource, Visits, lodge, units_of_encoder
from h3runtime.observe import memory
from h3runtime.settings import resolve

PROMPTS: Final = (
    "A red lantern swings over a still harbour at dusk; water laps against the piles and a bell rings far away. "
    "The camera glides slowly along the quay, past nets and ropes, towards a lighthouse whose lamp begins to turn. ",
    "Two foxes play in fresh snow below tall pines; their breath steams and the snow creaks under their paws. "
    "The camera follows them at the height of their eyes, then rises above the trees to a valley in morning light. ",
)
"""About 100 tokens together with what is put around them."""
WARMING: Final = "a clip that warms everything up"


def main() -> None:
    given = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="h3-residency-") as folder:
        told = measured(given.folder, given.device, Path(folder))
    same = len({json.dumps(found["latents_sha256"]) for found in told}) == 1
    print(json.dumps({"same": same}), flush=True)


def measured(made: Path, device: str, scratch: Path) -> list[dict[str, Any]]:
    """Of each residency."""
    first = ALL if device == "cpu" else ENCODER_HOST
    began = time.monotonic()
    engine = started(made, device, first, scratch)
    start_seconds = time.monotonic() - began
    told = []
    for residency in (first, *(name for name in (ENCODER_HOST, ENCODER_DISK, ALL) if name != first)):
        if residency != first:
            moved_to(engine, residency)
        figures = {"residency": residency, **asked(engine, scratch)}
        if residency == first:
            figures["start_seconds"] = round(start_seconds, 2)
        told.append(figures)
        print(json.dumps(figures), flush=True)
    engine.close()
    return told


def started(made: Path, device: str, residency: str, scratch: Path) -> ResidentEngine:
    flags = {"device": device, "residency": residency, "data_dir": scratch / "data", "self_test": "off"}
    settings = resolve(flags, made / "h3.env")
    engine = ResidentEngine(settings, profile_memory=True, warm_up=False, partitions=("fl2va",))
    engine.load(lambda _: None)
    generated(engine, scratch, WARMING)
    return engine


def moved_to(engine: ResidentEngine, residency: str) -> None:
    """The engine, with its text encoder loaded anew."""
    part, device = components.text_encoder(engine.paths.text_encoder), engine.device
    tokenizer, digest = engine.conditioner.tokenizer, engine.conditioner.encoder_hash
    rest = {field.name: getattr(engine.models, field.name) for field in fields(Models)} | {"residency": residency}
    del rest["text_encoder"]
    # Nothing of the one before may be held while the other is loaded.
    engine.models.close()
    for name in ("models", "conditioner", "estimator"):
        delattr(engine, name)
    gc.collect()
    with part.open() as file:
        module = part.on_meta(file)
        home = HOMES.get(residency, device)
        load_module(module, file, linear=DequantLinear(), device=home, rule=part.rule)
        assert isinstance(module, TextEncoder)
        module.eval().requires_grad_(False)
        if residency != ALL:
            lodge(module, part, file, residency, device, lambda: None)
    engine.models = Models(text_encoder=module, **rest)
    cache = PromptCache(engine.settings.prompt_cache_bytes)
    engine.conditioner = Conditioner(tokenizer, module, digest, cache)
    engine.estimator = Estimator(
        engine.models,
        tokenizer,
        device,
        engine.adapters,
        engine.attentions,
        engine.attention.name,
        engine.upscaler,
        engine.recordings,
        engine.settings.system_reserve_bytes,
    )


def asked(engine: ResidentEngine, scratch: Path) -> dict[str, Any]:
    engine.conditioner.cache.clear()
    made = [generated(engine, scratch, prompt) for prompt in (*PROMPTS, PROMPTS[0])]
    lodging = engine.models.text_encoder.lodging
    first = made[0]
    return {
        "conditioning_seconds": [round(found["timings"]["conditioning"], 3) for found in made],
        "sampling_seconds": [round(found["timings"]["sampling"], 3) for found in made],
        "moving_seconds": moving_seconds(engine.models.text_encoder, engine.device),
        "visits": getattr(lodging, "visits", None),
        "device_bytes": {
            "between": first["before"],
            "as_sampling_begins": first["begun"],
            "conditioning_peak": max(found["memory"]["peak_conditioning_allocated_bytes"] for found in made[:2]),
            "sampling_peak": max(found["memory"]["peak_sampling_allocated_bytes"] for found in made),
        },
        "measured_bytes": max(found["memory"]["peak_allocated_bytes"] for found in made),
        "predicted_bytes": first["diagnostics"]["memory_estimate"]["total_bytes"],
        "host_locked_bytes": 0 if lodging is None else lodging.host_bytes,
        "host_resident_bytes": memory.resident_bytes(),
        "latents_sha256": [found["diagnostics"]["latents_sha256"] for found in made[:2]],
    }


def generated(engine: ResidentEngine, scratch: Path, prompt: str) -> Mapping[str, Any]:
    spec = GenerateSpec(
        job_id="residency",
        task=Task.T2VA,
        prompt=prompt,
        width=320,
        height=192,
        frames=22,
        sampling=SamplerSettings(steps=2, seed=7),
        output=scratch / "clip.mp4",
        scratch=scratch,
        overwrite=True,
        diagnostics=True,
    )
    begun: list[int] = []
    before = _held(engine.device)

    def look(progress: Progress) -> None:
        if progress.stage == "sampling" and not begun:
            begun.append(_held(engine.device))

    clip = engine.generate(spec, look, lambda: False)
    told = {"timings": clip.timings, "memory": clip.memory, "diagnostics": clip.diagnostics or {}}
    return {**told, "before": before, "begun": begun[0]}


def moving_seconds(encoder: TextEncoder, device: torch.device) -> float | None:
    """None of one that stays, nor from a disk, which is what a conditioning takes then."""
    if not isinstance(encoder.lodging, Visits) or not isinstance(encoder.lodging.source, HostSource):
        return None
    began = time.monotonic()
    for _ in encoder.lodging.source.arrivals(units_of_encoder(encoder), lambda: None):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(time.monotonic() - began, 3)


def _held(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else memory.resident_bytes()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="A set of `h3runtime synth`, with its h3.env.")
    parser.add_argument("--device", default="cuda:0")
    return parser


if __name__ == "__main__":
    main()
