"""Row slices cover every row once, stay within the bound and are as equal as can be."""

from hypothesis import given
from hypothesis import strategies as st

from h3runtime.quant import slices


@given(
    rows=st.integers(0, 200_000),
    columns=st.integers(0, 60_000),
    multiple=st.sampled_from([1, 16, 32, 128]),
)
def test_slices_cover_the_rows_in_bounded_equal_steps(rows: int, columns: int, multiple: int) -> None:
    parts = list(slices.row_slices(rows, columns, multiple))
    assert [p.start for p in parts] + [rows] == [0] + [p.stop for p in parts]
    lengths = [p.stop - p.start for p in parts]
    assert all(n % multiple == 0 for n in lengths[:-1])
    assert all(n * columns <= max(slices.SLICE_ELEMENTS, multiple * columns) for n in lengths)
    assert len(set(lengths[:-1])) <= 1 and all(n >= 1 for n in lengths)


def test_the_last_slice_of_a_real_layer_is_no_handful_of_rows() -> None:
    """fc1 of the published transformer: 28672 x 5376."""
    lengths = [p.stop - p.start for p in slices.row_slices(28672, 5376)]
    assert len(lengths) > 10 and min(lengths) > 0.95 * max(lengths)
