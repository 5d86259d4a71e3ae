"""Judged clips as rows: one for each task, split, size, way and schedule, as JSON and as Markdown tables.

Shares are of the clips whose scene says something of an item; `all` is the share of clips in which nothing is wrong.
Distances are means; PSNR is that of the mean square over all clips, so that one equal clip doesn't make it infinite.
Fed with records by `quality`; `quality_plot` draws the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.quality_plan import Schedule, Size, Way
from benchmarks.quality_records import Record
from h3runtime.media.similarity import PEAK, psnr
from h3runtime.nano.judge import ITEMS

MEANS = ("ssim", "log_mel_db", "video_l2", "audio_l2")
Group = tuple[str, str, Size]


@dataclass(frozen=True, slots=True)
class Row:
    """judged: share by item, with how many clips it was judged in; exact, anchor: mean distances, {} for the exact
    way itself. None where there is nothing to take a mean of. sampling: seconds; forwards: evaluations of the model;
    both None for clips of a time when neither was kept. alarms: share of clips in which a check of the engine
    finds anything; checks: the least and the greatest of each of their figures."""

    task: str
    split: str
    size: Size
    way: Way
    schedule: Schedule
    clips: int
    judged: dict[str, tuple[float, int]]
    exact: dict[str, float | None]
    anchor: dict[str, float | None]
    first: float | None
    last: float | None
    seconds: float
    sampling: float | None
    forwards: float | None
    alarms: float
    checks: dict[str, tuple[float, float]]

    @property
    def group(self) -> Group:
        return self.task, self.split, self.size


def rows_of(records: Iterable[Record]) -> list[Row]:
    """In the order of their first clips."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.split, record.size, record.way, record.schedule), []).append(record)
    return [_row(same) for same in groups.values()]


def _row(records: Sequence[Record]) -> Row:
    one, figures = records[0], [record.figures for record in records]
    return Row(
        one.task,
        one.split,
        one.size,
        one.way,
        one.schedule,
        len(records),
        _judged([each["verdict"] for each in figures]),
        _distances([each["exact"] for each in figures]),
        _distances([each["anchor"] for each in figures]),
        _mean([each["first"] for each in figures]),
        _mean([each["last"] for each in figures]),
        _mean([each["seconds"] for each in figures]) or 0.0,
        _mean([each.get("sampling") for each in figures]),
        _mean([each.get("forwards") for each in figures]),
        sum(bool(each["alarms"]) for each in figures) / len(figures),
        _spans([each["checks"] for each in figures]),
    )


def _spans(found: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(name for each in found for name in each)
    columns = {name: [each[name] for each in found if name in each] for name in names}
    return {name: (min(column), max(column)) for name, column in columns.items()}


def _judged(verdicts: Sequence[dict[str, bool | None]]) -> dict[str, tuple[float, int]]:
    columns = {item: [v[item] for v in verdicts if v[item] is not None] for item in ITEMS}
    columns["all"] = [all(value is not False for value in verdict.values()) for verdict in verdicts]
    return {item: (sum(map(bool, column)) / len(column), len(column)) for item, column in columns.items() if column}


def _distances(found: Sequence[dict[str, float | None] | None]) -> dict[str, float | None]:
    given = [each for each in found if each is not None]
    if not given:
        return {}
    squares = [0.0 if each["psnr"] is None else PEAK**2 / 10 ** (each["psnr"] / 10) for each in given]
    means = {name: _mean([each[name] for each in given]) for name in MEANS}
    return means | {"psnr": psnr(sum(squares) / len(squares))}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def markdown(rows: Sequence[Row]) -> str:
    """A table for each task, split and size."""
    parts = []
    for group in dict.fromkeys(row.group for row in rows):
        same = [row for row in rows if row.group == group]
        task, split, size = group
        parts.append(f"### {task}, {split}, {size.name}\n\n{_table(same)}")
    return "\n\n".join(parts) + "\n"


Column = tuple[str, Callable[[Row], str]]


def _table(rows: Sequence[Row]) -> str:
    columns = [column for column in _columns() if _tells(column, rows)]
    head = [[name for name, _ in columns], ["---"] * len(columns)]
    lines = head + [[text(row) for _, text in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _tells(column: Column, rows: Sequence[Row]) -> bool:
    """A backend that all rows share is in none of them."""
    found = {column[1](row) for row in rows}
    return found != {""} and (len(found) > 1 or column[0] not in ("linear", "attention"))


def _columns() -> list[Column]:
    def share(item: str) -> Column:
        return item, lambda row: f"{100 * row.judged[item][0]:.1f}" if item in row.judged else ""

    def figure(title: str, of: Callable[[Row], dict[str, float | None]], name: str, digits: int) -> Column:
        return title, lambda row: _number(of(row).get(name), digits) if of(row) else ""

    def exact(row: Row) -> dict[str, float | None]:
        return row.exact

    def anchor(row: Row) -> dict[str, float | None]:
        return row.anchor

    return [
        ("format", lambda row: row.way.format),
        ("linear", lambda row: row.way.linear),
        ("attention", lambda row: row.way.attention),
        ("reuse", lambda row: row.way.cache),
        ("schedule", lambda row: row.schedule.name),
        ("clips", lambda row: str(row.clips)),
        *(share(item) for item in ("all", *ITEMS)),
        ("first SSIM", lambda row: _number(row.first, 3) if row.first is not None else ""),
        ("last SSIM", lambda row: _number(row.last, 3) if row.last is not None else ""),
        figure("SSIM", exact, "ssim", 4),
        figure("PSNR", exact, "psnr", 1),
        figure("log-mel dB", exact, "log_mel_db", 2),
        figure("video L2", exact, "video_l2", 4),
        figure("audio L2", exact, "audio_l2", 4),
        figure("anchor SSIM", anchor, "ssim", 4),
        figure("anchor log-mel dB", anchor, "log_mel_db", 2),
        ("alarms", lambda row: f"{100 * row.alarms:.1f}"),
        ("forwards", lambda row: "" if row.forwards is None else f"{row.forwards:.1f}"),
        ("sampling s", lambda row: "" if row.sampling is None else f"{row.sampling:.2f}"),
        ("s/clip", lambda row: f"{row.seconds:.2f}"),
    ]


def _number(value: float | None, digits: int) -> str:
    return "∞" if value is None else f"{value:.{digits}f}"
