"""Named bundles in a table: what counts, against which clips, and when a level's promise is kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import quality_bundles
from benchmarks.quality_bundles import Bundle, brief, bundles_of, markdown, read_bundles
from benchmarks.quality_plan import EXACT, Schedule, Size, Way
from benchmarks.quality_records import Record
from h3runtime.nano.judge import ITEMS

HIGH, REUSE = Way(linear="fp8", attention="h3_attn8"), Way(cache="easycache:0.2")
NAMED = {"high fp8": HIGH, "reuse": REUSE}


def clip(index: int, way: Way, ssim: float = 1.0, forwards: int = 12, sampling: float = 1.0, **told: Any) -> Record:
    verdict = dict.fromkeys(ITEMS, True) | {item: told[item] for item in ITEMS if item in told}
    exact = None if way == EXACT else {"ssim": ssim, "log_mel_db": told.get("sound", 0.5)}
    figures = {"verdict": verdict, "exact": exact, "forwards": forwards, "sampling": sampling}
    return Record("c", "cpu", "t2va", "trained", index, 0, Size(64, 64, 5), way, Schedule(), "a red ball", figures)


def bundles(records: list[Record], alone: tuple[Record, ...] = (), **steps: float) -> dict[str, Bundle]:
    return {each.name: each for each in bundles_of(records, NAMED, alone, steps)}


def test_only_prompts_of_which_all_have_a_clip_count() -> None:
    records = [clip(index, way) for way in (EXACT, HIGH) for index in range(4)]
    records += [clip(index, REUSE, 0.98, forwards=8) for index in (1, 2)]
    found = bundles(records)
    assert list(found) == ["exact", "high fp8", "reuse"] and {each.clips for each in found.values()} == {2}
    assert (found["reuse"].saved, found["reuse"].forwards, found["reuse"].ssim.mean) == (1.5, 8, 0.98)
    assert bundles([record for record in records if record.way != REUSE]).keys() == {"exact", "high fp8"}
    with pytest.raises(ValueError, match="no prompt"):
        bundles([clip(0, EXACT), clip(1, HIGH)])


def test_points_are_of_the_exact_clips_share() -> None:
    records = [clip(index, EXACT, pitch=index > 0) for index in range(4)]
    records += [clip(index, HIGH, pitch=index > 1, timbre=None) for index in range(4)]
    found = bundles(records)
    assert found["exact"].judged["pitch"] == (75.0, 4) and found["exact"].nothing_wrong == 75
    assert found["high fp8"].points["pitch"] == -25 and found["high fp8"].points["presence"] == 0
    assert "timbre" not in found["high fp8"].judged


@pytest.mark.parametrize(
    ("spoilt", "kept"),
    [
        ({}, True),
        ({"ssim": 0.9699}, False),
        ({"sound": 1.01}, False),
        ({"pitch": False}, False),
        ({"presence": False}, False),
        ({"shape": False}, True),
    ],
)
def test_a_level_is_held_to_what_it_promises(spoilt: dict[str, Any], kept: bool) -> None:
    records = [clip(index, EXACT) for index in range(5)] + [
        clip(index, HIGH, **({"ssim": 0.9701} | spoilt)) for index in range(5)
    ]
    found = bundles(records)
    assert found["high fp8"].holds is kept and found["exact"].holds is None


def test_it_is_the_bound_that_is_held_to_it() -> None:
    """The mean would do, and one prompt in five is far below it."""
    far = [0.99, 0.99, 0.99, 0.99, 0.91]
    records = [clip(index, EXACT) for index in range(5)] + [clip(index, HIGH, far[index]) for index in range(5)]
    found = bundles(records)["high fp8"]
    assert found.ssim.mean > 0.97 > found.ssim.bound and found.ssim.worst == 0.91 and found.holds is False


def test_seconds_are_of_a_run_alone_and_of_the_full_size() -> None:
    records = [clip(0, way, forwards=6 if way == HIGH else 12) for way in (EXACT, HIGH)]
    # The first prompt compiles, and one without its exact clip tells nothing.
    alone = [clip(index, EXACT, sampling=seconds) for index, seconds in enumerate((9.0, 2.0, 3.0))]
    alone += [clip(index, HIGH, sampling=seconds) for index, seconds in enumerate((0.1, 1.0, 1.0, 0.1))]
    found = bundles(records, tuple(alone), exact=6.0, **{"high fp8": 4.0})
    assert found["high fp8"].faster == 2.5 and found["high fp8"].full_size == pytest.approx(3.0)
    assert bundles(records)["high fp8"].faster is None and bundles(records)["high fp8"].full_size is None


def test_it_is_told_as_json_a_table_and_a_picture(tmp_path: Path) -> None:
    records = [clip(index, EXACT) for index in range(3)]
    records += [clip(index, HIGH, 0.98, pitch=index > 0) for index in range(3)]
    records += [clip(index, REUSE, 0.99, forwards=8) for index in range(3)]
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    (tmp_path / "ways.json").write_text(json.dumps({name: asdict(way) for name, way in NAMED.items()}))
    assert quality_bundles.main([str(tmp_path)]) == 0
    told = json.loads((tmp_path / "bundles.json").read_text())
    assert [row["name"] for row in told] == ["exact", *NAMED] and told[2]["saved"] == 1.5
    assert read_bundles(tmp_path / "bundles.json") == bundles_of(records, NAMED, [], {})
    text = (tmp_path / "bundles.md").read_text()
    assert "| high fp8 | `fp8` `h3_attn8` | 3 | 12.0 | 1.00x | 0.9800 |" in text and "not kept" in text
    assert "faster here" not in text and "at full size" not in text
    assert "| -33.3 |" in text
    with Image.open(tmp_path / "bundles.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


def test_a_row_of_full_size_has_its_own_column() -> None:
    found = bundles([clip(0, EXACT), clip(0, HIGH)], exact=6.0, **{"high fp8": 4.0})
    rows = [found["exact"], replace(found["high fp8"], name="high")]
    assert "| at full size |" in markdown(rows) and "| 1.50x |" in markdown(rows)
    assert "| high | `fp8` `h3_attn8` | 12.0 | 1.50x | 1.000, 1.000, 1.000 | 0.50, 0.50 | +0.0 | +0.0 |" in brief(rows)
    assert "| exact | `resident_bf16` `sdpa` | 12.0 | 1.00x |" in brief(rows)
