"""What of all candidates an operator wants tried: names of linears, attentions and cache modes.

Takes away, and lets in what a level would not try by itself, such as an attention of 16 bits for `high`; a level's own
rule about leaving out keys stands. What the exact clips were made by stays a candidate of every level where it is
loaded. Fed by the command line; read by `running`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from h3runtime.cli.calibration.search import Candidates
from h3runtime.core import BackendChoice, EngineFacts
from h3runtime.errors import Offence, invalid
from h3runtime.quality.levels import SPARSE, Choice, Level, bases


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Each empty: all that there are. reuse: cache modes, or `none`."""

    linear: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    reuse: tuple[str, ...] = ()

    def judge(self, facts: EngineFacts) -> None:
        """InvalidRequest for what the loaded engine can't do, whatever the level."""
        offences = [
            *_unavailable("try_linear", self.linear, facts.linear),
            *_unavailable("try_attention", self.attention, facts.attention),
        ]
        if offences:
            raise invalid(offences)

    def candidates(self, level: Level, facts: EngineFacts, exact: Choice) -> Candidates:
        """exact: of the exact clips."""
        own = bases(level, facts)
        linears = self.linear or dict.fromkeys(base.linear for base in own)
        named = (name for name in self.attention if name not in SPARSE or name in level.sparse)
        attentions = tuple(named) if self.attention else dict.fromkeys(base.attention for base in own)
        tried = tuple(Choice(attention, linear) for linear, attention in product(linears, attentions))
        reuse = tuple(mode for mode in level.reuse if not self.reuse or mode in self.reuse)
        is_loaded = exact.linear in facts.linear.available and exact.attention in facts.attention.available
        return Candidates(tried, reuse, exact if is_loaded else None)


def _unavailable(field: str, names: tuple[str, ...], known: BackendChoice) -> list[Offence]:
    return [
        Offence(field, f"{name}: {known.unavailable.get(name, 'is not known')}", ", ".join(known.available))
        for name in names
        if name not in known.available
    ]
