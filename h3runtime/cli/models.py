"""`h3runtime models`: which public files a machine needs, whether they are there and right, and whether they fit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result, say
from h3runtime.cli.stopping import Stopping
from h3runtime.cli.synth import PARTITIONS
from h3runtime.core import Progress
from h3runtime.errors import Offence, invalid
from h3runtime.settings import Settings, add_flags, resolve

if TYPE_CHECKING:
    from h3runtime.checkpoint.published_files import PublishedFile, Role
    from h3runtime.engine.machines import Machine
    from h3runtime.engine.model_files import Checked
    from h3runtime.engine.planning import Plan

OWN: Final = frozenset({"device", "verify"})
"""Settings whose flags mean something else here."""
READ: Final = frozenset({"qkv_order", "vae_dtype", "system_reserve_bytes"})
"""Settings that decide how a checkpoint is judged, and whether it fits."""
DESCRIPTION = """\
List the public files that a machine needs: names, sizes, SHA-256 where it is known, and the repositories that have
them, with the plan's word on whether they fit. With --dir, look whether they lie there and are right: size, and layout
as strictly as loading; with --verify the SHA-256 of every byte, too. Nothing is downloaded. Exit code 1 if a file in
--dir is missing or wrong."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "models", help="list the public files that a machine needs, and check them", description=DESCRIPTION
    )
    parser.add_argument(
        "--device",
        dest="machine",
        default="gb10",
        metavar="NAME",
        help="gb10 (spark), rtx-pro-6000 (96gb), 5090 (32gb) or h200. Default: gb10.",
    )
    parser.add_argument("--partition", choices=PARTITIONS, help="Which transformers. Default: those that fit there.")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="Folder to look for them in.")
    parser.add_argument("--verify", dest="hashed", action="store_true", help="Hash every byte of what is in --dir.")
    parser.add_argument(
        "--env", action="store_true", help="Print no list but the H3_* lines that name the files in --dir."
    )
    parser.add_argument("--json", action="store_true", help="One JSON object on stdout.")
    parser.add_argument("--quiet", action="store_true", help="No progress bar.")
    add_flags(parser.add_argument_group("settings"), frozenset(Settings.model_fields) - READ, OWN)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    _require_folder(arguments)
    with Stopping() as stopping:
        with stopping.loading():
            from h3runtime.cli.model_list.document import document
            from h3runtime.cli.model_list.text import text
            from h3runtime.engine.machines import machine_named
            from h3runtime.engine.model_files import environment, files_for
        machine = machine_named(arguments.machine)
        partitions = cast("tuple[Role, ...]", PARTITIONS.get(arguments.partition, machine.files.partitions))
        files = files_for(machine.files, partitions)
        found = None if arguments.dir is None else _checked(files, arguments, settings)
        if arguments.env:
            _tell_faults(found or ())
            print(environment(found or ()), end="", flush=True)
        else:
            planned = _planned(machine, partitions, settings)
            if arguments.json:
                print_result(document(machine, files, found, planned), quiet=False)
            else:
                print(text(machine, files, found, planned), flush=True)
    return int(found is not None and not all(each.is_right for each in found))


def _tell_faults(found: Sequence[Checked]) -> None:
    """Beside lines that go into a file."""
    for each in found:
        for fault in each.faults:
            say(f"{each.file.name}: {fault}")


def _require_folder(arguments: argparse.Namespace) -> None:
    offences = [
        Offence(flag, "needs the folder to look in", "--dir DIR")
        for flag, given in (("--verify", arguments.hashed), ("--env", arguments.env))
        if given and arguments.dir is None
    ]
    if arguments.dir is not None and not arguments.dir.is_dir():
        offences.append(Offence("--dir", f"{arguments.dir} is no folder"))
    if offences:
        raise invalid(offences)


def _checked(files: Sequence[PublishedFile], arguments: argparse.Namespace, settings: Settings) -> list[Checked]:
    from h3runtime.engine.model_files import checked

    found = []
    with ProgressBar(quiet=arguments.quiet, steps=False) as bar:

        def on_bytes(done: int, in_all: int) -> None:
            bar(Progress("hashing", fraction=done / max(in_all, 1)))

        for file in files:
            found.append(checked(file, arguments.dir, settings, hashed=arguments.hashed, on_bytes=on_bytes))
    return found


def _planned(machine: Machine, partitions: Sequence[str], settings: Settings) -> Plan:
    """Of published headers, whether the files are there or not."""
    from h3runtime.backends.linear.dequant import DequantLinear
    from h3runtime.checkpoint.synthetic.published import SetFormat
    from h3runtime.engine.places import place_named
    from h3runtime.engine.planned_set import published_parts
    from h3runtime.engine.planning import plan
    from h3runtime.engine.resident import COMPUTE_DTYPE

    wanted = machine.files
    parts = published_parts(
        cast("SetFormat", wanted.transformer.removeprefix("pruned_")),
        partitions,
        settings,
        COMPUTE_DTYPE,
        DequantLinear(),
        pruned=wanted.transformer.startswith("pruned_"),
        encoder_form=wanted.text_encoder,
        video_vae=wanted.video_vae,
    )
    return plan(parts, place_named(machine.name, settings), settings)
