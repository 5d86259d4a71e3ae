"""A server that is killed at any moment, or told to go with everybody attached."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2

from tests.faults.case import Case, named
from tests.faults.place import Place, listing
from tests.faults.service import PATIENCE, SMALL, look
from tests.faults.stub_engine import STAGES


def server_killed(place: Place, stage: str) -> None:
    """Three jobs: one is done, one is in `stage`, one waits. The first stays as it is, the others are made."""
    server = place.serve()
    done = server.wait(place.submit())
    held = place.submit(prompt=f"hold={stage}")
    waiting = place.submit(seed=8)
    server.wait_stage(held, stage)
    server.kill()
    place.open_gate()
    server = place.serve()
    assert server.job(done["id"])["sha256"] == done["sha256"]
    made = server.wait(held)
    assert made["status"] == "succeeded" and server.wait(waiting)["status"] == "succeeded"
    # It was computed twice and says when it was asked for.
    assert len([1 for reached in place.journal(held) if reached == ("conditioning", 0)]) == 2


def server_killed_while_all_wait(place: Place) -> None:
    """Before its engine is ready: jobs of an earlier life are still in line, in their order."""
    server = place.serve()
    jobs = [place.submit(prompt="hold=sampling"), *(place.submit(seed=number) for number in range(3))]
    server.kill()
    second = place.serve(ready=False)
    look(lambda: second.client.get("/live").status_code == 200)
    second.kill()
    place.open_gate()
    place.serve()
    ended = [place.server.wait(job) for job in jobs]
    begun = [job["started_at"] for job in ended]
    assert begun == sorted(begun), "the line has lost its order"


def server_killed_while_publishing(place: Place, moment: str) -> None:
    """Both clips are made, and neither or the first has its name: they get theirs, and are not computed again."""
    place.serve(sabotaged=("die_at_publishing", str(place.outputs), moment))
    with suppress(httpx2.TransportError):
        place.server.post({"n": 2}, prefer="respond-async")
    look(lambda: not place.server.process.is_alive())
    place.server.close()
    server = place.serve()
    (job,) = [job for job in listing(server.client) if job["id"] not in place.may_end]
    place.expect(job["id"])
    assert server.wait(job["id"])["status"] == "succeeded"
    assert len([1 for reached in place.journal(job["id"]) if reached == ("conditioning", 0)]) == 1


def server_killed_at_any_moment(place: Place) -> None:
    """Twice, with jobs on their way in, in line, computing and being published."""
    for _ in range(2):
        server = place.serve()
        jobs = [SMALL | {"seed": number, "n": 1 + number % 2, "prompt": "pause=0.01"} for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for body in jobs:
                pool.submit(_try, partial(_submit_and_expect, place, body))
            time.sleep(random.random() * 0.8)
            server.kill()
    place.serve()


def server_killed_twice(place: Place) -> None:
    """A job that two servers have died of is not tried a third time."""
    place.serve()
    held = place.submit("failed", prompt="hold=sampling")
    for _ in range(2):
        place.server.wait_stage(held, "sampling")
        place.server.kill()
        place.serve()
    job = place.server.wait(held)
    assert (job["status"], job["error"]["code"]) == ("failed", "interrupted"), job


def server_killed_while_deleting(place: Place) -> None:
    """DELETE and SIGKILL at once: the job is gone with its file, or it is there with its file, or it says that it has
    none any more; a deletion that was answered is done."""
    server = place.serve()
    jobs = [server.wait(place.submit("succeeded", "expired"))["id"] for _ in range(3)]
    answered: list[str] = []

    def delete(job: str) -> None:
        if server.client.delete(f"/jobs/{job}").status_code == 200:
            answered.append(job)

    threads = [threading.Thread(target=_try, args=(partial(delete, job),)) for job in jobs]
    for thread in threads:
        thread.start()
    time.sleep(random.random() * 0.02)
    server.kill()
    for thread in threads:
        thread.join()
    server = place.serve()
    for job in jobs:
        if server.client.get(f"/jobs/{job}").status_code == 404:
            place.forget(job)
        else:
            assert job not in answered, "a deletion that was answered has not been done"


def terminated_with_everybody_attached(place: Place) -> None:
    """A stream, a blocking client and a job that computes: all are let go, and the job is made after the restart."""
    server = place.serve(drain_seconds=0.3)
    heard: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        blocking = pool.submit(server.post, {"prompt": "hold=sampling"})
        (job,) = look(lambda: [j for j in server.client.get("/jobs").json()["data"] if j["status"] == "running"])
        place.expect(job["id"])
        waiting = place.submit()
        stream = pool.submit(_listen, server.url, job["id"], heard)
        look(lambda: heard)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 0.3 + 15
        answer = blocking.result(PATIENCE)
        stream.result(PATIENCE)
    assert answer.status_code == 202 and answer.json()["id"] == job["id"], answer.text
    assert any("state" in line for line in heard)
    place.open_gate()
    server = place.serve()
    assert [server.wait(each)["status"] for each in (job["id"], waiting)] == ["succeeded"] * 2


def terminated_within_its_budget_finishes_the_job(place: Place) -> None:
    server = place.serve()
    job = place.submit(prompt="hold=sampling")
    server.wait_stage(job, "sampling")
    os.kill(server.pid, signal.SIGTERM)
    look(lambda: server._event("draining"))
    place.open_gate()
    assert server.wait_exit() == 0
    server = place.serve()
    assert server.job(job)["status"] == "succeeded"
    assert len([1 for reached in place.journal(job) if reached == ("conditioning", 0)]) == 1


def terminated_twice(place: Place) -> None:
    """The second signal ends it at once, with a job that would have had time."""
    server = place.serve()
    held = place.submit(prompt="hold=sampling")
    server.wait_stage(held, "sampling")
    os.kill(server.pid, signal.SIGTERM)
    look(lambda: server._event("draining"))
    began = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait_exit() == 128 + signal.SIGTERM
    # Its drain would have taken 20 s.
    assert time.monotonic() - began < 15
    place.open_gate()
    assert place.serve().wait(held)["status"] == "succeeded"


def terminated_with_an_engine_that_does_not_listen(place: Place) -> None:
    server = place.serve(drain_seconds=0.2)
    held = place.submit(prompt="hold=sampling deaf")
    server.wait_stage(held, "sampling")
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 0.2 + 15
    place.open_gate()
    assert place.serve().wait(held)["status"] == "succeeded"


def families() -> Mapping[str, Mapping[str, Case]]:
    killed = {f"server_killed_in_{s}": partial(server_killed, stage=s) for s in STAGES if s != "audio_decode"}
    publishing = {
        f"server_killed_{moment}_publishing": partial(server_killed_while_publishing, moment=moment)
        for moment in ("before", "after")
    }
    return {
        "killed": killed
        | publishing
        | named(
            server_killed_at_any_moment, server_killed_while_all_wait, server_killed_twice, server_killed_while_deleting
        ),
        "left": named(
            terminated_within_its_budget_finishes_the_job,
            terminated_twice,
            terminated_with_everybody_attached,
            terminated_with_an_engine_that_does_not_listen,
        ),
    }


def _try(call: Callable[[], Any]) -> None:
    with suppress(httpx2.TransportError):
        call()


def _submit_and_expect(place: Place, body: Mapping[str, Any]) -> None:
    """It counts once it was answered. Two deaths of its server, and it may be given up."""
    answer = httpx2.post(f"{place.server.url}/generate", json=body, headers={"prefer": "respond-async"})
    if answer.status_code == 202:
        place.expect(answer.json()["id"], "succeeded", "failed")


def _listen(url: str, job_id: str, heard: list[str]) -> None:
    """Every line of a job's stream, as it comes, until it ends."""
    with (
        suppress(httpx2.TransportError),
        httpx2.Client(base_url=url, timeout=PATIENCE) as client,
        client.stream("GET", f"/jobs/{job_id}/events") as answer,
    ):
        for line in answer.iter_lines():
            heard.append(line)
