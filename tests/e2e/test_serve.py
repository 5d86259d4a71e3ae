"""`h3runtime serve` as an operator starts it: no settings, the embedded model, real HTTP, the real engine process."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from h3runtime.checkpoint.expected import write_sums
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.synthetic.tiny import write_set
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.media.probe import probe_clip, read_frames
from h3runtime.settings import Settings
from tests.api.server import Running, running

PATIENCE = 180.0
SMALL = {
    "prompt": "a red ball bouncing on a blue floor",
    "width": 96,
    "height": 64,
    "frames": 22,
    "steps": 2,
    "seed": 7,
}


@dataclass
class Server:
    """The process, a client, and every line of its log so far."""

    process: subprocess.Popen[str]
    client: httpx2.Client
    log: list[str]

    def logged(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Lines of an event, once there are so many: what is printed comes through a pipe and a thread."""

        def found() -> list[dict[str, Any]]:
            lines = [line for line in map(json.loads, self.log) if line["event"] == event]
            return lines if len(lines) >= count else []

        return list(_wait(found))


def start(folder: Path, **environment: str) -> Server:
    """Port 0 and a data folder of its own; nothing else is set."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "h3runtime", "serve", "--port", "0", "--data-dir", str(folder)],
        env={**clean, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    log: list[str] = []
    threading.Thread(target=_collect, args=(process.stdout, log), daemon=True).start()
    try:
        url = _wait(lambda: next((m[0] for line in log if (m := re.search(r"http://127[\d.]+:\d+", line))), None))
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Server(process, httpx2.Client(base_url=url, timeout=PATIENCE), log)


def _collect(stream: IO[str], log: list[str]) -> None:
    with stream:
        for line in stream:
            log.append(line)


def _wait(look: Any) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def wait_until_ready(server: Server | Running) -> dict[str, Any]:
    _wait(lambda: server.client.get("/ready").status_code == 200)
    return dict(server.client.get("/ready").json())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("data"))
    try:
        wait_until_ready(running)
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
        running.client.close()


def png(number: int, size: tuple[int, int] = (120, 80)) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (8, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(buffer, "PNG")
    return buffer.getvalue()


def post(server: Server | Running, body: dict[str, Any], **pictures: bytes) -> dict[str, Any]:
    if pictures:
        files = {name: (f"{name}.png", data, "image/png") for name, data in pictures.items()}
        form = {"request": (None, json.dumps(body), "application/json"), **files}
        answer = server.client.post("/generate", files=form)
    else:
        answer = server.client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    job = dict(answer.json())
    assert job["status"] == "succeeded", job["error"]
    return job


def fetch(server: Server, job: dict[str, Any], path: Path) -> Path:
    path.write_bytes(server.client.get(job["url"]).content)
    return path


FIRST, LAST = {"first_frame": {"upload": "a"}}, {"last_frame": {"upload": "b"}}


@pytest.mark.parametrize(
    ("task", "inputs", "uploads"),
    [
        ("t2va", {}, {}),
        ("i2va", FIRST, {"a": png(1)}),
        ("l2va", LAST, {"b": png(2)}),
        ("fl2va", FIRST | LAST, {"a": png(1), "b": png(2)}),
    ],
)
def test_each_task_gives_its_clip(
    server: Server, tmp_path: Path, task: str, inputs: dict[str, Any], uploads: dict[str, bytes]
) -> None:
    job = post(server, SMALL | inputs, **uploads)
    assert (job["task"], job["frames"], job["seed"], job["forwards"]) == (task, 22, "7", 2)
    clip = fetch(server, job, tmp_path / "clip.mp4")
    facts = probe_clip(clip)
    assert (facts.width, facts.height, facts.frames, facts.rate) == (96, 64, 22, 24)
    assert facts.sound is not None and facts.sound.rate == 32_000
    assert set(job["timings"]) >= {"queue", "conditioning", "sampling", "video_decode", "audio_decode", "mux", "total"}
    assert job["checks"]["latents"]["video_finite"] is True


def test_a_request_repeats_and_a_seed_matters(server: Server, tmp_path: Path) -> None:
    first, again, other = (post(server, SMALL | {"seed": seed}) for seed in (11, 11, 12))
    frames = [read_frames(fetch(server, job, tmp_path / f"{job['id']}.mp4")) for job in (first, again, other)]
    assert np.array_equal(frames[0], frames[1]) and not np.array_equal(frames[0], frames[2])


def test_a_turned_photo_is_portrait(server: Server) -> None:
    image = Image.open(io.BytesIO(png(3, (1200, 800))))
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    body = {"prompt": "x", "first_frame": {"upload": "a"}, "short_edge": 256, "frames": 5, "steps": 1}
    job = post(server, body, a=buffer.getvalue())
    assert job["height"] > job["width"]


def test_probes_answer_while_a_job_computes(server: Server) -> None:
    """One job long enough to be watched; the API has a core of its own where there are two."""
    done = threading.Event()
    results: list[dict[str, Any]] = []

    def work() -> None:
        results.append(post(server, SMALL | {"width": 320, "height": 192, "frames": 39, "steps": 12}))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    waits = []
    while not done.is_set():
        for path in ("/live", "/ready"):
            began = time.monotonic()
            assert server.client.get(path).status_code == 200
            waits.append(time.monotonic() - began)
        time.sleep(0.02)
    thread.join()
    assert len(waits) > 20 and results[0]["status"] == "succeeded"
    # The middle one, since the machine that runs this may be busy with other things; `benchmarks/load.py` is strict.
    assert sorted(waits)[len(waits) // 2] < 0.25


def test_ready_tells_what_is_loaded(server: Server) -> None:
    ready = server.client.get("/ready").json()
    assert ready["status"] == "ready"
    components = ["transformer", "transformer", "text_encoder", "video_vae", "audio_vae"]
    assert [m["component"] for m in ready["models"]] == components
    assert {(m["model"], m["synthetic"]) for m in ready["models"]} == {("h3-nano", False)}
    assert all(re.fullmatch("[0-9a-f]{64}", m["sha256"]) for m in ready["models"])
    assert [m["partition"] for m in ready["models"]] == ["fl2va", "ref2va", None, None, None]
    assert [m["adaln"] for m in ready["models"]] == ["pruned", "pruned", None, None, None]
    assert all(m["qkv"].startswith("contiguous (") for m in ready["models"][:2])
    # One trained transformer serves both partitions.
    assert (len({m["file"] for m in ready["models"]}), len({m["sha256"] for m in ready["models"]})) == (5, 4)
    assert any("h3-nano is loaded" in warning for warning in ready["warnings"])
    assert ready["attention"]["default"] == "sdpa" and ready["linear"]["default"] == "resident_bf16"
    assert ready["startup"]["load_seconds"].keys() == {m["component"] for m in ready["models"]}
    assert ready["startup"]["cold_start_seconds"] >= ready["startup"]["warmup_seconds"] > 0
    tested = ready["self_test"]
    assert (tested["status"], tested["reason"]) == ("passed", "") and ready["startup"]["self_test_seconds"] > 0
    assert {check["family"] for check in tested["checks"]} >= {"attention", "linear", "fused", "text_encoder"}
    assert all(check["passed"] and check["error"] <= check["tolerance"] for check in tested["checks"])
    loads = {(m["component"], m["partition"]): (m["load_seconds"], m["bytes_per_second"]) for m in ready["models"]}
    assert all(seconds > 0 and rate > 0 for seconds, rate in loads.values())
    sums = dict.fromkeys(components, 0.0)
    for (component, _), (seconds, _) in loads.items():
        sums[component] += seconds
    assert sums == ready["startup"]["load_seconds"]
    rates, (seconds, rate) = ready["startup"]["load_bytes_per_second"], loads["text_encoder", None]
    assert rates.keys() == sums.keys() and (rates["text_encoder"], sums["text_encoder"]) == (rate, seconds)
    assert rates["transformer"] == sum(m["bytes"] for m in ready["models"][:2]) / sums["transformer"]
    told = {
        (e["component"], e["partition"]): (e["load_seconds"], e["bytes_per_second"])
        for e in server.logged("component_loaded", 5)
    }
    (engine_ready,) = server.logged("engine_ready")
    assert told == loads and engine_ready["load_seconds"] == ready["startup"]["load_seconds"]
    assert engine_ready["checkpoint"] == ready["checkpoint"]
    metrics = server.client.get("/metrics").text
    for component, partition in (("video_vae", ""), ("transformer", "fl2va"), ("transformer", "ref2va")):
        assert f'h3runtime_model_load_seconds{{component="{component}",partition="{partition}"}}' in metrics


def test_the_log_is_json_and_holds_no_prompt(server: Server) -> None:
    job = post(server, SMALL | {"prompt": "a very secret dragon"})
    told = _wait(lambda: [line for line in server.logged("generate_complete") if line["job_id"] == job["id"]])
    assert told and server.logged("generate_start")
    assert "secret dragon" not in "".join(server.log)


def test_a_killed_engine_fails_its_job_and_comes_back(tmp_path: Path) -> None:
    running = start(tmp_path)
    try:
        wait_until_ready(running)
        long = SMALL | {"steps": 200, "width": 320, "height": 192, "frames": 39}
        job = running.client.post("/generate", json=long, headers={"Prefer": "respond-async"}).json()
        _wait(lambda: running.client.get(f"/jobs/{job['id']}").json()["progress"]["stage"] == "sampling")
        os.kill(_engine_pid(running.process.pid), signal.SIGKILL)
        ended = _wait(lambda: (j := running.client.get(f"/jobs/{job['id']}").json())["status"] == "failed" and j)
        assert ended["error"]["code"] == "engine_dead"
        wait_until_ready(running)
        assert post(running, SMALL)["status"] == "succeeded"
    finally:
        running.process.kill()
        running.process.wait()
        running.client.close()


def _engine_pid(parent: int) -> int:
    """The child of the server that computes: the one with torch mapped."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    (engine,) = [int(pid) for pid in children if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]
    return engine


