"""`h3runtime serve`: the resident service."""

from __future__ import annotations

import argparse
from typing import Any

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
    from h3runtime.api.serve import serve

    return serve(resolve(vars(arguments), arguments.config))
