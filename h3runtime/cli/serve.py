"""`h3runtime serve`: the resident service."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any, NoReturn

from h3runtime.settings import add_flags, resolve


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="run the service",
        description="Load everything once, then answer POST /generate and GET /ready. Logs are JSON on stdout.",
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Until the server has its own handlers there is nothing to drain: a stop in these seconds ends well all the same.
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _leave)

    from h3runtime.api.serve import serve

    return serve(resolve(vars(arguments), arguments.config))


def _leave(_signal: int, _frame: object) -> NoReturn:
    # Not by an exception, which a module that is half imported may make anything of.
    os._exit(0)
