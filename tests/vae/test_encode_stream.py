"""A clip that comes frame by frame gives the latents of the whole clip, and is never held whole."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from h3runtime.core import CHUNK_FRAMES
from h3runtime.errors import InvalidRequest, JobCancelled
from h3runtime.vae.video_vae import VideoVae
from tests.vae.test_video_vae import pixels_of, small_vae


@pytest.fixture(scope="module")
def vae() -> VideoVae:
    return small_vae()


def one_by_one(pixels: torch.Tensor) -> Iterator[NDArray[np.uint8]]:
    return iter(pixels.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("frames", [1, 2, 5, 17, 20, 22, 39])
def test_a_stream_gives_the_bits_of_the_whole_clip(frames, dtype) -> None:
    vae, pixels = small_vae(dtype), pixels_of(frames)
    assert torch.equal(vae.encode_stream(one_by_one(pixels), frames), vae.encode_clip(pixels))


@pytest.mark.parametrize("frames", [1, 5, 17])
def test_a_cpu_encodes_in_fp32_with_the_weights_as_they_are_stored(frames) -> None:
    """Bit for bit what the same weights, widened beforehand, give; and fp32 latents that fp16 arithmetic would miss."""
    halved, widened = small_vae(torch.float16), small_vae()
    widened.load_state_dict({name: tensor.float() for name, tensor in halved.state_dict().items()})
    latents = halved.encode_clip(pixels_of(frames))
    want = widened.encode_moments(pixels_of(frames))
    assert torch.equal(halved.encode_moments(pixels_of(frames)), want)
    assert halved.encode_dtype == latents.dtype == torch.float32
    assert not torch.equal(want, want.half().float())


def test_a_frame_may_be_overwritten_once_it_is_taken(vae) -> None:
    pixels = pixels_of(22)
    screen = np.empty((32, 32, 3), dtype=np.uint8)

    def on_one_screen() -> Iterator[NDArray[np.uint8]]:
        for frame in pixels.numpy():
            screen[:] = frame
            yield screen

    assert torch.equal(vae.encode_stream(on_one_screen(), 22), vae.encode_clip(pixels))


def test_frames_are_asked_for_17_at_a_time(vae) -> None:
    asked, seen = [0], []

    def counted() -> Iterator[NDArray[np.uint8]]:
        for frame in pixels_of(39).numpy():
            asked[0] += 1
            yield frame

    vae.encode_stream(counted(), 39, on_chunk=lambda done, total: seen.append((done, total, asked[0])))
    assert seen == [(1, 3, CHUNK_FRAMES), (2, 3, 2 * CHUNK_FRAMES), (3, 3, 39)]


def test_the_reader_comes_to_its_end(vae) -> None:
    ended = []

    def reader() -> Iterator[NDArray[np.uint8]]:
        yield from pixels_of(5).numpy()
        ended.append(True)

    vae.encode_stream(reader(), 5)
    assert ended == [True]


def test_a_stop_ends_a_stream(vae) -> None:
    taken = []

    def counted() -> Iterator[NDArray[np.uint8]]:
        for frame in pixels_of(39).numpy():
            taken.append(True)
            yield frame

    with pytest.raises(JobCancelled):
        vae.encode_stream(counted(), 39, should_stop=lambda: len(taken) > CHUNK_FRAMES)
    assert len(taken) == 2 * CHUNK_FRAMES


@pytest.mark.parametrize("promised", [17, 21, 23, 40])
def test_a_reader_that_miscounts_is_our_bug(vae, promised) -> None:
    with pytest.raises(AssertionError):
        vae.encode_stream(one_by_one(pixels_of(22)), promised)


@pytest.mark.parametrize("shape", [(1, 33, 32, 3), (1, 16, 32, 3), (1, 32, 32, 4)])
def test_frames_of_another_shape_are_refused(vae, shape) -> None:
    with pytest.raises(InvalidRequest, match="pixels"):
        vae.encode_stream(iter(np.zeros(shape, dtype=np.uint8)), 1)


def test_no_frames_are_refused(vae) -> None:
    with pytest.raises(InvalidRequest, match="frames"):
        vae.encode_stream(iter(()), 0)
