"""What the real engine makes of full memory, a lost device and values that are not finite, and what it can do next.

In this process by putting a fault where a library would raise one; and as an operator sees it: a real service whose
engine is killed at random moments of its jobs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from h3runtime.core import Clip, GenerateSpec, Latents
from h3runtime.engine import decode as decode_module
from h3runtime.engine import resident
from h3runtime.engine.decode import DecodeJob, decode
from h3runtime.engine.faults import give_back, job_error_of
from h3runtime.engine.latents_file import latents_path
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.sampling import Sampler
from h3runtime.errors import (
    DegenerateOutput,
    EngineDead,
    JobError,
    NumericalError,
    OutOfMemory,
    SettingsError,
)
from h3runtime.media.mux import ClipWriter
from h3runtime.settings import Settings
from tests.e2e.test_serve import SMALL
from tests.faults.service import REAL, Service
from tests.faults.service import look as looked
from tests.tiny_set import tiny_paths

MakeSpec = Callable[..., GenerateSpec]
Fail = Callable[[], object]
STAGES = ("conditioning", "sampling", "audio_decode", "video_decode", "mux")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def raising(error: BaseException) -> Fail:
    def fail() -> object:
        raise error

    return fail


FULL: dict[str, Fail] = {
    "the CPU's allocator": lambda: torch.empty(2**58),
    "numpy": lambda: np.empty(2**58),
    "Python": raising(MemoryError()),
    "oneDNN": raising(RuntimeError("could not create a primitive")),
    "the system": raising(OSError(errno.ENOMEM, "Cannot allocate memory")),
    "PyTorch's allocator": raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0")),
    "the driver": raising(torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be")),
    "cuBLAS": raising(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    "cuDNN": raising(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
}
"""Everybody who says that memory is full; the first two mean it."""
LOST = raising(torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for ... in /usr"))


def generate(engine: ResidentEngine, spec: GenerateSpec) -> Clip:
    return engine.generate(spec, lambda _: None, lambda: False)


def put_fault(patch: pytest.MonkeyPatch, engine: ResidentEngine, stage: str, fail: Fail) -> int | None:
    """Let `fail` happen in that stage. Returns the step that a job should name: steps done of it, where it has any."""

    def refuse(*_: Any, **__: Any) -> Any:
        return fail()

    if stage == "conditioning":
        patch.setattr(engine.conditioner.encoder, "encode", refuse)
        return 0
    if stage == "sampling":
        patch.setattr(engine.models.transformers["fl2va"], "forward", at_step(engine, 1, refuse))
        return 1
    if stage == "audio_decode":
        patch.setattr(engine.models.vaes.audio, "decode", refuse)
    elif stage == "video_decode":
        patch.setattr(engine.models.vaes.video, "decode_chunks", refuse)
        return 0
    else:
        patch.setattr(ClipWriter, "finish", refuse)
    return None


def at_step(engine: ResidentEngine, step: int, change: Callable[..., Any]) -> Callable[..., Any]:
    """The transformer's `forward`, whose inputs and velocities `change` sees at one step."""
    forward = engine.models.transformers["fl2va"].forward

    def changed(*given: Any, **named: Any) -> Any:
        return change(forward, *given, **named) if named["step"] == step else forward(*given, **named)

    return changed


@pytest.fixture
def as_before(engine: ResidentEngine, make_spec: MakeSpec) -> Iterator[GenerateSpec]:
    """A request to spoil; afterwards a sound one gives the file that it gave before, and no scraps are left."""
    engine.conditioner.cache.clear()
    sound = generate(engine, make_spec("before", frames=5))
    spoilt = make_spec("spoilt", frames=5, steps=5)
    yield spoilt
    assert generate(engine, make_spec("after", frames=5)).sha256 == sound.sha256
    assert sorted(path.name for path in spoilt.scratch.iterdir()) == ["after.mp4", "before.mp4"]


