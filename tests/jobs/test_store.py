"""The record of jobs on disk: what is refused at start, what comes back as it was, what a full or held file does."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from h3runtime.core import Work
from h3runtime.errors import DiskFull, H3Error, JobDiskFull, NotReady, Offence, OutputExists, SettingsError
from h3runtime.jobs import store as store_module
from h3runtime.jobs.job import Job, Order, Status
from h3runtime.jobs.migrations import MIGRATIONS
from h3runtime.jobs.rows import job_of, spec_text, state_text
from h3runtime.jobs.store import JobStore
from h3runtime.jobs.table import JobTable
from tests.jobs.test_messages import CLIP, SPEC, TIMEOUT
from tests.jobs.work import place


def there_and_back(job: Job) -> Job:
    return job_of(spec_text(job.spec), state_text(job))


def test_a_job_comes_back_as_it_was() -> None:
    clip = replace(CLIP, variants=(replace(CLIP, seed=0), CLIP), timings={"sampling": float("inf")})
    job = Job(
        SPEC,
        ("odd \ud800",),
        Status.SUCCEEDED,
        clip=clip,
        owner="anna",
        order=Order(-3, "key", "ab", "https://example.com/x", "r1"),
        attempt=2,
        work=Work({"sampling": 1e15}, {"sampling": 1.5}),
        stopping=True,
        waited=1.5,
    )
    assert there_and_back(job) == job


@pytest.mark.parametrize(
    "error", [TIMEOUT, JobDiskFull("full", stage="mux"), OutputExists("x", [Offence("output", "exists", "another")])]
)
def test_an_error_comes_back_with_its_class_and_its_place(error: H3Error) -> None:
    back = there_and_back(Job(SPEC, status=Status.FAILED, error=error)).error
    assert back is not None
    assert (type(back), back.args, vars(back)) == (type(error), error.args, vars(error))


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_broken_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"jobs\.sqlite3") as raised:
        JobStore(path)
    assert raised.value.offences[0].field == "H3_DATA_DIR"
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("code", "free", "told"),
    [
        (sqlite3.SQLITE_IOERR_SHMSIZE, 0, "full"),
        (sqlite3.SQLITE_FULL, 2**40, "full"),
        (sqlite3.SQLITE_IOERR_READ, 2**40, "odd"),
        (sqlite3.SQLITE_BUSY, 2**40, "odd"),
    ],
)
def test_nobody_is_told_to_move_a_file_away_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, free: int, told: str
) -> None:
    JobStore(tmp_path / "jobs.sqlite3").close()
    error = sqlite3.OperationalError("something odd")
    error.sqlite_errorcode = code

    def fail(_: sqlite3.Connection) -> None:
        raise error

    monkeypatch.setattr(store_module, "_migrate", fail)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(SettingsError, match=told) as raised:
        JobStore(tmp_path / "jobs.sqlite3")
    assert "move" not in raised.value.offences[0].legal


def test_damage_within_a_file_is_found(tmp_path: Path) -> None:
    with place(tmp_path) as found:
        for number in range(40):
            found.admit(f"job{number}") if number < 16 else None
    path = tmp_path / "jobs.sqlite3"
    data = bytearray(path.read_bytes())
    assert len(data) > 6 * 4096
    data[2 * 4096 : 5 * 4096] = b"\xa5" * (3 * 4096)
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=r"damaged|malformed"):
        JobStore(path)
    assert path.read_bytes() == data


def test_a_newer_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer.sqlite3"
    JobStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(SettingsError, match="newer release"):
        JobStore(newer)
    foreign = tmp_path / "foreign.sqlite3"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    with pytest.raises(SettingsError, match="another program"):
        JobStore(foreign)


def test_a_step_that_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.sqlite3"
    JobStore(path).close()
    monkeypatch.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (x); CREATE TABLE more (y)"))
    with pytest.raises(SettingsError):
        JobStore(path)
    monkeypatch.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (x)"))
    JobStore(path).close()


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    JobStore(tmp_path / "jobs.sqlite3").close()
    assert (tmp_path / "jobs.sqlite3").stat().st_mode & 0o077 == 0


def test_a_file_that_another_process_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.5)
    with place(tmp_path) as found:
        found.admit("a")
        running = found.take()
        other = sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotReady, match="another process"):
            found.admit("b")
        # Reading goes on at once, and so does the engine; what ends is held in memory.
        waits = []
        for _ in range(5):
            began = time.monotonic()
            assert [job.id for job in found.table.page(10, None)[0]] == ["a"]
            waits.append(time.monotonic() - began)
        assert min(waits) < 0.4
        found.queue.succeeded("a", found.make(running))
        assert found.table.get("a").status is Status.SUCCEEDED
        assert not found.table.flush()
        with sqlite3.connect(tmp_path / "jobs.sqlite3") as reader:
            assert reader.execute("SELECT status FROM jobs").fetchall() == [("running",)]
        reader.close()
        other.execute("ROLLBACK")
        other.close()
        assert found.table.flush()
        assert found.admit("b").id == "b"
    with place(tmp_path) as found:
        assert found.table.get("a").status is Status.SUCCEEDED
        assert found.table.get("a").spec.output.is_file()
        found.queue.sweep()
        assert found.table.get("b").status is Status.QUEUED


def full(table: JobTable, pages: int | None) -> None:
    """Let the file have no more pages than it has; None lifts it."""
    with table.store.writing() as connection:
        count = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {2**30 if pages is None else count + pages}")


def test_a_full_disk_refuses_new_jobs_and_loses_none(tmp_path: Path) -> None:
    with place(tmp_path, limit=1000) as found:
        found.admit("a")
        running = found.take()
        full(found.table, 0)
        admitted = []
        with pytest.raises(DiskFull) as raised:
            for number in range(200):
                admitted.append(found.admit(f"b{number}").id)
        assert (raised.value.status, raised.value.code) == (503, "disk_full")
        found.queue.succeeded("a", found.make(running))
        assert found.table.get("a").status is Status.SUCCEEDED
        full(found.table, None)
        assert found.table.flush()
        assert found.queue.waiting == len(admitted)
    with place(tmp_path) as found:
        assert [job.id for job in found.table.live()] == admitted
        assert found.table.get("a").status is Status.SUCCEEDED


def test_ten_thousand_rows_are_listed_in_no_time(tmp_path: Path) -> None:
    table = JobTable(JobStore(tmp_path / "jobs.sqlite3"), kept=0)
    owners = ("", "anna")
    states = [state_text(Job(SPEC, status=Status.SUCCEEDED, clip=CLIP, owner=owner)) for owner in owners]
    spec = spec_text(SPEC)
    with table.store.writing() as connection:
        connection.executemany(
            "INSERT INTO jobs (id, owner, key, status, event, expires, spec, state) VALUES (?, ?, '', ?, 9, 1, ?, ?)",
            [(f"{n:05}", owners[n % 2], "succeeded", spec, states[n % 2]) for n in range(10_000)],
        )
    for limit, owner, after in [(20, None, None), (100, None, None), (100, "anna", "05001"), (20, "", "00200")]:
        took = []
        for _ in range(5):
            # Of this thread alone: other work on the machine is nothing against the listing.
            began = time.thread_time()
            jobs, has_more = table.page(limit, after, owner)
            took.append(time.thread_time() - began)
        assert (len(jobs), has_more) == (limit, True)
        # Measured 1.1 ms for 20 and 6.5 ms for 100 on a busy machine; kept=0, so all of it comes from the file.
        assert min(took) < 0.02
    table.close()


def test_a_record_that_was_taken_away_takes_no_more_jobs(tmp_path: Path) -> None:
    """Writing would go on, into a file that is gone with the process."""
    store = JobStore(tmp_path / "jobs.sqlite3")
    store.require_in_place()
    (tmp_path / "jobs.sqlite3").rename(tmp_path / "away")
    with pytest.raises(NotReady, match="removed or replaced"):
        store.require_in_place()
    (tmp_path / "jobs.sqlite3").touch()
    with pytest.raises(NotReady, match="removed or replaced"):
        store.require_in_place()
