"""The client against scripted servers: what it sends, what it makes of problems, streams and downloads that break."""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
from python_multipart import parse_form

from h3runtime.client import BrokenDownload, Client, ClientError, Refused, Unreachable, downloading, watching
from h3runtime.errors import H3Error, InvalidRequest, OutputExists
from tests.client.scripted import Say, Script, event, scripted, stream

CLIP = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CLIP).hexdigest()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((watching, "FIRST_PAUSE"), (watching, "POLL"), (downloading, "PAUSE")):
        monkeypatch.setattr(module, name, 0.001)


def job(status: str = "succeeded", **facts: Any) -> Say:
    output = {"index": 0, "sha256": SHA256, "bytes": len(CLIP)}
    return Say({"id": "J", "status": status, "outputs": [output], "progress": {"stage": "mux"}, **facts})


def problem(status: int, code: str, **told: Any) -> Say:
    return Say({"detail": f"it is {code}", "code": code, "status": status, **told}, status)


def test_a_request_without_files_is_json_with_the_key_and_the_preference() -> None:
    with scripted(job("queued")) as script:
        made = Client(f"{script.url}/base/", "secret").submit({"prompt": "é"}, idempotency_key="k")
    (asked,) = script.asked
    assert (made.id, made.has_ended) == ("J", False)
    assert (asked.method, asked.path, asked.body) == ("POST", "/base/generate", b'{"prompt": "\\u00e9"}')
    told = asked.headers
    assert told["authorization"] == "Bearer secret" and told["idempotency-key"] == "k"
    assert told["prefer"] == "respond-async" and told["content-type"] == "application/json"


@pytest.mark.parametrize(("wait", "prefer"), [(2.5, "wait=3"), ("end", None), (None, "respond-async")])
def test_how_long_a_submission_is_held(wait: Any, prefer: str | None) -> None:
    with scripted(job()) as script:
        Client(script.url).submit({}, wait=wait)
    assert script.asked[0].headers.get("prefer") == prefer


def test_uploads_are_parts_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "name with \r\n quotes.png").write_bytes(CLIP)
    with scripted(job("queued")) as script:
        Client(script.url).submit({"a": {"upload": "x"}}, {"x": tmp_path / "name with \r\n quotes.png"})
    parts: dict[bytes, bytes] = {}
    (asked,) = script.asked

    def take(part: Any) -> None:
        if hasattr(part, "file_object"):
            part.file_object.seek(0)
            parts[part.field_name] = part.file_object.read()
        else:
            parts[part.field_name] = part.value

    headers = {name.title(): value.encode() for name, value in asked.headers.items()}
    parse_form(headers, io.BytesIO(asked.body), take, take)
    assert parts == {b"request": b'{"a": {"upload": "x"}}', b"x": CLIP}
    assert b"quotes" not in asked.body and int(asked.headers["content-length"]) == len(asked.body)


def test_a_problem_keeps_its_words() -> None:
    errors = [{"field": "steps", "message": "is too large", "legal": "1..200"}]
    answer = problem(422, "invalid_request", errors=errors, request_id="R")
    with scripted(answer) as script, pytest.raises(Refused, match="it is invalid_request") as raised:
        Client(script.url).submit({})
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert isinstance(error, ClientError) and isinstance(error, H3Error)
        assert (error.code, error.status, error.request_id) == ("invalid_request", 422, "R")
        assert [(o.field, o.legal) for o in error.offences] == [("steps", "1..200")]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Say(b"<html>\n gone wrong", 502), "answered 502: <html> gone wrong"),
        (Say(b"", 308, {"Location": "http://elsewhere/"}), "points to http://elsewhere/"),
        (Say(b"<html>", 200), "something else than JSON"),
        (Say(b'{"id": 1}', 200, cut=3), "the connection broke"),
    ],
)
def test_what_is_no_answer_of_ours_is_told_in_one_line(answer: Say, told: str) -> None:
    with scripted(answer) as script, pytest.raises(ClientError, match=told) as raised:
        Client(script.url).job("J")
    assert "\n" not in raised.value.message


