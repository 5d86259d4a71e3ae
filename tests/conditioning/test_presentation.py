from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.conditioning.pieces import (
    AudioReference,
    ImageReference,
    VideoReference,
    Vision,
    keyframe_pieces,
    reference_pieces,
)
from h3runtime.conditioning.presentation import assemble, present
from h3runtime.conditioning.tokenizer import ENDOFTEXT, IMAGE_PAD, VISION_END, VISION_START
from h3runtime.core import Modality
from h3runtime.media.vision_size import features_of, patch_grid

visions = st.builds(
    lambda frames, height, width: Vision(np.zeros((frames, height, width, 3), dtype=np.uint8)),
    st.integers(1, 2),
    st.integers(1, 200),
    st.integers(1, 200),
)
pieces = st.lists(visions | st.lists(st.integers(0, 151675), max_size=5), max_size=6)


def stamps(listed) -> list[str]:
    return [p if isinstance(p, str) else "V" for p in listed]


@given(pieces)
def test_rows_tags_and_spans_agree(listed) -> None:
    presentation = assemble(listed)
    expected, tags = [], []
    for piece in listed:
        if isinstance(piece, Vision):
            features = features_of(patch_grid(*piece.pixels.shape[1:3]))
            expected += [VISION_START, *[IMAGE_PAD] * features, VISION_END]
            tags += [Modality.VIDEO] * (features + 2)
        else:
            expected += piece
            tags += [Modality.TEXT] * len(piece)
    assert presentation.ids.tolist() == (expected or [ENDOFTEXT])
    assert presentation.tags.tolist() == (tags or [Modality.TEXT])
    spans = [block.span for block in presentation.blocks]
    rows_in_spans = {row for a, b in spans for row in range(a, b)}
    assert rows_in_spans == {row for row, tag in enumerate(presentation.tags) if tag == Modality.VIDEO}
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(b.pixels is p.pixels for b, p in zip(presentation.blocks, filter(is_vision, listed), strict=True))


def is_vision(piece) -> bool:
    return isinstance(piece, Vision)


@given(st.text("abc <>|_ims", max_size=30), st.integers(0, 2))
def test_marker_text_of_the_user_is_text(byte_tokenizer, words, images) -> None:
    prompt = words + "<|vision_start|><|image_pad|><|vision_end|>"
    frames = [np.zeros((1, 64, 64, 3), dtype=np.uint8)] * images
    presentation = present(keyframe_pieces(prompt, frames), byte_tokenizer)
    assert len(presentation.blocks) == images
    assert presentation.ids[-3:].tolist() == [VISION_START, IMAGE_PAD, VISION_END]
    assert presentation.tags[-3:].tolist() == [Modality.TEXT] * 3
    assert int((presentation.tags == Modality.VIDEO).sum()) == images * (4 + 2)


def test_tasks_of_the_keyframe_family() -> None:
    frame = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    assert stamps(keyframe_pieces("p")) == ["p"]
    assert stamps(keyframe_pieces("p", [frame])) == ["<Picture 1>: ", "V", "p"]
    assert stamps(keyframe_pieces("p", [frame, frame])) == ["<Picture 1>: ", "V", "<Picture 2>: ", "V", "p"]
    assert stamps(keyframe_pieces("", [frame])) == ["<Picture 1>: ", "V"]


def test_nothing_at_all_is_one_end_of_text(byte_tokenizer) -> None:
    presentation = present(keyframe_pieces(""), byte_tokenizer)
    assert (presentation.ids.tolist(), presentation.tags.tolist()) == ([ENDOFTEXT], [Modality.TEXT])


def test_references_count_within_their_kind() -> None:
    image = ImageReference(np.zeros((1, 32, 32, 3), dtype=np.uint8))
    clip = VideoReference(np.zeros((5, 32, 32, 3), dtype=np.uint8), soundtrack=True)
    silent = VideoReference(clip.frames)
    listed = stamps(reference_pieces("p", [image, clip, image, AudioReference(), silent]))
    expected = ["<Picture 1>: ", "V", "<Audio 1>: ", "<Video 1>: ", "<0.0 seconds>", "V", "<Picture 2>: ", "V"]
    assert listed == [*expected, "<Audio 2>: ", "<Video 2>: ", "<0.0 seconds>", "V", "p"]


@pytest.mark.parametrize(
    "frames,times",
    [
        (5, ["0.0"]),
        (12, ["0.0"]),
        (13, ["0.2"]),
        (25, ["0.2", "1.0"]),
        (37, ["0.2", "1.2"]),
        (124, ["0.2", "1.2", "2.2", "3.2", "4.2", "5.0"]),
    ],
)
def test_timestamps_are_pair_means_rounded_half_to_even(frames, times) -> None:
    listed = reference_pieces("", [VideoReference(np.zeros((frames, 32, 32, 3), dtype=np.uint8))])
    assert stamps(listed)[1::2] == [f"<{t} seconds>" for t in times]


@given(st.integers(1, 200))
def test_every_twelfth_frame_is_seen_and_an_odd_last_one_twice(frames) -> None:
    clip = np.broadcast_to(np.arange(frames, dtype=np.uint8)[:, None, None, None], (frames, 1, 1, 3))
    pairs = [p.pixels[:, 0, 0, 0].tolist() for p in reference_pieces("", [VideoReference(clip)]) if is_vision(p)]
    seen = [frame for pair in pairs for frame in pair]
    expected = list(range(0, frames, 12))
    assert seen == expected + expected[-1:] * (len(expected) % 2)


@given(st.integers(1, 100))
def test_samples_alone_show_as_their_clip_does(frames) -> None:
    clip = np.broadcast_to(np.arange(frames, dtype=np.uint8)[:, None, None, None], (frames, 1, 1, 3))
    whole, sampled = (
        reference_pieces("p", [VideoReference(given, soundtrack=True, sampled=given is not clip)])
        for given in (clip, clip[::12])
    )
    assert stamps(whole) == stamps(sampled)
    pairs = zip(filter(is_vision, whole), filter(is_vision, sampled), strict=True)
    assert all(np.array_equal(one.pixels, other.pixels) for one, other in pairs)


@pytest.mark.parametrize("shape,dtype", [((3, 32, 32, 3), "u1"), ((1, 32, 32, 4), "u1"), ((1, 32, 32, 3), "f4")])
def test_pixels_of_another_form_are_our_bug(shape, dtype) -> None:
    with pytest.raises(AssertionError):
        Vision(np.zeros(shape, dtype=dtype))
