"""The lines that README tells an operator to type, and each of them as far as a machine without Docker can take it.

    git clone ...                          from this checkout
    docker compose ... run ... shell -c    the command itself, in the image's environment; `> FILE` as the shell has it
    docker compose ... up                  the server, with the settings that compose gives it
    everything else                        as it stands, in the folder of the clone, by the server's own port

Fed by `replay_image` and the tests of README. Knows nothing of how the environment was made.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

yaml: Any = import_module("yaml")
"""It has no types."""
ROOT: Final = Path(__file__).resolve().parents[1]
SPARK: Final = "On a DGX Spark"
PORT: Final = "8001"
LISTING: Final = "h3runtime models"
"""Ends with 1 where files are missing, as the published ones are here; then a server has the embedded model."""


class Inside(Protocol):
    """The image's environment, see `replay_image.Replay`."""

    root: Path
    environment: dict[str, str]

    def run(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        outside: bool = False,
    ) -> str: ...

    def inside(self, text: str) -> str: ...


Start = Callable[[Mapping[str, str]], Any]
"""Starts a server with further settings, and waits until it is healthy."""


@dataclass(frozen=True, slots=True)
class Line:
    """text: without its comment."""

    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def is_compose(self) -> bool:
        return self.words[:2] == ["docker", "compose"]

    @property
    def command_inside(self) -> str | None:
        """What it runs in the image's shell."""
        words = self.words
        return words[words.index("-c") + 1] if self.is_compose and "run" in words and "-c" in words else None

    @property
    def writes(self) -> str | None:
        """The file that its output goes to."""
        words = self.words
        return words[words.index(">") + 1] if ">" in words else None

    @property
    def starts_a_server(self) -> bool:
        return self.is_compose and "up" in self.words

    def replay(self, work: Inside, there: Path, start: Start) -> str:
        """What it said. there: an empty folder at first, the clone afterwards is `h3runtime` below it."""
        clone = there / "h3runtime"
        name = f"readme: {self.text[:60]}"
        if self.text.startswith("git clone "):
            cloned = re.sub(r"^git clone \S+", f"git clone -q {shlex.quote(str(ROOT))}", self.text)
            return work.run(name, ["bash", "-euc", cloned], there, outside=True)
        if (command := self.command_inside) is not None:
            allowed = " || test $? -eq 1" if LISTING in command else ""
            said = work.run(name, ["bash", "-euc", work.inside(command) + allowed], clone)
            if self.writes is not None:
                (clone / self.writes).write_text(f"{said}\n" if said else "")
            return said
        if self.starts_a_server:
            start({key: work.inside(value) for key, value in settings_of(clone).items()})
            return "healthy"
        here = self.text.replace(f"localhost:{PORT}", f"localhost:{work.environment['H3_PORT']}")
        return work.run(name, ["bash", "-euc", here], clone, outside=True)


def lines_of(heading: str) -> list[Line]:
    """Of the first fenced block below that heading of README."""
    section = (ROOT / "README.md").read_text().split(f"\n## {heading}\n", 1)[1]
    found = re.search(r"```[a-z]*\n(.*?)```", section, re.DOTALL)
    assert found is not None, f"no fenced block below {heading}"
    lines = (re.sub(r"\s+# .*$", "", line).strip() for line in found[1].splitlines())
    return [Line(line) for line in lines if line and not line.startswith("#")]


def settings_of(folder: Path) -> dict[str, str]:
    """`H3_*` lines that compose hands to the server from the files in `folder`, later ones winning."""
    service = yaml.safe_load((folder / "compose.spark.yml").read_text())["services"]["h3-hot-runtime"]
    found: dict[str, str] = {}
    for each in service["env_file"]:
        path = folder / re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", each["path"])
        if path.is_file():
            lines = (line.partition("=") for line in path.read_text().splitlines() if re.match(r"H3_\w+=", line))
            found |= {name: shlex.split(value)[0] if value else "" for name, _, value in lines}
        elif each.get("required", True):
            raise FileNotFoundError(path)
    return found
