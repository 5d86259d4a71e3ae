"""Pictures of a request: every way in, judged before a job exists, and the canvas they give (A06, A24, A25)."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.api.desk import data_url
from tests.api.server import SMALL, Running, picture
from tests.clips import moving, write_clip


def turned(width: int, height: int, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(width, height, "JPEG", exif=exif)


def canvas_of(server: Running, data: bytes, **fields: Any) -> tuple[int, int]:
    answer = server.post({"prompt": "x", "steps": 1, "frames": 5, "first_frame": {"data": data_url(data)}, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["width"], answer.json()["height"]


def test_the_canvas_follows_the_first_picture_and_nothing_sticks(server: Running) -> None:
    assert canvas_of(server, picture(512, 512)) == (768, 768)
    assert canvas_of(server, picture(736, 992)) == (768, 1024)
    assert canvas_of(server, picture(736, 992), short_edge=256) == (256, 352)
    assert canvas_of(server, picture(736, 992), width=64, height=64) == (64, 64)


def test_a_turned_photo_is_portrait(server: Running) -> None:
    width, height = canvas_of(server, turned(1200, 800, 6))
    assert width < height
    assert canvas_of(server, turned(1200, 800, 1)) == (height, width)


@pytest.mark.parametrize(
    "data",
    [
        picture(64, 64, mode="RGBA"),
        picture(64, 64, mode="P", transparency=0),
        picture(64, 64, mode="I;16"),
        picture(64, 64, "JPEG", mode="CMYK"),
        picture(64, 64, "WEBP", save_all=True, append_images=[Image.new("RGB", (64, 64), "red")]),
        picture(1, 1),
    ],
)
def test_unusual_pictures_are_taken(server: Running, data: bytes) -> None:
    assert canvas_of(server, data) == (768, 768)


@pytest.mark.parametrize(
    ("inputs", "task"),
    [(["first_frame"], "i2va"), (["last_frame"], "l2va"), (["first_frame", "last_frame"], "fl2va")],
)
def test_the_inputs_decide_the_task_and_reach_the_engine(server: Running, inputs: list[str], task: str) -> None:
    data = picture(96, 64)
    request = {"prompt": "x", "steps": 1, "frames": 5} | {name: {"data": data_url(data)} for name in inputs}
    job = server.post(request).json()
    assert (job["task"], job["status"], job["width"] > job["height"]) == (task, "succeeded", True)
    assert server.client.get(job["url"]).content.count(data) == len(inputs)


def test_the_last_of_two_pictures_does_not_choose_the_canvas(server: Running) -> None:
    last = {"last_frame": {"data": data_url(picture(64, 128))}}
    assert canvas_of(server, picture(128, 64), **last) == canvas_of(server, picture(128, 64))


def test_all_forms_of_one_picture_give_the_same_clip(server: Running) -> None:
    data = picture(64, 64)
    assert server.service.settings.media_root is not None
    (server.service.settings.media_root / "one.png").write_bytes(data)
    lines = base64.encodebytes(data).decode()
    body = {**SMALL, "seed": 7}
    hashes = [
        server.post({**body, "first_frame": {"data": data_url(data)}}).json()["sha256"],
        server.post({**body, "first_frame": {"data": f"data:image/png;base64,{lines}"}}).json()["sha256"],
        server.post({**body, "first_frame": {"path": "one.png"}}).json()["sha256"],
        upload(server, {**body, "first_frame": {"upload": "a"}}, {"a": data}).json()["sha256"],
    ]
    assert len(set(hashes)) == 1
    assert hashes[0] != server.post(body).json()["sha256"]


def test_all_forms_of_one_clip_are_the_same_input(
    server: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A23: as a part, a data URL, one with line breaks, a path and a URL."""
    data = write_clip(tmp_path / "one.mp4", moving(5, 64, 64), codec="libx264", pixel_format="yuv420p").read_bytes()
    assert server.service.settings.media_root is not None
    (server.service.settings.media_root / "one.mp4").write_bytes(data)
    with hosted(tmp_path) as place:
        allowed = server.service.settings.model_copy(update={"url_allow": (place,)})
        monkeypatch.setattr(server.service._admission, "_settings", allowed)
        ways = [
            {"upload": "a"},
            {"data": data_url(data)},
            {"data": f"data:video/mp4;base64,{base64.encodebytes(data).decode()}"},
            {"path": "one.mp4"},
            {"url": f"http://{place}/one.mp4"},
        ]
        guides = [{"video": way, "frame": 17 * index} for index, way in enumerate(ways)]
        job = upload(server, {**SMALL, "frames": 90, "keyframes": guides}, {"a": data})
    assert job.status_code == 200, job.text
    clips = [guide.clip for guide in server.service.table.get(job.json()["id"]).spec.guides]
    assert {(clip.file.sha256, clip.first, clip.frames) for clip in clips if clip} == {
        (hashlib.sha256(data).hexdigest(), 0, 5)
    }
    assert len(clips) == 5


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """`HOST:PORT` of a server of the folder's files."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{web.server_port}"
        web.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def upload(server: Running, request: dict[str, Any], files: dict[str, bytes]) -> Any:
    import json

    parts = {"request": (None, json.dumps(request), "application/json")}
    parts |= {name: (f"../../{name}.png", data, "image/png") for name, data in files.items()}
    return server.client.post("/generate", files=parts)


def test_one_part_may_serve_twice(server: Running) -> None:
    media = {"first_frame": {"upload": "a"}, "last_frame": {"upload": "a"}}
    answer = upload(server, {**SMALL, **media}, {"a": picture(64, 64)})
    assert answer.json()["task"] == "fl2va"


def test_stray_and_missing_parts_are_named(server: Running) -> None:
    answer = upload(server, {**SMALL, "first_frame": {"upload": "b"}}, {"a": picture(64, 64)})
    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == {"a", "first_frame.upload"}


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", picture(64, 64)[:-20], b"<html>", b"\x89PNG\r\n\x1a\n" + b"\0" * 100],
    ids=["empty", "text", "cut", "html", "header"],
)
def test_what_is_no_picture_is_bad_media(server: Running, data: bytes) -> None:
    answer = upload(server, {**SMALL, "last_frame": {"upload": "a"}}, {"a": data})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_media")
    assert [error["field"] for error in answer.json()["errors"]] == ["last_frame"]


@pytest.mark.parametrize("url", ["data:image/png,abc", "abc", "data:image/png;base64,%%%", "data:image/png;base64,"])
def test_a_broken_data_url_is_bad_media(server: Running, url: str) -> None:
    answer = server.post({**SMALL, "first_frame": {"data": url}})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_media")
    assert [error["field"] for error in answer.json()["errors"]] == ["first_frame.data"]


def test_a_picture_too_narrow_to_choose_a_canvas_needs_one_given(server: Running) -> None:
    medium = {"data": data_url(picture(500, 100))}
    assert server.offenders({"prompt": "x", "first_frame": medium}).keys() == {"first_frame"}
    assert canvas_of(server, picture(500, 100), width=64, height=64) == (64, 64)


def test_paths_stay_below_the_media_root(server: Running, tmp_path: Path) -> None:
    root = server.service.settings.media_root
    assert root is not None
    (tmp_path / "secret.png").write_bytes(picture(64, 64))
    (root / "sub").mkdir()
    (root / "sub" / "in.png").write_bytes(picture(64, 64))
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "within.png").symlink_to(root / "sub" / "in.png")
    os.mkfifo(root / "pipe.png")
    for path in ("sub/in.png", "within.png"):
        assert server.post({**SMALL, "first_frame": {"path": path}}).status_code == 200
    escapes = [
        "out.png",
        "pipe.png",
        "sub",
        "../secret.png",
        str(tmp_path / "secret.png"),
        "no.png",
        "",
        "a\0b",
        "x" * 5000,
    ]
    for path in escapes:
        assert server.offenders({**SMALL, "first_frame": {"path": path}}).keys() == {"first_frame.path"}, path


def test_without_a_media_root_paths_are_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = server.service.settings.model_copy(update={"media_root": None})
    monkeypatch.setattr(server.service._admission, "_settings", bare)
    assert "media root" in server.offenders({**SMALL, "first_frame": {"path": "x.png"}})["first_frame.path"]["message"]


def test_nothing_of_an_input_stays_behind(server: Running) -> None:
    upload(server, {**SMALL, "first_frame": {"upload": "a"}}, {"a": picture(64, 64)})
    upload(server, {**SMALL, "first_frame": {"upload": "a"}}, {"a": b"broken"})
    folders = server.service.folders
    assert [*folders.inputs.iterdir(), *folders.tmp.iterdir()] == []
