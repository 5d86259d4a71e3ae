"""Garbage collection waits for imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from h3runtime.observe import importing
from h3runtime.observe.importing import uncollected


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_again_outside() -> None:
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_many_new_objects_stay_and_few_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MANY", 500)
    gc.unfreeze()
    with uncollected():
        few = [[] for _ in range(20)]
    assert not gc.get_freeze_count()
    with uncollected():
        many = [[] for _ in range(2000)]
    assert gc.get_freeze_count() > len(many) > len(few)


def test_who_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