@contextmanager
def fault(engine: ResidentEngine, stage: str, fail: Fail) -> Iterator[int | None]:
    engine.conditioner.cache.clear()
    with pytest.MonkeyPatch.context() as patch:
        yield put_fault(patch, engine, stage, fail)


@pytest.mark.parametrize("stage", STAGES)
def test_full_memory_fails_one_job_and_the_next_one_is_as_before(
    engine: ResidentEngine, as_before: GenerateSpec, stage: str
) -> None:
    for who, fail in FULL.items():
        with fault(engine, stage, fail) as step, pytest.raises(OutOfMemory, match="memory is full") as caught:
            generate(engine, as_before)
        assert (caught.value.code, caught.value.stage, caught.value.step) == ("out_of_memory", stage, step), who
        # What the error holds on to can't be given to the next job.
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("stage", STAGES)
def test_a_lost_device_asks_for_a_new_process_wherever_it_is_met(
    engine: ResidentEngine, as_before: GenerateSpec, stage: str
) -> None:
    with fault(engine, stage, LOST) as step, pytest.raises(EngineDead) as caught:
        generate(engine, as_before)
    assert caught.value.message == "the device failed: CUDA error: an illegal memory access was encountered"
    assert (caught.value.stage, caught.value.step) == (stage, step)


def test_the_first_step_has_a_number_too(engine: ResidentEngine, as_before: GenerateSpec) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OutOfMemory) as caught:
        patch.setattr(engine.models.transformers["fl2va"], "forward", refuse)
        generate(engine, as_before)
    assert (caught.value.stage, caught.value.step) == ("sampling", 0)


def test_a_bug_on_a_device_that_works_stays_a_bug(engine: ResidentEngine, as_before: GenerateSpec) -> None:
    shapes = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with fault(engine, "sampling", raising(shapes)), pytest.raises(RuntimeError, match="mat1"):
        generate(engine, as_before)


