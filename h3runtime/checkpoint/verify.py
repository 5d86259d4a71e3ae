"""Are these the bytes that they should be? One component's files: what to hash, and what to make of the digests.

    fast    a digest that is remembered for the very file (path, size, time, inode) is believed; another file is hashed
            while it is loaded
    full    every byte is hashed again, and must give what is remembered; a file that doesn't is never believed again

Either way the digest must be the one that somebody named beside the file (`expected`). `engine` opens one for each
component: `unknown` and `found` go into the reading, `judge` raises before any data is read where that is possible, and
`finish` at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.expected import Expectation, expectations
from h3runtime.checkpoint.hashing import doubt, first_found, remember, remembered, sha256_of_parts
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error
from h3runtime.errors import CheckpointError, Offence


@dataclass(frozen=True, slots=True)
class Verified:
    """sha256: of the file, or of the digests of several (`hashing.sha256_of_parts`). warnings: for people."""

    sha256: str
    warnings: tuple[str, ...]


class Verification:
    """Of the open files `parts`. cache_dir: where digests are remembered; None: nowhere.

    made_up: nobody takes them for published ones, whatever they are called.
    """

    def __init__(
        self, parts: Sequence[TensorFile], *, full: bool, cache_dir: Path | None, made_up: bool = False
    ) -> None:
        self._parts, self._cache_dir, self._made_up = parts, cache_dir, made_up
        self._expected = [expectations(part.path, part.size) for part in parts]
        self._before = [first_found(part.identity, cache_dir) for part in parts]
        believed = [None if full else remembered(part.identity, cache_dir) for part in parts]
        self._digests = {i: digest for i, digest in enumerate(believed) if digest is not None}

    @property
    def unknown(self) -> frozenset[int]:
        """Numbers of the files that must be hashed."""
        return frozenset(range(len(self._parts))) - frozenset(self._digests)

    def found(self, number: int, digest: str) -> None:
        """The SHA-256 of file `number`, hashed from end to end just now."""
        self._digests[number] = digest

    def judge(self) -> None:
        """CheckpointError that names every file whose known digest isn't the right one."""
        faults = [checkpoint_error(self._parts[i].path, found) for i in self._digests if (found := [*self._faults(i)])]
        if faults:
            raise CheckpointError("; ".join(e.message for e in faults), [o for e in faults for o in e.offences])

    def finish(self) -> Verified:
        """Once every file is known: judge, remember, sum up."""
        assert not self.unknown
        for number, digest in self._digests.items():
            self._remember(number, digest)
        self.judge()
        digests = {part.path.name: self._digests[i] for i, part in enumerate(self._parts)}
        return Verified(sha256_of_parts(digests), tuple(self._warnings()))

    def _remember(self, number: int, digest: str) -> None:
        identity, before = self._parts[number].identity, self._before[number]
        if before not in (None, digest):
            doubt(identity, str(before), self._cache_dir)
        elif remembered(identity, self._cache_dir) is None:
            remember(identity, digest, self._cache_dir)

    def _faults(self, number: int) -> Iterator[Offence]:
        digest, before = self._digests[number], self._before[number]
        if before not in (None, digest):
            why = "though its size, time and inode did not: a fault of the disk, or of a copy"
            yield Offence(FILE, f"has changed its bytes, {why}: SHA-256 is {digest}, was {before}")
        for expected in self._expected[number]:
            if expected.binding and expected.digest != digest:
                yield Offence(FILE, f"is damaged or another file: {_difference(digest, expected)}")

    def _warnings(self) -> Iterator[str]:
        for number, part in enumerate(self._parts):
            for expected in self._expected[number]:
                if expected.digest != self._digests[number] and (expected.binding or not self._made_up):
                    yield f"{part.path.name}: {_difference(self._digests[number], expected)}"


def _difference(digest: str, expected: Expectation) -> str:
    return f"SHA-256 is {digest}, but {expected.source} has {expected.digest}"
