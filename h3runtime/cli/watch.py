"""`h3runtime watch ID`: a job's progress until it has ended."""

from __future__ import annotations

import argparse
from typing import Any

from h3runtime.cli.remote import add_fetch_flags, add_server_flags, client_of, followed, require_room, tell_end
from h3runtime.cli.stopping import Stopping


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "watch",
        help="show a job of a server until it has ended",
        description="Show a job's progress, through restarts of the server, and print it as one line of JSON when it "
        "has ended. Exit code 0 if it made a clip, else 1.",
    )
    parser.add_argument("job", metavar="ID", help="As `submit` printed it.")
    add_fetch_flags(parser)
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    require_room(arguments.output, overwrite=arguments.overwrite)
    client = client_of(arguments)
    with Stopping():
        return tell_end(client, followed(client, arguments.job, arguments), arguments)
