"""The packed sequence: order, sizes and places of rows for every task, and invariants of dit-contract §11.5."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import KeyframeShape, PackedLayout, ReferenceShape, SegmentKind
from h3runtime.packing import geometry
from h3runtime.packing.layout import frame_clock, frame_ticks, pack, reference_ticks

SIZES = {"height": st.integers(1, 12), "width": st.integers(1, 12)}
references = st.one_of(
    st.builds(ReferenceShape, st.just("image"), st.just(1), st.integers(2, 8), st.integers(2, 8)),
    st.builds(
        ReferenceShape,
        st.just("video"),
        st.sampled_from([2, 7, 12]),
        st.integers(2, 6),
        st.integers(2, 6),
        st.integers(0, 30),
    ),
    st.builds(ReferenceShape, st.just("audio"), audio_latents=st.integers(1, 30)),
)
keyframes = st.builds(KeyframeShape, st.integers(0, 100), st.sampled_from([1, 2, 7]), st.integers(0, 9))


def tags(rows: int) -> np.ndarray:
    return np.ones(rows, dtype=np.int64)


def positions(layout: PackedLayout, *kinds: SegmentKind) -> np.ndarray:
    return np.concatenate([layout.position_ids[s.start : s.stop] for s in layout.of_kind(*kinds)])


@settings(max_examples=40, deadline=None)
@given(
    latent_frames=st.sampled_from([2, 7, 12]),
    audio=st.integers(1, 40),
    text=st.integers(1, 30),
    keys=st.lists(keyframes, max_size=3),
    refs=st.lists(references, max_size=4),
    **SIZES,
)
def test_segments_tile_the_sequence_in_order(latent_frames, height, width, audio, text, keys, refs) -> None:
    layout = pack(latent_frames, height, width, audio, tags(text), keys, refs)
    segments = layout.segments
    assert segments[0].start == 0 and layout.text_rows == text
    assert all(a.stop == b.start and a.start < a.stop for a, b in pairwise(segments))
    assert layout.position_ids.shape == (layout.rows, 3) and layout.position_ids.dtype == np.float64

    rank = {"text": 0, "cond": 1, "cond_audio": 1, "ref_img": 2, "ref_audio": 2, "audio": 3, "video": 4}
    order = [rank[s.kind] for s in segments]
    assert order == sorted(order) and order[-2:] == [3, 4]
    for kinds, count in (({"cond", "cond_audio"}, len(keys)), ({"ref_img", "ref_audio"}, len(refs))):
        sources = [s.source for s in segments if s.kind in kinds]
        assert sources == sorted(sources) and set(sources) == set(range(count))

    assert (layout.height, layout.width) == (height + height % 2, width + width % 2)
    assert segments[-1].stop - segments[-1].start == latent_frames * layout.height * layout.width // 4
    assert segments[-2].stop - segments[-2].start == 2 * audio


@settings(max_examples=40, deadline=None)
@given(refs=st.lists(references, max_size=4), text=st.integers(1, 30), **SIZES)
def test_references_move_the_whole_target(refs, text, height, width) -> None:
    layout = pack(2, height, width, 8, tags(text), [KeyframeShape(0, 1)], refs)
    origin = text
    for reference in refs:
        origin += reference_ticks(reference)
    for kind in (SegmentKind.AUDIO, SegmentKind.VIDEO, SegmentKind.COND):
        assert positions(layout, kind)[0, 0] == origin
    plain = pack(2, height, width, 8, tags(text), [KeyframeShape(0, 1)])
    np.testing.assert_array_equal(
        positions(layout, SegmentKind.VIDEO)[:, 1:], positions(plain, SegmentKind.VIDEO)[:, 1:]
    )


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(0, 12).map(lambda k: 17 * k + 5), text=st.integers(1, 400), **SIZES)
def test_keyframes_sit_on_the_targets_own_frames(frames, text, height, width) -> None:
    latents, audio = geometry.latent_frames(frames), geometry.audio_latents(frames)
    layout = pack(latents, height, width, audio, tags(text), [KeyframeShape(0, 1), KeyframeShape(frames - 1, 1)])
    first, last = (layout.position_ids[s.start : s.stop] for s in layout.of_kind(SegmentKind.COND))
    target = positions(layout, SegmentKind.VIDEO)
    np.testing.assert_array_equal(first, target[: len(first)])
    np.testing.assert_array_equal(last[:, 1:], target[: len(last), 1:])
    assert (last[:, 0] == text + 5 / 3 * (frames - 1)).all()


def test_the_clock_of_the_default_clip() -> None:
    """dit-contract §11.5: F = 124, T = 37."""
    assert abs(sum(frame_ticks(37)) - 124 * 5 / 3) < 1e-9
    clock = frame_clock(37)
    np.testing.assert_allclose(clock[:8], [0, 5 / 3, 25 / 3, 15, 65 / 3, 85 / 3, 30, 110 / 3])
    assert abs(clock[-1] - 200) < 1e-9
    layout = pack(37, 48, 84, 207, tags(10), [KeyframeShape(123, 1)])
    assert positions(layout, SegmentKind.COND)[0, 0] == 10 + 205.0
    assert positions(layout, SegmentKind.AUDIO)[-1, 0] == 10 + 206


def test_coordinates_of_the_default_canvas() -> None:
    """dit-contract §3.2."""
    frame = positions(pack(2, 48, 84, 8, tags(3)), SegmentKind.VIDEO)[: 24 * 42].reshape(24, 42, 3)
    np.testing.assert_allclose(frame[:2, 0, 1], [3.90513686, 4.91304213], atol=1e-8)
    np.testing.assert_allclose(frame[-1, 0, 1], 27.08695787, atol=1e-8)
    np.testing.assert_allclose(frame[0, :2, 2], [-5.16601049, -4.15810523], atol=1e-8)
    np.testing.assert_allclose(frame[0, -1, 2], 36.15810523, atol=1e-8)


def test_a_square_canvas_spans_thirty_two() -> None:
    frame = positions(pack(2, 8, 8, 8, tags(1)), SegmentKind.VIDEO)[:16]
    np.testing.assert_array_equal(np.unique(frame[:, 1]), [0, 8, 16, 24])


@settings(max_examples=30, deadline=None)
@given(audio=st.integers(1, 40), text=st.integers(1, 20), **SIZES)
def test_sound_sits_at_the_edges_left_channel_first(audio, text, height, width) -> None:
    layout = pack(2, height, width, audio, tags(text))
    sound, picture = positions(layout, SegmentKind.AUDIO), positions(layout, SegmentKind.VIDEO)
    left, right = sound[:audio], sound[audio:]
    np.testing.assert_array_equal(left[:, 0], text + np.arange(audio))
    np.testing.assert_array_equal(left[:, 0], right[:, 0])
    assert (sound[:, 1] == 0).all()
    assert (left[:, 2] == picture[:, 2].min()).all() and (right[:, 2] == picture[:, 2].max()).all()


def test_a_soundtrack_precedes_its_clip_and_uses_the_clips_edges() -> None:
    clip = ReferenceShape("video", 7, 4, 8, 50)
    layout = pack(2, 4, 4, 8, tags(5), references=[clip, ReferenceShape("audio", audio_latents=3)])
    kinds = [s.kind for s in layout.segments]
    assert kinds == ["text", "ref_audio", "ref_img", "ref_audio", "audio", "video"]
    track, picture, voice = (layout.position_ids[s.start : s.stop] for s in layout.segments[1:4])
    assert track[0, 0] == picture[0, 0] == 5
    assert track[0, 2] == picture[:, 2].min() and track[-1, 2] == picture[:, 2].max()
    # 50 latents of sound outlast 22 frames (36.7): the clock follows the longer one.
    assert voice[0, 0] == 55
    target = positions(layout, SegmentKind.VIDEO)
    assert voice[0, 2] == target[:, 2].min() and target[0, 0] == 58


def test_a_reference_picture_moves_the_clock_by_one() -> None:
    layout = pack(2, 4, 4, 8, tags(5), references=[ReferenceShape("image", 1, 6, 6)] * 2)
    first, second = (layout.position_ids[s.start] for s in layout.of_kind(SegmentKind.REF_IMAGE))
    assert (first[0], second[0], positions(layout, SegmentKind.VIDEO)[0, 0]) == (5, 6, 7)


def test_a_guide_may_be_a_clip_with_sound_or_sound_alone() -> None:
    guides = [KeyframeShape(17, 2, 8), KeyframeShape(30, 0, 9)]
    layout = pack(12, 4, 8, 65, tags(6), guides)
    assert [(s.kind, s.source) for s in layout.segments[1:4]] == [("cond", 0), ("cond_audio", 0), ("cond_audio", 1)]
    starts = [layout.position_ids[s.start, 0] for s in layout.segments[1:4]]
    assert starts == [6 + 5 / 3 * 17, 6 + 5 / 3 * 17, 6 + 5 / 3 * 30]


def test_rows_of_the_published_sizes() -> None:
    """dit-contract §11.4."""
    for height, width, frames, video, audio in (
        (768, 1344, 124, 37_296, 414),
        (544, 960, 124, 18_870, 414),
        (544, 960, 362, 54_570, 1_206),
    ):
        layout = pack(
            geometry.latent_frames(frames),
            geometry.latent_side(height),
            geometry.latent_side(width),
            geometry.audio_latents(frames),
            tags(1),
        )
        assert layout.rows == 1 + video + audio
