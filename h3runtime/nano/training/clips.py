"""The clips that the joint training learns from: drawn by lot, encoded once, kept as latents on the device.

    plan     seeds -> scenes, captions, stages and scores, in worker processes (plain arrays)
    encode   rendered on the device, batch by batch, through both VAEs -> a shelf of latents

One shelf holds clips of one size. Conditions are encoded with them: the first, last and middle frame as single
pictures. Reference portraits and voices are few (colour x shape, timbre x pitch) and have a table of their own. Fed by
`joint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.nano import pictures, sounds
from h3runtime.nano.captions import caption
from h3runtime.nano.training.audio_vae import encode_sounds
from h3runtime.nano.training.video_vae import encode_clips
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.nano.world import COLOURS, SHAPES, TIMBRES, Scene, Split, draw_scene
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

CHUNK: Final = 64
"""Clips planned by one worker at a time, and encoded together at the smallest size."""
VOICE_PITCHES: Final = (160.0, 200.0, 280.0, 320.0, 400.0, 520.0, 600.0, 840.0, 960.0)
"""Those of the shapes too: whoever never heard a voice at a shape's pitch takes the pitch from the voice."""
VOICE_LATENTS: Final = 80
"""Two seconds, the least that a reference may last."""
PORTRAIT_SHARES: Final = (0.24, 0.28, 0.32)
WORDINGS: Final[dict[tuple[bool, bool], int]] = {
    (False, False): 4,
    (True, False): 1,
    (True, True): 1,
}
"""Captions made of each scene, by (pictured, heard)."""

Wording = tuple[bool, bool]


@dataclass(frozen=True, slots=True, eq=False)
class Caption:
    """Words and their rows in the compact table of embeddings, int64 [n]."""

    words: str
    ids: NDArray[np.int64]


Captions = dict[Wording, tuple[tuple[Caption, ...], ...]]
"""Of every scene, by wording."""


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels and frames of a shelf's clips; `clips` of them."""

    width: int
    height: int
    frames: int
    clips: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A chunk of scenes as a worker made it."""

    scenes: tuple[Scene, ...]
    captions: Captions
    stage: pictures.Stage
    score: sounds.Score


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """N clips of one size. video [N, 24, T, h, w], audio [N, 32, 2, A], stills [N, 3, 24, 1, h, w] (first, middle and
    last frame) fp16 and normalised; frames uint8 [N, 2, H, W, 3], first and last. captions: of each clip."""

    size: Size
    scenes: tuple[Scene, ...]
    captions: Captions
    video: torch.Tensor
    audio: torch.Tensor
    stills: torch.Tensor
    frames: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """By their side in pixels: portraits [7, 4, 3, 24, 1, h, w] and their pixels uint8 [7, 4, 3, H, W, 3], by colour,
    shape, share. voices [3, P, 32, 2, A] by timbre, pitch."""

    portraits: Mapping[int, torch.Tensor]
    pixels: Mapping[int, torch.Tensor]
    voices: torch.Tensor


def plan(seed: int, count: int, size: Size, split: Split = "trained") -> Plan:
    """A chunk of `count` scenes of one seed; the same on every machine."""
    rng = np.random.default_rng(seed)
    scenes = tuple(draw_scene(rng, split) for _ in range(count))
    captions = {
        (pictured, heard): tuple(
            tuple(tokenised(caption(scene, rng, pictured=pictured, heard=heard)) for _ in range(number))
            for scene in scenes
        )
        for (pictured, heard), number in WORDINGS.items()
    }
    stage = pictures.stage(scenes, size.width, size.height, size.frames)
    return Plan(scenes, captions, stage, sounds.compose(scenes, size.frames))


def tokenised(words: str) -> Caption:
    """Words with their rows in the package's own vocabulary."""
    vocabulary = _vocabulary()
    return Caption(words, vocabulary.compact(np.array(vocabulary.tokenizer.encode(words), np.int64)))


@cache
def _vocabulary() -> Vocabulary:
    return Vocabulary.load()


