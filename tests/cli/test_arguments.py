"""What commands say of their flags before they compute."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from h3runtime.__main__ import COMMANDS, build_parser
from tests.cli.commands import SMALL, run


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--crf", "52"), ("crf", "0..51")),
        (("--audio-bitrate", "5"), ("audio_bitrate", "16000..384000")),
        (("--audio-bitrate", "loud"), ("audio_bitrate", "16000..384000")),
    ],
)
def test_encoder_flags_are_judged_with_the_rest(tmp_path: Path, flags: tuple[str, ...], told: tuple[str, str]) -> None:
    for command in (("generate", "--prompt", "x", "--frames", "81"), ("decode", "a.safetensors")):
        code, _, err = run(*command, *flags, folder=tmp_path)
        assert code == 1 and len(err.splitlines()) <= 2
        for words in (*told, *(("frames",) if command[0] == "generate" else ())):
            assert words in err


def test_a_bit_rate_in_kilobits(tmp_path: Path) -> None:
    code, _, err = run("generate", "--prompt", "x", *SMALL, "--audio-bitrate", "128k", folder=tmp_path)
    assert code == 0, err


def test_the_demo_replaces_its_own_file_alone(tmp_path: Path) -> None:
    for name in ("demo.mp4", "mine.mp4"):
        (tmp_path / name).write_text("mine")
    assert run("demo", folder=tmp_path)[0] == 0
    code, _, err = run("demo", "--output", "mine.mp4", folder=tmp_path)
    assert code == 1 and "--overwrite" in err and (tmp_path / "mine.mp4").read_text() == "mine"
    code, out, _ = run("demo", "--output", "mine.mp4", "--overwrite", folder=tmp_path)
    assert code == 0 and json.loads(out)["output"] == str(tmp_path / "mine.mp4")


@pytest.mark.parametrize("file", ["clip.mp4", "."])
def test_decode_says_that_a_file_is_no_latents(tmp_path: Path, file: str) -> None:
    (tmp_path / "clip.mp4").write_text("mine")
    code, _, err = run("decode", file, folder=tmp_path)
    assert code == 1 and "latents" in err and "--output" in err and "overwrite" not in err


def test_latents_in_the_way_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.mp4.latents.safetensors").write_text("mine")
    command = ("generate", "--prompt", "x", *SMALL, "--output", "a.mp4", "--save-latents")
    code, _, err = run(*command, folder=tmp_path)
    assert code == 1 and "a.mp4.latents.safetensors exists" in err
    assert (tmp_path / "a.mp4.latents.safetensors").read_text() == "mine"
    assert run(*command, "--overwrite", folder=tmp_path)[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_alone_has_the_help_that_it_has_among_all(command: str) -> None:
    alone, among = (build_parser(name).parse_args for name in (command, None))
    assert _help(alone, command) == _help(among, command)


def _help(parse: Callable[[list[str]], object], command: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit):
        parse([command, "--help"])
    return told.getvalue()
