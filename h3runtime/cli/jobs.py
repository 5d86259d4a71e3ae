"""`h3runtime jobs [ID]`: the jobs of a server, newest first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from h3runtime.cli.remote import add_server_flags, client_of
from h3runtime.cli.report import print_result
from h3runtime.client import Client, RemoteJob
from h3runtime.errors import Offence, invalid

LIMIT = 20
MOST = 100_000
PAGE = 100
HEADINGS = ("ID", "STATUS", "TASK", "SIZE", "FRAMES", "DONE", "CREATED", "OUTPUT")


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "jobs",
        help="list the jobs of a server",
        description="List jobs, newest first: a table on a terminal, else one line of JSON each. With ID, that job.",
    )
    parser.add_argument("job", nargs="?", metavar="ID", help="Only this one, as JSON.")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"How many at most. Default: {LIMIT}.")
    parser.add_argument("--json", action="store_true", help="Lines of JSON, on a terminal too.")
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit <= MOST:
        raise invalid([Offence("limit", f"{arguments.limit} is out of range", f"1..{MOST}")])
    client = client_of(arguments)
    if arguments.job is not None:
        print_result(client.job(arguments.job).facts, quiet=arguments.quiet)
    elif arguments.json or arguments.quiet or not sys.stdout.isatty():
        for job in _listed(client, arguments.limit):
            print_result(job.facts, quiet=arguments.quiet)
    else:
        print(table_of([_row(job) for job in _listed(client, arguments.limit)]), flush=True)
    return 0


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry."""
    whole = [HEADINGS, *rows]
    widths = [max(len(row[column]) for row in whole) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in whole)


def _listed(client: Client, limit: int) -> Iterator[RemoteJob]:
    after, left, has_more = None, limit, True
    while left and has_more:
        jobs, has_more = client.jobs(min(left, PAGE), after)
        yield from jobs
        left -= len(jobs)
        after = jobs[-1].id if jobs else after
        has_more = has_more and bool(jobs)


def _row(job: RemoteJob) -> tuple[str, ...]:
    facts = job.facts
    size = f"{facts['width']}x{facts['height']}"
    done = f"{job.progress.fraction:.0%}"
    created = str(facts["created_at"])[:19].replace("T", " ")
    return (job.id, job.status, facts["task"], size, str(facts["frames"]), done, created, _plain(facts["output"]))


def _plain(name: str) -> str:
    """Without what would move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in name)
