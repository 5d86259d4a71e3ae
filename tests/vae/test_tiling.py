import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.errors import SettingsError
from h3runtime.vae.tiling import Tiling, blend, stitch

# conditioning contract §4.5, whole: length, starts, overlaps.
TABLE = [
    (320, (0, 64), (192,)),
    (384, (0, 128), (128,)),
    (480, (0, 112, 224), (144, 144)),
    (512, (0, 128, 256), (128, 128)),
    (544, (0, 144, 288), (112, 112)),
    (640, (0, 192, 384), (64, 64)),
    (704, (0, 144, 288, 448), (112, 112, 96)),
    (768, (0, 160, 336, 512), (96, 80, 80)),
    (864, (0, 144, 288, 448, 608), (112, 112, 96, 96)),
    (960, (0, 176, 352, 528, 704), (80, 80, 80, 80)),
    (1024, (0, 192, 384, 576, 768), (64, 64, 64, 64)),
    (1280, (0, 160, 320, 496, 672, 848, 1024), (96, 96, 80, 80, 80, 80)),
    (1344, (0, 176, 352, 528, 704, 896, 1088), (80, 80, 80, 80, 64, 64)),
]


@pytest.mark.parametrize(("length", "starts", "overlaps"), TABLE)
def test_the_table_of_the_contract(length, starts, overlaps) -> None:
    axis = Tiling().split(length)
    assert (axis.starts, axis.overlaps, axis.tile) == (starts, overlaps, 256)


def test_a_short_axis_is_one_tile() -> None:
    for length in (16, 240, 256):
        axis = Tiling().split(length)
        assert (axis.starts, axis.overlaps, axis.tile) == ((0,), (), length)


def test_a_full_picture_has_28_tiles() -> None:
    assert len(Tiling().split(1344).starts) * len(Tiling().split(768).starts) == 28


@st.composite
def cuts(draw):
    size = draw(st.integers(1, 20))
    overlap = draw(st.integers(0, size - 1))
    return Tiling(16 * size, 16 * overlap), 16 * draw(st.integers(1, 150))


@given(cuts())
def test_every_cut_covers_its_axis(case) -> None:
    tiling, length = case
    axis = tiling.split(length)
    if length <= tiling.size:
        assert axis.starts == (0,)
        return
    assert axis.tile == tiling.size
    assert axis.starts[0] == 0
    assert axis.starts[-1] + axis.tile == length
    for k, overlap in enumerate(axis.overlaps):
        assert axis.starts[k] + axis.tile - axis.starts[k + 1] == overlap >= tiling.overlap
        assert overlap % 16 == 0 and axis.starts[k + 1] > axis.starts[k]
    assert max(axis.overlaps) - min(axis.overlaps) in (0, 16)
    assert list(axis.overlaps) == sorted(axis.overlaps, reverse=True)
    # One tile fewer would not reach.
    fewer = len(axis.starts) - 1
    assert fewer * tiling.size - (fewer - 1) * tiling.overlap < length


@given(cuts())
def test_latent_units_are_a_sixteenth(case) -> None:
    tiling, length = case
    axis = tiling.split(length)
    cells = axis.divided(16)
    assert tuple(16 * s for s in cells.starts) == axis.starts
    assert tuple(16 * o for o in cells.overlaps) == axis.overlaps
    assert (16 * cells.tile, 16 * cells.length) == (axis.tile, axis.length)


@pytest.mark.parametrize(
    ("size", "overlap", "field"),
    [
        (250, 64, "vae_tile_size"),
        (0, 0, "vae_tile_size"),
        (-16, 0, "vae_tile_size"),
        (256, 256, "vae_tile_overlap"),
        (256, 60, "vae_tile_overlap"),
        (256, -16, "vae_tile_overlap"),
    ],
)
def test_illegal_tiles_are_named(size, overlap, field) -> None:
    with pytest.raises(SettingsError) as error:
        Tiling(size, overlap)
    assert field in [o.field for o in error.value.offences]


def test_blend_weights_begin_at_zero_and_never_reach_one() -> None:
    before, after = torch.zeros(1, 5), torch.ones(1, 8)
    assert torch.equal(blend(before, after, -1), torch.tensor([[0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1]]))
    assert torch.equal(blend(before, after, 1), blend(before.T, after.T, 0).T)


