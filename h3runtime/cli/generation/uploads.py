"""Files of this machine that a request names -> parts that are sent with it. Fed by `submit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3runtime.errors import Offence, invalid


@dataclass(slots=True)
class _Parts:
    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    missing: list[Offence] = field(default_factory=list)

    def name_of(self, path: str, place: str) -> str:
        """One part for each file, however often it is named."""
        file = self.folder / path
        if not file.is_file():
            self.missing.append(Offence(place, f"{file} is not a file", "a file that exists"))
        known = {whole: name for name, whole in self.files.items()}
        name = known.get(file, f"file{len(self.files) + 1}")
        self.files[name] = file
        return name


def with_uploads(request: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The request with `{"upload": PART}` wherever it says `{"path": FILE}`, and the files by part.

    folder: where relative paths begin. `InvalidRequest` for files that aren't there.
    """
    parts = _Parts(folder)
    told = {name: _replaced(value, name, parts) for name, value in request.items()}
    if parts.missing:
        raise invalid(parts.missing)
    return told, parts.files


def _replaced(value: Any, place: str, parts: _Parts) -> Any:
    if isinstance(value, list):
        return [_replaced(item, f"{place}[{index}]", parts) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    told = {name: _replaced(item, f"{place}.{name}", parts) for name, item in value.items() if name != "path"}
    if isinstance(path := value.get("path"), str):
        return {"upload": parts.name_of(path, place), **told}
    return told | ({"path": path} if "path" in value else {})
