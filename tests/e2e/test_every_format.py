"""Every published format, pruned and full: `synth`, `serve`, `POST /generate`, against the same weights in plain BF16.

The set that a format's own command writes is served as its own `h3.env` names it, over HTTP, on the CPU: the first by
the command, the others by the same service in a thread of this process, whose engine is a process forked from an
interpreter that has imported it. The reference is the same set with every quantised layer of every component decoded
to BF16 by hand, run by the engine in this process.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from h3runtime.__main__ import main
from h3runtime.backends.linear.dequant import dense
from h3runtime.checkpoint.assemble import assemble
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.markers import METADATA_KEY
from h3runtime.checkpoint.sources import SYNTHETIC_KEY
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import GenerateSpec, Latents, SamplerSettings, Task
from h3runtime.engine.latents_file import read_latents
from h3runtime.engine.resident import ResidentEngine
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.settings import Settings, resolve
from tests.api.server import Running, running
from tests.e2e.test_quantised import distance
from tests.e2e.test_serve import PATIENCE, Server, post, start, wait_until_ready

BY_COMMAND = "nvfp4-pruned"
FORMATS = ("nvfp4", "int8_convrot", "fp8_scaled", "bf16")
REQUEST = {"prompt": "a red ball", "width": 96, "height": 64, "frames": 5, "steps": 4, "seed": 7}
BOUND = 2e-2
"""Stated relative L2 of the final latents. The transformer's linears are bit-equal (`test_quantised`); the encoder
computes in FP32, so the rounding of its decoded weights to BF16 is what is left."""


@dataclass(frozen=True)
class Made:
    name: str
    folder: Path
    settings: Settings


@pytest.fixture(scope="module", params=[(f, p) for f in FORMATS for p in ("pruned", "full")], ids="-".join)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    stored, form = request.param
    folder = tmp_path_factory.mktemp("set")
    flags = [] if form == "pruned" else ["--unpruned"]
    assert main(["synth", str(folder), "--format", stored, "--quiet", *flags]) == 0
    return Made("-".join(request.param), folder, resolve({"device": "cpu"}, folder / "h3.env"))


def components(settings: Settings) -> dict[str, Path]:
    fields = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path")
    return {field: getattr(settings, field) for field in fields}


def decoded(path: Path, target: Path) -> Path:
    """The same component as a plain file, quantised layers as BF16."""
    with CheckpointFile(path) as file:
        plain = {name: file.read(name) for name in file.shapes if name.removesuffix(".weight") not in file.layers}
        for name, layer in file.layers.items():
            tensors = {n: file.read(n) for n in (f"{name}.weight", *layer.sidecars)}
            stored = assemble(layer, tensors, layer.shape)
            weight = dense(stored, torch.float32)
            scale = getattr(stored, "pre_quant_scale", None)
            plain[f"{name}.weight"] = (weight if scale is None else weight * scale.float()).to(torch.bfloat16)
        kept = {key: value for key, value in file.metadata.items() if key != METADATA_KEY}
        write_file(target, plain, {**kept, SYNTHETIC_KEY: "1"})
    return target


def latents_of(settings: Settings, folder: Path, seeds: tuple[int, ...]) -> list[Latents]:
    """By an engine in this process, one for each seed."""
    engine = ResidentEngine(settings, threads=1, warm_up=False)
    engine.load(lambda _: None)
    found = [made_by(engine, folder, seed) for seed in seeds]
    engine.close()
    return found


def made_by(engine: ResidentEngine, folder: Path, seed: int) -> Latents:
    spec = GenerateSpec(
        job_id="reference",
        task=Task.T2VA,
        prompt=str(REQUEST["prompt"]),
        width=96,
        height=64,
        frames=5,
        sampling=SamplerSettings(steps=4, seed=seed),
        output=folder / f"{seed}.mp4",
        scratch=folder,
        save_latents=True,
    )
    clip = engine.generate(spec, lambda _: None, lambda: False)
    assert clip.latents_output is not None
    return read_latents(clip.latents_output)[0]


@contextmanager
def serving(made: Made, folder: Path) -> Iterator[Server | Running]:
    """As the set's own `h3.env` names it; not ready yet."""
    if made.name == BY_COMMAND:
        with serving_by_command(made, folder) as server:
            yield server
        return
    named = {name: getattr(made.settings, name) for name in made.settings.model_fields_set}
    told = {**named, "data_dir": folder, "disk_floor_bytes": 0, "warmup_shapes": ()}
    recipe = EngineRecipe("h3runtime.engine:create", (Settings(**told), 1))
    with running(folder, recipe=recipe, ready=False, **told) as server:
        yield server


@contextmanager
def serving_by_command(made: Made, folder: Path) -> Iterator[Server]:
    folder.mkdir()
    lines = [line.split("=", 1) for line in (made.folder / "h3.env").read_text().splitlines()]
    server = start(folder, H3_DEVICE="cpu", H3_WARMUP_SHAPES=",", **{name: value.strip("'") for name, value in lines})
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        server.client.close()


def test_what_is_served_is_what_the_weights_say(made: Made, tmp_path: Path) -> None:
    with serving(made, tmp_path / "server") as server:
        # The reference is made while the server loads.
        plain = {field: decoded(path, tmp_path / path.name) for field, path in components(made.settings).items()}
        wanted, other = latents_of(made.settings.model_copy(update=plain), tmp_path, (7, 8))
        ready = wait_until_ready(server)
        job = post(server, {**REQUEST, "save_latents": True})
    assert (job["status"], job["seed"]) == ("succeeded", "7"), job
    ours = read_latents(next((tmp_path / "server").rglob("*.latents.safetensors")))[0]
    files = {model["component"]: model for model in ready["models"]}
    assert made.folder.joinpath(files["transformer"]["file"]).is_file()
    assert all(len(model["sha256"]) == 64 for model in files.values())
    error = distance(ours, wanted)
    assert error <= BOUND
    assert distance(other, wanted) >= 10 * max(error, BOUND)
