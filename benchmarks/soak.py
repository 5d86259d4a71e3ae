"""`soak.py`: hundreds of short jobs of every kind on the embedded model, and whether the server stays as it is.

Tasks, formats, several clips of one request, saved latents, cancels, deletions, bad requests, clients that leave and
repeated keys, mixed by their number, so that a run repeats. After every 20 jobs a line of JSON: memory, threads and
open files of the server and of the engine, and files in the data folder. The newest 30 jobs are kept, older ones are
deleted, so all of these must stay flat.

The verdict is by the median of all slopes between two samples (Theil-Sen), without the first quarter, in which caches
fill: what it adds up to over the rest may be no more than the limit of its kind. The exit code is 1 if something grew,
if a job ended as it should not, or if the server did not go when it was asked.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.served import Server, until

SMALL = {"prompt": "a red ball", "width": 64, "height": 64, "frames": 5}
ENDED = ("succeeded", "failed", "cancelled", "expired")
EVERY, KEPT, WARM_UP = 20, 30, 0.25
FORMATS: tuple[dict[str, object], ...] = (
    {},
    {"container": "mov"},
    {"container": "mkv", "audio_codec": "flac"},
    {"container": "webm"},
    {"fps": 30},
    {"crf": 40, "sample_rate": 48000},
)
LIMITS = {
    "server_rss_mib": 12.0,
    "engine_rss_mib": 40.0,
    "server_threads": 3.0,
    "engine_threads": 3.0,
    "server_files": 4.0,
    "engine_files": 3.0,
    "data_files": 12.0,
}
"""What each may grow by over the run after its warm-up. The engine's allocator moves by tens of megabytes without
keeping them; a leak of one clip's frames a job would be far beyond."""
BAD: tuple[tuple[object, int], ...] = (
    (SMALL | {"width": 65}, 422),
    (SMALL | {"unheard_of": 1}, 422),
    (SMALL | {"seed": 1.5}, 422),
    (SMALL | {"first_frame": {"data": "data:image/png;base64,AAAA"}}, 422),
    (b"{", 400),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="h3-soak-") as folder:
        server = Server(Path(folder), queue_limit=50).ready()
        began = time.monotonic()
        soak = Soak(server)
        samples = list(soak.run(asked.jobs))
        code = server.stop()
    grown = {name: growth([sample[name] for sample in samples]) for name in LIMITS}
    too_much = sorted(name for name, by in grown.items() if by > LIMITS[name])
    verdict = {
        "jobs": asked.jobs,
        "seconds": round(time.monotonic() - began, 1),
        "ends": dict(soak.ends),
        "answers": dict(soak.answers),
        "wrong": soak.wrong[:20],
        "growth": {name: round(by, 2) for name, by in grown.items()},
        "too_much": too_much,
        "exit_code": code,
        "verdict": "flat" if not too_much and not soak.wrong and code == 0 else "not flat",
    }
    print(json.dumps(verdict), flush=True)
    return int(verdict["verdict"] != "flat")


