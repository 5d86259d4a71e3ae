"""A Dockerfile as a list of instructions, as much of the language as ours uses: comments, continued lines, variables.

Fed by `replay_image` and the tests of the container's files. Runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """word: upper case. text: the rest on one line, variables as they stand."""

    word: str
    text: str

    def filled(self, values: Mapping[str, str]) -> str:
        """Variables that `values` has are put in; others, the shell's own, stay."""
        return VARIABLE.sub(lambda found: values.get(found[1], found[0]), self.text)


def read_dockerfile(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    found = (line.split(maxsplit=1) for line in whole.splitlines() if line.strip())
    return [Instruction(word.upper(), " ".join(rest[0].split()) if rest else "") for word, *rest in found]


def arguments_of(instructions: list[Instruction]) -> dict[str, str]:
    """Build arguments and their defaults."""
    return dict(i.text.partition("=")[::2] for i in instructions if i.word == "ARG")


def environment_of(instructions: list[Instruction]) -> dict[str, str]:
    """What `ENV` sets, with arguments put in."""
    values = arguments_of(instructions)
    found: dict[str, str] = {}
    for instruction in instructions:
        if instruction.word == "ENV":
            found |= dict(pair.partition("=")[::2] for pair in instruction.filled(values).split())
    return found


def health_command(instructions: list[Instruction]) -> list[str]:
    """The command of `HEALTHCHECK`, which ours writes as a list."""
    (text,) = (i.text for i in instructions if i.word == "HEALTHCHECK")
    command: list[str] = json.loads(text.partition("CMD ")[2])
    return command
