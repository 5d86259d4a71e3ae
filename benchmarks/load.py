"""`load.py`: how soon a server answers while it computes and while it encodes, with many jobs, and with many at once.

    computing     the embedded model makes clips all the time; 50 connections ask /live, /ready, /metrics and a job
    encoding      a stub engine hands noise of 1344x768 to the real encoder all the time; the same questions
    rows          10,000 jobs in the record: how long a page of them takes
    submissions   1,000 jobs of a stub engine: each ends once, each is listed once, each file is there

Prints a JSON object a phase, with the cores that all of it (server, engine, encoder and the client, which is a process
of its own) had to share. The goal is a 99th percentile below 50 ms; the exit code is 1 if a phase missed its goal.
A time is from the first byte sent to the last one received; each connection keeps to its own clock, so that a slow
answer doesn't thin out the questions.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.served import Server, until

GOAL_MS = 50.0
LIST_GOAL_MS = 20.0
COMPUTING = {"prompt": "a red ball", "width": 320, "height": 192, "frames": 39, "steps": 50}
ENCODING = {"prompt": "x", "width": 1344, "height": 768, "frames": 362, "steps": 1}
TINY = {"prompt": "x", "width": 64, "height": 64, "frames": 5, "steps": 1}
ENCODER_STUB, QUICK_STUB = "tests.faults.stub_engine:create", "tests.fake_engine:create_for_serve"
ENDED = ("succeeded", "failed", "cancelled", "expired")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", default="computing,encoding,rows,submissions")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase under load")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second of each connection")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--submissions", type=int, default=1_000)
    asked = parser.parse_args(arguments)
    phases: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
        "computing": lambda a, folder: _under_load(a, folder, None, COMPUTING),
        "encoding": lambda a, folder: _under_load(a, folder, ENCODER_STUB, ENCODING),
        "rows": _rows,
        "submissions": _submissions,
    }
    missed = False
    for name in asked.phases.split(","):
        with tempfile.TemporaryDirectory(prefix="h3-load-") as folder:
            result = {"phase": name, "cores": len(os.sched_getaffinity(0)), **phases[name](asked, Path(folder))}
        print(json.dumps(result), flush=True)
        missed |= not result["met"]
    return int(missed)


def _under_load(asked: argparse.Namespace, folder: Path, engine: str | None, body: dict[str, Any]) -> dict[str, Any]:
    with Server(folder, engine).ready() as server:
        over = threading.Event()
        jobs: list[str] = [server.submit(body)]
        keeper = threading.Thread(target=_keep_busy, args=(server, body, jobs, over))
        keeper.start()
        until(lambda: server.job(jobs[0])["status"] == "running")
        paths = ["/live", "/ready", "/metrics", f"/jobs/{jobs[0]}"]
        times, errors = _in_a_process(server, paths, asked)
        over.set()
        keeper.join()
        for job in jobs:
            server.ask("POST", f"/jobs/{job}/cancel")
        stages = sorted({stage for job in jobs for stage in server.job(job)["timings"]})
    told = {path.replace(jobs[0], "{id}"): _percentiles(times[path]) for path in paths}
    met = not errors and all(figures["p99_ms"] < GOAL_MS for figures in told.values())
    return {"jobs": len(jobs), "stages": stages, "routes": told, "errors": errors, "met": met}


def _keep_busy(server: Server, body: dict[str, Any], jobs: list[str], over: threading.Event) -> None:
    """One job computes and one waits, until it is over."""
    while not over.wait(0.5):
        if server.job(jobs[-1])["status"] != "queued":
            jobs.append(server.submit(body | {"seed": len(jobs)}))


def _in_a_process(
    server: Server, paths: list[str], asked: argparse.Namespace
) -> tuple[dict[str, list[float]], list[str]]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(ask_all, (server.host, server.port, paths, asked.connections, asked.rate, asked.seconds))


def ask_all(
    host: str, port: int, paths: list[str], connections: int, rate: float, seconds: float
) -> tuple[dict[str, list[float]], list[str]]:
    """Seconds by path, and what was no 200. Runs in the client's process."""
    gc.disable()
    times: dict[str, list[float]] = {path: [] for path in paths}
    errors: list[str] = []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        began = time.perf_counter() + number / connections / rate
        for turn in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, began + turn / rate - time.perf_counter()))
            path = paths[(number + turn) % len(paths)]
            sent = time.perf_counter()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            status = await _answered(reader)
            times[path].append(time.perf_counter() - sent)
            if status != 200:
                errors.append(f"{path}: {status}")
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(connections)))

    asyncio.run(all_of_them())
    return times, errors[:20]


