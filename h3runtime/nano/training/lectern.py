"""Batches of the joint training, drawn on the device: nothing of a draw comes from the host, so it can be recorded.

    bucket   a shelf, a task and how many sequences: one shape, prepared once
    draw     captions by lot -> their clips, conditions and presentations, gathered from tables

Texts of different lengths share a batch: they end at different rows of the same layout, the rest is masked
(`transformer.PaddedRows`; the encoder is causal, so what comes after a text doesn't reach it). Fed with shelves by
`joint`; the rows go to `transformer.predict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import KeyframeShape, Modality, PackedLayout, ReferenceShape
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.schedule import VISUAL_LEVEL
from h3runtime.nano.training.clips import Caption, References, Shelf, Wording
from h3runtime.nano.training.tasks import TASKS, Task, before
from h3runtime.nano.training.text_batches import TextBatch, captioned
from h3runtime.nano.training.transformer import ALIGNED, PaddedRows, Rows, audio_rows, padded_rows, patchify
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.nano.world import COLOURS, SHAPES, TIMBRES, Scene
from h3runtime.packing.layout import pack

MERGED: Final = 32
"""Pixels of the smallest picture that is shown (conditioning contract §1.9)."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The captions of one shelf and wording that a task may draw, N of them, on the device.

    ids int64 [N, Lc] with zeros after the end; lengths, clips, timbres int64 [N]: of the text, and of the clip that it
    is about; actors int64 [N, 2]: colour and shape of its first actor.
    """

    captions: tuple[Caption, ...]
    ids: torch.Tensor
    lengths: torch.Tensor
    clips: torch.Tensor
    actors: torch.Tensor
    timbres: torch.Tensor

    @classmethod
    def of(cls, shelf: Shelf, wording: Wording) -> Texts:
        """Voices are asked for of clips that sound, about as often for each timbre."""
        rng = np.random.default_rng(len(shelf.scenes))
        chosen = [i for i, scene in enumerate(shelf.scenes) if not wording[1] or _heard(scene, rng)]
        pairs = [(i, caption) for i in chosen for caption in shelf.captions[wording][i]]
        lengths = [len(caption.ids) for _, caption in pairs]
        ids = np.zeros((len(pairs), max(lengths, default=0) + ALIGNED), np.int64)
        for row, (_, caption) in zip(ids, pairs, strict=True):
            row[: len(caption.ids)] = caption.ids
        told = np.array([_facts(shelf.scenes[i]) for i, _ in pairs], np.int64).reshape(-1, 3)
        arrays = ids, np.array(lengths, np.int64), np.array([i for i, _ in pairs], np.int64), told[:, :2], told[:, 2]
        return cls(tuple(c for _, c in pairs), *(torch.from_numpy(a).to(shelf.video.device) for a in arrays))


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """`count` sequences of one shelf and task. layout: with the longest text, so of S rows, a multiple of `ALIGNED`.

    rows: of the layouts of all lengths from `shortest` on. words: columns of `texts.ids` that the text has.
    """

    shelf: Shelf
    task: Task
    count: int
    texts: Texts
    words: int
    shortest: int
    layout: PackedLayout
    rows: PaddedRows

    @property
    def name(self) -> str:
        size = self.shelf.size
        return f"{self.task.name} {size.width}x{size.height}x{size.frames}, {self.count} of {self.layout.rows} rows"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of a bucket. picked int64 [B]: captions. visual, audible: clean condition rows in packed order."""

    bucket: Bucket
    picked: torch.Tensor
    rows: Rows
    text: TextBatch
    visual: torch.Tensor | None
    audible: torch.Tensor | None
    audio: torch.Tensor
    video: torch.Tensor

    def asked(self) -> list[tuple[str, Scene]]:
        """Caption and scene of each; waits for the device."""
        texts, picked = self.bucket.texts, self.picked
        scenes = [self.bucket.shelf.scenes[i] for i in texts.clips[picked].tolist()]
        return list(zip([texts.captions[i].words for i in picked.tolist()], scenes, strict=True))


