"""What the commands about a server share: which server, a job followed to its end, its clips fetched.

Fed by `submit`, `watch`, `cancel` and `jobs`; the talking is `h3runtime.client`.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from h3runtime.cli.options import refuse_taken
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result, say
from h3runtime.client import Client, RemoteJob
from h3runtime.client.job import progress_of
from h3runtime.core import Progress, variant_path
from h3runtime.errors import Offence, invalid
from h3runtime.settings import DEFAULT_URL, URL_VARIABLE, remote_server, variable


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"The server. Default: {URL_VARIABLE}, else {DEFAULT_URL}. Its key, if it asks for one, is taken from "
        f"{variable('api_key')}.",
    )
    parser.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")


def add_fetch_flags(parser: argparse.ArgumentParser, overwrite: bool = True) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="Fetch the clip to this file when it is done; of several, FILE-0, FILE-1 before the suffix.",
    )
    if overwrite:
        parser.add_argument("--overwrite", action="store_true", help="Replace an existing file.")


def client_of(arguments: argparse.Namespace) -> Client:
    url, key = remote_server(arguments.url)
    return Client(url, key)


def require_room(output: Path | None, *, overwrite: bool) -> None:
    """Before anything is asked of a server: the file that a clip is to be fetched to can be written."""
    if output is None:
        return
    if not output.absolute().parent.is_dir():
        raise invalid([Offence("output", f"{output.parent} is not a folder", "a folder that exists")])
    refuse_taken(output, overwrite=overwrite)


def followed(client: Client, job_id: str, arguments: argparse.Namespace) -> RemoteJob:
    """The job when it has ended. Who interrupts is told that it goes on."""
    try:
        with ProgressBar(quiet=arguments.quiet, steps=False) as bar:
            for event in client.watch(job_id):
                if event.kind == "progress":
                    bar(progress_of(event.data))
        return client.job(job_id)
    except KeyboardInterrupt:
        told = f" --url {shlex.quote(arguments.url)}" if arguments.url else ""
        say(f"job {job_id} goes on; to stop it: h3runtime cancel{told} {job_id}")
        raise


def tell_end(client: Client, job: RemoteJob, arguments: argparse.Namespace) -> int:
    """Fetch what was asked for, print the job, say why there is no clip. The exit code."""
    facts = dict(job.facts)
    if arguments.output is not None and job.status == "succeeded":
        facts["fetched"] = _fetch(client, job, arguments)
    print_result(facts, quiet=arguments.quiet)
    if job.why_not is not None:
        say(f"error: {' '.join(job.why_not.split())}")
    return 0 if job.status == "succeeded" else 1


def _fetch(client: Client, job: RemoteJob, arguments: argparse.Namespace) -> list[str]:
    count = len(job.outputs)
    files = [variant_path(arguments.output, index, count) for index in range(count)]
    for index, file in enumerate(files):
        with ProgressBar(quiet=arguments.quiet, steps=False) as bar:
            client.download(job.id, file, index, arguments.overwrite, lambda done, whole: bar(_fetching(done, whole)))
    return [str(file) for file in files]


def _fetching(done: int, whole: int) -> Progress:
    return Progress("fetching", fraction=done / max(1, whole))
