"""The embedded model's own adapter over HTTP: there without a setting, at four forwards, held to what it was made for.

That another model's server doesn't list it, `test_adapters` sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.nano.training.turbo.schedule import FORWARDS, NAME
from tests.e2e.test_serve import PATIENCE, start, wait_until_ready

ASKED: dict[str, Any] = {
    "prompt": "a red ball bouncing on a blue floor", "width": 64, "height": 64, "frames": 22, "seed": 7,
    "steps": FORWARDS, "sampler": "euler", "scheduler": "simple", "diagnostics": True,
}  # fmt: skip
OWN = [{"name": NAME}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    server = start(tmp_path_factory.mktemp("server"), H3_WARMUP_SHAPES="64x64x22")
    try:
        wait_until_ready(server)
        yield server.client
    finally:
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        server.client.close()


def test_ready_lists_it_and_the_model_is_the_same(client: httpx2.Client) -> None:
    ready = client.get("/ready").json()
    assert ready["loras"] == [NAME]
    (told,) = ready["adapters"]
    assert (told["layout"], told["fault"], told["needs_alpha"]) == ("comfyui_turbo", "", False)
    contract = told["contract"]
    assert (contract["steps"], contract["shift"], contract["audio_shift"]) == ([FORWARDS], [12], [3])
    assert contract["alpha"] == told["alpha"] == told["rank"]
    assert {(fit["matched"], fit["total"]) for fit in told["fits"].values()} == {(28, 28)}
    listed = read_listing(FOLDER).sets["nvfp4"].values()
    assert {part["sha256"] for part in ready["models"]} <= {*listed}


def test_it_runs_at_four_forwards_and_leaves_nothing_behind(client: httpx2.Client) -> None:
    def made(**fields: Any) -> dict[str, Any]:
        answer = client.post("/generate", json=ASKED | fields)
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        assert job["status"] == "succeeded", job["error"]
        return job

    plain, adapted = made(), made(loras=OWN)
    assert (adapted["forwards"], adapted["skipped_steps"]) == (FORWARDS, 0)
    assert [(use["name"], use["scale"], use["matched"]) for use in adapted["loras"]] == [(NAME, 1.0, 28)]
    assert adapted["diagnostics"]["latents_sha256"] != plain["diagnostics"]["latents_sha256"]
    assert adapted["checkpoint"] == plain["checkpoint"]
    off = made(loras=[{"name": NAME, "strength": 0}])
    assert off["diagnostics"]["latents_sha256"] == plain["diagnostics"]["latents_sha256"]


def test_anything_that_it_was_not_made_for_is_refused(client: httpx2.Client) -> None:
    wrong = {"steps": 12, "sampler": "res_multistep", "scheduler": "beta", "shift": 6, "audio_shift": 5}
    answer = client.post("/generate", json=ASKED | {"loras": OWN} | wrong)
    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == set(wrong)