class Lectern:
    """Prepares buckets of the shelves and draws batches from them."""

    def __init__(self, shelves: Sequence[Shelf], references: References, vocabulary: Vocabulary, dit: Dit) -> None:
        self.shelves, self.references, self.vocabulary, self.dit = shelves, references, vocabulary, dit
        self.texts = [{wording: Texts.of(shelf, wording) for wording in shelf.captions} for shelf in shelves]
        self._laid: dict[tuple[int, str], tuple[int, int, PackedLayout, PaddedRows]] = {}

    def has(self, number: int, task: Task) -> bool:
        """Whether a shelf has captions for the task, and a canvas that its picture isn't shrunk for."""
        size = self.shelves[number].size
        fits = task.side**2 <= size.width * size.height
        return fits and bool(self.texts[number][task.wording].captions)

    def bucket(self, number: int, task: Task, *, rows: int = 0, count: int = 0) -> Bucket:
        """Of so many sequences, or as many as have about so many packed rows together."""
        if (number, task.name) not in self._laid:
            self._laid[number, task.name] = self._lay(number, task)
        words, shortest, layout, padded = self._laid[number, task.name]
        texts = self.texts[number][task.wording]
        return Bucket(
            self.shelves[number], task, count or _even(rows / layout.rows), texts, words, shortest, layout, padded
        )

    def draw(self, bucket: Bucket, generator: torch.Generator, picked: torch.Tensor | None = None) -> Batch:
        """By lot, or the captions `picked`, int64 [B]; everything on the shelf's device."""
        shelf, task, texts, lots = bucket.shelf, bucket.task, bucket.texts, _Lots(bucket.count, generator)
        picked = lots.below(len(texts.captions)) if picked is None else picked
        clips = texts.clips[picked]
        visual, shown = self._visual(bucket, picked, clips, lots)
        return Batch(
            bucket,
            picked,
            bucket.rows.at(texts.lengths[picked] - bucket.shortest),
            captioned(before(task, shown), texts.ids[picked, : bucket.words], self.vocabulary),
            visual,
            self._audible(texts.timbres[picked], lots) if task.voice else None,
            audio_rows(shelf.audio[clips].float()),
            patchify(shelf.video[clips].float()),
        )

    def seen(self) -> NDArray[np.bool_]:
        """Which rows of the table of embeddings any batch may hold: bool [rows]."""
        found = np.zeros(self.vocabulary.rows, np.bool_)
        for texts in (texts for by_wording in self.texts for texts in by_wording.values()):
            for caption in texts.captions:
                found[caption.ids] = True
        for task in TASKS:
            found[_opening(task, (MERGED, MERGED), self.vocabulary).ids.flatten().numpy()] = True
        return found

    def _lay(self, number: int, task: Task) -> tuple[int, int, PackedLayout, PaddedRows]:
        """Columns of the text, its shortest length, the layout with the longest, and the rows of all."""
        lengths = self.texts[number][task.wording].lengths
        shortest, longest = int(lengths.min()), int(lengths.max())
        longest += -self.layout(number, task, longest).rows % ALIGNED
        layouts = [self.layout(number, task, words) for words in range(shortest, longest + 1)]
        return longest, shortest, layouts[-1], padded_rows(layouts, layouts[-1], self.dit)

    def layout(self, number: int, task: Task, words: int) -> PackedLayout:
        """Of one sequence whose caption has so many rows."""
        shelf = self.shelves[number]
        height, width = (task.side, task.side) if task.picture else (shelf.size.height, shelf.size.width)
        opening = _opening(task, (height, width), self.vocabulary).tags
        frames = (0, shelf.size.frames // 2, shelf.size.frames - 1)
        references = self.references
        given = [ReferenceShape("image", 1, *references.portraits[task.side].shape[-2:])] if task.picture else []
        given += [ReferenceShape("audio", audio_latents=references.voices.shape[-1])] if task.voice else []
        tags = np.concatenate([opening, np.full(words, Modality.TEXT, np.int64)])
        t, h, w = shelf.video.shape[2:]
        return pack(t, h, w, shelf.audio.shape[-1], tags, [KeyframeShape(frames[i], 1) for i in task.stills], given)

    def _visual(
        self, bucket: Bucket, picked: torch.Tensor, clips: torch.Tensor, lots: _Lots
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Condition rows of the pictures, and the pixels that the text encoder sees, uint8 [B, 1, H, W, 3] each."""
        task, shelf = bucket.task, bucket.shelf
        rows = [patchify(shelf.stills[clips, i].float()) for i in task.stills]
        pixels = [shelf.frames[clips, i // 2].unsqueeze(1) for i in task.stills] if task.shown else []
        if task.picture:
            portraits, drawn = self.references.portraits[task.side], self.references.pixels[task.side]
            where = *bucket.texts.actors[picked].unbind(1), lots.below(portraits.shape[2])
            rows.append(patchify(portraits[where].float()))
            pixels.append(drawn[where].unsqueeze(1))
        if not rows:
            return None, pixels
        clean = torch.cat(rows, 1)
        return VISUAL_LEVEL * clean + (1 - VISUAL_LEVEL) * lots.normal(clean), pixels

    def _audible(self, timbres: torch.Tensor, lots: _Lots) -> torch.Tensor:
        voices = self.references.voices
        return audio_rows(voices[timbres, lots.below(voices.shape[1])].float())


@dataclass(frozen=True, slots=True, eq=False)
class _Lots:
    """What is drawn for a batch."""

    count: int
    generator: torch.Generator

    def below(self, end: int) -> torch.Tensor:
        """int64 [B] in [0, end)."""
        return torch.randint(end, (self.count,), generator=self.generator, device=self.generator.device)

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)


def _heard(scene: Scene, rng: np.random.Generator) -> bool:
    return scene.sound and (scene.timbre != "pure" or rng.random() < 0.12)


def _facts(scene: Scene) -> tuple[int, int, int]:
    """Colour and shape of the first actor, and the timbre, as numbers."""
    actor = scene.actors[0]
    return list(COLOURS).index(actor.colour), SHAPES.index(actor.shape), list(TIMBRES).index(scene.timbre)


def _even(count: float) -> int:
    """A batch's size, in eights where it is large."""
    return max(1, min(512, int(count / 8) * 8 if count >= 8 else int(count)))


def _opening(task: Task, sides: tuple[int, int], vocabulary: Vocabulary) -> TextBatch:
    """What comes before the caption, with pictures of so many pixels in height and width; on the CPU."""
    picture = torch.zeros(1, 1, *sides, 3, dtype=torch.uint8)
    shown = [picture] * (len(task.stills) * task.shown + task.picture)
    return captioned(before(task, shown), torch.zeros(1, 0, dtype=torch.int64), vocabulary)
