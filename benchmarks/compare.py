"""`compare.py --result R.json`: did a run do what its contract says, and is it slower than it was?

Prints one table. Exit code 0: as it should be. 1: not the contract's workload, not comparable with the baseline, or
slower than the tolerance allows. 2: a file that can't be read or isn't what it should be, told on stderr. Every fault
is named, not the first alone. What a result is, says `result`; what is judged, `judge`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contract import CONTRACTS, Unreadable, contract_names, parse, read_bytes, read_contract
from benchmarks.judge import Mismatch, judge
from benchmarks.report import report
from benchmarks.result import Result

TOLERANCE = 0.02
"""How much slower a stage may be than its baseline."""
GOOD, FAULTY, UNREADABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    given = _parser().parse_args(arguments)
    try:
        return _compare(given)
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE


def _compare(given: argparse.Namespace) -> int:
    result = _read(given.result)
    baseline = None if given.baseline is None else _read(given.baseline)
    names = contract_names(given.contracts)
    if result.contract not in names:
        print(f"mismatch    {Mismatch('contract', result.contract, ' or '.join(names) or 'one that is there')}")
        return FAULTY
    signed = read_contract(result.contract, given.contracts)
    verdict = judge(result, signed, baseline, given.tolerance)
    print("\n".join(report(result, signed.contract, baseline, verdict, given.tolerance)))
    return FAULTY if verdict.mismatches or verdict.regressions else GOOD


def _read(path: Path) -> Result:
    return parse(Result, read_bytes(path), path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare.py",
        description="Judge a result: 0 as it should be, 1 a mismatch or a regression, 2 a file that can't be read.",
    )
    parser.add_argument("--result", type=Path, required=True, metavar="R.json", help="What measure.py wrote.")
    parser.add_argument("--baseline", type=Path, metavar="B.json", help="An earlier result on such a machine.")
    parser.add_argument(
        "--contracts", type=Path, default=CONTRACTS, metavar="DIR", help="Folder of the contracts. Default: this one."
    )
    parser.add_argument(
        "--tolerance", type=_share, default=TOLERANCE, metavar="SHARE", help="How much slower is fine. Default: 0.02."
    )
    return parser


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


if __name__ == "__main__":
    sys.exit(main())
