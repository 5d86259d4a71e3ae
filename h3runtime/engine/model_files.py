"""The public files that a machine needs, and whether they lie in a folder as they should.

    there?     DIR/name, or in the folders that its repository has, or for the tokenizer in DIR/tokenizer
    size       to the byte
    layout     as strictly as loading: header, names, shapes, dtypes, scales; and that it is what it should be
    SHA-256    of every byte, if asked for; else one that is remembered of the very file counts

Nothing is fetched, and no file of the folder is changed. Asked by the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from h3runtime.checkpoint.families import TITLES, Component
from h3runtime.checkpoint.hashing import first_found, identity_of, remember, remembered, sha256_of
from h3runtime.checkpoint.published_files import TOKENIZER, TRAILING, PublishedFile, Role, published_as
from h3runtime.checkpoint.report import FileReport
from h3runtime.checkpoint.sources import other_container
from h3runtime.engine.inspection import inspect
from h3runtime.engine.machines import Files
from h3runtime.errors import CheckpointError
from h3runtime.settings import PARTITION_PATHS, Settings, default_cache_dir, variable

OnBytes = Callable[[int, int], None]
VARIABLES: Final = {
    **{role: variable(field) for role, field in PARTITION_PATHS.items()},
    "text_encoder": variable("text_encoder_path"),
    "video_vae": variable("video_vae_path"),
    "audio_vae": variable("audio_vae_path"),
    "tokenizer": variable("tokenizer_path"),
}
"""Which setting names the file of a role, or the folder of the tokenizer."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one file. path: None where it isn't there. sha256: what it has, None where it wasn't hashed.
    faults: why it won't do; notes: what couldn't be checked."""

    file: PublishedFile
    path: Path | None = None
    sha256: str | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return self.path is not None and not self.faults


def files_for(wanted: Files, partitions: Sequence[Role]) -> tuple[PublishedFile, ...]:
    """Transformers, text encoder, both VAEs and the tokenizer's."""
    return (
        *(published_as(partition, wanted.transformer) for partition in partitions),
        published_as("text_encoder", wanted.text_encoder),
        published_as("video_vae", wanted.video_vae),
        published_as("audio_vae", "fp32"),
        *TOKENIZER,
    )


def checked(file: PublishedFile, folder: Path, settings: Settings, *, hashed: bool, on_bytes: OnBytes) -> Checked:
    """One file of a folder; on_bytes is told bytes of how many are hashed."""
    path = next((place for place in _places(file, folder) if place.is_file()), None)
    if path is None:
        return Checked(file, faults=(_why_missing(file, folder),))
    size = path.stat().st_size
    if size != file.bytes:
        return Checked(file, path, faults=(_why_size(file, size),))
    faults = tuple(_layout_faults(file, path, settings))
    if faults:
        return Checked(file, path, faults=faults)
    digest = _hashed(path, lambda done: on_bytes(done, size)) if hashed else _remembered(path)
    if digest is None:
        return Checked(file, path, notes=("its SHA-256 was not checked; --verify does",))
    if file.sha256 is None:
        return Checked(file, path, digest, notes=("nobody has told its SHA-256: size and layout alone are right",))
    wrong = (f"its SHA-256 is {digest}, and the published file's {file.sha256}",) if digest != file.sha256 else ()
    return Checked(file, path, digest, wrong)


def environment(found: Sequence[Checked]) -> str:
    """Lines of settings that name the files that are there and right; of the tokenizer its folder."""
    lines = {}
    for each in found:
        if each.is_right and each.path is not None:
            path = each.path.parent if each.file.role == "tokenizer" else each.path
            lines[VARIABLES[each.file.role]] = path.absolute()
    return "".join(f"{name}={path}\n" for name, path in lines.items())


def _places(file: PublishedFile, folder: Path) -> Iterator[Path]:
    """Where a download puts it, or somebody who sorts."""
    if file.role == "tokenizer":
        yield folder / "tokenizer" / file.name
        yield folder / file.path
        return
    yield folder / file.name
    yield folder / file.path


def _why_missing(file: PublishedFile, folder: Path) -> str:
    told = f"isn't in {folder}"
    if file.role != "tokenizer" and (other := next(_same_name(file, folder), None)) is not None:
        return f"{told}; {other.name} is, another spelling"
    return told


def _same_name(file: PublishedFile, folder: Path) -> Iterator[Path]:
    """Files that differ in case alone, as other repositories have them."""
    for place in (folder, (folder / file.path).parent):
        if place.is_dir():
            yield from (path for path in place.iterdir() if path.name.lower() == file.name and path.name != file.name)


def _why_size(file: PublishedFile, size: int) -> str:
    known = next((each for each in TRAILING if each.bytes == size and each.name.lower() == file.name), None)
    if known is not None:
        return (
            f"is {known.repository}'s first upload, with {known.extra} bytes behind its last tensor that no loader "
            f"takes; {file.repository} has it without, as has that repository's newer revision"
        )
    return f"has {size:,} bytes, and the published file {file.bytes:,}"


def _layout_faults(file: PublishedFile, path: Path, settings: Settings) -> Iterator[str]:
    if file.role == "tokenizer":
        return
    if (other := other_container(path)) is not None:
        yield f"is {other}"
        return
    try:
        report = inspect(path, settings, hashed=False, on_bytes=lambda *_: None).report
    except CheckpointError as error:
        yield error.message
        return
    yield from _differences(file, report)


def _differences(file: PublishedFile, report: FileReport) -> Iterator[str]:
    component: Component = "transformer" if file.role in PARTITION_PATHS else cast("Component", file.role)
    if report.component != component:
        yield f"is {report.title}, and should be {TITLES[component]}"
        return
    if report.synthetic:
        yield "is made up: the published sizes with random values"
    pruned, form = file.format.startswith("pruned_"), file.format.removeprefix("pruned_")
    if report.adaln is not None and (report.adaln.form == "pruned") != pruned:
        yield f"has {report.adaln.form} AdaLN"
    if form not in ("fp8_scaled", report.format):
        yield f"is stored as {report.format}, and should be {form}"


def _hashed(path: Path, on_bytes: Callable[[int], None]) -> str:
    """Every byte is read; a load need not do it again."""
    digest, identity, cache_dir = sha256_of(path, None, on_bytes), identity_of(path), default_cache_dir()
    if first_found(identity, cache_dir) is None:
        remember(identity, digest, cache_dir)
    return digest


def _remembered(path: Path) -> str | None:
    return remembered(identity_of(path), default_cache_dir())
