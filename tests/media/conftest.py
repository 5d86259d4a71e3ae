"""Both ffmpegs, fake ones, and the proof that nothing is left behind."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.formats import CONTAINERS
from h3runtime.media.worker import Worker

SUFFIXES = {holds.suffix for holds in CONTAINERS.values()}


@pytest.fixture(scope="session")
def tools() -> dict[str, FFmpeg]:
    """`path`: what a user gets (the system's, where there is one). `bundled`: imageio-ffmpeg's."""
    return {"path": find_ffmpeg(), "bundled": find_ffmpeg("/nowhere")}


@pytest.fixture(params=["path", "bundled"])
def tool(request, tools) -> FFmpeg:
    return tools[request.param]


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], FFmpeg]:
    """A shell script in ffmpeg's place. It leaves the id of its process group in `group`, and `$clip` is its output."""

    def write(body: str) -> FFmpeg:
        script = tmp_path / "bin" / "ffmpeg"
        script.parent.mkdir(exist_ok=True)
        head = f'#!/bin/bash\necho $$ > "{tmp_path / "group"}"\nclip="${{@: -1}}"\n'
        script.write_text(head + body)
        script.chmod(0o755)
        return FFmpeg(script, "fake", frozenset({"libx264", "aac", "libvpx-vp9", "libopus"}), "a test")

    return write


def running(group: str) -> list[str]:
    """Processes of a group. Orphans that are dead count no more; when they are reaped is up to the system."""
    stats = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats.append(stat.read_text())
    fields = [stat[stat.rindex(")") + 2 :].split() for stat in stats]
    return [state for state, _, its_group, *_ in fields if its_group == group and state not in "ZX"]


def still_running(group: str, seconds: float = 30.0) -> list[str]:
    """As `running`, once those that were killed have had the time to be scheduled and die."""
    deadline = time.monotonic() + seconds
    while (found := running(group)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


class Clock:
    """A steady clock that a test puts on instead of waiting."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def children() -> set[str]:
    """Processes that this one started and has not reaped, dead or alive; other tests may have their own."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found |= set((task / "children").read_text().split())
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `out/` and `scratch/` that must hold nothing but finished clips afterwards, and nobody at work."""
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    before, workers = children(), []
    start = Worker.start

    def started(worker: Worker) -> None:
        workers.append(worker)
        start(worker)

    monkeypatch.setattr(Worker, "start", started)
    yield tmp_path
    assert list((tmp_path / "scratch").iterdir()) == []
    assert [p.name for p in (tmp_path / "out").iterdir() if p.suffix not in SUFFIXES] == []
    assert not any(worker.is_alive() for worker in workers)
    if (tmp_path / "group").exists():
        assert still_running((tmp_path / "group").read_text().strip()) == []
    assert children() <= before


@pytest.fixture
def frames() -> NDArray[np.uint8]:
    """uint8 [22, 48, 64, 3]: a bright square that wanders over a gradient."""
    picture = np.zeros((22, 48, 64, 3), np.uint8)
    picture[..., 0] = np.linspace(0, 200, 64, dtype=np.uint8)
    picture[..., 1] = np.linspace(0, 200, 48, dtype=np.uint8)[:, None]
    for i, frame in enumerate(picture):
        frame[8:24, 2 * i : 2 * i + 16] = 250
    return picture


@pytest.fixture
def sound() -> NDArray[np.float32]:
    """float32 [2, 29600]: 37 audio latents of tones, left and right differ."""
    t = np.arange(29600) / 32000
    return np.stack([0.4 * np.sin(2 * np.pi * 440 * t), 0.3 * np.sin(2 * np.pi * 1000 * t)]).astype(np.float32)
