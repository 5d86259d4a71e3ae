"""How a clip is encoded, told by flags and by the name of the output."""

import argparse
import json
from pathlib import Path

import pytest

from h3runtime.__main__ import build_parser
from h3runtime.cli.decode import _named_after
from h3runtime.cli.generation.entries import asked_of
from h3runtime.cli.options import encode_settings, format_of, output_path
from h3runtime.core import EncodeSettings
from h3runtime.errors import InvalidRequest, Offence
from h3runtime.media.probe import probe_clip
from tests.cli.commands import SMALL, run


def parsed(command: str, *arguments: str) -> argparse.Namespace:
    return build_parser().parse_args([command, *arguments])


FLAGS = ("--container", "mkv", "--video-codec", "hevc", "--pixel-format", "yuv420p10le", "--audio-codec", "flac",
         "--sample-rate", "48000", "--fps", "29.97", "--crf", "20", "--loudness", "none")  # fmt: skip


def test_flags_are_the_fields_of_format() -> None:
    (raw,) = asked_of(parsed("generate", "--prompt", "x", *FLAGS)).requests
    assert raw["format"] == {
        "container": "mkv", "video_codec": "hevc", "pixel_format": "yuv420p10le", "audio_codec": "flac",
        "sample_rate": 48000, "fps": 29.97, "crf": 20, "loudness": "none",
    }  # fmt: skip
    offences: list[Offence] = []
    settings = encode_settings(raw["format"], offences)
    assert offences == [] and (settings.fps, settings.audio_codec, settings.crf) == (29.97, "flac", 20)


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        ((), None),
        (("--output", "cat.mp4"), None),
        (("--output", "cat.webm"), {"container": "webm"}),
        (("--output", "cat.webm", "--container", "mkv"), {"container": "mkv"}),
        (("--output", "cat.mov", "--crf", "9"), {"container": "mov", "crf": 9}),
        (("--output", "cat.avi"), None),
    ],
)
def test_the_output_s_suffix_says_which_container(flags, form) -> None:
    (raw,) = asked_of(parsed("generate", "--prompt", "x", *flags)).requests
    assert raw.get("format") == form


def test_a_request_in_a_file_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"prompt": "x", "format": {"container": "mkv"}}))
    asked = asked_of(parsed("generate", str(tmp_path / "r.json"), "--output", "cat.webm", "--crf", "9"))
    assert asked.requests[0]["format"] == {"container": "mkv", "crf": 9}


def test_what_is_wrong_is_told_under_the_flags_names() -> None:
    offences: list[Offence] = []
    arguments = parsed("decode", "x", "--container", "webm", "--audio-codec", "aac", "--crf", "60", "--fps", "0")
    encode_settings(format_of(arguments, None), offences)
    assert [offence.field for offence in offences] == ["crf", "fps", "audio_codec", "container"]


def test_the_name_fits_the_container(tmp_path: Path) -> None:
    assert output_path(tmp_path / "a.webm", "webm", overwrite=False) == tmp_path / "a.webm"
    for name, container, legal in (("a.webm", "mp4", "--container webm"), ("a.avi", "mkv", ".mov or .mkv or .webm")):
        with pytest.raises(InvalidRequest) as caught:
            output_path(tmp_path / name, container, overwrite=False)
        assert legal in caught.value.offences[0].legal


@pytest.mark.parametrize(
    ("latents", "clip"),
    [
        ("x/cat.mp4.latents.safetensors", "cat.mp4"),
        ("cat.webm.latents.safetensors", "cat.webm"),
        ("cat.safetensors", "cat.mp4"),
        ("cat.v2.safetensors", "cat.v2.mp4"),
    ],
)
def test_a_decoded_clip_is_named_after_its_latents(latents: str, clip: str) -> None:
    assert _named_after(Path(latents)) == Path(clip)


def test_a_chain_is_encoded_once_as_the_flags_say(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps([{"prompt": "x", "seconds": 0.7, "seed": k} for k in range(2)]))
    flags = ("--output", "a.webm", "--video-codec", "av1", "--fps", "12.5")
    code, out, err = run("generate", "request.json", *SMALL[:4], *flags, folder=tmp_path)
    assert code == 0, err
    facts = probe_clip(tmp_path / "a.webm")
    told = json.loads(out)
    assert (told["fps"], told["format"]["container"], told["seconds"]) == (12.5, "webm", 34 / 24)
    assert (told["frames"], facts.frames, facts.pixel_format) == (34, 18, "yuv420p")
    assert facts.sound is not None and (facts.sound.codec, facts.sound.rate) == ("opus", 48_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.webm", "request.json"]


def test_the_default_is_what_it_was() -> None:
    offences: list[Offence] = []
    assert encode_settings(format_of(parsed("decode", "x"), Path("a.mp4")), offences) == EncodeSettings()
    assert offences == []
