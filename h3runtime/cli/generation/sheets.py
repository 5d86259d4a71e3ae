"""The contact sheets of `generate --sheet` and of the demo: one PNG beside each clip, under the clip's own name.

    require_free    before the work: no sheet may cover a file, nor an input of the request even where it may replace
    with_sheets     after it: each is drawn from the clip's file, and told as `sheet` beside its `output`

A sheet that can't be made is a warning: the clip is there, and so is what is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from h3runtime.cli.generation.entries import Asked
from h3runtime.cli.options import refuse_taken
from h3runtime.cli.report_files import write_whole
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.media.contact_sheet import sheet_png

SUFFIX = ".png"


def sheet_path(clip: Path) -> Path:
    """`cat.mp4` -> `cat.png`."""
    return clip.with_suffix(SUFFIX)


def require_free(clips: Iterable[Path], asked: Asked, *, overwrite: bool) -> None:
    """`OutputExists`, or `InvalidRequest` where a sheet would replace a file that the request reads."""
    inputs = {(asked.folder / name).resolve() for name in _files_of(asked.requests)}
    for sheet in map(sheet_path, clips):
        if sheet.resolve() in inputs:
            told = f"{sheet.name} is also an input"
            raise invalid([Offence("sheet", told, "another name of the output, or no sheet")])
        refuse_taken(sheet, overwrite=overwrite)


def with_sheets(facts: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any]:
    """The facts of a clip, of its variants or of a chain, and where their sheets are."""
    warnings: list[str] = list(facts["warnings"])
    outputs = [dict(item) for item in facts.get("outputs", ())]
    made = outputs or [{"output": facts["output"]}]
    for item in made:
        clip = Path(item["output"])
        try:
            png = sheet_png(clip, _title(facts), _note(facts, item))
            write_whole(sheet_path(clip), png, overwrite=overwrite)
        except (H3Error, OSError) as error:
            warnings.append(f"{sheet_path(clip).name} was not made: {error}")
        else:
            item["sheet"] = str(sheet_path(clip))
    told = dict(facts) | {"warnings": warnings} | ({"outputs": outputs} if outputs else {})
    return told | ({"sheet": made[0]["sheet"]} if "sheet" in made[0] else {})


def _title(facts: Mapping[str, Any]) -> str:
    return str(facts["prompt"]) if "prompt" in facts else " / ".join(clip["prompt"] for clip in facts["clips"])


def _note(facts: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    """The seed and the steps, or how many clips a chain has."""
    return f"seed {item['seed']} · {facts['steps']} steps" if "seed" in item else f"{len(facts['clips'])} clips"


def _files_of(value: Any) -> Iterator[str]:
    """Every file that raw requests name by its path."""
    if isinstance(value, Mapping):
        if isinstance(path := value.get("path"), str):
            yield path
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _files_of(item)
