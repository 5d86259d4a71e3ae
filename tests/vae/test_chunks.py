import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.errors import InvalidRequest
from h3runtime.vae.chunks import decoded_frames, encoded_latents, join, plan


@pytest.mark.parametrize(
    ("frames", "latents"), [(5, 2), (22, 7), (39, 12), (73, 22), (124, 37), (209, 62), (345, 102), (362, 107)]
)
def test_frames_and_latents_on_the_grid(frames, latents) -> None:
    assert decoded_frames(latents) == frames
    assert encoded_latents(frames) == latents
    assert plan(latents).chunks == max(1, (latents - 2) // 5)


def test_a_picture_is_one_latent() -> None:
    assert (decoded_frames(1), encoded_latents(1), plan(1).chunks, plan(1).latents_of(0)) == (1, 1, 1, slice(0, 1))


@pytest.mark.parametrize(
    ("latents", "padding", "chunks", "dropped", "frames"),
    [(2, 5, 1, 17, 5), (3, 4, 1, 13, 9), (7, 0, 1, 0, 22), (8, 4, 2, 13, 26), (12, 0, 2, 0, 39), (14, 3, 3, 9, 47)],
)
def test_plans_of_the_contract_and_the_fixtures(latents, padding, chunks, dropped, frames) -> None:
    p = plan(latents)
    assert (p.padding, p.chunks, p.dropped, p.frames) == (padding, chunks, dropped, frames)


@given(st.integers(1, 400))
def test_a_latent_stands_for_one_frame_or_four(latents) -> None:
    # The first latent of every five is a single frame; a decode gives exactly the frames its latents stand for.
    assert decoded_frames(latents) == sum(1 if m % 5 == 0 else 4 for m in range(latents))


@given(st.integers(2, 400))
def test_the_pieces_cover_the_padded_clip(latents) -> None:
    p = plan(latents)
    assert p.latents_of(p.chunks - 1).stop == latents + p.padding
    assert p.latents_of(0).start == 0
    assert all(p.latents_of(i).stop - p.latents_of(i).start == 7 for i in range(p.chunks))
    assert p.frames + p.dropped == 17 * p.chunks + 5


@given(st.integers(2, 500))
def test_encoded_latents_decode_to_a_legal_length(frames) -> None:
    latents = encoded_latents(frames)
    assert latents % 5 == 2
    assert 0 <= decoded_frames(latents) - frames + 12 < 17
    assert (frames - 5) % 17 != 0 or decoded_frames(latents) == frames


def test_nothing_to_decode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="latents"):
        plan(0)


def pieces_of(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(1, 3, 28, 2, 2, generator=generator) for _ in range(count)]


def without_fade(pieces: list[torch.Tensor], frames: int) -> torch.Tensor:
    return torch.cat([p[:, :, 3:20] for p in pieces] + [pieces[-1][:, :, 23:28]], 2)[:, :, :frames]


def test_join_fades_the_five_shared_frames() -> None:
    pieces = pieces_of(2)
    got = torch.cat(list(join(pieces, 39)), 2)
    old, new = pieces[0][:, :, 23:28], pieces[1][:, :, 3:8]
    for p in range(5):
        assert torch.allclose(got[:, :, 17 + p], old[:, :, p] * (1 - p / 5) + new[:, :, p] * (p / 5))
    assert torch.equal(got[:, :, 17], old[:, :, 0])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_missing_cross_fade_shows_at_the_joins_only(count) -> None:
    frames = 17 * count + 5
    pieces = pieces_of(count)
    got = torch.cat(list(join(pieces, frames)), 2)
    changed = (got != without_fade(pieces, frames)).flatten(3).any(-1).any(1)[0].nonzero().flatten().tolist()
    assert changed == [start + p for start in [17, 34, 51][: count - 1] for p in range(5)]


@given(st.integers(2, 60))
def test_no_frame_is_emitted_that_is_to_be_dropped(latents) -> None:
    p = plan(latents)
    parts = list(join((torch.zeros(1, 3, 28, 1, 1) for _ in range(p.chunks)), p.frames))
    assert sum(part.shape[2] for part in parts) == p.frames
    assert all(1 <= part.shape[2] <= 17 for part in parts)


def test_parts_come_as_soon_as_they_are_final() -> None:
    asked = 0

    def pieces():
        nonlocal asked
        for piece in pieces_of(3):
            asked += 1
            yield piece

    seen = [(asked, part.shape[2]) for part in join(pieces(), 56)]
    assert seen == [(1, 17), (2, 17), (3, 17), (3, 5)]


def test_a_piece_is_let_go_before_the_next_is_decoded() -> None:
    alive: list[weakref.ref] = []

    def pieces():
        for _ in range(4):
            assert all(ref() is None for ref in alive), "an earlier piece is still in memory"
            data = np.zeros((1, 3, 28, 2, 2), dtype=np.float32)
            alive.append(weakref.ref(data))
            piece = torch.from_numpy(data)
            del data
            yield piece
            del piece

    parts = join(pieces(), 73)
    total = sum(map(lambda part: part.shape[2], parts))  # noqa: C417  # a loop variable would itself keep the part
    assert total == 73