class Soak:
    """The jobs of one run, by number, and what became of them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: deque[str] = deque()
        self.ends: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()
        self.wrong: list[str] = []

    def run(self, jobs: int) -> Iterator[dict[str, float]]:
        """A sample, printed, after every so many jobs."""
        for number in range(jobs):
            self._one(number)
            while len(self._kept) > KEPT:
                self._delete(self._kept.popleft())
            if (number + 1) % EVERY == 0:
                sample = {"jobs": number + 1, **measure(self._server)}
                print(json.dumps(sample), flush=True)
                yield sample

    def _one(self, number: int) -> None:
        body = request(number)
        if number % 5 == 0:
            bad, status = BAD[number // 5 % len(BAD)]
            self._expect(self._server.ask("POST", "/generate", bad).status, status, f"bad request {number}")
        kind = number % 10
        if kind == 3:
            self._leave(body)
            return
        key = {"idempotency_key": f"key-{number}"} if kind == 5 else {}
        answer = self._server.ask("POST", "/generate", body, prefer="respond-async", **key)
        self._expect(answer.status, 202, f"job {number}: {answer.body[:300]!r}")
        if answer.status != 202:
            return
        job = str(answer.json["id"])
        if kind == 5:
            again = self._server.ask("POST", "/generate", body, prefer="respond-async", **key)
            self._expect(str(again.json["id"]) == job, True, f"job {number} repeated")
        if kind == 7:
            self._server.ask("POST", f"/jobs/{job}/cancel")
        if kind == 9:
            self._delete(job)
            return
        self._ended(job, ("succeeded", "cancelled") if kind == 7 else ("succeeded",))
        if kind == 1:
            self._server.ask("GET", f"/jobs/{job}/events")
            self._server.ask("GET", f"/jobs/{job}/content")

    def _leave(self, body: dict[str, Any]) -> None:
        """A blocking client that is gone before its clip is made."""
        before = {job["id"] for job in self._server.listing()}
        data = json.dumps(body).encode()
        head = (
            f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        with socket.create_connection((self._server.host, self._server.port)) as connection:
            connection.sendall(head.encode() + b"\r\n" + data)
            (job,) = until(lambda: [j["id"] for j in self._server.listing() if j["id"] not in before])
        self._ended(job, ("succeeded",))

    def _ended(self, job_id: str, allowed: tuple[str, ...]) -> None:
        until(lambda: self._server.job(job_id)["status"] in ENDED)
        job = self._server.job(job_id)
        self.ends[job["status"]] += 1
        self._expect(job["status"] in allowed, True, f"{job_id} is {job['status']}: {job['error']}")
        self._kept.append(job_id)

    def _delete(self, job_id: str) -> None:
        self._expect(self._server.ask("DELETE", f"/jobs/{job_id}").status, 200, f"deletion of {job_id}")
        self.ends["deleted"] += 1

    def _expect(self, found: int | bool, wanted: int | bool, told: str) -> None:
        if not isinstance(found, bool):
            self.answers[found] += 1
        if found != wanted:
            self.wrong.append(f"{told}: {found}, not {wanted}")


def request(number: int) -> dict[str, Any]:
    """Job `number`: every task, every format, several clips, latents, diagnostics."""
    picture = {"data": f"data:image/png;base64,{base64.b64encode(png(number)).decode()}"}
    inputs: tuple[dict[str, Any], ...] = (
        {},
        {"first_frame": picture},
        {"last_frame": picture},
        {"first_frame": picture, "last_frame": picture},
        {"references": [{"type": "image", "source": picture}]},
        {"keyframes": [{"image": picture, "frame": 2}]},
        {"prompt": f"ball number {number}"},
    )
    extras: tuple[dict[str, Any], ...] = ({}, {}, {"n": 2}, {"save_latents": True}, {"diagnostics": True}, {})
    fmt = FORMATS[number // 3 % len(FORMATS)]
    asked = {"seed": number, "steps": 1 + number % 2, **({"format": fmt} if fmt else {})}
    return SMALL | asked | inputs[number % len(inputs)] | extras[number // 7 % len(extras)]


def png(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (96, 64), (number * 37 % 256, number * 101 % 256, number % 256)).save(file, "PNG")
    return file.getvalue()


def measure(server: Server) -> dict[str, float]:
    """Memory, threads and open files of both processes, and files in the data folder."""
    engine = until(lambda: server.engine_pid() or 0)
    figures: dict[str, float] = {}
    for name, pid in (("server", server.pid), ("engine", engine)):
        figures[f"{name}_rss_mib"] = round(_resident_kib(pid) / 1024, 1)
        figures[f"{name}_threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
        figures[f"{name}_files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    figures["data_files"] = sum(1 for path in server.data.rglob("*") if path.is_file())
    return figures


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def growth(values: Sequence[float]) -> float:
    """By how much it rose after the warm-up: the median slope between two samples, times the samples there are."""
    settled = values[int(len(values) * WARM_UP) :]
    pairs = itertools.combinations(enumerate(settled), 2)
    slopes = [(late - early) / (j - i) for (i, early), (j, late) in pairs]
    return statistics.median(slopes) * (len(settled) - 1) if slopes else 0.0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
