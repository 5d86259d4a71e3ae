"""A published file as its header alone, in memory: what it holds and how large it is, without a byte of it on a disk.

    MadeFile -> UnmadeFile (header judged as of any file; markers can be read, there are no weights) -> UnmadeCheckpoint

So whatever only looks at headers works on the published sets without their files. Fed by `engine.planned_set`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from h3runtime.checkpoint.entries import whole
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.header import LENGTH_BYTES, parse_header
from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.checkpoint.qkv_order import QkvSwitch
from h3runtime.checkpoint.sources import Source
from h3runtime.checkpoint.synthetic.full_size import tensor_runs
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.tensor_file import Identity, TensorFile


class UnmadeFile(TensorFile):
    """Stands where an open file does; there is none behind it."""

    def __init__(self, made: MadeFile) -> None:
        self.path, self._fd, self.size = Path(made.name), -1, made.size()
        self.identity = Identity(made.name, self.size, 0, 0)
        self.header = parse_header(made.header()[LENGTH_BYTES:], self.size)
        self._markers = dict(_markers(made))

    def fill(self, view: memoryview, offset: int, name: str | None = None) -> None:  # noqa: ARG002  # of a file
        """A marker's bytes; nobody may ask for others."""
        view[:] = self._markers[name or ""]

    def require_unchanged(self) -> None:
        """Nothing can change it."""


class UnmadeCheckpoint(CheckpointFile):
    """A component of one such file. `close` takes nothing away, so that one may stand for every opening."""

    def __init__(self, made: MadeFile) -> None:
        part = UnmadeFile(made)
        entries = {name: whole(entry, 0) for name, entry in part.header.entries.items()}
        super().__init__(part.path, source=Source(part.path, (part,), entries, part.header.metadata))

    def _put_rows_in_order(self, switch: QkvSwitch) -> None:  # noqa: ARG002  # only values could tell
        """The order of ComfyUI's files."""
        self.qkv, self.warnings = None, ()


def _markers(made: MadeFile) -> Iterator[tuple[str, bytes]]:
    for logical in made.shapes:
        for name, runs in tensor_runs(made, logical).items():
            if name.endswith(SUFFIX):
                yield name, b"".join(bytes(run.whole()) for run in runs if run.whole is not None)
