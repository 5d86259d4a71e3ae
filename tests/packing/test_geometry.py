"""The grids of time and space: published tables, and what must hold for every value."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.core import AREA_CAP, SAMPLES_PER_LATENT
from h3runtime.media.sound import samples_for
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size

TABLE = {
    5: (2, 8, 6400),
    22: (7, 37, 29334),
    39: (12, 65, 52000),
    56: (17, 93, 74400),
    73: (22, 122, 97334),
    90: (27, 150, 120000),
    107: (32, 178, 142400),
    124: (37, 207, 165334),
    141: (42, 235, 188000),
    158: (47, 263, 210400),
    209: (62, 348, 278400),
    226: (67, 377, 301334),
    260: (77, 433, 346400),
    311: (92, 518, 414400),
    362: (107, 603, 482400),
}
"""F -> T, A, samples kept (dit-contract §6; conditioning contract §0)."""

legal = st.integers(0, 300).map(lambda k: 17 * k + 5)
sides = st.integers(1, 8000)
aspects = st.tuples(sides, sides).filter(lambda size: geometry.is_legal_aspect(*size))


@pytest.mark.parametrize("frames", TABLE)
def test_counts_of_the_published_table(frames: int) -> None:
    latents, audio, samples = TABLE[frames]
    assert geometry.latent_frames(frames) == latents
    assert geometry.pixel_frames(latents) == frames
    assert geometry.audio_latents(frames) == audio
    assert min(SAMPLES_PER_LATENT * audio, samples_for(frames)) == samples


@given(st.integers(-50, 5000))
def test_snapping_up_finds_the_least_legal_count(frames: int) -> None:
    snapped = geometry.frames_at_least(frames)
    assert geometry.is_legal_frames(snapped)
    assert snapped >= frames
    assert snapped == 5 or snapped - 17 < frames


@given(st.integers(5, 5000))
def test_snapping_down_is_the_step_below_snapping_up(frames: int) -> None:
    below = geometry.frames_at_most(frames)
    assert below is not None and geometry.is_legal_frames(below) and below <= frames < below + 17


def test_nothing_is_legal_below_five_frames() -> None:
    assert geometry.frames_at_most(4) is None
    assert not geometry.is_legal_frames(-12)


def test_neighbours_of_an_illegal_count() -> None:
    assert geometry.legal_neighbours(81, 362) == (73, 90)
    assert geometry.legal_neighbours(3, 362) == (5,)
    assert geometry.legal_neighbours(-7, 362) == (5,)
    assert geometry.legal_neighbours(363, 362) == (362,)
    assert geometry.legal_neighbours(10_000, 362) == (362,)


@pytest.mark.parametrize(("seconds", "frames"), [(5, 124), (5.1666, 124), (5.17, 141), (0, 5), (5 / 24, 5), (15, 362)])
def test_seconds_of_common_requests(seconds: float, frames: int) -> None:
    assert geometry.frames_for_seconds(seconds) == frames


@given(st.floats(0, 200, allow_nan=False))
def test_seconds_get_the_least_clip_that_is_long_enough(seconds: float) -> None:
    frames = geometry.frames_for_seconds(seconds)
    assert geometry.is_legal_frames(frames)
    assert frames / 24 >= seconds - 0.001
    assert frames == 5 or (frames - 17) / 24 < seconds - 0.001


@given(legal)
def test_a_clip_asks_for_its_own_length_in_seconds(frames: int) -> None:
    assert geometry.frames_for_seconds(frames / 24) == frames


def test_an_absurd_duration_is_answered_at_once() -> None:
    assert geometry.frames_for_seconds(1e300) > 10**300


@given(st.integers(0, 3000))
def test_a_latent_frame_holds_the_pixel_frames_from_its_first(frame: int) -> None:
    latent = geometry.latent_of_pixel(frame)
    assert geometry.pixel_frames(latent) <= frame < geometry.pixel_frames(latent + 1)


@pytest.mark.parametrize("latent", range(200))
def test_first_pixel_frame_of_a_latent_frame(latent: int) -> None:
    """Conditioning contract §4.7."""
    offset = latent % 5
    assert geometry.pixel_frames(latent) == 17 * (latent // 5) + (4 * offset - 3 if offset else 0)


@given(legal)
def test_sound_and_picture_end_together(frames: int) -> None:
    """Within half a latent."""
    assert abs(geometry.audio_latents(frames) - frames * 5 / 3) <= 0.5


def test_guides_are_cut_down_to_what_the_clip_encoder_takes() -> None:
    counts = {1: 1, 4: 1, 5: 5, 21: 5, 22: 22, 100: 90}
    assert {n: geometry.guide_frames(n) for n in counts} == counts
    assert geometry.guide_latent_frames(1) == 1
    assert geometry.guide_latent_frames(22) == 7
    # floor(65 - 5/3 * 30) = 15
    assert geometry.guide_audio_latents(100, 65, 30) == 15
    assert geometry.guide_audio_latents(9, 65, 30) == 9
    assert geometry.guide_audio_latents(9, 8, 30) == 0


def test_reference_clips_are_cut_to_the_target_and_the_grid() -> None:
    assert geometry.reference_frames(200, 124) == 124
    assert geometry.reference_frames(100, 124) == 90
    assert geometry.reference_frames(4, 124) is None


CANVASES = {
    (16, 9): (1344, 768),
    (9, 16): (768, 1344),
    (21, 9): (1536, 672),
    (2, 1): (1440, 704),
    (4, 1): (2016, 512),
    (3, 2): (1152, 768),
    (4, 3): (1024, 768),
    (1, 1): (768, 768),
    (3, 4): (768, 1024),
}


@pytest.mark.parametrize("aspect", CANVASES)
def test_canvases_of_the_published_table(aspect: tuple[int, int]) -> None:
    assert geometry.canvas(*aspect) == CANVASES[aspect]


def test_a_short_edge_scales_the_canvas() -> None:
    assert geometry.canvas(16, 9, 544) == (960, 544)
    assert geometry.canvas(736, 992, 256) == (256, 352)


@given(aspects, st.integers(8, 24), st.integers(64 * 64, 2 * AREA_CAP))
def test_a_derived_canvas_is_legal_when_sent_back(size: tuple[int, int], edge: int, max_area: int) -> None:
    derived = geometry.derived_canvas(*size, 32 * edge, max_area)
    assert derived.width % 32 == derived.height % 32 == 0
    assert derived.area <= min(AREA_CAP, max_area)
    assert min(derived) >= 64


@given(aspects, st.integers(8, 24))
def test_a_canvas_within_the_cap_is_not_cut(size: tuple[int, int], edge: int) -> None:
    ruled = geometry.canvas(*size, 32 * edge)
    if ruled.area <= AREA_CAP:
        assert geometry.derived_canvas(*size, 32 * edge) == ruled


def test_a_canvas_just_over_the_cap_loses_from_its_longer_side() -> None:
    """2560x1080 rounds to 1568x672, 21504 pixels too many."""
    assert geometry.canvas(2560, 1080) == (1568, 672)
    assert geometry.derived_canvas(2560, 1080) == (1536, 672)
    assert geometry.derived_canvas(1080, 2560) == (672, 1536)


@given(sides, sides)
def test_turning_a_picture_turns_its_canvas(width: int, height: int) -> None:
    """Up to ties of rounding, which the two orders of division may meet from different sides."""
    lying, standing = geometry.canvas(width, height), geometry.canvas(height, width)
    assert abs(lying.width - standing.height) <= 32 and abs(lying.height - standing.width) <= 32


def test_aspects_from_one_to_four_each_way() -> None:
    assert geometry.is_legal_aspect(4, 1) and geometry.is_legal_aspect(1, 4)
    assert not geometry.is_legal_aspect(4001, 1000)
    assert not geometry.is_legal_aspect(1000, 4001)


@given(sides, sides, st.sampled_from(["match", "max"]))
def test_reference_pictures_are_never_enlarged(width: int, height: int, mode: str) -> None:
    target = Size(1344, 768)
    size = geometry.reference_image_size(width, height, target, mode)
    assert size.width % 32 == size.height % 32 == 0
    for got, own in zip(size, (width, height), strict=True):
        assert got <= max(32, own + 16)
    if mode == "match":
        assert math.prod(max(side - 16, 0) for side in size) <= target.area


def test_reference_clips_keep_a_size_below_their_canvas() -> None:
    assert geometry.reference_video_size(1920, 1080) == (1344, 768)
    assert geometry.reference_video_size(640, 360) == (640, 352)
    assert geometry.reference_video_size(10, 10) == (32, 32)


def test_sides_round_half_to_even() -> None:
    assert [geometry.nearest_multiple(side) for side in (1, 48, 80, 112)] == [32, 64, 64, 128]
