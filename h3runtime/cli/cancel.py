"""`h3runtime cancel ID...`: stop jobs of a server, and on request remove them with their files."""

from __future__ import annotations

import argparse
from typing import Any

from h3runtime.cli.remote import add_server_flags, client_of
from h3runtime.cli.report import print_error, print_result
from h3runtime.client import Refused


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "cancel",
        help="stop jobs of a server",
        description="Stop jobs at their next step, or take them out of the line; jobs that have ended stay as they "
        "are. Prints each as one line of JSON. Exit code 1 if the server knows one of them not.",
    )
    parser.add_argument("jobs", nargs="+", metavar="ID", help="As `submit` printed it.")
    parser.add_argument("--delete", action="store_true", help="Also remove the jobs and all their files, clips too.")
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    client = client_of(arguments)
    stop = client.delete if arguments.delete else client.cancel
    refused: list[Refused] = []
    for job_id in arguments.jobs:
        try:
            print_result(stop(job_id).facts, quiet=arguments.quiet)
        except Refused as error:
            refused.append(error)
    if refused:
        print_error(refused[0])
    return 1 if refused else 0