def test_a_damaged_file_keeps_the_server_from_its_work(tmp_path: Path) -> None:
    """Case A09: 4 KiB of a VAE flipped, its size as before; a list beside it tells."""
    made = write_set(tmp_path / "set")
    vae = made.audio_vae
    write_sums(vae.parent, {vae.name: sha256_of(vae)})
    with vae.open("r+b") as file:
        file.seek(vae.stat().st_size // 2)
        file.write(os.urandom(4096))
    paths = (made.transformer, made.text_encoder, made.video_vae, vae, made.tokenizer)
    with dead(tmp_path / "data", dict(zip(PARTS, paths, strict=True))) as server:
        answer = server.client.get("/ready")
        reason = answer.json()["reason"]
        assert answer.status_code == 503 and vae.name in reason and "SHA256SUMS" in reason
        assert server.client.post("/generate", json=SMALL).status_code == 503


PARTS = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path", "tokenizer_path")


@contextmanager
def dead(folder: Path, files: Mapping[str, Path]) -> Iterator[Running]:
    """The service in a thread of this process, once its engine has found that these can't be loaded."""
    told: dict[str, Any] = {**files, "data_dir": folder, "device": "cpu", "disk_floor_bytes": 0}
    recipe = EngineRecipe("h3runtime.engine:create", (Settings(**told), 1))
    with running(folder, recipe=recipe, ready=False, **told) as server:
        server.wait_ready("dead")
        yield server


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"<html>not found</html>")
    files = dict.fromkeys(PARTS, broken) | {"tokenizer_path": tmp_path}
    with dead(tmp_path / "data", files) as server:
        answer = server.client.get("/ready")
        assert answer.status_code == 503 and "vocab.json" in answer.json()["reason"]
        assert server.client.get("/live").status_code == 503
        assert server.client.post("/generate", json=SMALL).status_code == 503
