"""An adapter in each public layout over HTTP, at four and at eight forwards: one server, the real engine."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch

from h3runtime.checkpoint.synthetic.adapters import LAYOUTS, adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.checkpoint.writer import write_file
from tests.e2e.test_serve import PATIENCE, start, wait_until_ready
from tests.tiny_set import tiny_paths

SMALL = {
    "prompt": "a red ball", "width": 64, "height": 64, "frames": 5, "seed": 7, "sampler": "euler",
    "scheduler": "simple", "save_latents": False, "diagnostics": True,
}  # fmt: skip
ALPHA = {"bare": 4, "resized": 3}
"""Of layouts without one."""
FORWARDS = (4, 8)
REFUSED = {("fasth3", 8): "4"}
"""By the contract of what is known by its metadata, and what it allows instead."""
TURBO = "minimax_h3_fl2v_turbo_4step_v1.0_768p_comfyui_bf16"


LAYER = "lora_unet_blocks_0_mlp_fc2"
UNUSABLE = {
    "dora": ({f"{LAYER}.dora_scale": torch.ones(4)}, "is a DoRA's magnitude"),
    "old-dora": ({f"{LAYER}.diff_b": torch.ones(4, 1)}, "a bias has one dimension"),
    "int8": ({f"{LAYER}.lora_up.weight": torch.ones(4, 4, dtype=torch.int8)}, "is stored as int8"),
    "unknown": ({f"{LAYER}.lora_whatever": torch.ones(4)}, "is of no kind that is known"),
    "torn": ({"lora_unet_blocks_1_mlp_fc1.lora_up.weight": torch.ones(4, 4)}, "has no other half"),
}
"""What stands beside a sound pair -> why the file is refused."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("adapters")
    for layout in LAYOUTS:
        adapter(layout, TRANSFORMER).write(folder / f"{layout}.safetensors")
    adapter("comfyui_turbo", TRANSFORMER).write(folder / f"{TURBO}.safetensors")
    (folder / "broken.safetensors").write_bytes(b"<html>")
    pair = {name: tensor for name, tensor in adapter("kohya", TRANSFORMER).tensors.items() if "fc2.lora_" in name}
    for name, (tensors, _) in UNUSABLE.items():
        write_file(folder / f"{name}.safetensors", pair | tensors)
    paths = {f"H3_{name.upper()}": str(path) for name, path in tiny_paths().items()}
    server = start(tmp_path_factory.mktemp("server"), H3_LORA_DIR=str(folder), H3_WARMUP_SHAPES="64x64x5", **paths)
    try:
        wait_until_ready(server)
        yield server.client
    finally:
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        server.client.close()


def made(client: httpx2.Client, *loras: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = client.post("/generate", json=SMALL | {"loras": list(loras)} | fields)
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert job["status"] == "succeeded", job["error"]
    return job


def refused(client: httpx2.Client, *loras: dict[str, Any], **fields: Any) -> dict[str, str]:
    answer = client.post("/generate", json=SMALL | {"loras": list(loras)} | fields)
    assert answer.status_code == 422, answer.text
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


@pytest.fixture(scope="module")
def plain(client: httpx2.Client) -> dict[int, str]:
    """Latents without adapters."""
    return {steps: made(client, steps=steps)["diagnostics"]["latents_sha256"] for steps in FORWARDS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_runs_at_four_and_eight_forwards(client: httpx2.Client, plain: dict[int, str], layout: str) -> None:
    lora = {"name": layout} | ({"alpha": ALPHA[layout]} if layout in ALPHA else {})
    for steps in FORWARDS:
        if (layout, steps) in REFUSED:
            answer = client.post("/generate", json=SMALL | {"loras": [lora], "steps": steps})
            (error,) = answer.json()["errors"]
            assert answer.status_code == 422 and error["field"] == "steps"
            assert error["message"].startswith(f"{steps}:") and error["legal"] == REFUSED[layout, steps]
            continue
        job = made(client, lora, steps=steps)
        assert job["forwards"] == steps and job["diagnostics"]["latents_sha256"] != plain[steps]
        (told,) = job["loras"]
        assert told["name"] == layout and 0 < told["matched"] <= told["total"]
        skipped = [warning for warning in job["warnings"] if "AdaLN layers are for another width" in warning]
        assert len(skipped) == (told["matched"] < told["total"]) == (layout in ("bare", "pdd"))


def test_without_adapters_it_is_the_same_after_all_of_them(client: httpx2.Client, plain: dict[int, str]) -> None:
    assert made(client, steps=4)["diagnostics"]["latents_sha256"] == plain[4]
    off = made(client, {"name": "diffusers", "strength": 0}, {"name": "kohya", "strength": 0}, steps=4)
    assert off["diagnostics"]["latents_sha256"] == plain[4]


def test_ready_lists_them(client: httpx2.Client) -> None:
    ready = client.get("/ready").json()
    assert set(ready["loras"]) == {*LAYOUTS, TURBO}
    told = {adapter["name"]: adapter for adapter in ready["adapters"]}
    assert "can't" in told["broken"]["fault"] or told["broken"]["fault"]
    assert told["comfyui_turbo"]["layout"] == "comfyui_turbo" and told["comfyui_turbo"]["alpha"] == 4
    assert told["bare"]["needs_alpha"] and told["bare"]["fits"]["fl2va"]["skipped"] == 4
    assert told[TURBO]["contract"]["steps"] == [4] and told[TURBO]["contract"]["shift"] == [6]
    assert any("broken" in warning for warning in ready["warnings"])


def test_a_job_tells_the_effective_scale(client: httpx2.Client) -> None:
    lora = {"name": "diffusers", "strength": 0.5}
    job = made(client, lora, {"name": "kohya", "strength": 0}, steps=4)
    assert job["loras"] == [
        {"name": "diffusers", "strength": 0.5, "alpha": 2.0, "rank": 4, "scale": 0.25, "matched": 30, "total": 30},
        {"name": "kohya", "strength": 0.0, "alpha": 4.0, "rank": 4, "scale": 0.0, "matched": 20, "total": 20},
    ]
    assert [use["name"] for use in job["diagnostics"]["loras"]] == ["diffusers", "kohya"]


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_kind_that_is_not_applied_is_refused_with_its_tensor(client: httpx2.Client, name: str) -> None:
    tensors, why = UNUSABLE[name]
    (tensor,) = tensors
    found = refused(client, {"name": name}, steps=4)
    assert list(found) == ["loras[0].name"] and tensor in found["loras[0].name"] and why in found["loras[0].name"]


def test_what_is_wrong_is_told_under_its_field(client: httpx2.Client) -> None:
    assert "no adapter" in refused(client, {"name": "nobody"})["loras[0].name"]
    assert "can't be used" in refused(client, {"name": "broken"})["loras[0].name"]
    assert "no alpha" in refused(client, {"name": "bare"})["loras[0].alpha"]
    assert "says 4" in refused(client, {"name": "kohya", "alpha": 8})["loras[0].alpha"]
    found = refused(client, {"name": TURBO}, steps=5, sampler="res_multistep", scheduler="beta")
    assert set(found) == {"steps", "sampler", "scheduler", "shift"}
    assert made(client, {"name": TURBO}, steps=4, shift=6)["forwards"] == 4
