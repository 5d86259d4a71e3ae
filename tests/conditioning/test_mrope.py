import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.conditioning.mrope import position_ids, rotary_angles, rotate

grids = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda g: (g[0] * 2, g[1] * 2))
layouts = st.lists(st.tuples(st.integers(1, 5), grids), max_size=4)


def walk(layout, tail: int) -> tuple[int, list, list]:
    """The rule of conditioning contract §1.8, one row at a time."""
    rows, blocks, p = [], [], 0
    for text, (gh, gw) in layout:
        rows += [(p + i,) * 3 for i in range(text)]
        p += text
        blocks.append((len(rows), (gh, gw)))
        rows += [(p, p + y, p + x) for y in range(gh // 2) for x in range(gw // 2)]
        p += max(gh, gw) // 2
    rows += [(p + i,) * 3 for i in range(tail)]
    return len(rows), blocks, rows


@given(layouts, st.integers(1, 5))
def test_positions_follow_the_running_counter(layout, tail) -> None:
    count, blocks, rows = walk(layout, tail)
    assert position_ids(count, blocks).T.tolist() == [list(row) for row in rows]


def test_axes_take_turns_below_three_times_their_section() -> None:
    ids = np.array([[1], [10], [100]])
    cos, sin = rotary_angles(ids, 128, 5e6, (24, 20, 20))
    for i in range(64):
        axis = i % 3 if i < 60 else 0
        angle = torch.tensor(float(ids[axis, 0])) * 5e6 ** (-2 * i / 128)
        assert torch.allclose(cos[0, i], angle.cos(), atol=1e-5), i
        assert torch.allclose(sin[0, i], angle.sin(), atol=1e-5), i


@given(st.integers(1, 50))
def test_text_alone_is_plain_rotary(rows) -> None:
    cos, _ = rotary_angles(position_ids(rows, []), 64, 5e6, (12, 10, 10))
    angles = torch.arange(rows).float()[:, None] * (1.0 / 5e6 ** (torch.arange(0, 64, 2).float() / 64))
    assert torch.equal(cos, angles.cos())


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    rotary = rotary_angles(position_ids(40, []), 32, 1e4, (6, 5, 5))
    q, k = (torch.randn(32, generator=torch.Generator().manual_seed(s)).expand(1, 40, 1, 32) for s in (0, 1))
    turned_q, turned_k = rotate(q, rotary), rotate(k, rotary)
    assert torch.allclose(turned_q.norm(dim=-1), q.norm(dim=-1), rtol=1e-5)
    scores = torch.einsum("bqhd,bkhd->qk", turned_q, turned_k)
    assert torch.allclose(scores.diagonal(3), scores[0, 3].expand(37), atol=1e-4)
