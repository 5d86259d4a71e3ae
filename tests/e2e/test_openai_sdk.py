"""OpenAI's own package and our client against a server on the embedded model: what comes back is the clip asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from PIL import Image

from h3runtime.client import Client
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.media.probe import probe_clip
from h3runtime.settings import Settings
from tests.api.server import Running, running
from tests.e2e.commands import run

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API is scheduled:DeprecationWarning")
SMALL = {"size": "96x64", "seconds": "0.2", "extra_body": {"steps": 1, "seed": 7}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    settings = Settings(data_dir=folder, device="cpu", disk_floor_bytes=0)
    recipe = EngineRecipe("h3runtime.engine:create", (settings, 1))
    with running(folder, recipe=recipe, device="cpu") as found:
        yield found


@pytest.fixture
def frame(tmp_path: Path) -> Path:
    file = tmp_path / "frame.png"
    Image.linear_gradient("L").convert("RGB").save(file)
    return file


def test_the_package_and_the_command_get_the_same_clip(server: Running, tmp_path: Path, frame: Path) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none asked for") as client:
        video = client.videos.create_and_poll(prompt="a ball", input_reference=frame, poll_interval_ms=50, **SMALL)
        assert (video.status, video.size, video.seconds) == ("completed", "96x64", str(5 / 24)), video.error
        client.videos.download_content(video.id).write_to_file(tmp_path / "theirs.mp4")
    facts = probe_clip(tmp_path / "theirs.mp4")
    assert (facts.width, facts.height, facts.frames) == (96, 64, 5)
    flags = ("--width", "96", "--height", "64", "--frames", "5", "--steps", "1", "--seed", "7")
    found = run(
        *("submit", "--prompt", "a ball", "--first-frame", frame.name, *flags, "--output", "ours.mp4"),
        folder=tmp_path,
        H3_URL=server.url,
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert (told["status"], told["task"], told["fetched"]) == ("succeeded", "i2va", ["ours.mp4"])
    assert (tmp_path / "ours.mp4").read_bytes() == (tmp_path / "theirs.mp4").read_bytes()


def test_an_estimate_is_of_this_machine(server: Running) -> None:
    told = Client(server.url).estimate({"prompt": "a ball", "width": 96, "height": 64, "frames": 5, "steps": 2})
    assert told["admitted"] is True and told["forwards"] == 2 and told["predicted_peak_bytes"] > 0


def test_a_wrong_file_is_told_in_two_lines(server: Running, tmp_path: Path) -> None:
    (tmp_path / "frame.png").write_text("no picture")
    found: subprocess.CompletedProcess[str] = run(
        "submit", "--prompt", "x", "--first-frame", "frame.png", folder=tmp_path, H3_URL=server.url
    )
    assert found.returncode == 1 and found.stdout == "" and found.stderr.startswith("error: first_frame: ")
    assert len(found.stderr.splitlines()) <= 2
