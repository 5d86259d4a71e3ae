"""The table: what it remembers, who is rung and when, and what a broken stream is told when it comes back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h3runtime.core import Progress
from h3runtime.errors import EngineDead, JobNotFound
from h3runtime.jobs import job_rows
from h3runtime.jobs.events import AFTER_RESTART, REMEMBERED
from h3runtime.jobs.job import Job, Order, Status
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import STREAMED, JobTable
from tests.jobs.test_messages import SPEC
from tests.jobs.work import place

PATIENCE = 20.0


def job(job_id: str, **facts: Any) -> Job:

    return Job(replace(SPEC, job_id=job_id), **facts)


def told(table: JobTable, job_id: str, after: int | None = None) -> list[tuple[int, str, Any]]:
    events = table.events(job_id, after)
    return [(event.id, event.kind, event.data.get("status") or event.data["step"]) for event in events]


def test_only_memory_forgets_the_oldest_that_have_ended() -> None:
    table = JobTable(kept=2)
    for number in range(6):
        table.add(job(str(number)))
        if number != 1:
            table.change(str(number), status=Status.SUCCEEDED)
    assert list(table._entries) == ["1", "4", "5"]
    assert table.get("0").status is Status.SUCCEEDED
    assert [found.id for found in table.page(10, None)[0]] == ["5", "4", "3", "2", "1", "0"]


def test_pages_go_both_ways_and_show_one_owner_s_jobs() -> None:
    table = JobTable(kept=1)
    for number in range(7):
        table.add(job(str(number), owner="anna" if number % 2 else ""))
        table.change(str(number), status=Status.FAILED, error=EngineDead("x"))
    ids = [[found.id for found in table.page(2, after, "")[0]] for after in (None, "4", "0")]
    assert ids == [["6", "4"], ["2", "0"], []]
    assert [table.page(2, after, "")[1] for after in (None, "4", "0")] == [True, False, False]
    assert [found.id for found in table.page(2, "2", "", oldest_first=True)[0]] == ["4", "6"]
    assert [found.id for found in table.page(9, None)[0]] == [*"6543210"]
    for after, owner in (("1", ""), ("x", None), ("x", "")):
        with pytest.raises(JobNotFound):
            table.page(2, after, owner)


def test_a_page_is_read_while_somebody_asks_for_what_only_the_store_has(monkeypatch: pytest.MonkeyPatch) -> None:
    table = JobTable(kept=0)
    table.add(job("a", status=Status.QUEUED))
    table.change("a", status=Status.FAILED)
    asking = threading.Thread(target=table.events, args=("a", None), daemon=True)
    read = job_rows.page

    def page(*arguments: Any) -> list[str]:
        asking.start()
        asking.join(0.1)  # it waits for us, with what it holds by now
        return read(*arguments)

    monkeypatch.setattr(job_rows, "page", page)
    reading = threading.Thread(target=table.page, args=(10, None), daemon=True)
    reading.start()
    reading.join(PATIENCE)
    asking.join(PATIENCE)
    assert not reading.is_alive() and not asking.is_alive()


def test_a_job_of_somebody_else_is_not_there() -> None:
    table = JobTable()
    table.add(job("a", owner="anna", order=Order(key="k")))
    assert table.find("a", "anna").id == "a"
    with pytest.raises(JobNotFound, match="there is no job 'a'"):
        table.find("a", "berta")
    found = table.by_key("anna", "k")
    assert found is not None and found.id == "a"
    assert table.by_key("berta", "k") is table.by_key("anna", "") is None
    table.remove("a")
    assert table.by_key("anna", "k") is None
    table.add(job("b", owner="anna", order=Order(key="k")))


def test_only_a_success_changes_after_its_end() -> None:
    table = JobTable()
    for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED):
        table.add(job(status.value))
        table.change(status.value, status=status)
        assert table.change(status.value, status=Status.RUNNING).status is status
        wanted = Status.EXPIRED if status is Status.SUCCEEDED else status
        assert table.change(status.value, status=Status.EXPIRED).status is wanted


def test_watchers_are_told_once_and_may_give_up() -> None:
    table = JobTable()
    table.add(job("a"))
    rung: list[str] = []
    table.watch("a", lambda: rung.append("first"))
    table.watch("a", lambda: rung.append("second"))()
    table.change("a", status=Status.RUNNING)
    assert rung == []
    table.change("a", status=Status.FAILED)
    table.change("a", status=Status.FAILED)
    assert rung == ["first"]
    table.watch("a", lambda: rung.append("late"))
    assert rung == ["first", "late"]
    with pytest.raises(JobNotFound):
        table.watch("b", lambda: None)


def test_a_bell_that_fails_keeps_no_other_from_ringing() -> None:
    table = JobTable()
    table.add(job("a"))
    rung: list[str] = []

    def broken() -> None:
        raise RuntimeError("the loop is closed")

    table.watch("a", broken)
    table.watch("a", lambda: rung.append("x"))
    assert table.change("a", status=Status.FAILED).status is Status.FAILED
    assert rung == ["x"]


def test_followers_are_rung_at_every_event_and_at_the_removal() -> None:
    table = JobTable()
    table.add(job("a"))
    rung: list[int] = []
    undo = table.follow("a", lambda: rung.append(1))
    table.change("a", status=Status.RUNNING)
    table.change("a", progress=Progress("sampling", 1, 4, 0.2))
    table.change("a", checkpoint="x")
    assert len(rung) == 2
    table.remove("a")
    assert len(rung) == 3
    undo()
    with pytest.raises(JobNotFound):
        table.events("a", None)


def test_a_stream_resumes_where_it_broke() -> None:
    table = JobTable()
    table.add(job("a"))
    assert told(table, "a") == [(1, "state", "queued"), (2, "progress", 0)]
    table.change("a", status=Status.RUNNING)
    for step in (1, 2):
        table.change("a", progress=Progress("sampling", step, 4, step / 4))
    everything = [(3, "state", "running"), (4, "progress", 0), (5, "progress", 1), (6, "progress", 2)]
    assert told(table, "a", 2) == everything
    assert told(table, "a", 5) == everything[-1:]
    assert told(table, "a", 6) == []
    # Now, where nobody says what he has seen, or says what can't be.
    assert told(table, "a") == told(table, "a", 7) == told(table, "a", -1) == [everything[0], everything[-1]]
    table.change("a", status=Status.SUCCEEDED, progress=Progress("done", 4, 4, 1.0))
    assert told(table, "a", 6) == [(7, "progress", 4), (8, "state", "succeeded")]
    assert told(table, "a") == [(8, "state", "succeeded")]


def test_a_stream_that_missed_too_much_is_told_how_it_is_now() -> None:
    table = JobTable()
    table.add(job("a"))
    for step in range(REMEMBERED + 10):
        table.change("a", progress=Progress("sampling", step, 4, 0.5))
    now = told(table, "a", 3)
    assert [kind for _, kind, _ in now] == ["state", "progress"]
    assert now[0][0] < now[1][0] == table.events("a", None)[-1].id
    assert len(told(table, "a", now[1][0] - 100)) == 100


def test_of_jobs_that_ended_long_ago_only_the_end_is_told() -> None:
    table = JobTable()
    for number in range(STREAMED + 1):
        table.add(job(str(number)))
        table.change(str(number), status=Status.FAILED)
    assert told(table, "0", 0) == told(table, "0") == [(3, "state", "failed")]
    assert len(told(table, "1", 0)) == 3


def test_event_ids_rise_across_restarts(tmp_path: Path) -> None:
    seen = [0]
    for turn in range(3):
        table = JobTable(JobStore(tmp_path / "jobs.sqlite3"))
        if turn == 0:
            table.add(job("a"))
        events = table.events("a", None)
        assert [event.kind for event in events] == ["state", "progress"]
        for step in range(30):
            table.change("a", progress=Progress("sampling", turn * 50 + step + 1, 400, 0.1))
        events = (*events, *table.events("a", events[-1].id))
        assert len(events) == 32
        assert [event.id for event in events] == sorted({event.id for event in events})
        assert events[0].id > seen[-1]
        # Only what a kill would leave: nothing is flushed.
        table.store.close()
        seen.append(events[-1].id)
        # An id of an earlier process: told how it is now.
        assert events[0].id > turn * AFTER_RESTART


def test_an_ended_job_keeps_its_last_id(tmp_path: Path) -> None:
    table = JobTable(JobStore(tmp_path / "jobs.sqlite3"))
    table.add(job("a"))
    table.change("a", status=Status.FAILED, error=EngineDead("x"))
    (last,) = table.events("a", None)
    table.close()
    table = JobTable(JobStore(tmp_path / "jobs.sqlite3"))
    assert table.events("a", None) == (last,)
    assert table.events("a", last.id) == ()
    assert last.data == {"id": "a", "status": "failed", "error": "engine_dead"}
    table.close()


def test_progress_is_written_by_the_second_and_not_by_the_step(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        found.admit("a")
        found.take()

        def kept() -> int:
            with found.table.store.reading() as connection:
                state = connection.execute("SELECT state FROM jobs").fetchone()[0]
            return int(state.count('"sampling"'))

        found.queue.progressed("a", Progress("sampling", 1, 4, 0.5))
        assert kept() == 0
        found.queue.tick()
        assert kept() == 1
