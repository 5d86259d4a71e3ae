"""Disks that fill up, a record of jobs that is locked or damaged, and a second server on the same data."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import httpx2

from tests.faults.case import Case, named
from tests.faults.place import Place
from tests.faults.service import SMALL, Service, look


def outputs_full(place: Place) -> None:
    """A38: with 8 MiB left, 5 s are refused at the door; a disk that fills up later fails the job by its name, leaving
    nothing; with room again all goes on."""
    place.outputs = place.folder / "disk" / "clips"
    place.mount(place.folder / "disk", 128 << 20)
    server = place.serve(output_root=place.outputs)
    large = {"width": 512, "height": 512, "frames": 124, "format": {"crf": 0}}
    filler = place.folder / "disk" / "filler"
    filler.write_bytes(b"\0" * (120 << 20))
    answer = server.post(large)
    assert (answer.status_code, answer.json()["code"]) == (503, "disk_full"), answer.text
    filler.unlink()
    held = place.submit("failed", prompt="hold=conditioning", **large)
    server.wait_stage(held, "conditioning")
    _fill(filler)
    place.open_gate()
    assert server.wait(held)["error"]["code"] == "disk_full", server.job(held)["error"]
    filler.unlink()
    assert server.wait(place.submit())["status"] == "succeeded"


def data_full(place: Place) -> None:
    """No room for the record itself: no job is taken, those that are there stay, and with room all goes on."""
    place.mount(place.data, 24 << 20)
    server = place.serve()
    done = server.wait(place.submit())
    held = place.submit(prompt="hold=sampling")
    server.wait_stage(held, "sampling")
    filler = place.data / "tmp" / "filler"
    _fill(filler)
    answer = server.post({}, prefer="respond-async")
    assert (answer.status_code, answer.json()["code"]) == (503, "disk_full"), answer.text
    assert server.client.get("/live").status_code == 200
    assert server.job(done["id"])["sha256"] == done["sha256"]
    filler.unlink()
    place.open_gate()
    assert server.wait(held)["status"] == "succeeded"
    assert server.wait(place.submit())["status"] == "succeeded"


def data_full_at_the_end_of_a_job(place: Place) -> None:
    """The clip is made but can't be recorded: it isn't lost, or it failed by its name."""
    place.mount(place.data, 24 << 20)
    server = place.serve()
    held = place.submit("succeeded", "failed", prompt="hold=mux")
    server.wait_stage(held, "mux")
    filler = place.data / "tmp" / "filler"
    _fill(filler)
    place.open_gate()
    time.sleep(1.0)
    assert server.client.get("/live").status_code == 200
    filler.unlink()
    job = server.wait(held)
    assert job["status"] == "succeeded" or job["error"]["code"] == "disk_full", job["error"]
    assert server.wait(place.submit())["status"] == "succeeded"


def uploads_full(place: Place) -> None:
    """An upload that the disk has no room for is refused, and what came of it is gone."""
    place.mount(place.data, 16 << 20)
    server = place.serve()
    files = {
        "request": (None, json.dumps(SMALL | {"first_frame": {"upload": "a"}}), "application/json"),
        "a": ("a.png", os.urandom(24 << 20), "image/png"),
    }
    with suppress(httpx2.TransportError):
        answer = server.client.post("/generate", files=files)
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full"), answer.text
    look(lambda: not any((place.data / "tmp").iterdir()))
    assert server.wait(place.submit())["status"] == "succeeded"


def record_locked_for_a_moment(place: Place) -> None:
    """Another process holds the file for less than a write waits: nobody notices."""
    server = place.serve()
    with closing(sqlite3.connect(place.data / "jobs.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, {}, prefer="respond-async")
            time.sleep(1.0)
            _quick(server, "/live")
            other.execute("ROLLBACK")
            assert answer.result().status_code == 202, answer.result().text
    job = place.expect(answer.result().json()["id"])
    assert server.wait(job)["status"] == "succeeded"


def record_locked_for_long(place: Place) -> None:
    """For longer than a write waits, in the middle of a job: requests are refused, health answers, nothing is lost."""
    server = place.serve()
    held = place.submit(prompt="hold=sampling")
    server.wait_stage(held, "sampling")
    with closing(sqlite3.connect(place.data / "jobs.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        place.open_gate()
        answer = server.post({}, prefer="respond-async")
        assert answer.status_code == 503, answer.text
        for path in ("/live", "/ready", "/metrics", f"/jobs/{held}", "/jobs"):
            _quick(server, path)
        other.execute("ROLLBACK")
    assert server.wait(held)["status"] == "succeeded"
    assert server.wait(place.submit())["status"] == "succeeded"


def record_damaged(place: Place) -> None:
    """A file that is broken is refused by its name and left as it was."""
    server = place.serve()
    server.wait(place.submit())
    assert server.stop() == 0
    record = place.data / "jobs.sqlite3"
    whole = record.read_bytes()
    record.write_bytes(whole[:100] + os.urandom(4000) + whole[4100:])
    damaged = hashlib.sha256(record.read_bytes()).hexdigest()
    refused = Service(place.folder)
    assert refused.wait_exit() == 1
    said = [line["text"] for line in refused.log if line["event"] == "plain"]
    assert 1 <= len(said) <= 2 and "H3_DATA_DIR" in "".join(said) and "jobs.sqlite3" in "".join(said), said
    assert hashlib.sha256(record.read_bytes()).hexdigest() == damaged
    record.write_bytes(whole)
    place.serve()


def second_server(place: Place) -> None:
    """A data folder has one server; the second goes, and the first doesn't notice."""
    server = place.serve()
    held = place.submit(prompt="hold=sampling")
    second = Service(place.folder)
    assert second.wait_exit() == 1
    assert any(str(server.pid) in line.get("text", "") for line in second.log), second.log
    assert server.process.is_alive()
    place.open_gate()
    assert server.wait(held)["status"] == "succeeded"


def log_disk_full(place: Place) -> None:
    """A log that can't be written costs lines, nothing else."""
    place.mount(place.folder / "logs", 64 << 10)
    server = place.serve(log_file=place.folder / "logs" / "h3.log")
    for number in range(12):
        job = place.submit(seed=number)
    _fill(place.folder / "logs" / "filler")
    assert server.wait(job)["status"] == "succeeded"


def families() -> Mapping[str, Mapping[str, Case]]:
    return {
        "records": named(record_locked_for_a_moment, record_locked_for_long, record_damaged, second_server),
        "disks": named(data_full, data_full_at_the_end_of_a_job, uploads_full, log_disk_full),
        "small": named(outputs_full),
    }


def _fill(path: Path) -> None:
    """Until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 65536):
            pass


def _quick(server: Service, path: str, seconds: float = 4.0) -> None:
    """Whoever waits for the record waits five seconds."""
    began = time.monotonic()
    assert server.client.get(path).status_code == 200, path
    assert time.monotonic() - began < seconds, f"{path} took {time.monotonic() - began:.2f} s"
