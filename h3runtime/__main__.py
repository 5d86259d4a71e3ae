"""`h3runtime COMMAND`, or `python -m h3runtime COMMAND`: parse, run, and turn errors into two lines at most."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from h3runtime import __version__
from h3runtime.cli import decode, demo, generate, serve
from h3runtime.cli.report import print_error
from h3runtime.errors import H3Error

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended (128 + SIGINT)."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        return code
    except H3Error as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="h3runtime", description="Video with stereo sound from MiniMax H3: a service and its tools."
    )
    parser.add_argument("--version", action="version", version=f"h3runtime {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (serve, generate, demo, decode):
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
