"""`h3runtime inspect PATH`: what a checkpoint is, whether it loads, and what would run where on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result
from h3runtime.cli.report_files import require_free, write_report
from h3runtime.cli.stopping import Stopping
from h3runtime.core import Progress
from h3runtime.errors import Offence, invalid
from h3runtime.settings import ATTENTION_ONLY, Settings, add_flags, resolve

if TYPE_CHECKING:
    from h3runtime.engine.inspection import Inspection

READ = ATTENTION_ONLY | {
    "qkv_order",
    "verify",
    "device",
    "linear",
    "nvfp4_scale_backend",
    "vae_dtype",
    "system_reserve_bytes",
}
"""Settings that decide how a checkpoint would be loaded."""
DESCRIPTION = """\
Look at a checkpoint as strictly as loading it would, without loading it: its family and component, layout, format of
every group of layers, scales, dtypes, size, hash, and what would run where on this machine. PATH is a .safetensors
file, or a folder of shards or of a Diffusers transformer. Exit code 1 if it is broken or nothing we know; a sound file
of another model that we do know is named, with "supported": false."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect", help="tell what a checkpoint is and whether it loads", description=DESCRIPTION
    )
    parser.add_argument("checkpoint", type=Path, metavar="PATH", help="A .safetensors file or a folder.")
    parser.add_argument("--json", action="store_true", help="One JSON object on stdout.")
    parser.add_argument("--output", type=Path, metavar="PATH", help="Also write the JSON to a file.")
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing file at --output.")
    parser.add_argument(
        "--no-hash", action="store_true", help="No SHA-256; a file that was never hashed takes minutes."
    )
    parser.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")
    add_flags(parser.add_argument_group("settings"), frozenset(Settings.model_fields) - READ)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    if arguments.output is not None:
        require_free("output", arguments.output, overwrite=arguments.overwrite)
        _require_elsewhere(arguments.output.resolve(), arguments.checkpoint.resolve())
    with Stopping() as stopping:
        with stopping.loading():
            from h3runtime.engine.inspection import inspect
        with ProgressBar(quiet=arguments.quiet, steps=False) as bar:

            def on_bytes(done: int, in_all: int) -> None:
                bar(Progress("hashing", fraction=done / max(in_all, 1)))

            found = inspect(arguments.checkpoint.absolute(), settings, hashed=not arguments.no_hash, on_bytes=on_bytes)
        _tell(found, arguments, stopping)
    return 0


def _require_elsewhere(output: Path, checkpoint: Path) -> None:
    """Not even with --overwrite is a checkpoint, or what lies in its folder, replaced by what is told of it."""
    if output == checkpoint or (output.exists() and output.is_relative_to(checkpoint)):
        raise invalid([Offence("output", f"{output} belongs to the checkpoint", "a name of its own")])


def _tell(found: Inspection, arguments: argparse.Namespace, stopping: Stopping) -> None:
    """The file first, so that whoever reads stdout finds it."""
    with stopping.loading():
        from h3runtime.cli.inspection.document import document
        from h3runtime.cli.inspection.text import text
    facts = document(found)
    if arguments.output is not None:
        write_report(arguments.output, facts, overwrite=arguments.overwrite)
    if arguments.json:
        print_result(facts, quiet=arguments.quiet)
    elif not arguments.quiet:
        print(text(found), flush=True)