async def _answered(reader: asyncio.StreamReader) -> int:
    """Read one answer whole; its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    await reader.readexactly(int(headers.get("content-length", "0")))
    return int(lines[0].split()[1])


def _rows(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with Server(folder, QUICK_STUB, queue_limit=50).ready() as server:
        job = server.submit(TINY)
        until(lambda: server.job(job)["status"] in ENDED)
    fill(folder / "data", job, asked.rows)
    began = time.monotonic()
    with Server(folder, QUICK_STUB, queue_limit=50).ready() as server:
        started = time.monotonic() - began
        page = server.ask("GET", "/jobs?limit=100").json["data"]
        middle = page[-1]["id"]
        questions = {"limit=20": "/jobs", "limit=100": "/jobs?limit=100", "after": f"/jobs?after={middle}"}
        told = {}
        for name, path in questions.items():
            ask_all(server.host, server.port, [path], 1, 50, 0.5)
            times, errors = ask_all(server.host, server.port, [path], 1, 20, 5)
            told[name] = _percentiles(times[path]) | {"errors": len(errors)}
        whole = len(server.listing())
    met = whole == asked.rows and told["limit=20"]["p99_ms"] < LIST_GOAL_MS
    return {"rows": whole, "start_seconds": round(started, 2), "pages": told, "met": met}


def fill(data: Path, job_id: str, rows: int) -> None:
    """Copies of an ended job and its clip under new ids, as if so many had been made; nobody else has the record."""
    clip = data / "outputs" / f"{job_id}.mp4"
    with closing(sqlite3.connect(data / "jobs.sqlite3")) as record:
        columns = [str(row[1]) for row in record.execute("PRAGMA table_info(jobs)") if row[1] != "seq"]
        names = ", ".join(columns)
        copied = ", ".join(f"replace({name}, :old, :new)" for name in columns)
        for number in range(rows - 1):
            ids = {"old": job_id, "new": f"{number:026d}"}
            record.execute(f"INSERT INTO jobs ({names}) SELECT {copied} FROM jobs WHERE id = :old", ids)
            clip.with_name(f"{number:026d}.mp4").hardlink_to(clip)
        record.commit()


def _submissions(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with Server(folder, QUICK_STUB, queue_limit=asked.submissions).ready() as server:
        began = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            ids = list(pool.map(lambda seed: server.submit(TINY | {"seed": seed}), range(asked.submissions)))
        taken = time.monotonic() - began
        until(lambda: server.job(ids[-1])["status"] in ENDED, seconds=1800)
        until(lambda: all(job["status"] in ENDED for job in server.listing()), seconds=600, pause=0.5)
        ended = time.monotonic() - began
        listed = server.listing()
        files = len(list((server.data / "outputs").iterdir()))
    found = [job["id"] for job in listed]
    lost, doubled = len(set(ids) - set(found)), len(found) - len(set(found))
    succeeded = sum(job["status"] == "succeeded" for job in listed)
    met = lost == doubled == 0 and succeeded == files == asked.submissions
    told = {"submitted_seconds": round(taken, 2), "ended_seconds": round(ended, 2)}
    return {
        "jobs": len(ids),
        "succeeded": succeeded,
        "files": files,
        "lost": lost,
        "doubled": doubled,
        **told,
        "met": met,
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}
    return {"count": len(ordered)} | {name: round(value * 1000, 2) for name, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