def test_a_library_that_meets_a_lost_device_first_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN tells the sticky error in its own words; whether CUDA still answers decides."""
    foreign = RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: LOST())
    assert isinstance(job_error_of(foreign, CUDA, "sampling", 3), EngineDead)
    assert job_error_of(SettingsError("ours"), CUDA) is None
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert job_error_of(foreign, CUDA) is None
    assert job_error_of(foreign, CPU) is None


def test_memory_that_can_not_be_given_back_asks_for_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", LOST)
    give_back(CPU)
    with pytest.raises(EngineDead, match="illegal memory access"):
        give_back(CUDA)


def test_full_memory_while_loading_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident.Loader, "models", lambda *_: torch.empty(2**58))
    starting = ResidentEngine(Settings(device="cpu", data_dir=tmp_path, **tiny_paths()), threads=1)
    with pytest.raises(OutOfMemory) as caught:
        starting.load(lambda _: None)
    assert (caught.value.message, caught.value.stage) == ("the host's memory is full", "loading")


def test_full_memory_ends_a_decode_by_its_name(
    engine: ResidentEngine, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(save_latents=True)
    generate(engine, spec)
    monkeypatch.setattr(decode_module, "decode_sound", lambda *_: torch.empty(2**58))
    job = DecodeJob(latents_path(spec.output), sound=spec.scratch / "sound.wav")
    with pytest.raises(OutOfMemory) as caught:
        decode(engine.settings, job, lambda _: None)
    assert (caught.value.message, caught.value.stage) == ("the host's memory is full", "audio_decode")


def spoil(values: torch.Tensor) -> torch.Tensor:
    """One NaN, in the middle."""
    spoilt = values.contiguous().clone()
    spoilt.view(-1)[values.numel() // 2] = torch.nan
    return spoilt


def spoil_velocity(stream: int) -> Callable[..., Any]:
    def change(forward: Any, *given: Any, **named: Any) -> Any:
        velocities = list(forward(*given, **named))
        velocities[stream] = spoil(velocities[stream])
        return tuple(velocities)

    return change


def spoil_latent(forward: Any, prepared: Any, video: torch.Tensor, *rest: Any, **named: Any) -> Any:
    return forward(prepared, spoil(video), *rest, **named)


@pytest.mark.parametrize("sampler", ["res_multistep", "euler"])
@pytest.mark.parametrize(
    "change", [spoil_velocity(0), spoil_velocity(1), spoil_latent], ids=["video", "audio", "latent"]
)
def test_a_step_that_is_not_finite_is_named(
    engine: ResidentEngine, as_before: GenerateSpec, change: Callable[..., Any], sampler: str
) -> None:
    spec = replace(as_before, sampling=replace(as_before.sampling, sampler=sampler))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.models.transformers["fl2va"], "forward", at_step(engine, 3, change))
        with pytest.raises(NumericalError, match="step 3 gave values that are not finite") as caught:
            generate(engine, spec)
    assert (caught.value.code, caught.value.stage, caught.value.step) == ("numerical_error", "sampling", 3)


def test_pictures_that_are_not_finite_name_their_decoder(engine: ResidentEngine, as_before: GenerateSpec) -> None:
    chunks = engine.models.vaes.video.decode_chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.models.vaes.video, "decode_chunks", lambda *a, **k: map(spoil, chunks(*a, **k)))
        assert end(engine, as_before) == ("degenerate_output", "video_decode")


def test_sound_that_is_not_finite_names_its_decoder(engine: ResidentEngine, as_before: GenerateSpec) -> None:
    decode_audio = engine.models.vaes.audio.decode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.models.vaes.audio, "decode", lambda latents: spoil(decode_audio(latents)))
        assert end(engine, as_before) == ("degenerate_output", "audio_decode")


def test_a_constant_sound_fails_with_real_weights_and_warns_with_made_up_ones(
    engine: ResidentEngine, as_before: GenerateSpec, make_spec: MakeSpec
) -> None:
    decode_audio = engine.models.vaes.audio.decode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.models.vaes.audio, "decode", lambda latents: torch.full_like(decode_audio(latents), -1.0))
        clip = generate(engine, make_spec("warned"))
        assert any("the sound is a constant" in warning for warning in clip.warnings)
        clip.output.unlink()
        patch.setattr(engine, "models", as_if_real(engine))
        assert end(engine, as_before) == ("degenerate_output", "audio_decode")


def test_a_latent_that_stands_still_fails_with_real_weights(engine: ResidentEngine, as_before: GenerateSpec) -> None:
    sample = Sampler.sample

    def still(*given: Any, **named: Any) -> Latents:
        latents = sample(*given, **named)
        return replace(latents, audio=torch.full_like(latents.audio, 0.3))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "models", as_if_real(engine))
        patch.setattr(Sampler, "sample", still)
        assert end(engine, as_before) == ("degenerate_output", "sampling")


def as_if_real(engine: ResidentEngine) -> Any:
    """The loaded models, without the word that they are made up."""
    return replace(engine.models, facts=tuple(replace(f, synthetic=False) for f in engine.models.facts))


def end(engine: ResidentEngine, spec: GenerateSpec) -> tuple[str, str | None]:
    """Code and stage of a job that can't but fail, and that leaves no clip."""
    with pytest.raises(DegenerateOutput) as caught:
        generate(engine, spec)
    assert isinstance(caught.value, JobError) and not spec.output.exists()
    return caught.value.code, caught.value.stage


MOMENTS, SERVERS = 20, 2
JOB = SMALL | {"steps": 8}
PATIENCE = 180.0
LOOK = 0.1
"""Seconds between questions: each costs the service some milliseconds of the core that restarts its engine."""


class Vigil(threading.Thread):
    """Asks `/live` all the time, as a probe does, and keeps every answer."""

    def __init__(self, client: httpx2.Client) -> None:
        super().__init__(daemon=True)
        self.answers: Counter[int] = Counter()
        self._url, self._over = str(client.base_url), threading.Event()

    def run(self) -> None:
        with httpx2.Client(base_url=self._url, timeout=PATIENCE) as client:
            while not self._over.wait(LOOK):
                self.answers[client.get("/live").status_code] += 1

    def finish(self) -> Counter[int]:
        self._over.set()
        self.join()
        return self.answers


