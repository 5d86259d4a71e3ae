from collections.abc import Iterator

import pytest
import structlog

from tests.api.server import Running, running


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """Log lines of servers that live across tests have no place in any one test's output."""
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "media").mkdir()
    with running(folder / "data", media_root=folder / "media") as found:
        yield found
