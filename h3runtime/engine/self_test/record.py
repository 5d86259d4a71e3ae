"""What passed on this machine before: a file for each identity, so that a restart asks nothing again.

Only what passed is believed, and a check that took the device down; what failed is asked again at every start, since
its reason may have gone. A file that is broken or of another shape counts as none, as does a folder that can't be
written. Fed and read by `proving`.

    {"identity": {...}, "passed": {CHECK: [error, seconds]}, "lost": {CHECK: what the library said}}
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from h3runtime.core import KernelCheck
from h3runtime.engine.self_test.check import Check

FOLDER: Final = "self-test"


class Record:
    """cache_dir: None keeps nothing. identity: of what the answers depend on, plain values."""

    def __init__(self, cache_dir: Path | None, identity: Mapping[str, Any]) -> None:
        self._identity = dict(identity)
        told = json.dumps(self._identity, sort_keys=True)
        name = f"{sha256(told.encode()).hexdigest()[:16]}.json"
        self.path = None if cache_dir is None else cache_dir / FOLDER / name
        self._passed, self._lost = self._read()

    @property
    def told(self) -> str:
        """The file within the cache folder: anybody may ask `/ready`. "" where nothing is kept."""
        return "" if self.path is None else f"{FOLDER}/{self.path.name}"

    def known(self, check: Check) -> KernelCheck | None:
        """What is known of `check` without asking it."""
        if (told := self._lost.get(check.name)) is not None:
            again = f"remove {self.told} of the cache folder to ask it again"
            reason = f"it took the device down at an earlier start ({told}); {again}"
            return KernelCheck(check.family, check.kernel, check.asked, None, check.tolerance, 0.0, reason)
        if (found := self._passed.get(check.name)) is None:
            return None
        error, seconds = found
        if not error <= check.tolerance:
            return None
        made = KernelCheck(check.family, check.kernel, check.asked, error, check.tolerance, seconds)
        return replace(made, cached=True)

    def passed(self, check: Check, made: KernelCheck) -> None:
        assert made.error is not None
        self._passed[check.name] = made.error, made.seconds

    def lost(self, check: Check, told: str) -> None:
        """Written at once: this process may not live to do it later."""
        self._lost[check.name] = told
        self.write()

    def write(self) -> None:
        """The whole file anew, under its name once it is complete; nothing where it can't be."""
        if self.path is None:
            return
        whole = {"identity": self._identity, "passed": self._passed, "lost": self._lost}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
                json.dump(whole, file)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)
        except OSError:
            return

    def _read(self) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
        try:
            whole = json.loads(self.path.read_text()) if self.path is not None else {}
            if whole["identity"] != json.loads(json.dumps(self._identity)):
                return {}, {}
            passed = {str(name): (float(error), float(seconds)) for name, (error, seconds) in whole["passed"].items()}
            return passed, {str(name): str(told) for name, told in whole["lost"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}, {}
