"""Fuzz a server by its own OpenAPI: schemathesis with every check and stateful links, against the fake engine.

    python -m benchmarks.fuzz                     2,000 examples a route, as the issue asks
    python -m benchmarks.fuzz --examples 30       a quick look, which CI takes too

The exit code is schemathesis' own: 0 if it found nothing. With one seed the same requests are sent each time. One check
is told what our schema can't say: where fields contradict each other the answer is 422, so that counts as taken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from tests.api.server import running

EXAMPLES = 2000
SEED = 20261130
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "404", "405", "409", "410", "415", "416", "422", "503"]
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="For each route. Default: %(default)s.")
    parser.add_argument("--seed", type=int, default=SEED, help="Default: %(default)s.")
    parser.add_argument("--workers", type=int, default=1, help="Requests at once. Default: %(default)s.")
    parser.add_argument("--url", help="Of a server that runs. Default: one with the fake engine, for this run.")
    parser.add_argument("more", nargs="*", help="Passed to schemathesis, after --.")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="h3-fuzz-") as folder, served(chosen.url, Path(folder)) as url:
        code = fuzz(url, Path(folder), chosen.examples, chosen.seed, chosen.workers, chosen.more)
    print(f"{chosen.examples} examples a route, seed {chosen.seed}: exit code {code}, {time.monotonic() - began:.0f} s")
    return code


def fuzz(url: str, folder: Path, examples: int, seed: int, workers: int = 1, more: list[str] | None = None) -> int:
    """schemathesis' exit code; its report goes to stdout."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    program = Path(sysconfig.get_path("scripts")) / "schemathesis"
    options = {"--checks": "all", "--max-examples": examples, "--seed": seed, "--workers": workers}
    told = [str(word) for pair in options.items() for word in pair]
    command = [str(program), "--config-file", str(config), "run", f"{url}/openapi.json", *told]
    plain = os.environ | {"NO_COLOR": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    rest = ["--request-timeout", "30", "--suppress-health-check", "all", *(more or [])]
    return subprocess.run([*command, *rest], cwd=folder, env=plain).returncode


@contextmanager
def served(url: str | None, folder: Path) -> Iterator[str]:
    """The server of `url`, or one that ends with the block."""
    if url is not None:
        yield url
        return
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    with running(folder / "data", queue_limit=100_000) as server:
        yield server.url


if __name__ == "__main__":
    sys.exit(main())
