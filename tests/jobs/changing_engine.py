"""A fake engine whose checkpoint is another after a restart; engine processes import it, so it imports little."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from h3runtime.core import EngineFacts, OnProgress
from tests.fake_engine import FakeEngine


@dataclass
class ChangingEngine(FakeEngine):
    """Says of its checkpoint whatever the file holds when it is loaded; until the file is there, it loads."""

    file: Path = Path()

    def load(self, on_progress: OnProgress) -> None:
        while not self.file.exists():
            time.sleep(0.01)
        super().load(on_progress)

    def facts(self) -> EngineFacts:
        return replace(super().facts(), checkpoint=self.file.read_text())


def create(file: Path) -> ChangingEngine:
    return ChangingEngine(file=file)
