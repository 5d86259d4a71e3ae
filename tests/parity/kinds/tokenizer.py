"""Texts and task presentations -> ids."""

from functools import cache

import numpy as np
import pytest

from h3runtime.conditioning.pieces import (
    AudioReference,
    ImageReference,
    VideoReference,
    keyframe_pieces,
    reference_pieces,
)
from h3runtime.conditioning.presentation import Presentation, present
from h3runtime.conditioning.tokenizer import VISION_END, VISION_START, PromptTokenizer
from tests.parity.fixture import REPOSITORY, Fixture

FOLDER = REPOSITORY.parent / "shared" / "tokenizer"


@cache
def tokenizer() -> PromptTokenizer:
    if not FOLDER.is_dir():
        pytest.skip(f"no tokenizer at {FOLDER}")
    return PromptTokenizer.from_folder(FOLDER)


def check(fixture: Fixture) -> None:
    for case in fixture.meta["cases"]:
        presentation = present(pieces_of(case), tokenizer())
        got = entries(presentation)
        assert got == (case["ids"] if case["kind"] == "text" else case["entries"]), case["text"]
        if case["kind"] == "text":
            assert presentation.tags.tolist() == [1] * len(got)


def pieces_of(case: dict) -> tuple:
    if "refs" in case:
        return reference_pieces(case["text"], [reference(*ref) for ref in case["refs"]])
    return keyframe_pieces(case["text"], [picture()] * case.get("images", 0))


def reference(kind: str, frames: int = 0) -> ImageReference | AudioReference | VideoReference:
    if kind == "video":
        return VideoReference(picture(frames))
    return ImageReference(picture()) if kind == "image" else AudioReference()


def picture(frames: int = 1) -> np.ndarray:
    return np.zeros((frames, 64, 64, 3), dtype=np.uint8)


def entries(presentation: Presentation) -> list[int | str]:
    """Rows as the file writes them: a block's features are one word."""
    ids, out, row = presentation.ids.tolist(), [], 0
    for block in presentation.blocks:
        out += ids[row : block.start]
        assert (ids[block.start - 1], ids[block.stop]) == (VISION_START, VISION_END)
        out.append("IMAGE" if len(block.pixels) == 1 else "VIDEO_PAIR")
        row = block.stop
    return out + ids[row:]
