"""How commands end when something outside them goes wrong: signals, pipes, folders. Nothing may be left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.commands import SMALL, run, start

DROPS = """
class Dropping:
    def __del__(self):
        signal.raise_signal({number})
        signal.raise_signal({number})

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            Dropping()

sys.modules.pop("h3runtime.engine.resident")
sys.meta_path.insert(0, Finder())
"""
"""A signal, and at once another, where C would drop what Python throws: while the module is looked for."""
SLOW = ("generate", "--prompt", "hold", *SMALL, "--output", "a.mp4")
PATIENCE = 120.0


def wait_until(found: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def computing(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command whose engine has been told to make the clip."""
    with TemporaryDirectory() as told:
        journal = Path(told, "journal")
        with start(*arguments, folder=folder, before=f"Engine.written_to = pathlib.Path({str(journal)!r})") as process:
            wait_until(lambda: journal.exists() and "generate" in journal.read_text())
            assert any(folder.iterdir()), "no scratch folder"
            yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with computing(*SLOW, folder=tmp_path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (128 + number, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_wait_for_the_engine(tmp_path: Path) -> None:
    deaf = ("generate", "--prompt", "hang_at=sampling", *SMALL, "--output", "a.mp4")
    with computing(*deaf, folder=tmp_path) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        # Two that come while it stands still are one to it.
        until = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < until:
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert process.poll() == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay", [0.1, 0.4, 0.7])
def test_ctrl_c_while_modules_load_shows_no_traceback(tmp_path: Path, delay: float) -> None:
    folder, begun = tmp_path / "a", tmp_path / "begun"
    folder.mkdir()
    with start(*SLOW, folder=folder, before=f"pathlib.Path({str(begun)!r}).touch()") as process:
        wait_until(begun.exists)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["h3runtime.cli.generate", "h3runtime.engine.resident"])
def test_a_signal_in_the_middle_of_an_import_is_not_lost(tmp_path: Path, module: str, number: signal.Signals) -> None:
    """The first while the command is parsed, the second when the request is judged and the scratch folder is there."""
    found = run(*SLOW, folder=tmp_path, before=DROPS.format(module=module, number=int(number)))
    assert found == (128 + number, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_is_gone_is_no_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    code, _, err = run("generate", "--prompt", "x", *SMALL, "--output", "a.mp4", folder=tmp_path, stdout=write)
    os.close(write)
    assert (code, err) == (1, "")
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_a_full_stdout_is_an_error_of_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = run("generate", "--prompt", "x", *SMALL, "--output", "a.mp4", folder=tmp_path, stdout=full)
    assert code == 1 and "No space left on device" in err and "Traceback" not in err


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_stream_is_no_reason_to_fail(tmp_path: Path, number: int) -> None:
    def close() -> None:
        os.close(number)

    arguments = ("generate", "--prompt", "x", *SMALL, "--output", "a.mp4")
    code, _, err = run(*arguments, folder=tmp_path, preexec_fn=close, stdin=subprocess.DEVNULL)
    assert (code, "Traceback" in err) == (0, False)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_a_full_stderr_is_no_reason_to_fail(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, out, _ = run("generate", "--prompt", "x", *SMALL, "--output", "a.mp4", folder=tmp_path, stderr=full)
    assert code == 0 and len(out.splitlines()) == 1


@pytest.mark.parametrize("output", ["/proc/a.mp4", "/sys/a.mp4"])
def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, output: str) -> None:
    code, out, err = run("generate", "--prompt", "x", *SMALL, "--output", output, folder=tmp_path)
    assert (code, out) == (1, "") and len(err.splitlines()) <= 2
    assert "output" in err and output.rsplit("/", 1)[0] in err


def test_a_failure_is_all_that_is_on_stderr(tmp_path: Path) -> None:
    code, out, err = run("generate", "--prompt", "fail_at=mux", *SMALL, "--output", "a.mp4", folder=tmp_path)
    assert (code, out, err) == (1, "", "error: the encoder ended with status 1\n")
    assert list(tmp_path.iterdir()) == []


def test_what_ffmpeg_says_is_shown(tmp_path: Path) -> None:
    _, _, err = run("generate", "--prompt", "x", *SMALL, "--ffmpeg-loglevel", "info", folder=tmp_path)
    assert "a line of ffmpeg's" in err
