"""A target that can't be written to costs lines, never the service, and the loss is told afterwards."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from h3runtime.observe import sinks
from h3runtime.observe.sinks import Rotated, Stream

FULL = Path("/dev/full")


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, json.dumps({"event": text}), None, None)


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_a_pipe_that_nobody_reads_is_given_up_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "PATIENCE_MS", 1)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        handler = Stream(stream)
        for number in range(40):
            handler.emit(record(f"{number} " + "x" * 5000))
        lost = handler.lost
        assert 20 <= lost < 40
        os.set_blocking(reader, False)
        got = b""
        while len(piece := os.read(reader, 1 << 20)) == 1 << 16:
            got += piece
        got += piece
        handler.emit(record("again"))
        handler.emit(record("and again"))
        rest = os.read(reader, 1 << 20).decode()
    os.close(reader)
    # The line that the pipe took half of stays half; it costs no other.
    whole, _, half = got.decode().rpartition("\n")
    assert len(events(whole)) == 40 - lost
    told = rest.removeprefix("\n").splitlines() if not half else rest.split("\n", 1)[1].splitlines()
    assert [json.loads(line)["event"] for line in told] == ["log_lines_lost", "again", "and again"]
    assert json.loads(told[0])["lines"] == lost


def test_a_closed_pipe_and_a_closed_stream_are_borne() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        handler = Stream(stream)
        handler.emit(record("one"))
        handler.emit(record("two"))
    assert handler.lost == 2
    text = io.StringIO()
    other = Stream(text)
    text.close()
    other.emit(record("three"))
    assert other.lost == 1


def test_a_service_whose_reader_is_gone_ends_as_it_should() -> None:
    program = (
        "import logging, sys\n"
        "from h3runtime.observe import logs\n"
        "logs.configure('stdout')\n"
        "for _ in range(3): logging.getLogger('a').error('nobody reads this')\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_borne(capfd: pytest.CaptureFixture[str]) -> None:
    with FULL.open("w") as stream:
        handler = Stream(stream)
        handler.emit(record("one"))
        assert handler.lost == 1
    assert capfd.readouterr() == ("", "")


def test_a_file_is_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    handler = Rotated(tmp_path / "h3.log", 100, 2)
    for number in range(20):
        handler.emit(record(str(number)))
    handler.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["h3.log", "h3.log.1", "h3.log.2"]
    kept = [event for name in reversed(files) for event in events((tmp_path / name).read_text())]
    assert kept == [str(number) for number in range(20 - len(kept), 20)]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())


def test_a_file_is_closed_once(tmp_path: Path) -> None:
    """The second time its number is another file's, as `logging.shutdown` would find it."""
    handler = Rotated(tmp_path / "h3.log", 100, 2)
    handler.emit(record("one"))
    handler.close()
    reader, writer = os.pipe()
    handler.close()
    handler.emit(record("two"))
    os.write(writer, b"x")
    assert (os.read(reader, 10), handler.lost) == (b"x", 1)
    os.close(reader)
    os.close(writer)
    assert events((tmp_path / "h3.log").read_text()) == ["one"]


def test_what_has_the_number_of_a_closed_stream_is_left_alone() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        handler = Stream(stream)
    os.close(reader)
    other_reader, other_writer = os.pipe()
    handler.emit(record("one"))
    os.write(other_writer, b"x")
    assert (os.read(other_reader, 100), handler.lost) == (b"x", 1)
    os.close(other_reader)
    os.close(other_writer)


def test_two_processes_write_one_file(tmp_path: Path) -> None:
    """Two handlers stand for them: what one has begun, the other goes on with, and no line is lost or torn."""
    one, other = (Rotated(tmp_path / "h3.log", 300, 9) for _ in range(2))
    for number in range(60):
        (one if number % 3 else other).emit(record(str(number)))
    assert (one.lost, other.lost) == (0, 0)
    one.close()
    other.close()
    names = ["h3.log", *(f"h3.log.{n}" for n in range(1, 10))]
    kept = [
        event
        for name in reversed(names)
        if (tmp_path / name).exists()
        for event in events((tmp_path / name).read_text())
    ]
    assert kept == [str(number) for number in range(60)]


def test_a_file_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    handler = Rotated(tmp_path / "h3.log", 1000, 2)
    handler.emit(record("one"))
    (tmp_path / "h3.log").rename(tmp_path / "elsewhere")
    handler.emit(record("two"))
    handler.close()
    assert events((tmp_path / "h3.log").read_text()) == ["two"]


def test_a_file_that_cannot_begin_anew_goes_on_and_keeps_its_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Rotated(tmp_path / "h3.log", 60, 2)
    for number in range(4):
        handler.emit(record(f"old {number}"))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Rotated, "_open", refuse)
        for number in range(5):
            handler.emit(record(f"lost {number}" + "x" * 40))
    assert handler.lost == 5
    assert before["h3.log"] in [path.read_text() for path in tmp_path.iterdir()]
    handler.emit(record("again"))
    handler.close()
    assert events((tmp_path / "h3.log").read_text()) == ["log_lines_lost", "again"]
    assert (tmp_path / "h3.log.1").read_text() == before["h3.log"]
