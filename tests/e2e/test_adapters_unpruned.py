"""Adapters with AdaLN of the full width over HTTP, beside an unpruned quantised set that `synth --loras` made."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from h3runtime.__main__ import main
from tests.e2e.test_adapters import made
from tests.e2e.test_serve import PATIENCE, start, wait_until_ready


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("set")
    assert main(["synth", str(folder), "--format", "int8_convrot", "--unpruned", "--loras", "--quiet"]) == 0
    settings = dict(line.split("=", 1) for line in Path(folder, "h3.env").read_text().splitlines())
    server = start(tmp_path_factory.mktemp("server"), H3_WARMUP_SHAPES="64x64x5", **settings)
    try:
        wait_until_ready(server)
        yield server.client
    finally:
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        server.client.close()


@pytest.mark.parametrize("steps", [4, 8])
@pytest.mark.parametrize(("name", "alpha", "adaln"), [("bare", 4, 4), ("pdd", None, 3)])
def test_all_of_its_layers_are_moved(
    client: httpx2.Client, steps: int, name: str, alpha: int | None, adaln: int
) -> None:
    lora = {"name": name} | ({} if alpha is None else {"alpha": alpha})
    job = made(client, lora, steps=steps)
    (told,) = job["loras"]
    facts = next(facts for facts in client.get("/ready").json()["adapters"] if facts["name"] == name)
    assert (
        told["matched"] == told["total"] == facts["fits"]["fl2va"]["matched"] and not facts["fits"]["fl2va"]["skipped"]
    )
    assert job["forwards"] == steps and not [w for w in job["warnings"] if "AdaLN" in w]
    pruned = next(facts for facts in client.get("/ready").json()["adapters"] if facts["name"] == "comfyui_turbo")
    assert told["total"] >= pruned["fits"]["fl2va"]["total"] + adaln


@pytest.mark.parametrize("steps", [4, 8])
def test_what_is_for_a_pruned_transformer_is_left_out_with_one_warning(client: httpx2.Client, steps: int) -> None:
    job = made(client, {"name": "pruned_complete"}, steps=steps)
    (told,) = job["loras"]
    (warning,) = (warning for warning in job["warnings"] if "AdaLN" in warning)
    assert told["total"] - told["matched"] == 5 and "5 AdaLN layers are for another width" in warning
