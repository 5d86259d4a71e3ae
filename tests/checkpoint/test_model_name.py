"""What a file's metadata says of the model's training: read as it was written, and never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.checkpoint.model_name import read_frames, told_frames


@given(st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)))
def test_lengths_come_back(frames: tuple[int, int]) -> None:
    assert read_frames(told_frames(frames)) == frames


STRANGE = ("", "22", "22..", "22...124", " 22..124", "22..124\n", "-1..5", "١..٢", "9999999..1", "x")


@pytest.mark.parametrize("told", STRANGE)
def test_a_stranger_s_words_are_no_lengths(told: str) -> None:
    assert read_frames(told) is None