def test_blend_takes_the_end_of_a_longer_neighbour() -> None:
    before, after = torch.arange(6.0), torch.full((2,), 10.0)
    assert blend(before, after, 0).tolist() == [4.0, 7.5]


def test_blend_of_nothing_changes_nothing() -> None:
    after = torch.rand(3)
    assert torch.equal(blend(torch.empty(0), after, 0), after)


def test_blend_rounds_weights_and_products_to_the_tile_dtype() -> None:
    before, after = torch.tensor([1.0, 3.1, 7.7]).half(), torch.tensor([2.2, 5.3, -3.3]).half()
    got = blend(before, after, 0)
    for p in range(3):
        weight = torch.tensor(p / 3).half()
        rest = (1 - weight.float()).half()
        kept, new = (before[p].float() * rest.float()).half(), (after[p].float() * weight.float()).half()
        assert got[p] == (kept.float() + new.float()).half()


def crossing(rule: str) -> torch.Tensor:
    """Four tiles of 4x4 that share 2 rows and 2 columns of a 6x6 picture; the 2x2 zone where all four meet."""
    tiles = {(0, 0): 1.0, (0, 1): 10.0, (1, 0): 100.0, (1, 1): 1000.0}
    axis = Tiling(64, 32).split(96).divided(16)
    return stitch(lambda i, j: torch.full((4, 4), tiles[i, j]), axis, axis, rule)[2:4, 2:4]


def test_raw_neighbours_meet_as_the_contract_says() -> None:
    a = torch.tensor([0.0, 0.5])
    y, x = a[:, None], a[None, :]
    below = 10 * (1 - y) + 1000 * y
    assert torch.equal(crossing("raw"), 100 * (1 - x) + below * x)


def test_blended_neighbours_meet_as_the_contract_says() -> None:
    a = torch.tensor([0.0, 0.5])
    y, x = a[:, None], a[None, :]
    above = 1 * (1 - x) + 10 * x
    left = above * (1 - y) + 100 * y
    below = above * (1 - y) + 1000 * y
    assert torch.equal(crossing("blended"), left * (1 - x) + below * x)


def test_the_two_rules_differ_only_where_overlaps_cross() -> None:
    torch.manual_seed(0)
    rows, columns = Tiling(48, 16).split(80).divided(16), Tiling(48, 16).split(112).divided(16)
    tiles = {(i, j): torch.rand(3, 3) for i in range(len(rows.starts)) for j in range(len(columns.starts))}
    raw, blended = (stitch(lambda i, j: tiles[i, j], rows, columns, rule) for rule in ("raw", "blended"))
    assert raw.shape == blended.shape == (5, 7)

    def shared(axis) -> list[bool]:
        zones = [range(s, s + o) for s, o in zip(axis.starts[1:], axis.overlaps, strict=True)]
        return [any(p in zone for zone in zones) for p in range(axis.length)]

    crossed = torch.tensor(shared(rows))[:, None] & torch.tensor(shared(columns))[None, :]
    assert crossed.any()
    assert torch.equal(raw[~crossed], blended[~crossed])


@pytest.mark.parametrize("rule", ["raw", "blended"])
@pytest.mark.parametrize(("height", "width"), [(832, 480), (480, 832), (768, 1344), (256, 704)])
def test_tiles_of_one_picture_give_it_back_without_a_seam(rule, height, width) -> None:
    rows, columns = (Tiling().split(length).divided(16) for length in (height, width))
    picture = torch.arange(float(height // 16))[:, None] * 3 + torch.arange(float(width // 16))[None, :]
    asked = []

    def tile_at(i: int, j: int) -> torch.Tensor:
        asked.append((i, j))
        y, x = rows.starts[i], columns.starts[j]
        return picture[y : y + rows.tile, x : x + columns.tile].double()

    assert torch.allclose(stitch(tile_at, rows, columns, rule), picture.double(), rtol=0, atol=1e-12)
    assert asked == [(i, j) for i in range(len(rows.starts)) for j in range(len(columns.starts))]


@pytest.mark.parametrize(("size", "overlap"), [(256, 64), (64, 16), (80, 16), (512, 128)])
def test_another_tile_keeps_the_ratio(size: int, overlap: int) -> None:
    assert Tiling.of_size(size) == Tiling(size, overlap)
