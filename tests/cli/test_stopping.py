"""Who gets a signal while a command works, and what it makes of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from h3runtime.cli.stopping import Stopping

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Whatever whoever runs the tests has ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_error_that_a_library_made_of_it_is_an_interruption(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt) as raised, Stopping():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise ImportError("half of it") from None
    assert raised.value.args == (number,)


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(ImportError, match="half of it"), Stopping():
        raise ImportError("half of it")


@pytest.mark.parametrize("place", ["gently", "loading"])
def test_one_that_was_dropped_is_heeded_before_the_next_long_part(place: str) -> None:
    with pytest.raises(KeyboardInterrupt), Stopping() as stopping:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with getattr(stopping, place)():
            pytest.fail("it went on")


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_ignored_stays_ignored(number: signal.Signals) -> None:
    """SIGHUP under `nohup`, SIGINT in the background of a script."""
    signal.signal(number, signal.SIG_IGN)
    with Stopping() as stopping:
        os.kill(os.getpid(), number)
        assert not stopping()
    assert signal.getsignal(number) is signal.SIG_IGN