class Planner:
    """Plans the chunks of shelves ahead, in processes of its own; a context that ends them.

    Begun before the VAEs are trained, it is done when they are. workers: 0 plans when asked.
    """

    def __init__(self, sizes: Sequence[Size], seed: int, workers: int, split: Split = "trained") -> None:
        self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
        self._plans = [self._begin(size, seed * 1009 + index, split) for index, size in enumerate(sizes)]

    def shelf(self, index: int) -> Iterator[Plan]:
        """The chunks of one shelf, in order."""
        return iter(self._plans[index])

    def _begin(self, size: Size, seed: int, split: Split) -> Iterable[Plan]:
        chunks = -(-size.clips // CHUNK)
        seeds = [seed * 1_000_003 + i for i in range(chunks)]
        counts = [min(CHUNK, size.clips - i * CHUNK) for i in range(chunks)]
        run = self._pool.map if self._pool else map
        return run(plan, seeds, counts, repeat(size), repeat(split))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@torch.no_grad()
def fill(size: Size, made: Iterable[Plan], video_vae: VideoVae, audio_vae: AudioVae, device: torch.device) -> Shelf:
    """Render and encode every planned clip."""
    found: list[tuple[torch.Tensor, ...]] = []
    scenes: list[Scene] = []
    captions: dict[Wording, list[tuple[Caption, ...]]] = {wording: [] for wording in WORDINGS}
    for chunk in made:
        found.append(_encode(chunk, video_vae, audio_vae, device))
        scenes += chunk.scenes
        for wording, texts in chunk.captions.items():
            captions[wording] += texts
    video, audio, stills, frames = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Shelf(size, tuple(scenes), {k: tuple(v) for k, v in captions.items()}, video, audio, stills, frames)


def _encode(
    chunk: Plan, video_vae: VideoVae, audio_vae: AudioVae, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    clips = pictures.draw(chunk.stage, device)
    count, frames = clips.shape[:2]
    # Larger clips a few at a time: the encoder's first level is the widest thing in training.
    few = max(1, CHUNK * 128 * 128 * 22 // (clips[0].numel() // 3))
    video = torch.cat([encode_clips(video_vae, part) for part in torch.split(clips, few)])
    stills = torch.stack([clips[:, 0], clips[:, frames // 2], clips[:, -1]], 1)
    encoded = torch.cat(
        [encode_clips(video_vae, part) for part in torch.split(stills.flatten(0, 1).unsqueeze(1), 3 * few)]
    )
    audio = encode_sounds(audio_vae, sounds.play(chunk.score, device))
    return video.half(), audio.half(), encoded.view(count, 3, *encoded.shape[1:]).half(), stills[:, [0, 2]].contiguous()


@torch.no_grad()
def references(video_vae: VideoVae, audio_vae: AudioVae, device: torch.device, sides: Sequence[int]) -> References:
    """The tables of portraits, square of so many pixels, and voices."""
    pixels = {side: _portraits(side, device) for side in sides}
    told = torch.stack([sounds.voice(t, p, VOICE_LATENTS, device) for t in TIMBRES for p in VOICE_PITCHES])
    voices = encode_sounds(audio_vae, told)
    return References(
        {side: _encoded(video_vae, drawn).half() for side, drawn in pixels.items()},
        pixels,
        voices.view(len(TIMBRES), len(VOICE_PITCHES), *voices.shape[1:]).half(),
    )


def _portraits(side: int, device: torch.device) -> torch.Tensor:
    """uint8 [colours, shapes, shares, side, side, 3]."""
    shape = (len(COLOURS), len(SHAPES), len(PORTRAIT_SHARES))
    drawn = [
        pictures.portrait(colour, shape, side, side, device, share=share)
        for colour in COLOURS
        for shape in SHAPES
        for share in PORTRAIT_SHARES
    ]
    return torch.stack(drawn).view(*shape, side, side, 3)


def _encoded(video_vae: VideoVae, pixels: torch.Tensor) -> torch.Tensor:
    """[.., H, W, 3] -> latents [.., 24, 1, h, w] of each as a picture of its own."""
    latents = encode_clips(video_vae, pixels.flatten(0, 2).unsqueeze(1))
    return latents.view(*pixels.shape[:3], *latents.shape[1:])


def shelves(
    sizes: Sequence[Size],
    planner: Planner,
    video_vae: VideoVae,
    audio_vae: AudioVae,
    device: torch.device,
    say: Callable[[str], None],
) -> list[Shelf]:
    """A shelf of every size."""
    found = []
    for index, size in enumerate(sizes):
        found.append(fill(size, planner.shelf(index), video_vae, audio_vae, device))
        say(f"encoded {size.clips} clips of {size.width}x{size.height}x{size.frames}")
    return found
