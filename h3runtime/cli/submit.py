"""`h3runtime submit`: a request to a server, with the flags of `generate` and the files that they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from uuid import uuid4

from h3runtime.cli.generation.entries import asked_of
from h3runtime.cli.generation.flags import add_request_flags
from h3runtime.cli.generation.uploads import with_uploads
from h3runtime.cli.options import add_encoder_flags
from h3runtime.cli.remote import add_fetch_flags, add_server_flags, client_of, followed, require_room, tell_end
from h3runtime.cli.report import print_result
from h3runtime.cli.stopping import Stopping
from h3runtime.errors import Offence, invalid


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "submit",
        help="send a request to a server",
        description="Send a request to a server, with the files that it names, and print the job as one line of JSON: "
        "at once, or with --wait or --output when it has ended.",
    )
    parser.add_argument(
        "request",
        type=Path,
        nargs="?",
        metavar="REQUEST.json",
        help="A request as POST /generate takes it; its paths begin in the file's folder, and the files are uploaded. "
        "Flags are the defaults of what it leaves out.",
    )
    add_request_flags(parser)
    add_encoder_flags(parser)
    add_fetch_flags(parser, overwrite=False)
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--wait", "--watch", action="store_true", help="Show its progress until it has ended. --output does so too."
    )
    way.add_argument("--estimate", action="store_true", help="Only ask what it would take, and whether it is taken.")
    parser.add_argument(
        "--idempotency-key", metavar="KEY", help="The same key and request again is the same job. Default: a new one."
    )
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request, uploads = _asked(arguments)
    require_room(arguments.output, overwrite=arguments.overwrite)
    client = client_of(arguments)
    with Stopping():
        if arguments.estimate:
            print_result(client.estimate(request, uploads), quiet=arguments.quiet)
            return 0
        key = arguments.idempotency_key or uuid4().hex
        job = client.submit(request, uploads, idempotency_key=key)
        if not (arguments.wait or arguments.output):
            print_result(job.facts, quiet=arguments.quiet)
            return 0
        return tell_end(client, followed(client, job.id, arguments), arguments)


def _asked(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Path]]:
    """The request and its uploads. --overwrite is about the file that is fetched, not about the server's."""
    asked = asked_of(argparse.Namespace(**{**vars(arguments), "overwrite": False}))
    if asked.is_chain:
        told = "is a list, which only `generate` makes one clip of"
        raise invalid([Offence("request", told, "one request")])
    return with_uploads(asked.requests[0], asked.folder)
