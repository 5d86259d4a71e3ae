from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.api.desk import Desk, open_desk
from tests.api.server import Running, running


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """Log lines of servers that live across tests have no place in any one test's output."""
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "media").mkdir()
    with running(folder / "data", media_root=folder / "media") as found:
        yield found


@pytest.fixture
def server(lasting: Running) -> Iterator[Running]:
    """One server for all tests that leave it as they found it; a job that a failed one has left is ended."""
    yield lasting
    for job in lasting.service.table.live():
        lasting.service.supervisor.cancel(job.id)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Admission of a test's own, without a server or a process that measures."""
    found = open_desk(tmp_path, monkeypatch)
    yield found
    found.folders.close()
