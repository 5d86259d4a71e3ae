"""What named bundles keep and save, beside what their level promises: `quality_bundles.py OUT [--alone FOLDER]`.

    OUT          a folder of `quality.py OUT --way NAME=... ...`: clips, and the names in `ways.json`
    --alone      another one, made by one process that had the device for itself: its seconds count, and nothing else
    --step       NAME=SECONDS, of one forward of H3 at full size with a bundle's backends, measured elsewhere

    OUT/bundles.json    a row for each bundle
    OUT/bundles.md      as two tables: the short one is README's, the other has every item
    OUT/bundles.png     SSIM to the exact clip over what is saved, the levels' promises as lines

All tasks, splits and sizes of the folder count together, by prompts of which every bundle has a clip. A bundle that is
named after a level (`high`, `high int8`) is held to its SSIM and sound by the bounds that `calibrate` asks for: of the
mean, 95 %. Points are those of the judge: share of clips in which an item is right, less the exact clips' share.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.quality_bundles_plot import plot_of
from benchmarks.quality_engines import KEPT as LOADED
from benchmarks.quality_plan import EXACT, Way
from benchmarks.quality_records import Record, Records
from h3runtime.nano.judge import ITEMS
from h3runtime.quality.bounds import lower_bound, upper_bound
from h3runtime.quality.evidence import Figure
from h3runtime.quality.levels import LEVELS, Level

WAYS: Final = "ways.json"
KEPT: Final = 2.0
"""Points of pitch or presence that a level may lose (issue 8)."""
GUARDED: Final = ("pitch", "presence")
Clip = tuple[str, str, int, int, str]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Means over `clips`. ssim, audio_db: to the exact clip; bound, worst on their bad side. judged: share in % by
    item, and how many clips say something of it; points: less the exact clips' share. nothing_wrong: share of clips, %.
    saved: forwards of the exact clips over these. faster: seconds of sampling likewise, median over prompts; None if
    nobody measured it. full_size: 12 exact forwards over these at H3's own size, from seconds a step; likewise. holds:
    whether the level's promise is kept, None of a bundle that isn't named after one."""

    name: str
    way: Way
    clips: int
    forwards: float
    saved: float
    faster: float | None
    full_size: float | None
    ssim: Figure
    audio_db: Figure
    judged: dict[str, tuple[float, int]]
    points: dict[str, float]
    nothing_wrong: float
    holds: bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    named = {name: Way(**told) for name, told in json.loads((given.output / WAYS).read_text()).items()}
    alone = [] if given.alone is None else list(Records(given.alone).read())
    bundles = bundles_of(list(Records(given.output).read()), named, alone, dict(given.step))
    (given.output / "bundles.json").write_text(json.dumps([asdict(each) for each in bundles], indent=1) + "\n")
    (given.output / "bundles.md").write_text(f"{brief(bundles)}\n{markdown(bundles)}")
    (given.output / "bundles.png").write_bytes(plot_of(bundles))
    print(markdown(bundles))
    return 0


def bundles_of(
    records: Sequence[Record], named: Mapping[str, Way], alone: Sequence[Record], steps: Mapping[str, float]
) -> list[Bundle]:
    """The exact one first. Of the last record's checkpoint. ValueError if no prompt has all clips."""
    here = [record for record in records if record.checkpoint == records[-1].checkpoint]
    made = {way: {_clip(record): record for record in here if record.way == way} for way in {EXACT, *named.values()}}
    names = {"exact": EXACT, **{name: way for name, way in named.items() if made[way] and way != EXACT}}
    common = set.intersection(*(set(made[way]) for way in names.values()))
    if not common:
        raise ValueError("no prompt has a clip of every bundle")
    order = sorted(common)
    exact = [made[EXACT][clip] for clip in order]
    faster = {way: _faster(alone, way) for way in names.values()}
    found = []
    for name, way in names.items():
        clips = [made[way][clip] for clip in order]
        one = _bundle(name, way, clips, exact, faster[way])
        found.append(_at_full_size(one, steps))
    return found


def _bundle(name: str, way: Way, clips: Sequence[Record], exact: Sequence[Record], faster: float | None) -> Bundle:
    forwards = sum(clip.figures["forwards"] for clip in clips) / len(clips)
    exact_forwards = sum(clip.figures["forwards"] for clip in exact) / len(exact)
    alike = [1.0 if way == EXACT else clip.figures["exact"]["ssim"] for clip in clips]
    sound = [0.0 if way == EXACT else clip.figures["exact"]["log_mel_db"] for clip in clips]
    ssim = Figure(sum(alike) / len(alike), lower_bound([[x] for x in alike]), min(alike))
    audio_db = Figure(sum(sound) / len(sound), upper_bound([[x] for x in sound]), max(sound))
    judged, truth = _judged(clips), _judged(exact)
    points = {item: share - truth[item][0] for item, (share, _) in judged.items()}
    right = [all(value is not False for value in clip.figures["verdict"].values()) for clip in clips]
    level = LEVELS.get(name.split()[0])
    return Bundle(
        name,
        way,
        len(clips),
        forwards,
        exact_forwards / forwards,
        faster,
        None,
        ssim,
        audio_db,
        judged,
        points,
        100 * sum(right) / len(right),
        None if level is None else _holds(level, ssim, audio_db, points),
    )