@pytest.mark.timeout(900)
def test_an_engine_killed_at_any_moment_never_wedges_the_service(tmp_path: Path) -> None:
    """Two servers are killed at once. Their engines are forked: `test_serve.py` has one that starts afresh."""
    with ThreadPoolExecutor(SERVERS) as pool:
        ended = list(pool.map(killed_again_and_again, [tmp_path / str(i) for i in range(SERVERS)], range(SERVERS)))
    assert sum(len(jobs) for jobs in ended) == MOMENTS
    assert sum(job["status"] == "failed" for jobs in ended for job in jobs) > MOMENTS // 2


def killed_again_and_again(folder: Path, number: int) -> list[dict[str, Any]]:
    """A service whose engine is killed in each of its share of the jobs; it must be as before afterwards."""
    folder.mkdir()
    server = Service(folder, REAL, ("fork_engines",), {"H3_WARMUP_SHAPES": ","})
    try:
        look(lambda: engine_of(server.pid))
        server.ready()
        earlier, reference = made(server), made(server)
        # Within the job, also if it was the machine that took its time with one of these.
        duration = 0.8 * min(job["timings"]["total"] for job in (earlier, reference))
        vigil = Vigil(server.client)
        vigil.start()
        moments = random.Random(number)
        jobs = [kill_in_a_job(server, moments.uniform(0.0, duration)) for _ in range(MOMENTS // SERVERS)]
        last = made(server)
        assert set(vigil.finish()) == {200}
        judge(jobs, server, reference["sha256"])
        assert last["sha256"] == reference["sha256"]
        outputs = folder / "data" / "outputs"
        assert {hashlib.sha256(clip.read_bytes()).hexdigest() for clip in outputs.iterdir()} == {last["sha256"]}
        assert [path for name in ("tmp", "inputs") for path in (folder / "data" / name).iterdir()] == []
        assert server.stop() == 0
    finally:
        server.close()
        server.process.kill()
    return jobs


def made(server: Service) -> dict[str, Any]:
    job = dict(server.post(JOB).json())
    assert job["status"] == "succeeded", job
    return job


def kill_in_a_job(server: Service, seconds: float) -> dict[str, Any]:
    """Kill the engine so long after a job was sent. Returns the ended job, the service being ready again."""
    engine = look(lambda: engine_of(server.pid))
    answer = server.post(JOB, prefer="respond-async")
    assert answer.status_code == 202, answer.text
    time.sleep(seconds)
    os.kill(engine, signal.SIGKILL)
    job = look(lambda: (j := server.job(answer.json()["id"]))["finished_at"] and j)
    # In this order: between an end and its first consequence `/ready` may still be the old engine's.
    look(lambda: engine_of(server.pid) not in (None, engine) and server.client.get("/ready").status_code == 200)
    return dict(job)


def judge(jobs: list[dict[str, Any]], server: Service, sha256: str) -> None:
    for job in jobs:
        if job["status"] == "succeeded":
            assert job["sha256"] == sha256
            continue
        error = job["error"]
        assert (job["status"], error["code"], job["url"]) == ("failed", "engine_dead", None)
        assert error["message"] == "the engine process was killed by SIGKILL"
        assert error["stage"] in STAGES
    told = server.client.get("/metrics").text
    assert f"h3runtime_engine_restarts {len(jobs)}.0" in told


def engine_of(server: int) -> int | None:
    """The process that the service's fork server has made; None while there is none, or while the kernel skips it."""
    forked = [pid for child in children_of(server) if "forkserver" in command_of(child) for pid in children_of(child)]
    return forked[0] if forked else None


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        # Threads come and go while we look.
        with suppress(OSError):
            found += map(int, children.read_text().split())
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def look(at: Callable[[], Any]) -> Any:
    return looked(at, PATIENCE, LOOK)
