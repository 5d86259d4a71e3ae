"""OpenAI's own package, unmodified, against a server with a key."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.api.server import PATIENCE, Running, picture, running

KEY = "a-key"
SMALL = {"size": "64x64", "seconds": "0.2", "extra_body": {"steps": 2}}
QUICK = {"poll_interval_ms": 10}
JSON = {"Content-Type": "application/json"}

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API is scheduled:DeprecationWarning")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("openai") / "data", api_key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def client(keyed: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEY, max_retries=0) as found:
        yield found


@pytest.fixture
def plain(keyed: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=keyed.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE) as found:
        yield found


def until(client: openai.OpenAI, video_id: str, *statuses: str) -> Any:
    end = time.monotonic() + PATIENCE
    while (video := client.videos.retrieve(video_id)).status not in statuses:
        assert time.monotonic() < end, video
        time.sleep(0.01)
    return video


def test_create_with_nothing_but_the_four(client: openai.OpenAI) -> None:
    """A44; and the first answer is complete."""
    video = client.videos.create(model="sora-2", prompt="A cat.", seconds="4", size="1280x720")
    assert (video.object, video.model, video.prompt) == ("video", "minimax-h3", "A cat.")
    assert video.size == "1344x768" and float(video.seconds) == pytest.approx(107 / 24)
    assert video.status in ("queued", "in_progress") and type(video.progress) is int and video.error is None
    assert abs(video.created_at - time.time()) < 60 and type(video.created_at) is int
    assert video.completed_at is video.expires_at is video.remixed_from_video_id is None
    done = client.videos.poll(video.id, **QUICK)
    assert (done.status, done.progress, done.error) == ("completed", 100, None)
    assert done.completed_at is not None and done.expires_at == done.completed_at + 604_800
    client.videos.delete(video.id)


def test_create_and_poll_with_a_picture_and_fields_of_ours(
    client: openai.OpenAI, plain: httpx2.Client, tmp_path: Path
) -> None:
    file = tmp_path / "cat.png"
    file.write_bytes(picture(128, 64))
    fields = {"steps": 3, "seed": "18446744073709551615", "save_latents": False, "format": {"crf": 30}, "user": "me"}
    video = client.videos.create_and_poll(
        prompt="x",
        input_reference=file,
        seconds="0.2",
        extra_body=fields,
        extra_headers={"X-Request-ID": "mine"},
        **QUICK,
    )
    job = plain.get(f"/jobs/{video.id}").json()
    assert video.status == "completed" and job["task"] == "i2va" and video.size == f"{job['width']}x{job['height']}"
    assert (job["steps"], job["seed"], job["width"] > job["height"]) == (3, "18446744073709551615", True)
    content = client.videos.download_content(video.id)
    content.write_to_file(tmp_path / "cat.mp4")
    assert picture(128, 64) in (tmp_path / "cat.mp4").read_bytes()
    assert content.response.headers["content-type"] == "video/mp4"
    part = client.videos.download_content(video.id, extra_headers={"Range": "bytes=0-3"})
    assert part.response.status_code == 206 and part.read() == (tmp_path / "cat.mp4").read_bytes()[:4]


@pytest.mark.parametrize("way", ["bytes", "stream", "tuple", "url in a form", "url in JSON"])
def test_a_reference_in_every_form(client: openai.OpenAI, plain: httpx2.Client, way: str) -> None:
    data = picture(64, 64)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    files: dict[str, Any] = {"bytes": data, "stream": io.BytesIO(data), "tuple": ("a.png", data, "image/png")}
    if way in files:
        video_id = client.videos.create(prompt="x", input_reference=files[way], **SMALL).id
    elif way == "url in a form":
        body = {"input_reference": {"image_url": url}, "steps": 2}
        video_id = client.videos.create(prompt="x", size="64x64", seconds="0.2", extra_body=body).id
    else:
        answer = plain.post("/v1/videos", json={"prompt": "x", "frames": 5, "input_reference": {"image_url": url}})
        assert answer.status_code == 200
        video_id = answer.json()["id"]
    assert until(client, video_id, "completed", "failed").status == "completed"
    assert plain.get(f"/jobs/{video_id}").json()["task"] == "i2va"


def test_uploads_for_fields_of_ours_and_several_clips(client: openai.OpenAI, plain: httpx2.Client) -> None:
    form = {"prompt": "x", "frames": "5", "n": "2", "steps": "1", "last_frame": '{"upload": "end"}', "size": "64x64"}
    answer = plain.post("/v1/videos", data=form, files={"end": ("e.png", picture(64, 64)), "stray": b"1"})
    assert answer.status_code == 200, answer.text
    video = until(client, answer.json()["id"], "completed", "failed")
    job = plain.get(f"/jobs/{video.id}").json()
    assert (job["task"], len(job["outputs"])) == ("l2va", 2)
    clips = [client.videos.download_content(video.id, extra_query={"variant": index}).read() for index in (0, 1)]
    assert clips[0] == client.videos.download_content(video.id, variant="video").read() != clips[1]
    with pytest.raises(openai.NotFoundError, match="no variant 2"):
        client.videos.download_content(video.id, extra_query={"variant": 2})
    with pytest.raises(openai.NotFoundError, match="no variant 'spritesheet'"):
        client.videos.download_content(video.id, variant="spritesheet")


def test_lists_are_paged_both_ways(client: openai.OpenAI) -> None:
    made = [client.videos.create(prompt=f"{number}", **SMALL).id for number in range(5)]
    assert [video.id for video in client.videos.list(limit=2)][:5] == made[::-1]
    oldest = [video.id for video in client.videos.list(limit=2, order="asc")]
    assert oldest[-5:] == made and oldest == [video.id for video in client.videos.list()][::-1]
    page = client.videos.list(limit=2, after=made[3], order="desc")
    assert [video.id for video in page.data] == made[2:0:-1]
    assert page.has_more is True and page.last_id == made[1]
    assert page.model_dump()["first_id"] == made[2] and page.model_dump()["object"] == "list"
    with pytest.raises(openai.NotFoundError):
        client.videos.list(after="nobody")
    with pytest.raises(openai.UnprocessableEntityError):
        client.videos.list(limit=1000)


def test_jobs_of_generate_are_videos_too(client: openai.OpenAI, plain: httpx2.Client) -> None:
    body = {"prompt": "x", "width": 64, "height": 96, "frames": 22, "steps": 1}
    job = plain.post("/generate", json=body).json()
    video = client.videos.retrieve(job["id"])
    assert (video.status, video.size, video.seconds) == ("completed", "64x96", repr(22 / 24))


def test_a_cancelled_one_has_failed(client: openai.OpenAI, plain: httpx2.Client) -> None:
    slow = client.videos.create(prompt="hold", size="64x64")
    until(client, slow.id, "in_progress")
    plain.post(f"/jobs/{slow.id}/cancel")
    video = until(client, slow.id, "failed")
    assert video.error is not None and video.error.code == "cancelled" and video.progress < 100
    with pytest.raises(openai.ConflictError, match="cancelled"):
        client.videos.download_content(slow.id)


def test_a_failure_says_why(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="fail_at=mux", **SMALL, **QUICK)
    assert video.status == "failed" and video.error is not None
    assert (video.error.code, video.error.message) == ("encoder_failed", "the encoder ended with status 1")


def test_delete_removes_the_job(client: openai.OpenAI, plain: httpx2.Client) -> None:
    video = client.videos.create_and_poll(prompt="x", **SMALL, **QUICK)
    gone = client.videos.delete(video.id)
    assert (gone.id, gone.object, gone.deleted) == (video.id, "video.deleted", True)
    for ask in (client.videos.retrieve, client.videos.delete, client.videos.download_content):
        with pytest.raises(openai.NotFoundError):
            ask(video.id)
    assert plain.get(f"/jobs/{video.id}").status_code == 404


def test_what_is_replaced_is_completed_and_expired(client: openai.OpenAI) -> None:
    named = {"steps": 1, "output": "same.mp4", "overwrite": True}
    first, _ = [
        client.videos.create_and_poll(prompt="x", size="64x64", seconds="0.2", extra_body=named, **QUICK)
        for _ in range(2)
    ]
    video = client.videos.retrieve(first.id)
    assert video.status == "completed" and video.expires_at is not None and video.expires_at <= time.time()
    with pytest.raises(openai.APIStatusError) as raised:
        client.videos.download_content(first.id)
    assert raised.value.status_code == 410 and raised.value.code == "output_expired"


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "model_not_found"),
        ({"prompt": " "}, openai.UnprocessableEntityError, "prompt", "invalid_request"),
        ({"size": "100x64"}, openai.UnprocessableEntityError, "size", "invalid_request"),
        ({"size": "9984x9984"}, openai.UnprocessableEntityError, "size", "invalid_request"),
        ({"seconds": "99"}, openai.UnprocessableEntityError, "seconds", "invalid_request"),
        ({"seconds": "soon"}, openai.UnprocessableEntityError, "seconds", "invalid_request"),
        ({"extra_body": {"steps": 0}}, openai.UnprocessableEntityError, "steps", "invalid_request"),
        ({"extra_body": {"save_latents": 1}}, openai.UnprocessableEntityError, "save_latents", "invalid_request"),
        ({"input_reference": b"no picture"}, openai.UnprocessableEntityError, "input_reference", "bad_media"),
        (
            {"extra_body": {"input_reference": {"file_id": "f"}}},
            openai.NotFoundError,
            "input_reference.file_id",
            "not_found",
        ),
    ],
)
def test_errors_are_the_packages_own(
    client: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str, code: str
) -> None:
    before = client.videos.list(limit=1).data[0].id
    with pytest.raises(kind) as raised:
        client.videos.create(**{"prompt": "x", **fields})
    error = raised.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.message and "error" in error.response.json()
    assert client.videos.list(limit=1).data[0].id == before


def test_other_errors_have_the_shape_too(keyed: Running, plain: httpx2.Client) -> None:
    stranger = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError) as raised:
        stranger.videos.list()
    assert raised.value.code == "unauthorized" and raised.value.response.headers["www-authenticate"] == "Bearer"
    asked = [
        (
            plain.post("/v1/videos", content=b"{", headers={"Content-Type": "application/json"}),
            400,
            "malformed_request",
        ),
        (plain.post("/v1/videos", content=b"x", headers={"Content-Type": "text/plain"}), 415, "media_type"),
        (plain.post("/v1/videos", json={}, headers={"Content-Encoding": "gzip"}), 415, "media_type"),
        (plain.post("/v1/videos/edits", json={}), 404, "not_found"),
        (plain.post("/v1/videos/x/remix", json={"prompt": "x"}), 404, "not_found"),
        (plain.post("/v1/videos/characters", json={}), 404, "not_found"),
        (plain.put("/v1/videos/x"), 405, "method_not_allowed"),
        (plain.get("/v1/nothing"), 404, "not_found"),
    ]
    for answer, status, code in asked:
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/json" and set(answer.json()) == {"error"}


def test_the_same_key_is_the_same_video(client: openai.OpenAI) -> None:
    again = {"prompt": "x", **SMALL, "extra_headers": {"Idempotency-Key": "k1"}}
    first, second = client.videos.create(**again), client.videos.with_raw_response.create(**again)
    assert second.parse().id == first.id and second.headers["idempotent-replay"] == "true"
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        client.videos.create(**{**again, "prompt": "y"})
    assert raised.value.code == "idempotency_mismatch"


async def _asynchronously(url: str) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        video = await client.videos.create_and_poll(prompt="x", **SMALL, **QUICK)
        return [item.id async for item in client.videos.list(limit=2)][:1] == [video.id], video.status


def test_the_asynchronous_client(keyed: Running) -> None:
    assert asyncio.run(_asynchronously(keyed.url)) == (True, "completed")
