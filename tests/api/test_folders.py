"""What happens to a server whose folders are cleaned away or full while it runs."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from h3runtime.api.inputs import copies
from tests.api.server import SMALL, Running, picture, running


def upload(server: Running) -> tuple[int, dict[str, object]]:
    body = json.dumps({**SMALL, "first_frame": {"upload": "a"}})
    answer = server.post(files={"request": (None, body), "a": ("a.png", picture(64, 64))})
    return answer.status_code, answer.json()


@pytest.mark.parametrize("folder", ["outputs", "tmp", "inputs"])
def test_a_folder_that_was_cleaned_away_is_made_again(tmp_path: Path, folder: str) -> None:
    with running(tmp_path) as server:
        shutil.rmtree(tmp_path / folder)
        assert server.client.get("/ready").status_code == 200
        status, job = upload(server)
        assert (status, job["status"]) == (200, "succeeded")
        assert server.client.get(str(job["url"])).status_code == 200


def test_a_disk_without_room_for_an_upload_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path) as server:
        monkeypatch.setattr(copies.Intake, "_copy", full)
        answer = server.post(
            files={
                "request": (None, json.dumps({**SMALL, "first_frame": {"upload": "a"}})),
                "a": ("a.png", picture(64, 64)),
            }
        )
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert int(answer.headers["retry-after"]) > 0
        monkeypatch.undo()
        assert upload(server)[0] == 200
        assert [list((tmp_path / name).iterdir()) for name in ("inputs", "tmp")] == [[], []]
