"""References as far as the request alone tells: how many of each kind, and which fields mean something for a kind.

Sizes and durations are judged at admission, which measures the media. Limits: conditioning contract §3.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from h3runtime.api.request import GenerateBody, MediaBody
from h3runtime.api.rules.verdict import Verdict

LIMITS = {"image": 9, "video": 3, "audio": 3}
"""Files of each kind; a clip's own sound is none."""
MAX_FILES = 12
USED_BY = {"audio": ("video",), "start": ("video", "audio"), "size": ("image",)}
"""Field of a reference -> types for which it means something."""
NOUNS = {"image": "images", "video": "videos", "audio": "sounds"}


def judge_references(body: GenerateBody, verdict: Verdict) -> None:
    """Counts of files by kind and in all, no sound alone, no field that would do nothing."""
    files = list(_files(body))
    seen = dict.fromkeys(LIMITS, 0)
    for count, (field, kind) in enumerate(files, 1):
        seen[kind] += 1
        if seen[kind] > LIMITS[kind]:
            verdict.refuse(field, f"is one of more than {LIMITS[kind]} {NOUNS[kind]}", f"at most {LIMITS[kind]}")
        elif count > MAX_FILES:
            verdict.refuse(field, f"is one of more than {MAX_FILES} files", f"at most {MAX_FILES} in all")
    if files and all(kind == "audio" for _, kind in files):
        verdict.refuse("references", "hold nothing but sound", "at least one image or video beside it")
    _judge_idle_fields(body, verdict)


def _files(body: GenerateBody) -> Iterator[tuple[str, str]]:
    """Field and kind of every file of the references. A soundtrack that is a file of its own counts as a sound."""
    for index, reference in enumerate(body.references):
        yield f"references[{index}]", reference.type
        if reference.type == "video" and isinstance(reference.audio, MediaBody):
            yield f"references[{index}].audio", "audio"


def _judge_idle_fields(body: GenerateBody, verdict: Verdict) -> None:
    for index, reference in enumerate(body.references):
        for name, types in USED_BY.items():
            if name in reference.model_fields_set and reference.type not in types:
                legal = f"leave it out; it is for {' and '.join(types)}"
                verdict.refuse(f"references[{index}].{name}", f"does nothing for type {reference.type!r}", legal)