def test_retry_after_is_kept() -> None:
    busy = Say({"code": "queue_full"}, 503, {"Retry-After": "30"})
    with scripted(busy) as script, pytest.raises(Refused) as raised:
        Client(script.url).submit({})
    assert raised.value.retry_after == 30.0


def test_a_refusal_in_the_middle_of_an_upload_is_read(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(8_000_000))
    answer = Say({"detail": "too large", "code": "body_too_large"}, 413, reads=False)
    with scripted(answer) as script, pytest.raises(ClientError) as raised:
        Client(script.url).submit({}, {"x": big})
    # A server that closes with data unread may lose its own answer on the way: then it is a broken connection.
    assert isinstance(raised.value, Unreachable) or raised.value.status == 413


def test_a_lost_answer_is_asked_for_again_with_a_key_only() -> None:
    with scripted() as script, pytest.raises(Unreachable, match="closed the connection"):
        Client(script.url).submit({})
    assert len(script.asked) == 1
    with scripted(Say(b"{}", cut=0), job("queued")) as script:
        assert Client(script.url).submit({}, idempotency_key="k").id == "J"
    assert [asked.headers["idempotency-key"] for asked in script.asked] == ["k", "k"]


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unreachable, match=f"http://127.0.0.1:{port} can't be reached: Connection refused") as raised:
        Client(f"http://127.0.0.1:{port}").submit({}, idempotency_key="k")
    assert not raised.value.was_sent


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.05)
        with pytest.raises(Unreachable, match="does not answer"):
            client.ready()


