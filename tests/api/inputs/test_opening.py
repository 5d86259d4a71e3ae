"""Media of every kind and by every way in: taken once, judged in the right order, all faults told together."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from h3runtime.core import ComponentFacts, EngineFacts, GenerateSpec
from h3runtime.errors import BadMedia, InvalidRequest
from tests.api.desk import Desk, clip, data_url, medium, open_desk, sound
from tests.api.server import picture
from tests.clips import moving, tones, write_clip


@contextmanager
def serving(data: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/clip.mp4"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def told(spec: GenerateSpec) -> Any:
    """What the engine is to make of the inputs, but for where their copies lie."""
    (reference,), (guide,) = spec.references, spec.guides
    assert reference.clip is not None and guide.clip is not None and reference.sound is not None
    files = [reference.clip.file, reference.sound.file, guide.clip.file]
    return (
        [(file.path.read_bytes(), file.sha256) for file in files],
        (reference.width, reference.height, reference.clip.first, reference.clip.frames, reference.sound.start),
        (guide.frame, guide.clip.first, guide.clip.frames),
    )


def both(way: dict[str, str]) -> dict[str, Any]:
    """The same clip as a reference and as a guide."""
    return {"references": [{"type": "video", "source": way}], "keyframes": [{"video": way, "frame": 0}], "frames": 39}


def test_every_way_in_gives_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(tmp_path, monkeypatch, media_root=tmp_path, url_allow=("127.0.0.1",))
    data = clip(2.0, 48, 32, sound=2.0)
    (tmp_path / "clip.mp4").write_bytes(data)
    lines = base64.encodebytes(data).decode()
    with serving(data) as url:
        ways = [{"upload": "a"}, {"data": data_url(data)}, {"data": f"data:video/mp4;base64,{lines}"}]
        ways += [{"path": "clip.mp4"}, {"url": url}]
        found = [told(desk.spec({"a": data} if "upload" in way else None, **both(way))) for way in ways]
    desk.folders.close()
    assert all(item == found[0] for item in found)
    copies, reference, guide = found[0]
    assert copies == [(data, hashlib.sha256(data).hexdigest())] * 3
    assert (reference, guide) == ((64, 32, 0, 39, 0.0), (0, 0, 39))


def test_a_real_clip_is_really_measured(tmp_path: Path) -> None:
    made = write_clip(
        tmp_path / "clip.mp4", moving(48), tones(64_000), codec="libx264", pixel_format="yuv420p", sound_codec="aac"
    )
    data = made.read_bytes()
    with pytest.MonkeyPatch.context() as stand_ins:
        desk = open_desk(tmp_path, stand_ins)
    copies, reference, guide = told(desk.spec({"a": data}, **both({"upload": "a"})))
    assert copies == [(data, hashlib.sha256(data).hexdigest())] * 3
    assert (reference, guide) == ((64, 32, 0, 39, 0.0), (0, 0, 39))
    error = desk.refused({"a": data[:-200]}, **both({"upload": "a"}))
    desk.folders.close()
    assert type(error) is BadMedia
    assert {offence.field for offence in error.offences} == {"references[0].source", "keyframes[0].video"}


def test_one_file_of_many_fields_is_taken_once(desk: Desk) -> None:
    keyframes = [{"image": {"upload": "a"}, "frame": frame} for frame in range(20)]
    spec = desk.spec({"a": picture(64, 64)}, keyframes=keyframes, frames=22)
    assert len({guide.picture.path for guide in spec.guides if guide.picture}) == 1
    assert len(list(desk.folders.inputs_of(spec.job_id).iterdir())) == 1


def test_more_media_than_anybody_means(desk: Desk) -> None:
    keyframes = [{"image": {"upload": "a"}, "frame": frame} for frame in range(65)]
    error = desk.refused({"a": picture(64, 64)}, keyframes=keyframes, frames=73)
    assert [offence.field for offence in error.offences] == ["keyframes"]


def test_parts_are_found_wherever_they_are_named(desk: Desk) -> None:
    named = {
        "keyframes": [{"image": {"upload": "a"}, "frame": 1}, {"audio": {"upload": "b"}, "frame": 2}],
        "references": [{"type": "image", "source": {"upload": "c"}, "surce": 1}],
        "masks": {"video": {"upload": "d"}},
        "unknown": {"upload": "e"},
    }
    files = {name: picture(8, 8) for name in "abcdef"}
    error = desk.refused(files, **named)
    fields = {offence.field for offence in error.offences}
    assert "f" in fields and not fields & set("abcde")


def test_data_urls_are_echoed_as_hashes(desk: Desk) -> None:
    url = data_url(picture(64, 64))
    keyframes = [{"image": {"data": url}, "frame": 1}]
    request = desk.spec(first_frame={"data": url}, keyframes=keyframes, frames=22).request
    hashed = "sha256:" + hashlib.sha256(url.encode()).hexdigest()
    assert request["first_frame"] == request["keyframes"][0]["image"] == {"data": hashed}
    assert "base64" not in json.dumps(request)


def test_faults_of_media_and_of_the_request_are_told_together(desk: Desk) -> None:
    broken = clip(3, truth={"broken": True})
    keyframes = [
        {"video": medium(broken), "frame": 0},
        {"image": medium(b"no picture"), "frame": 30},
        {"audio": {"upload": "missing"}, "frame": 31},
    ]
    error = desk.refused(keyframes=keyframes, steps=0, frames=39)
    assert type(error) is InvalidRequest
    fields = {offence.field for offence in error.offences}
    assert fields == {"steps", "keyframes[0].video", "keyframes[1].image", "keyframes[2].audio.upload"}


def test_faults_of_media_alone_are_bad_media(desk: Desk) -> None:
    references = [
        {"type": "image", "source": medium(picture(64, 64))},
        {"type": "video", "source": medium(sound())},
        {"type": "audio", "source": medium(clip(3))},
    ]
    error = desk.refused(references=references)
    assert type(error) is BadMedia
    assert [offence.field for offence in error.offences] == ["references[1].source", "references[2].source"]


def test_a_refused_request_leaves_nothing(desk: Desk) -> None:
    desk.refused(keyframes=[{"video": medium(clip(3, truth={"broken": True})), "frame": 0}])
    assert list(desk.folders.inputs.iterdir()) == []


def test_urls_are_refused_where_none_is_allowed(desk: Desk) -> None:
    error = desk.refused(first_frame={"url": "http://127.0.0.1:1/x.png"})
    assert [offence.field for offence in error.offences] == ["first_frame.url"]


def facts(desk: Desk, *partitions: str) -> EngineFacts:
    (part,) = desk.facts.components
    parts = tuple(
        ComponentFacts(part.component, part.file, part.sha256, part.format, 1, 1.0, True, partition=partition)
        for partition in partitions
    )
    return EngineFacts("cpu", "abab", parts, desk.facts.attention, desk.facts.linear, {}, {})


def test_a_task_needs_its_partition(desk: Desk) -> None:
    still = medium(picture(64, 64))
    references = {"references": [{"type": "image", "source": still}]}
    desk.facts = facts(desk, "fl2va")
    desk.spec(first_frame=still)
    offences = desk.offences(**references)
    assert offences.keys() == {"references"} and "H3_REF2VA_MODEL_PATH" in offences["references"].message
    assert desk.offences(**references, task="ref2va").keys() == {"task"}
    desk.facts = facts(desk, "ref2va")
    desk.spec(**references)
    assert "H3_MODEL_PATH" in desk.offences()["task"].message
    assert desk.offences(last_frame=still).keys() == {"last_frame"}
    desk.facts = facts(desk, "fl2va", "ref2va")
    desk.spec(**references)
    desk.spec()


def test_more_text_rows_than_the_encoder_takes(desk: Desk) -> None:
    def shown(count: int) -> list[dict[str, Any]]:
        return [{"type": "image", "source": {"upload": "a"}, "size": "max"} for _ in range(count)]

    large = {"a": picture(2048, 2048)}
    # 4096 features and 2 markers, a label of 13 characters, and a prompt of one.
    assert desk.spec(large, references=shown(7)).references
    (offence,) = desk.refused(large, references=shown(8)).offences
    assert offence.field == "references" and str(8 * (4098 + 13) + 1) in offence.message
    (offence,) = desk.refused(large, references=shown(7), prompt="y" * 6000).offences
    assert offence.field == "references"


def test_prompts_are_judged_against_what_is_shown(desk: Desk) -> None:
    references = [{"type": "image", "source": medium(picture(64, 64))}]
    prompt = {"shots": [{"description": "A cat, as in <Picture 2>."}], "summary": "A cat.", "task_types": []}
    fields = desk.offences(prompt=prompt, references=references).keys()
    assert all(field.startswith("prompt") for field in fields)
    job = desk.admit({"prompt": "A cat, as in <Picture 2>.", "references": references})
    assert job.spec.prompt == "A cat, as in <Picture 2>."
    assert any("<Picture 2>" in warning for warning in job.warnings)


def test_an_assembled_prompt_has_its_limit(desk: Desk) -> None:
    shots = [{"description": "x" * 3600, "at": None}, {"description": "y" * 3600, "at": 0.1}]
    del shots[0]["at"]
    (offence,) = desk.refused(prompt={"shots": shots}).offences
    assert offence.field == "prompt" and "assembl" in offence.message
    spec = desk.spec(prompt={"shots": [{"description": "A cat sleeps."}]})
    assert "A cat sleeps." in spec.prompt and spec.request["prompt"] == {"shots": [{"description": "A cat sleeps."}]}
