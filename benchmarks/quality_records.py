"""Clips that were judged, a JSON line each, so that a run can be stopped at any time and taken up where it was.

A folder holds files `clips*.jsonl`; each process that runs appends to one of its own, all are read. A line says of
which checkpoint it is; those of another one count for nothing. Fed and read by `quality`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality_plan import Schedule, Size, Way
from benchmarks.quality_prompts import Prompt

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One clip: which, and its figures as `quality_measures` gives them."""

    checkpoint: str
    device: str
    task: str
    split: str
    index: int
    seed: int
    size: Size
    way: Way
    schedule: Schedule
    caption: str
    figures: dict[str, Any]

    @property
    def key(self) -> Key:
        base = key_of(self.checkpoint, self.device, self.task, self.split, self.index, self.seed, self.size)
        return (*base, self.way.name, self.schedule.name)


def key_of(checkpoint: str, device: str, task: str, split: str, index: int, seed: int, size: Size) -> Key:
    return checkpoint, device, task, split, str(index), str(seed), size.name


class Records:
    """part: names the file that is written to."""

    def __init__(self, folder: Path, part: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._path = folder, folder / f"clips{part}.jsonl"
        self.done = {record.key for record in self.read()}
        self._end_line()

    def read(self) -> Iterator[Record]:
        """All of the folder. A line that was cut off by a crash is no record."""
        for path in sorted(self._folder.glob("clips*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    told = json.loads(line)
                except ValueError:
                    continue
                nested = {"size": Size(**told["size"]), "way": Way(**told["way"])}
                yield Record(**(told | nested | {"schedule": Schedule(**told["schedule"])}))

    def _end_line(self) -> None:
        """What is written next must not be part of a line that was cut off."""
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def add(self, record: Record) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        self.done.add(record.key)


def record_of(
    prompt: Prompt,
    size: Size,
    seed: int,
    way: Way,
    schedule: Schedule,
    origin: tuple[str, str],
    figures: dict[str, Any],
) -> Record:
    """origin: checkpoint and device."""
    checkpoint, device = origin
    return Record(
        checkpoint, device, prompt.task, prompt.split, prompt.index, seed, size, way, schedule, prompt.caption, figures
    )
