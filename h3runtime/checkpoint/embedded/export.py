"""`h3runtime synth --nano`: the embedded model in a folder of one's own, in any of its formats.

    DIR/ as `synthetic.synthesis` leaves it: checkpoints, tokenizer/, h3.env, SHA256SUMS; no SYNTHETIC, they are trained

The bytes are those of the set in the cache. A set appears whole or not at all. Fed by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from h3runtime.checkpoint.embedded.formats import DerivedFile, SetFormat, derived_files
from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.masters import TOKENIZER
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import listed_digests, write_files, write_tokenizer
from h3runtime.checkpoint.synthetic.staging import staged
from h3runtime.checkpoint.synthetic.synthesis import ENV_NAME, Written, carry_sums, environment
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.checkpoint.writer import write_whole


def export_set(
    folder: Path, kind: SetFormat, partitions: Sequence[str], *, overwrite: bool, masters: Path = FOLDER
) -> tuple[Written, ...]:
    """OutputExists, DiskFull and InvalidRequest say what is in the way before anything is in `folder`, CheckpointError
    what is wrong with the masters."""
    listing, files = read_listing(masters), derived_files(kind, partitions)
    listed = listed_digests(kind, files, listing)
    variables = environment(folder, files, partitions)
    names = dict.fromkeys((*listed, TOKENIZER, ENV_NAME))
    with staged(folder, names, overwrite=overwrite) as stage:
        write_files(stage, files, listed, listing, lambda *_: None)
        carry_sums(folder, stage, listed)
        write_tokenizer(stage, listing)
        write_whole(stage / ENV_NAME, variables.encode())
        return tuple(_written(stage, folder, file, listed[file.name]) for file in files)


def _written(stage: Path, folder: Path, file: DerivedFile, sha256: str) -> Written:
    made = TensorFile(stage / file.name)
    try:
        return Written(folder / file.name, made.size, len(made.header.entries), sha256)
    finally:
        made.close()
