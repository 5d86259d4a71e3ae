"""A made-up set of the published sizes without its disk: headers and small tensors in files, the rest on the device.

    holes       the files of `synth --full-size` as far as they are small: header, markers, everything that a recipe
                writes itself; where large random values would lie there is a hole, which takes neither disk nor memory
    stream      in the place of `checkpoint.stream`: small tensors from the file, large ones made on the device by the
                same masks (`random_bits`), of the same spread, from another generator
    values      the same tensors without any file, for a peer that is given the same kind of weights
    create      the engine of a server whose settings name such files; all else of loading is what it always is: headers
                judged, room counted, weights re-encoded for the linear backend, warm-up

`synth` and a load take a minute and a half for 34 GB; this takes seconds, and shows the same sizes and speed. A digest
over values that nobody stored means nothing: the one that is told is the name's. Tiny sets have no holes. Read by
`request` and `memory_model`; for measuring, never for a clip that anyone keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import torch

from h3runtime import engine
from h3runtime.checkpoint import load, synthetic_mark
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.partition import FL2VA
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.stream import stream as stored_stream
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.full_size import Run, tensor_runs
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.published import FORMATS, SetFormat
from h3runtime.checkpoint.synthetic.random_bits import Bits
from h3runtime.checkpoint.synthetic.synthesis import Order, plan
from h3runtime.checkpoint.synthetic.tiny import TOKENIZER
from h3runtime.core import Engine
from h3runtime.engine.paths import SHARED_PATHS
from h3runtime.settings import PARTITION_PATHS, Settings

FACTORY = f"{__name__}:create"
SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By the width of a value; a byte needs no sign."""
WORD = 8


def holes(
    folder: Path, kind: SetFormat, *, tiny: bool = False, partitions: tuple[str, ...] = (FL2VA,)
) -> dict[str, Path]:
    """Paths by the names of the settings. tiny: small models, whose files are whole."""
    order = Order(kind, full_size=not tiny, partitions=partitions)
    files = plan(order)
    (folder / TOKENIZER).mkdir(parents=True)
    for name, content in tokenizer_files().items():
        (folder / TOKENIZER / name).write_bytes(content)
    for file in files:
        if tiny:
            file.write(folder)
        else:
            _write_small(file, folder / file.name)
    mark = synthetic_mark.mark(folder, [folder / file.name for file in files])
    (folder / synthetic_mark.NAME).write_text(mark)
    names = (*(PARTITION_PATHS[partition] for partition in partitions), *SHARED_PATHS)
    return dict(zip(names, (*(folder / file.name for file in files), folder / TOKENIZER), strict=True))


def values(file: MadeFile, device: torch.device) -> dict[str, torch.Tensor]:
    """All tensors of a file that is nowhere, in its dtypes."""
    generator = torch.Generator(device).manual_seed(file.recipe.seed)
    runs, layout = _runs(file), file.layout()
    made = {name: _values(runs[name], device, generator) for name in layout}
    return {name: made[name].view(dtype).reshape(shape) for name, (dtype, shape) in layout.items()}


def create(settings: Settings, threads: int | None = None) -> Engine:
    """For `jobs.child`, which calls it in the engine's process: whatever that loads is streamed from holes."""
    patch.object(load, "stream", stream).start()
    return engine.create(settings, threads)


def stream(
    file: CheckpointFile, names: Collection[str], device: torch.device, reading: Reading | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """As `checkpoint.stream`, for a file of `holes`; any other is read."""
    made = _made_file(file)
    if made is None:
        yield from stored_stream(file, names, device, reading)
        return
    reading, runs, done = reading or Reading(), _runs(made), 0
    generator = torch.Generator(device).manual_seed(made.recipe.seed)
    for name in names:
        entry = file.entries[name]
        if all(run.bits is None for run in runs[name]):
            yield name, file.read(name, device)
        else:
            yield name, _values(runs[name], device, generator).view(entry.dtype).reshape(entry.shape)
        done += entry.nbytes
        reading.on_position(done)
    for number in reading.hashed:
        reading.on_digest(number, hashlib.sha256(file.parts[number].path.name.encode()).hexdigest())
    reading.on_position(file.size)


def _made_file(file: CheckpointFile) -> MadeFile | None:
    """The plan of a file of `holes`, which has one's name and size and lies beside their mark."""
    if not file.synthetic:
        return None
    orders = (Order(kind, full_size=True, partitions=tuple(PARTITION_PATHS)) for kind in FORMATS)
    found = (made for order in orders for made in plan(order) if made.name == file.path.name)
    return next((made for made in found if made.size() == file.size), None)


def _write_small(file: MadeFile, path: Path) -> None:
    header, runs = file.header(), _runs(file)
    with path.open("wb") as out:
        out.write(header)
        for name in file.layout():
            for run in runs[name]:
                if run.whole is None:
                    out.seek(run.nbytes, 1)
                else:
                    out.write(run.whole())
        out.truncate(file.size())


def _runs(file: MadeFile) -> dict[str, list[Run]]:
    return {name: made for logical in file.shapes for name, made in tensor_runs(file, logical).items()}


def _values(runs: Sequence[Run], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """All runs of a tensor as bytes, uint8 [n]."""
    whole = torch.empty(sum(run.nbytes for run in runs), dtype=torch.uint8, device=device)
    start = 0
    for run in runs:
        part = whole[start : start + run.nbytes]
        if run.whole is not None:
            part.copy_(torch.frombuffer(bytearray(run.whole()), dtype=torch.uint8))
        else:
            assert run.bits is not None and run.nbytes % WORD == 0
            part.view(torch.int64).random_(-(2**63), None, generator=generator)
            _shape_(part, run.bits)
        start += run.nbytes
    return whole


def _shape_(raw: torch.Tensor, bits: Bits) -> None:
    """Random bytes -> values, as `Bits.fill` does it."""
    width = 8 * bits.width
    values = raw.view(SIGNED[bits.width])
    if bits.keep != (1 << width) - 1:
        values.bitwise_and_(bits.keep if bits.width == 1 else bits.keep - (bits.keep >> (width - 1) << width))
    if bits.base:
        values.add_(bits.base)
