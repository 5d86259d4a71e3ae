from hypothesis import given
from hypothesis import strategies as st

from h3runtime.media.vision_size import MAX_PIXELS, MIN_PIXELS, features_of, patch_grid, smart_resize

sides = st.integers(1, 8192)


@given(sides, sides)
def test_sizes_are_whole_squares_within_the_limits(height, width) -> None:
    resized = smart_resize(height, width)
    assert all(side >= 32 and side % 32 == 0 for side in resized)
    assert resized[0] * resized[1] >= MIN_PIXELS
    # A side lifted to 32 is the one way past the upper limit.
    assert resized[0] * resized[1] <= MAX_PIXELS or 32 in resized


@given(st.integers(2, 100), st.integers(2, 100))
def test_a_canvas_is_left_alone(squares_y, squares_x) -> None:
    """Every canvas and keyframe size is on the grid and under the limit."""
    assert smart_resize(squares_y * 32, squares_x * 32) == (squares_y * 32, squares_x * 32)


@given(sides, sides)
def test_turning_a_picture_turns_its_size(height, width) -> None:
    assert smart_resize(height, width) == smart_resize(width, height)[::-1]


@given(sides, sides)
def test_features_are_a_quarter_of_the_patches(height, width) -> None:
    gh, gw = patch_grid(height, width)
    assert gh % 2 == gw % 2 == 0
    assert features_of((gh, gw)) * 4 == gh * gw


def test_halves_round_to_even() -> None:
    assert smart_resize(48, 80) == (64, 64)
    assert features_of(patch_grid(768, 1344)) == 1008
