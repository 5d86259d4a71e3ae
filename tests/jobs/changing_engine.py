"""A fake engine whose checkpoint is another after a restart; engine processes import it, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from h3runtime.core import EngineFacts
from tests.fake_engine import FakeEngine


@dataclass
class ChangingEngine(FakeEngine):
    """Says of its checkpoint whatever the file holds when it is loaded."""

    file: Path = Path()

    def facts(self) -> EngineFacts:
        return replace(super().facts(), checkpoint=self.file.read_text())


def create(file: Path, load_seconds: float = 0.0) -> ChangingEngine:
    return ChangingEngine(file=file, load_seconds=load_seconds)
