"""The name of the file: bare, harmless, and ending like the container."""

from pathlib import Path

import pytest

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_output
from h3runtime.core import Container


def refused(name: str | None, folder: Path, container: Container = "mp4", form: object = None) -> list[str]:
    verdict = Verdict(read_body({"prompt": "x"} | ({} if form is None else {"format": form})))
    judge_output(name, folder, verdict, container)
    return [f"{offence.field}: {offence.message}; {offence.legal}" for offence in verdict.offences]


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv", "webm"])
def test_the_suffix_is_the_container_s(tmp_path: Path, container: Container) -> None:
    assert refused(f"cat.{container}", tmp_path, container) == refused(None, tmp_path, container) == []
    for suffix in {"mp4", "mov", "mkv", "webm", "avi", "MP4"} - {container}:
        (told,) = refused(f"cat.{suffix}", tmp_path, container)
        assert told.startswith("output: ") and f"does not end in .{container}" in told


def test_where_the_container_can_t_be_read_any_one_s_suffix_will_do(tmp_path: Path) -> None:
    broken = {"container": "webm", "crf": 99}
    assert refused("cat.webm", tmp_path, form=broken) == refused("cat.mkv", tmp_path, form=broken) == []
    (told,) = refused("cat.avi", tmp_path, form=broken)
    assert ".mp4 or .mov or .mkv or .webm" in told


@pytest.mark.parametrize(
    "name", ["a/b.mp4", "../a.mp4", "/a.mp4", "", ".", "..", ".a.mp4", "a\x00.mp4", "a\\b.mp4", "a", "x" * 200 + ".mp4"]
)
def test_a_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    assert len(refused(name, tmp_path)) == 1


def test_what_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "link.mp4").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file.mp4").write_bytes(b"")
    assert "not a file" in refused("folder.mp4", tmp_path)[0] and "symbolic link" in refused("link.mp4", tmp_path)[0]
    # Whether a clip may be replaced is the queue's to say.
    assert refused("file.mp4", tmp_path) == []
