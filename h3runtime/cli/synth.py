"""`h3runtime synth DIR`: a complete set of checkpoints in the published layouts, made up or the embedded model's."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from h3runtime.cli.report import print_result, say
from h3runtime.cli.stopping import Stopping
from h3runtime.errors import Offence, invalid

if TYPE_CHECKING:
    from h3runtime.checkpoint.synthetic.synthesis import Order, Written

FORMATS = ("nvfp4", "int8_convrot", "fp8_scaled", "bf16")
PARTITIONS = {"fl2va": ("fl2va",), "ref2va": ("ref2va",), "both": ("fl2va", "ref2va")}
MAX_SEED = 2**64 - 1
LASTS = 15.0
"""Seconds after which a line in a file is worth it."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "synth",
        help="write a complete set of made-up checkpoints, or the embedded model, in a published layout",
        description="Write a transformer (or both), a text encoder, both VAEs, a tokenizer and h3.env into DIR. The "
        "values are random: tiny models by default, whose clips react to prompts and seeds, or the published sizes. "
        "With --nano they are those of h3-nano, the small trained model inside this package.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="Made if it isn't there.")
    parser.add_argument(
        "--format",
        required=True,
        choices=FORMATS,
        help="How the transformer is stored. The encoder: nvfp4_awq, int8_convrot, else bf16; with --nano always bf16.",
    )
    parser.add_argument(
        "--partition",
        choices=PARTITIONS,
        default="fl2va",
        help="Which transformer: fl2va (T2VA, I2VA, L2VA and FL2VA), ref2va, or both for one server. Default: fl2va.",
    )
    parser.add_argument("--nano", action="store_true", help="The embedded model, trained; nothing is random.")
    parser.add_argument("--unpruned", action="store_true", help="Full AdaLN with its timestep network.")
    parser.add_argument("--full-size", action="store_true", help="The published sizes: 34 to 124 GB, to 190 with both.")
    parser.add_argument(
        "--loras", action="store_true", help="Also DIR/loras: an adapter in each public layout, of a tiny set alone."
    )
    parser.add_argument("--seed", default="0", help="0..2^64-1. Default: 0.")
    parser.add_argument("--dry-run", action="store_true", help="Write the headers alone; tell the sizes.")
    parser.add_argument("--overwrite", action="store_true", help="Replace files of these names in DIR.")
    parser.add_argument("--quiet", action="store_true", help="Nothing on stdout and no progress bar.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    seed = _seed(arguments.seed)
    if arguments.nano:
        _require_nothing_else(arguments)
    with Stopping() as stopping:
        with stopping.loading():
            from h3runtime.checkpoint.synthetic.synthesis import Order
        partitions = PARTITIONS[arguments.partition]
        pruned, loras = not arguments.unpruned, arguments.loras
        order = Order(arguments.format, pruned, arguments.full_size, seed, partitions, loras)
        order.require_sound()
        facts = _export(arguments, order) if arguments.nano else _make(arguments, order)
    print_result(facts, quiet=arguments.quiet)
    return 0


def _make(arguments: argparse.Namespace, order: Order) -> dict[str, Any]:
    from h3runtime.checkpoint.synthetic.synthesis import write_headers, write_set

    started = time.perf_counter()
    if arguments.dry_run:
        written = write_headers(arguments.folder, order, overwrite=arguments.overwrite)
    else:
        with _Bar(quiet=arguments.quiet) as bar:
            threads = len(os.sched_getaffinity(0))
            written = write_set(
                arguments.folder, order, overwrite=arguments.overwrite, on_bytes=bar.show, threads=threads
            )
    seconds = time.perf_counter() - started
    return _facts(arguments.folder, order, written, seconds, dry_run=arguments.dry_run)


def _export(arguments: argparse.Namespace, order: Order) -> dict[str, Any]:
    """`seed` is null: there is one such model."""
    from h3runtime.checkpoint.embedded.export import export_set

    started = time.perf_counter()
    written = export_set(arguments.folder, order.format, order.partitions, overwrite=arguments.overwrite)
    seconds = time.perf_counter() - started
    return _facts(arguments.folder, order, written, seconds, dry_run=False) | {"seed": None, "model": "h3-nano"}


def _require_nothing_else(arguments: argparse.Namespace) -> None:
    """InvalidRequest for what only random values can have."""
    given = {"--unpruned": arguments.unpruned, "--full-size": arguments.full_size, "--dry-run": arguments.dry_run}
    given |= {"--loras": arguments.loras, "--seed": arguments.seed != "0"}
    if offences := [
        Offence(flag, "has no meaning with --nano", "neither of both") for flag, is_set in given.items() if is_set
    ]:
        raise invalid(offences)


def _facts(
    folder: Path, order: Order, written: tuple[Written, ...], seconds: float, *, dry_run: bool
) -> dict[str, Any]:
    """`bytes` are those of the whole files, in a dry run too; `rate` is bytes a second."""
    total = sum(file.bytes for file in written)
    told: dict[str, Any] = {
        "folder": str(folder.absolute()),
        "format": order.format,
        "partitions": list(order.partitions),
        "pruned": order.pruned,
        "full_size": order.full_size,
        "seed": str(order.seed),
        "dry_run": dry_run,
        "files": [_file_facts(file) for file in written],
        "bytes": total,
        "seconds": round(seconds, 3),
    }
    if not dry_run:
        told |= {"rate": round(total / seconds), "env": str(folder.absolute() / "h3.env")}
    return told


def _file_facts(file: Written) -> dict[str, Any]:
    told = {"name": file.path.name, "bytes": file.bytes, "tensors": file.tensors}
    return told | ({"sha256": file.sha256} if file.sha256 else {})


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_SEED:
        raise invalid([Offence("seed", f"{text} is no seed", "0..2^64-1")])
    return int(text)


class _Bar:
    """Bytes on a terminal's stderr; into a file nothing but one line when it lasts."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._told = quiet, False
        self._bar: tqdm[None] | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int, in_all: int) -> None:
        if self._quiet:
            return
        if sys.stderr.isatty():
            self._draw(done, in_all)
        elif not self._told and time.monotonic() - self._began > LASTS:
            say("writing the set")
            self._told = True

    def _draw(self, done: int, in_all: int) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=in_all, unit="B", unit_scale=True, unit_divisor=1000, desc="writing", file=sys.stderr
            )
        self._bar.update(done - self._bar.n)
