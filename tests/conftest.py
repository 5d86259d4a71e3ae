"""One thread for numeric libraries, set before any is loaded: small tensors gain nothing from two, and two threads that
wait for each other on a busy machine made single tests take a minute. And names of tests that every process agrees on,
examples that may take as long as a busy machine makes them take, and signals as a terminal has them.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# A shell that starts the tests in the background, or under `nohup`, has these ignored, and they would stay so in every
# process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONG = {"faults", "e2e", "engine", "page"}
"""Folders of tests that start servers, browsers and the real engine."""

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def forked_engines() -> Iterator[None]:
    """Engine processes of supervisors in this process are forked from an interpreter that has imported what they need:
    a hundred fresh ones took a minute of a core. `fresh_engines` is for tests of what is so of a fresh one alone."""
    from h3runtime.jobs import engine_process
    from tests.forking import forking

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_process, "multiprocessing", SimpleNamespace(get_context=lambda _: forking()))
        yield


@pytest.fixture
def fresh_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server starts them."""
    from h3runtime.jobs import engine_process

    monkeypatch.setattr(engine_process, "multiprocessing", multiprocessing)


def pytest_configure(config: pytest.Config) -> None:
    """xdist would order files by how many tests they have, which says nothing of how long they take, and would scatter
    those that share a browser, a server or an engine."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests take longest come first: processes get whole files, in this order, and a long one that is left
    for the end has one of them work alone."""
    items.sort(key=lambda item: not LONG & set(item.path.parts[-3:-1]))


def pytest_make_parametrize_id(config: Any, val: Any) -> str | None:  # noqa: ARG001  # the hook's signature
    """A set is written in the order of its hashes, which differ from one process to the next."""
    return "+".join(sorted(map(str, val))) if isinstance(val, set | frozenset) else None
