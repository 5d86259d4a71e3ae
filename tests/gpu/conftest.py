"""What the tests on an accelerator share: the device with its switches pinned, both engines, and measured figures.

Run by hand: `pytest -m gpu`. Without a CUDA device everything here is skipped. Figures that a test measures are printed
at the end of the run, for `benchmarks/LOG.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from h3runtime.engine import determinism
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings
from tests.tiny_set import tiny_paths

Note = Callable[[str], None]

FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(FIGURES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    """The device, switches pinned as the engine pins them."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    determinism.pin()
    return torch.device("cuda:0")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Keep a line for the end of the run."""
    lines = request.config.stash.setdefault(FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


@pytest.fixture(scope="session")
def engine(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    """The tiny set on the accelerator."""
    yield from _loaded(str(cuda), tmp_path_factory.mktemp("gpu-data"))


@pytest.fixture(scope="session")
def cpu_engine(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:  # noqa: ARG001
    """The same model on the CPU of the same machine."""
    yield from _loaded("cpu", tmp_path_factory.mktemp("cpu-data"))


def _loaded(device: str, data_dir: Path) -> Iterator[ResidentEngine]:
    resident = ResidentEngine(Settings(device=device, data_dir=data_dir, **tiny_paths()))
    resident.load(lambda _: None)
    yield resident
    resident.close()
