"""What `generate` is asked for: flags, a file with a request, a file with a list of them, and how they go together."""

import argparse
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3runtime.__main__ import build_parser
from h3runtime.cli.generation.chain_plan import Planned, plan_chain
from h3runtime.cli.generation.entries import Asked, asked_of, merged
from h3runtime.cli.generation.judging import Ruling, rule_on
from h3runtime.core import Task
from h3runtime.errors import BadMedia, InvalidRequest, MalformedRequest
from h3runtime.settings import Settings
from tests.cli.commands import SMALL, run, start
from tests.clips import moving, tones, write_clip

CANVAS = {"width": 64, "height": 64}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture, a clip with sound, a voice and a mask."""
    folder = tmp_path_factory.mktemp("media")
    Image.fromarray(moving(1, 48, 80)[0]).save(folder / "a.png")
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(folder / "mask.png")
    write_clip(folder / "clip.mkv", moving(60), tones(80_000))
    write_clip(folder / "voice.wav", sound=tones(80_000, 1), sound_codec="pcm_s16le")
    return folder


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", *arguments])


def written(folder: Path, value: object) -> Path:
    file = folder / "request.json"
    file.write_text(json.dumps(value))
    return file


def ruled(asked: Asked, folder: Path) -> Ruling:
    ruling = rule_on(asked.requests[0], asked.folder, folder / "inputs", Settings())
    ruling.faults.raise_any()
    return ruling


def planned(folder: Path, entries: list[dict], *flags: str) -> tuple[Planned, ...]:
    asked = asked_of(parsed(str(written(folder, entries)), *flags))
    assert asked.is_chain
    return plan_chain(asked.requests, asked.folder, folder, Settings())


def faults(folder: Path, entries: list[dict], *flags: str) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        planned(folder, entries, *flags)
    return {offence.field: offence.message for offence in caught.value.offences}


def test_flags_for_media_are_the_fields_of_a_request(media: Path, tmp_path: Path) -> None:
    files = {name: str(media / name) for name in ("a.png", "clip.mkv", "voice.wav")}
    arguments = [f"--keyframe=-1={files['a.png']}", f"--keyframe=22={files['clip.mkv']}"]
    arguments += [x for name in files.values() for x in ("--reference", name)]
    asked = asked_of(parsed("--prompt", "x", "--width", "64", "--height", "64", *arguments))
    (raw,) = asked.requests
    assert [list(item) for item in raw["keyframes"]] == [["frame", "image"], ["frame", "video"]]
    assert [item["type"] for item in raw["references"]] == ["image", "video", "audio"]
    spec = ruled(asked, tmp_path).spec(tmp_path / "a.mp4", tmp_path)
    assert spec.task is Task.REF2VA and spec.frames == 124
    assert [guide.frame for guide in spec.guides] == [123, 22]
    assert [reference.kind for reference in spec.references] == ["image", "video", "audio"]


def test_a_clip_is_continued_and_edited_by_flags(media: Path, tmp_path: Path) -> None:
    clip = str(media / "clip.mkv")
    continued = ruled(asked_of(parsed("--prompt", "x", "--continue-from", clip)), tmp_path)
    (guide,) = continued.judged.guides
    assert guide.clip is not None and (guide.clip.first, guide.clip.frames) == (38, 22)
    edited = ruled(asked_of(parsed("--prompt", "x", "--source", clip, "--mask", str(media / "mask.png"))), tmp_path)
    assert edited.judged.source is not None and edited.judged.source.video_mask is not None
    assert edited.judged.resolved.frames == 56


def test_a_request_in_a_file_is_one_of_the_server_s(media: Path, tmp_path: Path) -> None:
    folder = media / "sub"
    folder.mkdir(exist_ok=True)
    request = {"prompt": "x", "first_frame": {"path": "../a.png"}, "short_edge": 256, "frames": 22, "seed": "7"}
    spec = ruled(asked_of(parsed(str(written(folder, request)))), tmp_path).spec(tmp_path / "a.mp4", tmp_path)
    assert spec.task is Task.I2VA and spec.sampling.seed == 7 and spec.guides[0].picture is not None
    # Saved latents tell the words of the request, not where files lie on this machine.
    assert spec.request == {**request, "first_frame": {"path": "a.png"}}


def test_flags_are_defaults_and_what_contradicts_is_left_out() -> None:
    flags = {
        "prompt": "flag",
        "seconds": 2.0,
        "aspect_ratio": "1:1",
        "steps": 3,
        "format": {"crf": 3, "loudness": "none"},
    }
    request = {"prompt": "own", "frames": 22, "width": 64, "height": 64, "format": {"crf": 9}, "steps": None}
    assert merged(request, flags) == request | {"format": {"crf": 9, "loudness": "none"}}
    assert merged({"seed": 1}, flags) == flags | {"seed": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [("[1", MalformedRequest), ("3", MalformedRequest), ("[]", InvalidRequest), ("[1]", InvalidRequest)],
)
def test_what_is_no_request_is_said(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(error):
        asked_of(parsed(str(tmp_path / "request.json")))


@pytest.mark.parametrize("value", ["x", "a=b", "7="])
def test_a_keyframe_flag_is_a_frame_and_a_file(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--prompt", "x", f"--keyframe={value}")
    assert "--keyframe" in capsys.readouterr().err


def test_entries_continue_one_another_on_one_canvas(tmp_path: Path) -> None:
    entries = [{"prompt": str(k), "seconds": 5.2, "seed": k} for k in range(3)]
    plan = planned(tmp_path, entries, "--aspect-ratio", "1:1", "--short-edge", "256", "--steps", "3")
    assert [p.share.stop for p in plan] == [125, 250, 374]
    assert [p.spec.frames for p in plan] == [141, 158, 158]
    assert {(p.spec.width, p.spec.height, p.spec.sampling.steps) for p in plan} == {(256, 256, 3)}
    assert [p.spec.task for p in plan] == [Task.T2VA, Task.I2VA, Task.I2VA]
    (guide,) = plan[1].spec.guides
    assert guide.frame == 0 and guide.clip is not None and guide.clip.file.path == plan[1].guide
    assert (guide.clip.first, guide.clip.frames, guide.fit, guide.shown) == (0, 22, "cover", False)
    assert guide.sound is not None and guide.sound.seconds == pytest.approx(22 / 24)
    # The engine caches what it reads by hash, and this file isn't there yet.
    assert guide.clip.file.sha256 == ""


def test_flags_that_begin_a_clip_begin_the_chain(media: Path, tmp_path: Path) -> None:
    entries = [{"prompt": "x", "seconds": 1}] * 2
    flags = ("--first-frame", str(media / "a.png"), "--last-frame", str(media / "a.png"), "--short-edge", "256")
    plan = planned(tmp_path, entries, *flags)
    assert [[guide.field for guide in p.spec.guides] for p in plan] == [
        ["first_frame", "last_frame"],
        ["last_frame", "continue_from"],
    ]
    assert plan[0].spec.width == plan[1].spec.width > plan[1].spec.height == 256


def test_how_an_entry_may_continue(tmp_path: Path) -> None:
    links = [{}, {"frames": 39, "audio": False}, True, False, None]
    entries = [{"prompt": "x", "seconds": 2, "continue_from": link, **CANVAS} for link in links]
    plan = planned(tmp_path, [{"prompt": "x", "seconds": 2, **CANVAS}, *entries])
    assert [p.share.overlap for p in plan] == [0, 22, 39, 22, 0, 0]
    assert [p.guide is None for p in plan] == [True, False, False, False, True, True]
    assert plan[2].spec.guides[0].sound is None and plan[1].spec.guides[0].sound is not None


def test_what_is_too_short_for_a_clip_is_continued_as_a_still(tmp_path: Path) -> None:
    plan = planned(tmp_path, [{"prompt": "x", "seconds": s, **CANVAS} for s in (0.1, 0.2, 1)])
    assert [p.share.overlap for p in plan] == [0, 1, 5]
    (still,) = plan[1].spec.guides
    assert still.clip is not None and still.clip.frames == 1 and still.sound is None


def test_frames_of_guides_count_from_the_entry_s_own_beginning(media: Path, tmp_path: Path) -> None:
    picture = {"path": str(media / "a.png")}
    frames = [{"image": picture, "frame": k} for k in (0, 10, -2)]
    second = {"prompt": "x", "seconds": 1, "keyframes": frames, "last_frame": picture}
    plan = planned(tmp_path, [{"prompt": "x", "seconds": 1, **CANVAS}, second])
    # 22 frames of overlap, then 24 of its own; the clip has 56.
    assert {guide.field: guide.frame for guide in plan[1].spec.guides} == {
        "last_frame": 45,
        "continue_from": 0,
        "keyframes[0]": 22,
        "keyframes[1]": 32,
        "keyframes[2]": 44,
    }
    second["keyframes"][2]["frame"] = -1
    assert "[1].keyframes[2]" in faults(tmp_path, [{"prompt": "x", "seconds": 1, **CANVAS}, second])


def test_an_entry_may_continue_a_clip_from_elsewhere(media: Path, tmp_path: Path) -> None:
    entry = {"prompt": "x", "seconds": 2, "continue_from": {"path": str(media / "clip.mkv")}, **CANVAS}
    plan = planned(tmp_path, [entry])
    assert plan[0].share.overlap == 0 and plan[0].guide is None
    assert plan[0].spec.guides[0].clip.file.path == media / "clip.mkv"


def test_all_entries_are_judged_and_told_by_their_index(media: Path, tmp_path: Path) -> None:
    picture = {"path": str(media / "a.png")}
    entries = [
        {"prompt": "x", "seconds": 1, "steps": 0, **CANVAS},
        {"prompt": " ", "seconds": -1},
        {"prompt": "x", "seconds": 20, "output": "a.mp4", "stepz": 3},
        {"prompt": "x", "seconds": 0.001},
        {"prompt": "x", "seconds": 1, "keyframes": [{"frame": 30, "image": picture}]},
        {"prompt": "x", "seconds": 1, "first_frame": picture},
        {"prompt": "x", "seconds": 1, "width": 128, "height": 64},
        {"prompt": "x", "seconds": 1, "task": "t2va"},
        {"prompt": "x", "seconds": 1, "continue_from": {"frames": 6}},
        {"prompt": "x", "seconds": None, "overwrite": None},
        {"prompt": "x", "frames": None},
        {"prompt": "x", "seconds": 1e308},
    ]
    told = faults(tmp_path, entries)
    assert list(told) == [
        "[0].steps",
        "[1].seconds",
        "[1].prompt",
        "[2].output",
        "[2].stepz",
        "[2].seconds",
        "[3].seconds",
        "[4].keyframes[0].frame",
        "[5].first_frame",
        "[6].width",
        "[7].task",
        "[7].continue_from",
        "[8].continue_from.frames",
        "[9].seconds",
        "[9].overwrite",
        "[10].frames",
        "[11].seconds",
    ]
    assert "480 frames and an overlap of 22" in told["[2].seconds"]


def test_media_alone_are_another_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(BadMedia, match=r"\[0\]\.first_frame"):
        planned(tmp_path, [{"prompt": "x", "seconds": 1, "first_frame": {"path": "a.png"}, **CANVAS}])


def test_a_chain_is_one_line_of_json_and_one_file(tmp_path: Path) -> None:
    written(tmp_path, [{"prompt": f"scene {k}", "seconds": 0.7, "seed": k} for k in range(3)])
    code, out, err = run("generate", "request.json", *SMALL[:4], "--output", "a.mp4", folder=tmp_path)
    assert code == 0, err
    facts = json.loads(out)
    assert facts["cuts"] == [17, 34, 50] and facts["frames"] == 50 and facts["output"] == str(tmp_path / "a.mp4")
    assert [clip["seed"] for clip in facts["clips"]] == ["0", "1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "request.json"]


def test_a_failing_clip_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    prompts = ("x", "fail_at=mux", "x")
    written(tmp_path, [{"prompt": prompt, "seconds": 0.2} for prompt in prompts])
    code, out, err = run("generate", "request.json", *SMALL[:4], folder=tmp_path)
    assert (code, out, err) == (1, "", "error: [1]: the encoder ended with status 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["request.json"]


def test_a_signal_ends_a_chain_and_leaves_nothing(tmp_path: Path) -> None:
    written(tmp_path, [{"prompt": "x", "seconds": 0.2}, {"prompt": "hold", "seconds": 0.2}])
    with start("generate", "request.json", *SMALL[:4], folder=tmp_path) as process:
        until = time.monotonic() + 120
        while not list(tmp_path.glob(".h3runtime-*/part-0000.mkv")) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["request.json"]


def test_backends_are_judged_before_the_first_clip_runs(tmp_path: Path) -> None:
    written(tmp_path, [{"prompt": "fail_at=mux", "seconds": 0.2}, {"prompt": "x", "attention": "flash9"}])
    code, _, err = run("generate", "request.json", *SMALL[:4], folder=tmp_path)
    assert code == 1 and "[1].attention" in err and "encoder" not in err
