"""What a client sees of a server that was stopped and started again on its folder."""

from __future__ import annotations

from pathlib import Path

from tests.api.server import SMALL, running
from tests.api.test_events import events
from tests.api.test_idempotency import send


def test_jobs_keys_clips_and_events_outlive_the_process(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        first = send(server, "lasting", {**SMALL, "n": 2}).json()
        clip = server.client.get(first["url"]).content
        job = server.submit(prompt=f"x until={tmp_path / 'second-life'}", steps=20)
        waiting = server.submit(output="waited.mp4")
        server.wait(job, "running")
        last = next(int(event["id"]) for event in events(server, job) if int(event["id"]) > 5)
        server.service.supervisor.drain(0)
    (tmp_path / "second-life").touch()
    with running(tmp_path) as server:
        assert server.job(first["id"]) == first
        assert server.client.get(first["url"]).content == clip
        assert [item["id"] for item in server.client.get("/jobs").json()["data"]] == [waiting, job, first["id"]]
        again = send(server, "lasting", {**SMALL, "n": 2})
        assert (again.json()["id"], again.headers["idempotent-replay"]) == (first["id"], "true")
        assert send(server, "lasting", SMALL).json()["code"] == "idempotency_mismatch"
        told = list(events(server, job, str(last)))
        assert int(told[0]["id"]) > last
        assert told[-1]["data"]["status"] == "succeeded"
        assert (server.job(job)["attempt"], server.wait(waiting)["status"]) == (2, "succeeded")
