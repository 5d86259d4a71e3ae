"""`faults.py --times 20`: everything that `tests/faults` does to a server, as often as asked, with a count of losses.

Prints a line of JSON a case and run, then one for all: runs, failures, lost jobs, doubled jobs, left processes, left
files, seconds. The exit code is 1 if anything failed. Needs root for the cases with a small disk; they are told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.cases import families
from tests.faults.running import Outcome, run_family

TOLD = 2000
"""Characters of an error that are worth a line."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2, help="families of cases that run side by side")
    parser.add_argument("--families", default=",".join(families()), help="comma-separated; all unless said")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="h3-faults-") as folder, ThreadPoolExecutor(asked.at_once) as pool:
        runs = [(name, number) for number in range(asked.times) for name in asked.families.split(",")]
        outcomes = [o for found in pool.map(lambda run: _run(run[0], run[1], Path(folder)), runs) for o in found]
    summary = {
        "runs": len(outcomes),
        "cases": len({outcome.case for outcome in outcomes}),
        "failures": sum(outcome.failed for outcome in outcomes),
        "skipped": sum(bool(outcome.skipped) for outcome in outcomes),
        "lost_jobs": sum(len(outcome.findings.lost) for outcome in outcomes),
        "doubled_jobs": sum(len(outcome.findings.doubled) for outcome in outcomes),
        "left_processes": sum(len(outcome.findings.processes) for outcome in outcomes),
        "left_files": sum(len(outcome.findings.files) for outcome in outcomes),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary), flush=True)
    return int(summary["failures"] > 0)


def _run(family: str, number: int, folder: Path) -> list[Outcome]:
    outcomes = []
    for outcome in run_family(families()[family], folder / f"{family}-{number}"):
        _tell(family, number, outcome)
        outcomes.append(outcome)
    return outcomes


def _tell(family: str, number: int, outcome: Outcome) -> None:
    told: dict[str, object] = {"family": family, "case": outcome.case, "run": number, "failed": outcome.failed}
    told["seconds"] = round(outcome.seconds, 2)
    if outcome.failed:
        told |= {"findings": str(outcome.findings), "error": outcome.error[-TOLD:]}
    if outcome.skipped:
        told["skipped"] = outcome.skipped
    # One write: families run side by side, and a line of one must not begin in another's.
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