@pytest.mark.parametrize(
    "url", ["ftp://x", "x:80", "http://", "http://a:b@c", "http://x/?q", "http://x:99999", "http://x y"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        Client(url)


@pytest.mark.parametrize(
    ("url", "whole"),
    [("http://[::1]:8001/a/", "http://[::1]:8001/a"), ("https://x", "https://x:443"), ("HTTP://x", "http://x:80")],
)
def test_addresses(url: str, whole: str) -> None:
    assert Client(url).url == whole


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with scripted(Say({"status": "loading"}, 503)) as script:
        assert Client(script.url).ready() == {"status": "loading"}


def watched(script: Script, patience: float = 5.0) -> list[tuple[str, Any]]:
    events = Client(script.url).watch("J", patience)
    return [(event.kind, event.data.get("status", event.data.get("step"))) for event in events]


def test_a_watch_ends_with_the_job() -> None:
    lines = (": hello", event("state", 1, status="queued"), event("progress", 2, step=1), event("other", 3, step=9))
    with scripted(stream(*lines, event("state", 4, status="failed"), event("progress", 5, step=2))) as script:
        assert watched(script) == [("state", "queued"), ("progress", 1), ("other", 9), ("state", "failed")]


def test_a_broken_watch_resumes_after_the_last_event() -> None:
    first = stream("retry: 1", event("progress", 7, step=1), "id: 8", 'data: {"half"')
    gone, still = Say(b"", 503), job("running")
    with scripted(first, still, gone, stream(event("state", 9, status="succeeded"))) as script:
        assert watched(script) == [("progress", 1), ("state", "succeeded")]
    assert [asked.headers.get("last-event-id") for asked in script.asked] == [None, None, "8", "8"]


def test_an_end_that_was_told_while_nobody_listened() -> None:
    with scripted(stream(event("progress", 1, step=1)), job("succeeded")) as script:
        assert watched(script) == [("progress", 1), ("state", "succeeded")]


@pytest.mark.parametrize("answer", [Say(b"", 404), Say(b"{}", 200, {"Content-Type": "application/json"})])
def test_where_streams_cant_be_had_the_job_is_looked_at(answer: Say) -> None:
    looks = (job("running", progress={"step": 3}), job("running", progress={"step": 4}), job("succeeded"))
    with scripted(answer, *looks) as script:
        assert watched(script) == [("progress", 3), ("state", "running"), ("progress", 4), ("state", "succeeded")]


def test_a_job_that_is_not_there_and_a_server_that_stays_away() -> None:
    unknown = [problem(404, "job_not_found")] * 2
    with scripted(*unknown) as script, pytest.raises(Refused, match="job_not_found"):
        watched(script)
    with scripted(*[Say(b"", 503)] * 3) as script, pytest.raises(ClientError):
        watched(script, patience=0.0)
    with scripted(problem(401, "unauthorized")) as script, pytest.raises(Refused, match="unauthorized"):
        watched(script)


def clip(start: int = 0, cut: int | None = None, status: int | None = None) -> Say:
    return Say(CLIP[start:], status or (206 if start else 200), cut=cut)


def fetched(script: Script, target: Path, **options: Any) -> list[str | None]:
    """What was fetched is whole and alone in its folder; the ranges that were asked for."""
    Client(script.url).download("J", target, **options)
    assert target.read_bytes() == CLIP and list(target.parent.iterdir()) == [target]
    return [asked.headers.get("range") for asked in script.asked[1:]]


def test_a_download_is_whole_and_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with scripted(job(), clip()) as script:
        assert fetched(script, tmp_path / "a.mp4", on_bytes=lambda *pair: told.append(pair)) == [None]
    assert told[-1] == (len(CLIP), len(CLIP))


def test_a_download_that_breaks_off_goes_on(tmp_path: Path) -> None:
    broken = (job(), clip(cut=1000), clip(1000, cut=500), Say(b"", 503))
    with scripted(*broken) as script, pytest.raises(Refused):
        fetched(script, tmp_path / "a.mp4")
    assert [asked.headers.get("if-range") for asked in script.asked[1:]] == [None, *[f'"{SHA256}"'] * 2]
    with scripted(job(), clip(1500)) as script:  # another run of the command
        assert fetched(script, tmp_path / "a.mp4") == ["bytes=1500-"]


@pytest.mark.parametrize("answer", [clip(), Say(b"", 416)])
def test_a_server_without_ranges_is_asked_for_the_whole(tmp_path: Path, answer: Say) -> None:
    rest = () if answer.status == 200 else (clip(),)
    with scripted(job(), clip(cut=1000), answer, *rest) as script:
        fetched(script, tmp_path / "a.mp4")


def test_another_file_than_announced_is_not_kept(tmp_path: Path) -> None:
    with scripted(job(), Say(bytes(len(CLIP)))) as script, pytest.raises(BrokenDownload, match="SHA-256"):
        Client(script.url).download("J", tmp_path / "a.mp4")
    with scripted(job(), Say(CLIP * 2)) as script, pytest.raises(BrokenDownload, match="more than"):
        Client(script.url).download("J", tmp_path / "b.mp4")
    assert not [file for file in tmp_path.iterdir() if file.suffix == ".mp4"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("mine")
    with scripted(job()) as script, pytest.raises(OutputExists, match=r"a\.mp4 exists"):
        Client(script.url).download("J", target)
    assert target.read_text() == "mine"
    with scripted(job(), clip()) as script:
        fetched(script, target, overwrite=True)


def test_a_job_without_a_clip(tmp_path: Path) -> None:
    with scripted(job("running", outputs=[{"index": 0, "sha256": None, "bytes": None}]), job()) as script:
        with pytest.raises(BrokenDownload, match="no clip 0"):
            Client(script.url).download("J", tmp_path / "a.mp4")
        with pytest.raises(BrokenDownload, match="no clip 3"):
            Client(script.url).download("J", tmp_path / "a.mp4", variant=3)


def test_ids_cant_leave_their_place() -> None:
    with scripted(job()) as script:
        Client(script.url).cancel("../x?y")
    assert script.asked[0].path == "/jobs/..%2Fx%3Fy/cancel"


@pytest.mark.parametrize("job_id", ["", ".", ".."])
def test_what_is_no_id_is_not_sent(job_id: str) -> None:
    client = Client("http://127.0.0.1:1")
    for call in (client.job, client.cancel, client.delete, client.watch):
        with pytest.raises(InvalidRequest, match="is no job's id"):
            call(job_id)
