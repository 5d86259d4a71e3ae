"""`--sheet` and the demo's own: where a sheet goes, what it must not cover, a clip outlives one that failed."""

import json
from pathlib import Path

import pytest
from PIL import Image

from h3runtime.__main__ import build_parser
from h3runtime.cli.generation.entries import Asked
from h3runtime.cli.generation.sheets import require_free, sheet_path, with_sheets
from h3runtime.errors import InvalidRequest, OutputExists
from tests.cli.commands import SMALL, run
from tests.clips import moving, tones, write_clip


def asked(folder: Path, *requests: dict) -> Asked:
    return Asked(requests, len(requests) > 1, folder)


def clip(path: Path) -> Path:
    return write_clip(path, moving(22), tones(29_334))


def told(*clips: Path, **more: object) -> dict:
    outputs = [{"index": i, "seed": str(5 + i), "output": str(path)} for i, path in enumerate(clips)]
    return {"output": str(clips[0]), "outputs": outputs, "prompt": "x", "steps": 4, "warnings": ["odd"], **more}


def test_every_clip_of_a_request_has_its_sheet(tmp_path: Path) -> None:
    clips = [clip(tmp_path / f"cat-{i}.mkv") for i in range(2)]
    facts = with_sheets(told(*clips), overwrite=False)
    assert [item["sheet"] for item in facts["outputs"]] == [str(tmp_path / f"cat-{i}.png") for i in range(2)]
    assert facts["sheet"] == facts["outputs"][0]["sheet"] and facts["warnings"] == ["odd"]
    for path in clips:
        with Image.open(sheet_path(path)) as sheet:
            assert sheet.format == "PNG"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_chain_has_one_sheet_of_all_its_prompts(tmp_path: Path) -> None:
    path = clip(tmp_path / "chain.mkv")
    facts = {"output": str(path), "clips": [{"prompt": "x"}, {"prompt": "y"}], "warnings": []}
    assert with_sheets(facts, overwrite=False)["sheet"] == str(tmp_path / "chain.png")


def test_a_clip_outlives_a_sheet_that_failed(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no clip")
    good = clip(tmp_path / "b.mkv")
    sheet_path(good).write_text("mine")
    facts = with_sheets(told(tmp_path / "a.mp4", good), overwrite=False)
    assert "sheet" not in facts and not any("sheet" in item for item in facts["outputs"])
    odd, first, second = facts["warnings"]
    assert odd == "odd" and first.startswith("a.png was not made") and second.startswith("b.png was not made")
    assert sheet_path(good).read_text() == "mine"


def test_a_sheet_in_the_way_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("mine")
    with pytest.raises(OutputExists, match=r"a\.png"):
        require_free([tmp_path / "a.mp4"], asked(tmp_path, {"prompt": "x"}), overwrite=False)
    require_free([tmp_path / "a.mp4"], asked(tmp_path, {"prompt": "x"}), overwrite=True)
    code, _, err = run("generate", "--prompt", "x", *SMALL, "--output", "a.mp4", "--sheet", folder=tmp_path)
    assert code == 1 and "a.png exists" in err and [p.name for p in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(
    "request_", [{"first_frame": {"path": "a.png"}}, {"keyframes": [{"image": {"path": "./a.png"}}]}]
)
def test_a_sheet_never_covers_an_input(tmp_path: Path, request_: dict) -> None:
    (tmp_path / "a.png").write_text("mine")
    with pytest.raises(InvalidRequest, match="sheet") as caught:
        require_free([tmp_path / "a.mp4"], asked(tmp_path, request_), overwrite=True)
    assert [offence.field for offence in caught.value.offences] == ["sheet"]


def test_the_demo_has_a_sheet_unless_told_otherwise(tmp_path: Path) -> None:
    """The stand-in's clip can't be read, so its sheet is a warning: what matters here is who asks for one."""
    asks = {(): True, ("--no-sheet",): False}
    for flags, wanted in asks.items():
        code, out, err = run("demo", *flags, folder=tmp_path)
        assert code == 0 and "h3-nano" in err
        assert any("demo.png" in warning for warning in json.loads(out)["warnings"]) is wanted
    assert not build_parser().parse_args(["generate", "--prompt", "x"]).sheet
