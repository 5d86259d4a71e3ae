"""What a file's name says of its partition, and when that is a contradiction."""

from pathlib import Path

import pytest

from h3runtime.checkpoint.partition import contradicts, partition_hint


@pytest.mark.parametrize(
    ("path", "hint", "wrong"),
    [
        ("minimax_h3_fl2va_pruned_nvfp4.safetensors", "fl2va", False),
        ("MiniMax-H3_Ref2VA-NVFP4.safetensors", "ref2va", True),
        ("Ref2VA/model.safetensors", "ref2va", False),
        ("my_h3.safetensors", None, False),
        ("prefl2vax.safetensors", None, False),
        ("h3_fl2va_from_ref2va.safetensors", "ref2va", False),
    ],
)
def test_names(path: str, hint: str | None, wrong: bool) -> None:
    assert partition_hint(Path("/models") / path) == hint
    assert contradicts(Path("/models") / path, "fl2va") is wrong


def test_a_folder_of_shards_is_told_by_the_folder_above(tmp_path: Path) -> None:
    folder = tmp_path / "Ref2VA" / "transformer"
    folder.mkdir(parents=True)
    assert contradicts(folder, "fl2va") and not contradicts(folder, "ref2va")
