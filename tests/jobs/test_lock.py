"""One server a data folder, whoever asks and however the first one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from h3runtime.errors import SettingsError
from h3runtime.jobs.files import Folders
from h3runtime.jobs.lock import NAME, DataLock
from h3runtime.settings import Settings
from tests.api.served import served
from tests.e2e.commands import run

PATIENCE = 60


def second_server(folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    return run("serve", "--port", str(port), "--data-dir", str(folder), folder=folder.parent)


def test_a_second_server_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        port = int(str(first.client.base_url).rstrip("/").rpartition(":")[2])
        for wish in (0, port):
            refused = second_server(tmp_path, wish)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert f"pid {first.pid}" in refused.stderr and str(tmp_path) in refused.stderr
            assert len(refused.stderr.splitlines()) <= 2, refused.stderr
        assert first.client.get("/ready").status_code == 200


def test_a_killed_server_s_folder_can_be_used_at_once(tmp_path: Path) -> None:
    """The engine is stopped meanwhile: it must not hold what its server held."""
    with served(tmp_path) as first:
        engine = first.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        try:
            first.process.kill()
            first.wait(PATIENCE)
            DataLock(tmp_path).close()
        finally:
            os.kill(engine, signal.SIGKILL)
    with served(tmp_path) as second:
        assert (tmp_path / NAME).read_text() == f"{second.pid}\n"


def test_the_lock_goes_and_comes_within_one_process(tmp_path: Path) -> None:
    lock = DataLock(tmp_path)
    with pytest.raises(SettingsError, match=rf"another server \(pid {os.getpid()}\) uses it") as caught:
        DataLock(tmp_path)
    assert [offence.field for offence in caught.value.offences] == ["H3_DATA_DIR"]
    lock.close()
    lock.close()
    DataLock(tmp_path).close()


@pytest.mark.parametrize("left", ["", "garbage", "12345678901\n"])
def test_a_file_that_was_left_is_no_obstacle(tmp_path: Path, left: str) -> None:
    (tmp_path / NAME).write_text(left)
    lock = DataLock(tmp_path)
    assert (tmp_path / NAME).read_text() == f"{os.getpid()}\n"
    lock.close()


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = DataLock(tmp_path)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        lock.close()
        try:
            DataLock(tmp_path).close()
        finally:
            child.kill()


def test_a_lock_that_can_t_be_opened_is_typed(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(SettingsError, match="its lock can't be opened: is a directory"):
        DataLock(tmp_path)


def test_a_taken_port_leaves_the_folder_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = second_server(tmp_path, taken.getsockname()[1])
    assert refused.returncode == 1 and "can't listen" in refused.stderr
    DataLock(tmp_path).close()


def test_a_folder_of_outputs_that_cant_be_made_is_told_by_its_own_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError) as caught:
        Folders(Settings(data_dir=tmp_path / "data", output_root=tmp_path / "file" / "clips"))
    assert [offence.field for offence in caught.value.offences] == ["H3_OUTPUT_ROOT"]
    DataLock(tmp_path / "data").close()
