"""Every rule of the field table, asked over HTTP: what is refused, under which name, and what is said to be legal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.desk import data_url
from tests.api.server import SMALL, Running, picture

NAN, INFINITY = float("nan"), float("inf")

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # A01, A02: canvases
    ({"width": 848, "height": 480}, "width", "832 or 864"),
    ({"width": 864, "height": 479}, "height", "448 or 480"),
    ({"width": 1, "height": 64}, "width", "64"),
    ({"width": 0, "height": 64}, "width", "64"),
    ({"width": -32, "height": 64}, "width", "64"),
    ({"width": 32, "height": 64}, "width", "64"),
    ({"width": 64, "height": 10**30}, "height", ""),
    ({"width": 1376, "height": 768}, "width", "1344x768"),
    ({"width": 768, "height": 1376}, "height", "768x1344"),
    ({"width": 32 * 10**9, "height": 64}, "width", "x"),
    ({"width": 64}, "height", "both"),
    ({"height": 64}, "width", "both"),
    ({"width": 64.0, "height": 64}, "width", "whole"),
    ({"width": True, "height": 64}, "width", "whole"),
    ({"width": "64", "height": 64}, "width", "whole"),
    ({"width": 960, "height": 576, "aspect_ratio": "1:1"}, "aspect_ratio", ""),
    ({"width": 960, "height": 544, "short_edge": 512}, "short_edge", "544"),
    ({"aspect_ratio": "16/9"}, "aspect_ratio", "16:9"),
    ({"aspect_ratio": "0:9"}, "aspect_ratio", "16:9"),
    ({"aspect_ratio": "5:1"}, "aspect_ratio", "1:4 to 4:1"),
    ({"aspect_ratio": 1.5}, "aspect_ratio", "text"),
    ({"short_edge": 700}, "short_edge", "256 to 768"),
    ({"short_edge": 224}, "short_edge", "256 to 768"),
    ({"short_edge": 800}, "short_edge", "256 to 768"),
    # A03: length
    ({"frames": 81}, "frames", "73 or 90"),
    ({"frames": 0}, "frames", "5"),
    ({"frames": -12}, "frames", "5"),
    ({"frames": 379}, "frames", "362"),
    ({"frames": 124.0}, "frames", "whole"),
    ({"seconds": 0}, "seconds", "above 0"),
    ({"seconds": -1}, "seconds", "above 0"),
    ({"seconds": 15.2}, "seconds", "15.083"),
    ({"seconds": 1e300}, "seconds", "15.083"),
    ({"seconds": NAN}, "seconds", "number"),
    ({"seconds": INFINITY}, "seconds", "number"),
    ({"seconds": "5"}, "seconds", "number"),
    ({"seconds": True}, "seconds", "number"),
    ({"frames": 124, "seconds": 6}, "seconds", "5.167"),
    # Sampling
    ({"steps": 0}, "steps", "1..200"),
    ({"steps": 201}, "steps", "1..200"),
    ({"steps": 12.5}, "steps", "1..200"),
    ({"sampler": "dpm"}, "sampler", "res_multistep"),
    ({"scheduler": "karras"}, "scheduler", "beta"),
    ({"shift": 0}, "shift", "above 0"),
    ({"shift": 1e9}, "shift", "to 1000"),
    ({"shift": -3}, "shift", "above 0"),
    ({"shift": NAN}, "shift", "above 0"),
    ({"audio_shift": INFINITY}, "audio_shift", "above 0"),
    ({"audio_shift": "3"}, "audio_shift", "above 0"),
    # A39: seeds
    ({"seed": 1.5}, "seed", "18446744073709551615"),
    ({"seed": None}, "seed", "value"),
    ({"seed": True}, "seed", "-1"),
    ({"seed": 2**64}, "seed", "-1"),
    ({"seed": -2}, "seed", "-1"),
    ({"seed": "1.5"}, "seed", "-1"),
    ({"seed": ""}, "seed", "-1"),
    ({"seed": "٤٢"}, "seed", "-1"),
    ({"seed": NAN}, "seed", "-1"),
    # Prompt and task
    ({"prompt": ""}, "prompt", "1..7000"),
    ({"prompt": " \n\t\u2003"}, "prompt", "1..7000"),
    ({"prompt": "x" * 7001}, "prompt", "1..7000"),
    ({"prompt": None}, "prompt", "value"),
    ({"prompt": 5}, "prompt", "text"),
    ({"prompt": {"summary": "x"}}, "prompt.shots", "value"),
    ({"prompt": []}, "prompt", "object"),
    ({"task": "v2v"}, "task", "fl2va"),
    ({"task": True}, "task", "ref2va"),
    ({"task": None}, "task", "value"),
    # Booleans, nulls, unknown names
    ({"overwrite": "yes"}, "overwrite", "true"),
    ({"overwrite": 1}, "overwrite", "true"),
    ({"save_latents": 0}, "save_latents", "true"),
    ({"save_latents": None}, "save_latents", "value"),
    ({"diagnostics": "yes"}, "diagnostics", "latents"),
    ({"diagnostics": {"latents": 1}}, "diagnostics.latents", "true"),
    ({"diagnostics": {"frames": True}}, "diagnostics.frames", "latents"),
    ({"width": None}, "width", "value"),
    ({"referances": []}, "referances", "first_frame"),
    ({"references": {}}, "references", "list"),
    ({"references": None}, "references", "value"),
    ({"keyframes": None}, "keyframes", "value"),
    ({"refine": {}}, "refine", "null"),
    ({"quality": "high"}, "quality", "exact"),
    ({"n": 11}, "n", "1..10"),
    ({"priority": 1.5}, "priority", "-10..10"),
    ({"loras": [{"name": "a"}]}, "loras[0].name", "none"),
    ({"cache_mode": "teacache"}, "cache_mode", "easycache"),
    ({"cache_threshold": 0.1}, "cache_threshold", "leave it out"),
    ({"cache_mode": "h3_cache", "cache_threshold": 4}, "cache_threshold", "0..3"),
    ({"cache_mode": "easycache", "cache_threshold": -0.1}, "cache_threshold", "0..3"),
    ({"cache_mode": "first_block", "cache_threshold": "0.1"}, "cache_threshold", "0..3"),
    ({"cache_mode": "easycache", "cache_start_percent": 1.5}, "cache_start_percent", "0..1"),
    ({"cache_mode": "easycache", "cache_start_percent": 0.95}, "cache_start_percent", "below 0.95"),
    ({"cache_mode": "first_block", "cache_end_percent": -1}, "cache_end_percent", "0..1"),
    ({"cache_mode": "first_block", "cache_subsample_factor": 65}, "cache_subsample_factor", "1..64"),
    ({"cache_mode": "easycache", "cache_forecast": "linear"}, "cache_forecast", "taylor"),
    ({"cache_mode": "first_block", "cache_forecast": "hold"}, "cache_forecast", "leave it out"),
    ({"cache_mode": "h3_cache", "cache_subsample_factor": 0}, "cache_subsample_factor", "1..64"),
    ({"cache_mode": "h3_cache", "cache_end_percent": 0.1}, "cache_end_percent", "above 0.15"),
    ({"attention_plan": [{"steps": "0", "attention": "sdpa"}]}, "attention_plan", "every step"),
    ({"callback_url": "https://example.com"}, "callback_url", "no callback_url"),
    ({"": 1}, "", ""),
    # Backends
    ({"attention": "sage2"}, "attention", "sdpa, exact"),
    ({"attention": "nothing"}, "attention", "sdpa, exact"),
    ({"attention": 3}, "attention", "text"),
    ({"linear": "fp4"}, "linear", "dequant"),
    # Output names
    ({"output": "../x.mp4"}, "output", ".mp4"),
    ({"output": "/tmp/x.mp4"}, "output", ".mp4"),
    ({"output": "a/b.mp4"}, "output", ".mp4"),
    ({"output": "a\\b.mp4"}, "output", ".mp4"),
    ({"output": "x\0.mp4"}, "output", ".mp4"),
    ({"output": "x\n.mp4"}, "output", ".mp4"),
    ({"output": ".."}, "output", ".mp4"),
    ({"output": ".mp4"}, "output", ".mp4"),
    ({"output": ".hidden.mp4"}, "output", ".mp4"),
    ({"output": "x.mov"}, "output", ".mp4"),
    ({"output": "x"}, "output", ".mp4"),
    ({"output": ""}, "output", ".mp4"),
    ({"output": "x" * 250 + ".mp4"}, "output", ".mp4"),
    ({"output": None}, "output", "value"),
    # Format
    ({"format": "mp4"}, "format", "object"),
    ({"format": {"container": "avi"}}, "format.container", "mp4"),
    ({"format": {"video_codec": "mpeg4"}}, "format.video_codec", "h264"),
    ({"format": {"pixel_format": "rgb24"}}, "format.pixel_format", "yuv420p"),
    ({"format": {"audio_codec": "pcm_s16le"}}, "format.audio_codec", "aac"),
    ({"format": {"sample_rate": 22050}}, "format.sample_rate", "32000"),
    ({"format": {"fps": 0}}, "format.fps", "1..120"),
    ({"format": {"crf": 52}}, "format.crf", "0..51"),
    ({"format": {"crf": -1}}, "format.crf", "0..51"),
    ({"format": {"crf": None}}, "format.crf", "value"),
    ({"format": {"audio_bitrate": 1}}, "format.audio_bitrate", "16000"),
    ({"format": {"audio_bitrate": "lots"}}, "format.audio_bitrate", "16000"),
    ({"format": {"loudness": "r128"}}, "format.loudness", "comfyui"),
    ({"format": {"preset": "fast"}}, "format.preset", "crf"),
    # Media, as far as their form goes
    ({"first_frame": "cat.png"}, "first_frame", "upload"),
    ({"first_frame": {}}, "first_frame", "upload"),
    ({"first_frame": {"upload": "a", "data": "b"}}, "first_frame", "upload"),
    ({"first_frame": {"upload": None}}, "first_frame.upload", "value"),
    ({"first_frame": {"file": "x"}}, "first_frame.file", "upload"),
    ({"first_frame": {"url": "http://127.0.0.1:9/x.png"}}, "first_frame.url", "upload"),
    ({"last_frame": {"url": "file:///etc/hostname"}}, "last_frame.url", "upload"),
    ({"last_frame": {"upload": "nothing"}}, "last_frame.upload", "none"),
    ({"last_frame": []}, "last_frame", "upload"),
]


@pytest.mark.parametrize(("fields", "field", "legal"), REFUSED, ids=lambda value: ascii(value)[:50])
def test_is_refused_by_name(server: Running, fields: dict[str, Any], field: str, legal: str) -> None:
    body = {**SMALL, **fields} if "width" not in fields and "height" not in fields else {"prompt": "x", **fields}
    if fields.keys() & {"aspect_ratio", "short_edge"} and not fields.keys() & {"width", "height"}:
        del body["width"], body["height"]
    if "seconds" in fields and "frames" not in fields:
        del body["frames"]
    answer = server.post(content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert [error["field"] for error in problem["errors"]] == [field]
    assert legal in problem["errors"][0]["legal"]
    assert problem["code"] in ("invalid_request", "bad_media")
    assert problem["status"] == 422
    assert problem["request_id"] == answer.headers["x-request-id"]


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"width": 64, "height": 64, "frames": 5, "seconds": 5 / 24, "task": "t2va", "fps": 24}),
    ({"seed": 4294967296}, {"seed": "4294967296"}),
    ({"seed": 9007199254740993}, {"seed": "9007199254740993"}),
    ({"seed": 18446744073709551615}, {"seed": "18446744073709551615"}),
    ({"seed": "18446744073709551615"}, {"seed": "18446744073709551615"}),
    ({"seed": "42"}, {"seed": "42"}),
    ({"seed": 0}, {"seed": "0"}),
    ({"task": "t2va", "first_frame": None, "last_frame": None, "format": None}, {"task": "t2va"}),
    ({"source": None, "masks": None, "continue_from": None, "refine": None}, {"task": "t2va"}),
    ({"sampler": "euler", "scheduler": "simple", "shift": 6, "audio_shift": 2.5}, {"sampler": "euler", "shift": 6.0}),
    ({"steps": 200, "prompt": "x step_seconds=0"}, {"steps": 200, "forwards": 200}),
    ({"frames": 22, "seconds": 0.9}, {"frames": 22}),
    ({"attention": "exact", "linear": "dequant"}, {"attention": "exact", "linear": "dequant"}),
    ({"diagnostics": True}, {"diagnostics": {"forwards": 2}}),
    ({"diagnostics": False}, {"diagnostics": None}),
    ({"diagnostics": {"latents": True}}, {"diagnostics": {"forwards": 2}}),
    ({"prompt": "x" * 7000}, {"prompt": "x" * 7000}),
    (
        {
            "format": {
                "container": "mp4",
                "video_codec": "h264",
                "pixel_format": "yuv420p",
                "audio_codec": "aac",
                "sample_rate": 32000,
                "fps": 24,
                "loudness": "none",
                "crf": 0,
                "audio_bitrate": "192k",
            }
        },
        {"status": "succeeded"},
    ),
]


@pytest.mark.parametrize(("fields", "told"), ACCEPTED, ids=lambda value: ascii(value)[:50])
def test_is_accepted_and_echoed(server: Running, fields: dict[str, Any], told: dict[str, Any]) -> None:
    answer = server.post({**SMALL, **fields})
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert {name: job[name] for name in told} == told
    assert job["status"] == "succeeded"


CANVASES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({}, (1344, 768)),
    ({"width": 960, "height": 576}, (960, 576)),
    ({"aspect_ratio": "16:9"}, (1344, 768)),
    ({"aspect_ratio": "9:16"}, (768, 1344)),
    ({"aspect_ratio": "1:1"}, (768, 768)),
    ({"aspect_ratio": "16:9", "short_edge": 544}, (960, 544)),
    ({"short_edge": 256}, (448, 256)),
    ({"width": 960, "height": 544, "aspect_ratio": "16:9"}, (960, 544)),
    ({"width": 1344, "height": 768, "aspect_ratio": "16:9", "short_edge": 768}, (1344, 768)),
]


@pytest.mark.parametrize(("fields", "size"), CANVASES, ids=str)
def test_canvas_is_resolved(server: Running, fields: dict[str, Any], size: tuple[int, int]) -> None:
    job = server.post({"prompt": "x", "steps": 1, "frames": 5, **fields}).json()
    assert (job["width"], job["height"]) == size


@pytest.mark.parametrize("ratio", ["1:1", "4:3", "3:4", "21:9", "9:21", "16:9", "9:16", "4:1", "1:4", "7:5"])
@pytest.mark.parametrize("short_edge", [256, 480, 768])
def test_a_derived_canvas_is_legal_when_sent_back(server: Running, ratio: str, short_edge: int) -> None:
    wish = {"aspect_ratio": ratio, "short_edge": short_edge}
    job = server.post({"prompt": "x", "steps": 1, "frames": 5, **wish}).json()
    size = {"width": job["width"], "height": job["height"]}
    for body in (size, size | wish, size | {"aspect_ratio": ratio}):
        again = server.post({"prompt": "x", "steps": 1, "frames": 5, **body})
        assert again.status_code == 200, again.text


@pytest.mark.parametrize(
    ("wish", "frames"), [({"seconds": 5}, 124), ({"seconds": 0.1}, 5), ({"seconds": 15.084}, 362), ({}, 124)]
)
def test_length_is_resolved_and_told_unrounded(server: Running, wish: dict[str, Any], frames: int) -> None:
    job = server.post({"prompt": "x", "width": 64, "height": 64, "steps": 1, **wish}).json()
    assert (job["frames"], job["seconds"]) == (frames, frames / 24)


@pytest.mark.parametrize(("frames", "warns"), [(90, True), (107, False), (362, False)])
def test_untrained_lengths_are_warned_of(server: Running, frames: int, warns: bool) -> None:
    job = server.post({**SMALL, "frames": frames}).json()
    assert any(str(frames) in warning for warning in job["warnings"]) is warns


def test_two_random_seeds_differ_and_are_told(server: Running) -> None:
    seeds = {server.post({**SMALL, "seed": -1}).json()["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= int(seed) < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("task", "inputs", "fields"),
    [
        ("t2va", ["first_frame"], {"task", "first_frame"}),
        ("i2va", [], {"task", "first_frame"}),
        ("l2va", ["first_frame"], {"task", "first_frame", "last_frame"}),
        ("fl2va", ["last_frame"], {"task", "first_frame"}),
        ("i2va", ["first_frame", "last_frame"], {"task", "last_frame"}),
        ("ref2va", ["first_frame"], {"task", "references"}),
    ],
)
def test_a_task_against_its_inputs_names_both(server: Running, task: str, inputs: list[str], fields: set[str]) -> None:
    media = {name: {"data": data_url(picture(64, 64))} for name in inputs}
    assert server.offenders({**SMALL, "task": task, **media}).keys() == fields


def test_all_problems_come_together_in_the_order_sent(server: Running) -> None:
    body = {
        "frames": 81,
        "referances": [],
        "width": 850,
        "height": 479,
        "seed": 1.5,
        "overwrite": "yes",
        "format": {"crf": 99, "fps": 300},
        "first_frame": {"data": data_url(b"no picture")},
        "last_frame": {"upload": "missing"},
        "attention": "sage2",
        "output": "../x.mp4",
        "shift": NAN,
        "seconds": 99,
    }
    answer = server.post(content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    problem = answer.json()
    fields = {error["field"] for error in problem["errors"]}
    nested = {"format.crf", "format.fps", "last_frame.upload", "prompt"}
    assert fields == (body.keys() - {"format", "last_frame"}) | nested
    assert all(error["message"] and isinstance(error["legal"], str) for error in problem["errors"])
    assert problem["code"] == "invalid_request"


@pytest.mark.parametrize("field", ["seed", "width", "frames", "steps", "shift"])
def test_a_number_of_thousands_of_digits_is_refused_by_name(server: Running, field: str) -> None:
    sent = json.dumps({**SMALL, field: 7}).replace(f'"{field}": 7', f'"{field}": 1' + "0" * 5000)
    answer = server.post(content=sent, headers={"Content-Type": "application/json"})
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_misspelt_field_is_answered_with_a_guess(server: Running) -> None:
    assert "did you mean frames?" in server.offenders({**SMALL, "frame": 5})["frame"]["message"]


def test_the_server_may_allow_less(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    small = server.service.settings.model_copy(update={"max_area": 128 * 64, "max_frames": 30})
    monkeypatch.setattr(server.service._admission, "_settings", small)
    assert server.offenders({**SMALL, "width": 128, "height": 128})["width"]["legal"] == "64x96"
    assert "5 or 22" in server.offenders({**SMALL, "frames": 21})["frames"]["legal"]
    job = server.post({"prompt": "x", "steps": 1}).json()
    assert (job["width"] * job["height"] <= 128 * 64, job["frames"]) == (True, 22)


def test_values_are_told_as_json_has_them(server: Running) -> None:
    body = b'{"prompt": {"a": [true, null]}, "steps": true, "shift": NaN, "task": false, "seed": {"b": false}}'
    answer = server.post(content=body, headers={"Content-Type": "application/json"})
    told = {error["field"]: error["message"] for error in answer.json()["errors"]}
    assert told["steps"].startswith("true ") and told["shift"].startswith("NaN ")
    assert told["task"].startswith("false ") and '{"b": false}' in told["seed"]
