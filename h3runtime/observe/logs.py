"""Log lines: one JSON object a line, whoever writes them: structlog, stdlib logging, uvicorn, warnings.

Does: set up the process's logging once, when `configure` is called; keeps prompts out. Does not: choose what is logged,
or touch standard output when told to write elsewhere.
Fed by: the command line and the engine process, each at its start. Read by: operators and their collectors.

A line holds `time` (RFC 3339, UTC), `level`, `event`, `logger`, then what the caller gave and what is bound to the
context (`request_id`, `job_id`); a traceback is the text `exception`. For stdlib records `event` is the message.

Prompts: the keys in `PRIVATE` are dropped at any depth, and an object that is no plain value shows its type only, since
its `repr` could hold a prompt (`GenerateSpec` does).
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import math
import sys
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

PRIVATE = frozenset({"prompt", "negative_prompt", "request", "body"})
"""Keys whose values may hold a client's own words."""
LEVELS = ("debug", "info", "warning", "error", "critical")
FIRST = ("time", "level", "event", "logger")
FILE_BYTES = 64 * 1024 * 1024
FILE_COUNT = 5
"""A log file is rotated at 64 MiB and five old ones are kept: a week of a busy server in 384 MiB."""
FOREIGN = ("uvicorn", "uvicorn.error", "uvicorn.access", "py.warnings")
"""Loggers that bring handlers of their own; theirs are removed, so that every line goes through ours."""

Target = Literal["stdout", "stderr"]


def configure(target: Target | TextIO = "stderr", *, level: str = "info", file: PurePath | None = None) -> None:
    """Send all logging of this process to `target` and, if given, to `file` (one process a file: it is rotated).

    May be called again; the last call wins. Raises ValueError for an unknown level, OSError for a file that can't be
    opened.
    """
    if level.lower() not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    handlers: list[logging.Handler] = [logging.StreamHandler(_stream(target))]
    if file is not None:
        handlers.append(_rotating(file))
    _install(handlers, level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_shared(), ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # A cached logger would keep an earlier call's processors.
        cache_logger_on_first_use=False,
    )


def _install(handlers: list[logging.Handler], level: str) -> None:
    """Our handlers on the root logger and none anywhere else."""
    formatter = ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, render],
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


def render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """One line of strict JSON, ASCII, so that no character in it can pass for a line's end."""
    plain = {key: _plain(value) for key, value in event.items() if key not in PRIVATE}
    ordered = {key: plain.pop(key) for key in FIRST if key in plain} | plain
    return json.dumps(ordered, allow_nan=False)


def _plain(value: Any) -> Any:
    """Only what JSON knows. Numbers that it doesn't know become words; objects become the name of their type."""
    if value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items() if key not in PRIVATE}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if isinstance(value, PurePath | date):
        return str(value)
    return f"<{type(value).__name__}>"


def _stream(target: Target | TextIO) -> TextIO:
    if target == "stdout":
        return sys.stdout
    if target == "stderr":
        return sys.stderr
    assert not isinstance(target, str), target
    return target


def _rotating(file: PurePath) -> logging.Handler:
    return logging.handlers.RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILE_COUNT, encoding="utf-8")
