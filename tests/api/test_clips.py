"""The clips of a job over HTTP: several of one request, their names, ranges, conditions, formats, the preview."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import FileResponse

from tests.api.server import HELD, SMALL, Running, running, until


def test_several_clips_count_their_seeds_and_names(server: Running) -> None:
    job = server.post({**SMALL, "n": 3, "seed": 7, "output": "many.mp4"}).json()
    assert job["status"] == "succeeded"
    assert [output["seed"] for output in job["outputs"]] == ["7", "8", "9"]
    assert [output["output"] for output in job["outputs"]] == ["many-0.mp4", "many-1.mp4", "many-2.mp4"]
    assert [output["index"] for output in job["outputs"]] == [0, 1, 2]
    first = {name: job["outputs"][0][name] for name in ("output", "sha256", "bytes", "url", "seed")}
    assert {name: job[name] for name in first} == first
    for output in job["outputs"]:
        answer = server.client.get(f"/jobs/{job['id']}/content", params={"variant": output["index"]})
        assert hashlib.sha256(answer.content).hexdigest() == output["sha256"]
        assert answer.headers["etag"] == f'"{output["sha256"]}"'
        assert answer.headers["content-disposition"] == f'attachment; filename="{output["output"]}"'
        assert server.client.get(output["url"]).content == answer.content
    assert len({output["sha256"] for output in job["outputs"]}) == 3
    gone = server.client.get(f"/jobs/{job['id']}/content", params={"variant": 3})
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("taken", ["plural-0.mp4", "plural-1.mp4"])
def test_every_name_counts(server: Running, taken: str) -> None:
    path = server.service.folders.outputs / taken
    path.write_bytes(b"x")
    answer = server.post({**SMALL, "n": 2, "output": "plural.mp4"})
    assert (answer.status_code, answer.json()["code"]) == (409, "output_exists")
    path.unlink()


def test_seeds_beyond_the_last_are_refused_on_seed(server: Running) -> None:
    assert server.offenders({**SMALL, "n": 2, "seed": str(2**64 - 1)}).keys() == {"seed"}
    assert server.post({**SMALL, "n": 2, "seed": str(2**64 - 2)}).json()["outputs"][1]["seed"] == str(2**64 - 1)


@pytest.mark.parametrize(
    ("seed", "echoed"),
    [
        (4294967296, "4294967296"),
        (9007199254740993, "9007199254740993"),
        (18446744073709551615, "18446744073709551615"),
        ("42", "42"),
        (0, "0"),
    ],
)
def test_a_seed_comes_back_whole(server: Running, seed: Any, echoed: str) -> None:
    """A39."""
    assert server.post({**SMALL, "seed": seed}).json()["seed"] == echoed


@pytest.mark.parametrize("seed", [1.5, None, True, 18446744073709551616, -2, "x", ""])
def test_what_is_no_seed_is_refused(server: Running, seed: Any) -> None:
    """A39."""
    assert server.offenders({**SMALL, "seed": seed}).keys() == {"seed"}


def test_a_random_seed_is_told(server: Running) -> None:
    seeds = {server.post({**SMALL, "seed": -1}).json()["seed"] for _ in range(3)}
    assert len(seeds) == 3 and all(0 <= int(seed) < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("container", "kind"),
    [("mp4", "video/mp4"), ("mov", "video/quicktime"), ("mkv", "video/x-matroska"), ("webm", "video/webm")],
)
def test_a_clip_is_what_its_container_says(server: Running, container: str, kind: str) -> None:
    job = server.post({**SMALL, "format": {"container": container}}).json()
    assert job["output"] == f"{job['id']}.{container}"
    assert job["format"]["container"] == container
    assert job["format"]["sample_rate"] == (48_000 if container == "webm" else 32_000)
    assert server.client.get(job["url"]).headers["content-type"] == kind
    assert server.offenders({**SMALL, "output": "a.avi", "format": {"container": container}}).keys() == {"output"}


def test_a_format_that_cannot_be_is_refused_by_its_fields(server: Running) -> None:
    body = {**SMALL, "steps": 0, "format": {"container": "webm", "video_codec": "h264", "crf": 99}}
    assert server.offenders(body).keys() == {"steps", "format.crf", "format.container", "format.video_codec"}


def test_conditions_hold_for_head_too(server: Running) -> None:
    job = server.post(SMALL).json()
    etag = f'"{job["sha256"]}"'
    for known in (etag, f"W/{etag}", "*", f'"a", {etag}'):
        for method in ("GET", "HEAD"):
            answer = server.client.request(method, job["url"], headers={"If-None-Match": known})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == etag
    assert server.client.get(job["url"], headers={"If-None-Match": '"a"'}).status_code == 200
    answer = server.client.get(job["url"])
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["accept-ranges"] == "bytes"
    several = server.client.get(job["url"], headers={"Range": "bytes=0-1,4-5"})
    assert several.status_code == 206 and several.headers["content-type"].startswith("multipart/byteranges")


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=1-0", 400, None),
        ("bytes=x", 400, None),
        ("bytes=99999-", 416, None),
        ("bytes=-0", 416, None),
        # A range that holds nothing beside one that holds something.
        ("bytes=0-9,99999-", 206, slice(0, 10)),
        ("bytes=99999-99999999, -5", 206, slice(-5, None)),
        # A unit that isn't known.
        ("frames=0-3", 200, slice(None)),
        ("0-3", 200, slice(None)),
    ],
)
def test_ranges_are_those_of_the_rfc(server: Running, asked: str, status: int, part: slice | None) -> None:
    job = server.post({**SMALL, "seed": 1}).json()
    whole = server.client.get(job["url"]).content
    answer = server.client.get(job["url"], headers={"Range": asked})
    assert answer.status_code == status
    assert part is None or answer.content == whole[part]
    head = server.client.head(job["url"], headers={"Range": asked})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole)))


def test_a_clip_that_goes_while_it_is_sent_is_sent_whole(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    job = server.post(SMALL).json()
    path = server.service.folders.outputs / job["output"]
    ask = FileResponse.__call__

    async def remove_first(response: FileResponse, *given: Any) -> None:
        path.unlink()
        await ask(response, *given)

    monkeypatch.setattr(FileResponse, "__call__", remove_first)
    answer = server.client.get(job["url"])
    assert (answer.status_code, hashlib.sha256(answer.content).hexdigest()) == (200, job["sha256"])


def test_a_clip_whose_name_another_has_taken_is_not_sent_for_it(server: Running) -> None:
    job = server.post(SMALL).json()
    (server.service.folders.outputs / job["output"]).write_bytes(b"another")
    answer = server.client.get(job["url"])
    assert (answer.status_code, answer.json()["code"]) == (410, "output_expired")


@pytest.mark.parametrize("prompt", ["fail_at=mux", "x"])
def test_a_job_without_a_clip_has_no_content(server: Running, prompt: str) -> None:
    if prompt == "x":
        first = server.submit(**HELD)
        job = server.submit()
        server.client.post(f"/jobs/{job}/cancel")
        server.client.delete(f"/jobs/{first}")
    else:
        job = server.post({**SMALL, "prompt": prompt}).json()["id"]
    answer = server.client.get(f"/jobs/{job}/content")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_finished")


def test_a_clip_expires_and_its_row_follows(tmp_path: Path) -> None:
    """A36."""
    with running(tmp_path, retention_seconds=0.5) as server:
        job = server.post({**SMALL, "n": 2}).json()
        assert job["expires_at"] > job["finished_at"]
        assert server.wait(job["id"], "expired")["url"] is None
        for variant in (0, 1):
            answer = server.client.get(f"/jobs/{job['id']}/content", params={"variant": variant})
            assert (answer.status_code, answer.json()["code"]) == (410, "output_expired")
        listed = server.client.get("/jobs").json()["data"]
        assert [(item["id"], item["status"]) for item in listed] == [(job["id"], "expired")]
        assert not list(server.service.folders.outputs.iterdir())


def test_a_preview_is_there_while_a_job_computes(server: Running) -> None:
    job = server.submit(**HELD)

    def look() -> httpx2.Response | None:
        answer = server.client.get(f"/jobs/{job}/preview")
        assert answer.status_code == 200 or answer.json()["code"] == "not_found"
        return answer if answer.status_code == 200 else None

    answer = until(look)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content.startswith(b"\x89PNG") and answer.headers["cache-control"] == "no-store"
    assert server.client.head(f"/jobs/{job}/preview").content == b""
    server.client.delete(f"/jobs/{job}")
    gone = server.client.get(f"/jobs/{job}/preview")
    assert (gone.status_code, gone.json()["code"]) == (404, "job_not_found")
