"""`refine` over HTTP: a server with an upscaler of random weights, the real engine on the tiny set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from h3runtime.api.rules.refine import DENOISE, STEPS
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.media.probe import probe_clip
from tests.e2e.test_serve import PATIENCE, png, start, wait_until_ready
from tests.engine.refining import upscaler_file
from tests.tiny_set import tiny_paths

SMALL = {"prompt": "a red ball", "width": 64, "height": 64, "frames": 5, "steps": 2, "seed": 7, "diagnostics": True}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("files")
    adapter("bare", TRANSFORMER).write(folder / "bare.safetensors")
    file = upscaler_file(folder / "upscaler.safetensors")
    paths = {f"H3_{name.upper()}": str(path) for name, path in tiny_paths().items()}
    served = tmp_path_factory.mktemp("server")
    server = start(served, H3_UPSCALER_PATH=str(file), H3_LORA_DIR=str(folder), **paths)
    try:
        wait_until_ready(server)
        yield server.client
    finally:
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        server.client.close()


def made(client: httpx2.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/generate", json=SMALL | fields)
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    assert job["status"] == "succeeded", job["error"]
    return job


def refused(client: httpx2.Client, **fields: Any) -> set[str]:
    answer = client.post("/generate", json=SMALL | fields)
    assert answer.status_code == 422, answer.text
    return {error["field"] for error in answer.json()["errors"]}


def test_a_job_tells_of_the_refined_clip(client: httpx2.Client, tmp_path: Path) -> None:
    """Its canvas and all its forwards; under `refine` what the second pass was and took."""
    job = made(client, refine={"scale": 1.5})
    assert (job["width"], job["height"], job["frames"], job["forwards"]) == (96, 96, 5, 2 + STEPS)
    told = job["refine"]
    assert (told["scale"], told["steps"], told["denoise"]) == (1.5, STEPS, DENOISE)
    assert (told["width"], told["height"], told["forwards"]) == (64, 64, STEPS)
    assert told["upscaling_seconds"] > 0 and told["sampling_seconds"] > 0
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(client.get(job["url"]).content)
    facts = probe_clip(clip)
    assert (facts.width, facts.height, facts.frames) == (96, 96, 5)
    assert made(client)["refine"] is None


def test_the_upscaler_is_resident_from_the_first_refined_job_on_and_counted(client: httpx2.Client) -> None:
    listed = client.get("/ready").json()["upscaler"]
    assert listed["file"] == "upscaler.safetensors" and not listed["embedded"]
    refined = made(client, refine={})["diagnostics"]["memory_estimate"]
    assert refined["upscaler_bytes"] == listed["bytes"] > 0
    assert made(client)["diagnostics"]["memory_estimate"]["upscaler_bytes"] == listed["bytes"]


def test_reuse_spares_steps_of_the_first_pass_alone(client: httpx2.Client) -> None:
    reuse = {"cache_mode": "first_block", "cache_threshold": 3.0, "cache_start_percent": 0.0, "cache_end_percent": 1.0}
    job = made(client, steps=6, refine={"steps": 4}, **reuse)
    assert job["skipped_steps"] == 5 and job["forwards"] == 1 + 4
    assert job["diagnostics"]["reuse"]["skipped"] == [1, 2, 3, 4, 5]


def test_an_adapter_is_in_both_passes(client: httpx2.Client) -> None:
    lora = [{"name": "bare", "alpha": 4}]
    plain, adapted = made(client, refine={}), made(client, refine={}, loras=lora)
    assert adapted["diagnostics"]["latents_sha256"] != plain["diagnostics"]["latents_sha256"]
    first = adapted["diagnostics"]["refine"]["first_sha256"]
    assert first == made(client, loras=lora)["diagnostics"]["latents_sha256"]


def test_guides_are_read_at_both_sizes(client: httpx2.Client) -> None:
    files = {
        "request": (None, '{"prompt": "x", "width": 64, "height": 64, "frames": 5, "steps": 1, "refine": {},'
                          ' "diagnostics": true, "first_frame": {"upload": "a"}}', "application/json"),
        "a": ("a.png", png(1), "image/png"),
    }  # fmt: skip
    job = client.post("/generate", files=files).json()
    assert job["status"] == "succeeded" and job["task"] == "i2va"
    rows = job["diagnostics"]["rows"], job["diagnostics"]["refine"]["rows"]
    assert [each["cond"] for each in rows] == [4, 16]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"refine": {"scale": 2.5}}, {"refine.scale"}),
        ({"refine": {"scale": 2, "steps": 0, "denoise": 2}}, {"refine.steps", "refine.denoise"}),
        ({"refine": {"sharp": 1}}, {"refine.sharp"}),
        ({"refine": {}, "width": 1344, "height": 768}, {"refine.scale"}),
        ({"refine": {}, "quality": "high"}, {"refine", "quality"}),
    ],
)
def test_what_can_t_be_refined_is_refused_by_name(
    client: httpx2.Client, fields: dict[str, Any], named: set[str]
) -> None:
    assert refused(client, **fields) == named