def _holds(level: Level, ssim: Figure, audio_db: Figure, points: Mapping[str, float]) -> bool:
    kept = all(points.get(item, 0.0) >= -KEPT for item in GUARDED)
    return ssim.bound >= level.ssim and audio_db.bound <= level.audio_db and kept


def _judged(clips: Sequence[Record]) -> dict[str, tuple[float, int]]:
    columns = {item: [v for clip in clips if (v := clip.figures["verdict"][item]) is not None] for item in ITEMS}
    return {item: (100 * sum(column) / len(column), len(column)) for item, column in columns.items() if column}


def _faster(alone: Sequence[Record], way: Way) -> float | None:
    """Exact seconds of sampling over the way's, prompt by prompt; without the first prompt, which compiles."""
    exact = {_clip(record): record.figures["sampling"] for record in alone if record.way == EXACT}
    taken = {_clip(record): record.figures["sampling"] for record in alone if record.way == way}
    both = [clip for clip in exact if clip in taken][1:]
    return median(exact[clip] / taken[clip] for clip in both) if both else None


def _at_full_size(bundle: Bundle, steps: Mapping[str, float]) -> Bundle:
    if not {"exact", bundle.name} <= steps.keys():
        return bundle
    return replace(bundle, full_size=bundle.saved * steps["exact"] / steps[bundle.name])


def _clip(record: Record) -> Clip:
    return record.task, record.split, record.index, record.seed, record.size.name


def read_bundles(path: Path) -> list[Bundle]:
    """What `main` wrote."""
    return [_read(row) for row in json.loads(path.read_text())]


def _read(row: dict[str, Any]) -> Bundle:
    judged = {item: (share, count) for item, (share, count) in row["judged"].items()}
    figures = {name: Figure(**row[name]) for name in ("ssim", "audio_db")}
    return Bundle(**(row | {"way": Way(**row["way"]), "judged": judged} | figures))


def brief(bundles: Sequence[Bundle]) -> str:
    """What README shows. Time is full size's, exact over these; judged items are shares in %, of the exact clips, and
    points that others are off by."""
    head = ["", "computed by", "forwards", "faster", "SSIM, bound, least", "sound dB, bound"]
    return _table([[*head, *GUARDED, "nothing wrong", "promise"], *(_brief_cells(each) for each in bundles)])


def _brief_cells(each: Bundle) -> list[str]:
    exact = each.way == EXACT
    faster = "" if each.full_size is None else f"{each.full_size:.2f}x"
    ssim = "" if exact else ", ".join(f"{x:.3f}" for x in (each.ssim.mean, each.ssim.bound, each.ssim.worst))
    sound = "" if exact else f"{each.audio_db.mean:.2f}, {each.audio_db.bound:.2f}"
    judged = [*_items(each, GUARDED), f"{each.nothing_wrong:.1f}"]
    return [each.name, _backends(each), f"{each.forwards:.1f}", faster, ssim, sound, *judged, _promise(each)]


def _backends(each: Bundle) -> str:
    """As requests name them. Where a way says `dequant`, weights were decoded once: the same numbers."""
    linear = LOADED if each.way.linear == EXACT.linear else each.way.linear
    return " ".join(f"`{name}`" for name in (linear, each.way.attention, each.way.cache) if name)


def markdown(bundles: Sequence[Bundle]) -> str:
    """All that was measured, one row a bundle."""
    items = [item for item in ITEMS if any(item in each.judged for each in bundles)]
    head = ["bundle", "computed by", "clips", "forwards", "saved", "faster here", "at full size"]
    head += ["SSIM mean", "95 % bound", "least", "sound dB", "95 % bound", "most", "nothing wrong %", *items, "promise"]
    return _table([head, *([*_cells(each), *_items(each, items), _promise(each)] for each in bundles)])


def _table(cells: Sequence[Sequence[str]]) -> str:
    """The first row is the head. Columns that none fills are left out."""
    filled = [column for column in zip(*cells, strict=True) if any(column[1:])]
    lines = list(zip(*filled, strict=True))
    lines.insert(1, ("---",) * len(filled))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cells(each: Bundle) -> list[str]:
    ratios = [f"{each.saved:.2f}x", *("" if x is None else f"{x:.2f}x" for x in (each.faster, each.full_size))]
    ssim = [f"{x:.4f}" for x in (each.ssim.mean, each.ssim.bound, each.ssim.worst)]
    sound = [f"{x:.2f}" for x in (each.audio_db.mean, each.audio_db.bound, each.audio_db.worst)]
    counts = [str(each.clips), f"{each.forwards:.1f}"]
    return [each.name, _backends(each), *counts, *ratios, *ssim, *sound, f"{each.nothing_wrong:.1f}"]


def _items(each: Bundle, items: Iterable[str]) -> list[str]:
    """The exact clips' share, and what others are off by."""
    if each.way == EXACT:
        return [f"{each.judged[item][0]:.1f}" if item in each.judged else "" for item in items]
    return [f"{each.points[item]:+.1f}" if item in each.points else "" for item in items]


def _promise(each: Bundle) -> str:
    return {None: "", True: "kept", False: "not kept"}[each.holds]


def _step(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    return name, float(seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of a run of quality.py with --way")
    parser.add_argument("--alone", type=Path, help="folder of a run by one process alone, for seconds")
    parser.add_argument("--step", nargs="+", type=_step, default=[], metavar="NAME=SECONDS", help="at H3's own size")
    return parser


if __name__ == "__main__":
    sys.exit(main())
