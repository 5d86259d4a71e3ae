"""Predictions: the line that is fitted, what takes part in it, and what outlives a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.core import Work
from h3runtime.jobs.history import ENOUGH, NEWEST, History, fit, fits, learned, predict
from h3runtime.jobs.store import JobStore
from tests.jobs.work import FACTS

SOME = st.floats(1e-2, 1e3)


@given(a=st.floats(0.1, 100), b=st.floats(0.1, 100), works=st.lists(SOME, min_size=2, max_size=20, unique=True))
def test_a_line_is_found_again(a: float, b: float, works: list[float]) -> None:
    found = fit([(work, a + b * work) for work in works])
    for work in works:
        assert found.seconds(work) == pytest.approx(a + b * work, rel=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e18), st.floats(0, 1e5)), min_size=1, max_size=30), st.floats(0, 1e18))
def test_seconds_are_never_negative_and_never_fall(pairs: list[tuple[float, float]], work: float) -> None:
    found = fit(pairs)
    assert found.a >= 0 and found.b >= 0
    assert found.seconds(2 * work) >= found.seconds(work) >= 0


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.1, 1e3)), min_size=2, max_size=9))
def test_no_other_line_near_it_is_better(pairs: list[tuple[float, float]]) -> None:
    found = fit(pairs)

    def cost(a: float, b: float) -> float:
        return sum(((a + b * work - seconds) / seconds) ** 2 for work, seconds in pairs)

    best = cost(found.a, found.b)
    if len({work for work, _ in pairs}) > 1:
        for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
            assert best <= cost(found.a * a, found.b * b) * (1 + 1e-6) + 1e-9


def test_one_amount_of_work_alone_scales() -> None:
    found = fit([(10.0, 2.0), (10.0, 2.0)])
    assert (found.a, found.seconds(20.0)) == (0.0, pytest.approx(4.0))
    assert fit([(0.0, 3.0)]).seconds(5.0) == pytest.approx(3.0)


def test_each_stage_is_predicted_by_itself() -> None:
    known = [Work({"a": w, "b": 5.0}, {"a": 1 + 2 * w, "b": 4.0}) for w in (1.0, 2.0, 3.0)]
    told = predict(Work({"a": 10.0, "b": 5.0}), fits(known))
    assert told == {"a": pytest.approx(21.0), "b": pytest.approx(4.0), "total": pytest.approx(25.0)}
    assert predict(Work({"a": 1.0, "c": 1.0}), fits(known)) is predict(Work({}), fits(known)) is None


def test_history_outlives_the_process_and_is_of_one_engine(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    store = JobStore(path)
    history = History(store)
    for number in range(NEWEST + 20):
        history.learn(Work({"a": 1.0}, {"a": 9.0 if number < 20 else 2.0}), FACTS.checkpoint, FACTS.device)
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM timings").fetchone() == (NEWEST,)
    store.close()
    store = JobStore(path)
    history = History(store)
    assert history.predict(Work({"a": 2.0}), FACTS) == {"a": pytest.approx(4.0), "total": pytest.approx(4.0)}
    for other in (replace(FACTS, device="cuda"), replace(FACTS, checkpoint="b:2")):
        assert history.predict(Work({"a": 2.0}), other) is None
    store.close()


def test_the_warm_up_is_the_first_history() -> None:
    history = History(JobStore())
    facts = replace(FACTS, warm_up=(Work({"a": 1.0}, {"a": 10.0}),))
    assert history.predict(Work({"a": 1.0}), facts) == {"a": pytest.approx(10.0), "total": pytest.approx(10.0)}
    for _ in range(ENOUGH):
        history.learn(Work({"a": 1.0}, {"a": 2.0}), facts.checkpoint, facts.device)
    assert history.predict(Work({"a": 1.0}), facts) == {"a": pytest.approx(2.0), "total": pytest.approx(2.0)}


def test_the_warm_up_tells_overhead_until_jobs_of_several_amounts_do() -> None:
    """Jobs of one amount would make it all grow with the work; small clips would make it all overhead."""
    history = History(JobStore())
    small, odd = Work({"a": 1.0}, {"a": 1.0}), Work({"a": 16.0}, {"a": 2.0})
    facts = replace(FACTS, warm_up=(small, odd))
    first = history.predict(Work({"a": 1000.0}), facts)
    assert first is not None and first["total"] == pytest.approx(1 + 1000 / 15, rel=0.1)
    for _ in range(ENOUGH):
        history.learn(Work({"a": 1000.0}, {"a": 21.0}), facts.checkpoint, facts.device)
        told = history.predict(Work({"a": 1000.0}), facts), history.predict(Work({"a": 3.0}), facts)
        assert told[0] is not None and told[0]["total"] == pytest.approx(21, rel=0.1)
        assert told[1] is not None and told[1]["total"] == pytest.approx(1.1, rel=0.3)


def test_what_a_job_teaches() -> None:
    work = Work({"sampling": 5.0, "mux": 1.0})
    assert learned(work, {"sampling": 2.0, "queue": 9.0}) == Work(work.stages, {"sampling": 2.0})
    assert learned(None, {"sampling": 2.0}) is learned(work, {}) is None
