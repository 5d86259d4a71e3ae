"""The child process that opens media for `examine`: `python -m h3runtime.media.intake.examiner`.

Reads one line of JSON on stdin, answers on stdout as `examine` says, imports no torch. It bounds itself before it opens
anything: address space, processor time, no core files, no files written. When its stdin ends nobody waits for it any
more, and it ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from h3runtime.errors import BadMedia
from h3runtime.media.intake.examine import Ask, Limits
from h3runtime.media.intake.full_measure import verified
from h3runtime.media.intake.packet_measure import measured

CPU_SECONDS_PER_WALL_SECOND = 4
"""Decoders use several cores; the parent's deadline comes first as long as there is a parent."""


def main() -> None:
    """Until every ask is answered."""
    say({"ready": True})
    request = json.loads(sys.stdin.buffer.readline())
    limits = Limits(**request["limits"])
    asks = [Ask(Path(ask["path"]), ask["field"], ask["kind"]) for ask in request["asks"]]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _bound(asks, limits)
    for ask in asks:
        say(answer(ask, is_full=request["way"] == "verify", limits=limits))


def answer(ask: Ask, *, is_full: bool, limits: Limits) -> Mapping[str, Any]:
    """What to say about one medium. Says its length on the way."""
    try:
        told = measured(ask, limits)
        say({"seconds": max(part.seconds for part in (told.clip, told.sound) if part is not None)})
        return dataclasses.asdict(verified(ask, told, limits) if is_full else told)
    except BadMedia as error:
        return {"bad": error.offences[0].message}
    except MemoryError:
        return {"bad": "it takes more memory than one medium may"}
    except Exception:
        # Demuxers and decoders of every kind, fed by a stranger: whatever they raise is the file's fault.
        return {"bad": "it is damaged"}


def say(words: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _bound(asks: Sequence[Ask], limits: Limits) -> None:
    seconds = int(limits.wall(limits.verify_seconds) * max(1, len(asks))) * CPU_SECONDS_PER_WALL_SECOND
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
