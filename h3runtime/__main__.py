"""`h3runtime COMMAND`, or `python -m h3runtime COMMAND`: parse, run, and turn errors into two lines at most.

Imports next to nothing before `main`, so that Ctrl-C in the first second is met by it and not by an import. From there
to the end a signal ends the process at once, but for what a command guards with its own handlers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SIGINT = 2
"""What a KeyboardInterrupt of Python's own means. The module `signal` isn't there yet."""
COMMANDS = (
    "serve",
    "generate",
    "demo",
    "submit",
    "watch",
    "cancel",
    "jobs",
    "decode",
    "inspect",
    "plan",
    "models",
    "profile",
    "compare",
    "calibrate",
    "synth",
)
"""In the order of the help; each is a module of `h3runtime.cli`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. arguments: those of the process if None, and then its signals are taken for good; else this is
    part of another program, whose signals are its own."""
    leaving = None
    try:
        from h3runtime.cli.leaving import Leaving, take_signals

        leaving = Leaving()
        if arguments is None:
            take_signals(leaving)
        _open_streams()
        return _run(arguments)
    except KeyboardInterrupt as stop:
        if leaving is not None:
            leaving.told = True
        _tell()
        return 128 + int(stop.args[0] if stop.args else SIGINT)


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Of one of `COMMANDS`, whose imports are half a second less than those of all; of all of them for another word."""
    import argparse
    from importlib import import_module

    from h3runtime import __version__

    parser = argparse.ArgumentParser(
        prog="h3runtime", description="Video with stereo sound from MiniMax H3: a service and its tools."
    )
    parser.add_argument("--version", action="version", version=f"h3runtime {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (command,) if command in COMMANDS else COMMANDS:
        import_module(f"h3runtime.cli.{name}").add_parser(commands)
    return parser


def _run(arguments: Sequence[str] | None) -> int:
    from h3runtime.cli.report import print_error, print_os_error
    from h3runtime.errors import H3Error
    from h3runtime.observe.importing import uncollected

    given = sys.argv[1:] if arguments is None else arguments
    try:
        with uncollected():
            parser = build_parser(given[0] if given else None)
        parsed = parser.parse_args(given)
        code: int = parsed.run(parsed)
        return code
    except H3Error as error:
        print_error(error)
    except OSError as error:
        print_os_error(error)
    return 1


def _tell() -> None:
    try:
        print("interrupted", file=sys.stderr, flush=True)
    except OSError:
        # A stderr that takes none.
        return


def _open_streams() -> None:
    """A standard stream that came closed becomes the null device: the next file opened would take its number, and then
    get whatever a library prints. What stdout's encoding lacks is escaped, as on stderr."""
    import io
    import os
    from pathlib import Path

    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for the life of the process
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
