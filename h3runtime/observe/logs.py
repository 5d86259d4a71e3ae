"""Log lines: one JSON object a line, whoever writes them: structlog, stdlib logging, uvicorn, warnings.

Does: set up the process's logging once, when `configure` is called; keeps prompts and keys out. Does not: choose what
is logged, or touch standard output when told to write elsewhere. `sinks` does the writing.
Fed by: the command line and the engine process, each at its start. Read by: operators and their collectors.

A line holds `time` (RFC 3339, UTC), `level`, `event`, `logger`, then what the caller gave and what is bound to the
context (`request_id`, `job_id`); a traceback is the text `exception`. For stdlib records `event` is the message.

Prompts and keys: names that `private` knows are dropped or blotted out at any depth, an object that is no plain value
shows its type only, since its `repr` could hold a prompt (`GenerateSpec` does), and texts, an exception's included, are
blotted where they hold what was declared private. The one line that shows a prompt is `log_prompt`'s, at debug level,
and only if the operator asked for it.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from h3runtime.observe import private, sinks

LEVELS = ("debug", "info", "warning", "error", "critical")
FIRST = ("time", "level", "event", "logger")
NAME = re.compile("[a-z0-9_]{1,40}")
FILE_BYTES = 64 * 1024 * 1024
FILE_COUNT = 5
"""A log file is rotated at 64 MiB and five old ones are kept: a week of a busy server in 384 MiB."""
FOREIGN = ("uvicorn", "uvicorn.error", "uvicorn.access", "py.warnings")
"""Loggers that bring handlers of their own; theirs are removed, so that every line goes through ours."""

PROMPTS = "h3runtime.prompts"
"""The logger of `log_prompt`; the only one that is ever let down to debug, where libraries would tell headers."""

Target = Literal["stdout", "stderr"]


def configure(
    target: Target | TextIO = "stderr",
    *,
    level: str = "info",
    file: Path | None = None,
    prompts: bool = False,
    secrets: Iterable[str] = (),
) -> None:
    """Send all logging of this process to `target` and, if given, to `file`, which is rotated.

    prompts: whether `log_prompt` writes. secrets: texts that no line may show. May be called again; the last call wins.
    Raises ValueError for an unknown level, OSError for a file that can't be opened.
    """
    if level.lower() not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    handlers: list[logging.Handler] = [sinks.Stream(_stream(target))]
    if file is not None:
        handlers.append(sinks.Rotated(file, FILE_BYTES, FILE_COUNT))
    _install(handlers, level.upper(), tuple(secrets))
    logging.getLogger(PROMPTS).setLevel("DEBUG" if prompts else "CRITICAL")
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_shared(), ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # A cached logger would keep an earlier call's processors.
        cache_logger_on_first_use=False,
    )


def log_prompt(job_id: str, prompt: str) -> None:
    """The assembled text of a job, at debug level, if the operator asked for prompts."""
    # Asked here, since a process that has configured no logging would print it.
    if logging.getLogger(PROMPTS).isEnabledFor(logging.DEBUG):
        structlog.get_logger(PROMPTS).debug("prompt", job_id=job_id, text=prompt)


def _install(handlers: list[logging.Handler], level: str, secrets: tuple[str, ...]) -> None:
    """Our handlers on the root logger and none anywhere else."""

    def write(logger: WrappedLogger, method: str, event: EventDict) -> str:
        return render(logger, method, event, secrets)

    formatter = ProcessorFormatter(
        foreign_pre_chain=[*_shared(), _time_of_record],
        processors=[ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, write],
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        if getattr(old, "h3_owned", False):
            old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.h3_owned = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(level)
    for name in FOREIGN:
        foreign = logging.getLogger(name)
        foreign.handlers.clear()
        foreign.propagate = True


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]


def _time_of_record(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """When it was written by whoever wrote it, not when one of several handlers got to it."""
    created = datetime.fromtimestamp(event["_record"].created, UTC)
    return {**event, "time": created.isoformat(timespec="microseconds").replace("+00:00", "Z")}


def render(_logger: WrappedLogger, _method: str, event: EventDict, secrets: tuple[str, ...] = ()) -> str:
    """One line of strict JSON, ASCII, so that no character in it can pass for a line's end."""
    if event.get("logger") != PROMPTS:
        return _line(event, secrets)
    # What was declared private is what this line is for; keys stay out of it.
    with private.privacy():
        return _line(event, secrets)


def _line(event: EventDict, secrets: tuple[str, ...]) -> str:
    plain = _members(event, secrets)
    # The name of an event of ours is no text, whatever a prompt says.
    if isinstance(name := event.get("event"), str) and NAME.fullmatch(name):
        plain["event"] = name
    ordered = {key: plain.pop(key) for key in FIRST if key in plain} | plain
    return json.dumps(ordered, allow_nan=False)


def _members(values: Mapping[Any, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    return {
        str(name): private.BLOT if _opens_doors(name, value) else _plain(value, secrets)
        for name, value in values.items()
        if name not in private.CLIENTS
    }


def _opens_doors(name: Any, value: Any) -> bool:
    """A figure never does: `text_tokens` counts."""
    return not (value is None or isinstance(value, int | float)) and private.SECRET.search(str(name)) is not None


def _plain(value: Any, secrets: tuple[str, ...]) -> Any:
    """Only what JSON knows. Numbers that it doesn't know become words; objects become the name of their type."""
    if value is None or isinstance(value, bool | int):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, str):
        return private.blotted(str(value.value if isinstance(value, Enum) else value), secrets)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return _members(value, secrets)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry, secrets) for entry in value]
    if isinstance(value, PurePath | date):
        return private.blotted(str(value), secrets)
    return f"<{type(value).__name__}>"


def _stream(target: Target | TextIO) -> TextIO:
    if target == "stdout":
        return sys.stdout
    if target == "stderr":
        return sys.stderr
    assert not isinstance(target, str), target
    return target
