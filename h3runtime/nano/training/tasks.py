"""What the model is asked in training: the tasks of H3, as batches of one layout.

A batch takes clips of one shelf, one task and captions of one token length, so that all its sequences share a layout
and nothing is padded or masked, as in the runtime. Fed with shelves by `joint`; the rows go to `transformer.predict`.

    text only | first, last, first and last frame, a guide in the middle | a picture, with and without a voice
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import KeyframeShape, PackedLayout, ReferenceShape
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.schedule import VISUAL_LEVEL
from h3runtime.nano.training.clips import Caption, References, Shelf, Wording
from h3runtime.nano.training.text_batches import TextBatch, captioned
from h3runtime.nano.training.transformer import Rows, audio_rows, patchify, rows_of
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.nano.world import COLOURS, SHAPES, TIMBRES, Scene
from h3runtime.packing.layout import pack


@dataclass(frozen=True, slots=True)
class Task:
    """stills: which of a shelf's stills (first, middle, last) are keyframes; shown: the text encoder sees them too."""

    name: str
    share: float
    stills: tuple[int, ...] = ()
    shown: bool = True
    picture: bool = False
    voice: bool = False

    @property
    def wording(self) -> Wording:
        return self.picture, self.voice


MERGED: Final = 32
"""Pixels of the smallest picture that is shown (conditioning contract §1.9)."""
TASKS: Final = (
    Task("text", 0.50),
    Task("first", 0.12, (0,)),
    Task("first_last", 0.08, (0, 2)),
    Task("last", 0.06, (2,)),
    Task("guide", 0.03, (1,), shown=False),
    Task("picture", 0.13, picture=True),
    Task("picture_voice", 0.08, picture=True, voice=True),
)
"""A voice never comes alone: the service asks for a picture or a clip beside it."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of one layout. clips [B] on the shelf; visual, audible: clean condition rows in packed order."""

    task: Task
    shelf: Shelf
    layout: PackedLayout
    rows: Rows
    text: TextBatch
    clips: NDArray[np.int64]
    captions: tuple[str, ...]
    visual: torch.Tensor | None
    audible: torch.Tensor | None
    audio: torch.Tensor
    video: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The captions of one shelf and wording that a task may draw: which clip each belongs to, and those of a length."""

    captions: tuple[Caption, ...]
    clips: NDArray[np.int64]
    by_length: dict[int, NDArray[np.int64]]

    @classmethod
    def of(cls, shelf: Shelf, wording: Wording) -> Texts:
        """Voices are asked for of clips that sound, about as often for each timbre."""
        rng = np.random.default_rng(len(shelf.scenes))
        chosen = [i for i, scene in enumerate(shelf.scenes) if not wording[1] or _heard(scene, rng)]
        pairs = [(i, caption) for i in chosen for caption in shelf.captions[wording][i]]
        lengths = np.array([len(caption.ids) for _, caption in pairs])
        by_length = {int(n): np.flatnonzero(lengths == n) for n in np.unique(lengths)}
        return cls(tuple(c for _, c in pairs), np.array([i for i, _ in pairs], np.int64), by_length)


def _heard(scene: Scene, rng: np.random.Generator) -> bool:
    return scene.sound and (scene.timbre != "pure" or rng.random() < 0.12)


class Lectern:
    """Draws batches from shelves. weights: how often each shelf is drawn from; rows: packed rows of a batch."""

    def __init__(
        self,
        shelves: Sequence[Shelf],
        weights: Sequence[float],
        references: References,
        vocabulary: Vocabulary,
        dit: Dit,
        rows: int,
        seed: int,
    ) -> None:
        self.shelves, self.references, self.vocabulary, self.dit, self.rows = shelves, references, vocabulary, dit, rows
        self.weights = np.array(weights) / sum(weights)
        self.rng = np.random.default_rng(seed)
        self.texts = [{wording: Texts.of(shelf, wording) for wording in shelf.captions} for shelf in shelves]
        self._laid: dict[tuple[int, str, int], tuple[PackedLayout, Rows]] = {}

    def draw(self, task: Task | None = None, shelf: int | None = None, count: int | None = None) -> Batch:
        """A batch by lot, or of the task, shelf and size asked for."""
        number = int(self.rng.choice(len(self.shelves), p=self.weights)) if shelf is None else shelf
        task = task or self._task(number)
        texts = self.texts[number][task.wording]
        length = len(texts.captions[int(self.rng.integers(len(texts.captions)))].ids)
        count = count or _even(self.rows / self._expected_rows(number, task, length))
        picked = self.rng.choice(texts.by_length[length], count)
        return self._batch(number, task, texts, picked)

    def _task(self, number: int) -> Task:
        """By lot, among those that the shelf has captions for."""
        possible = [task for task in TASKS if self.texts[number][task.wording].captions]
        shares = np.array([task.share for task in possible])
        return possible[int(self.rng.choice(len(possible), p=shares / shares.sum()))]

    def seen(self) -> NDArray[np.bool_]:
        """Which rows of the table of embeddings any batch may hold: bool [rows]."""
        found = np.zeros(self.vocabulary.rows, np.bool_)
        for texts in (texts for by_wording in self.texts for texts in by_wording.values()):
            for caption in texts.captions:
                found[caption.ids] = True
        picture = torch.zeros(1, 1, MERGED, MERGED, 3, dtype=torch.uint8)
        for task in TASKS:
            shown = [picture] * (len(task.stills) * task.shown + task.picture)
            before = captioned(_before(task, shown), torch.zeros(1, 0, dtype=torch.int64), self.vocabulary)
            found[before.ids.flatten().numpy()] = True
        return found

    def _expected_rows(self, number: int, task: Task, length: int) -> int:
        """About how many packed rows a sequence has."""
        shelf = self.shelves[number]
        t, h, w = shelf.video.shape[2:]
        frame = h * w // 4
        given = 24 * task.picture + 2 * self.references.voices.shape[-1] * task.voice
        return length + 2 * shelf.audio.shape[-1] + frame * (t + 2 * len(task.stills)) + given

    def _batch(self, number: int, task: Task, texts: Texts, picked: NDArray[np.int64]) -> Batch:
        shelf, clips = self.shelves[number], texts.clips[picked]
        device = shelf.video.device
        at = torch.from_numpy(clips).to(device)
        captions = tuple(texts.captions[i] for i in picked)
        visual, shown = self._visual(task, shelf, clips, at)
        ids = torch.from_numpy(np.stack([caption.ids for caption in captions])).to(device)
        text = captioned(_before(task, shown), ids, self.vocabulary)
        layout, rows = self._layout(number, task, text)
        return Batch(
            task,
            shelf,
            layout,
            rows,
            text,
            clips,
            tuple(caption.words for caption in captions),
            visual,
            self._audible(shelf, clips) if task.voice else None,
            audio_rows(shelf.audio[at].float()),
            patchify(shelf.video[at].float()),
        )

    def _layout(self, number: int, task: Task, text: TextBatch) -> tuple[PackedLayout, Rows]:
        key = number, task.name, text.rows
        if key not in self._laid:
            shelf = self.shelves[number]
            frames = (0, shelf.size.frames // 2, shelf.size.frames - 1)
            keyframes = [KeyframeShape(frames[i], 1) for i in task.stills]
            portraits, voices = self.references.portraits, self.references.voices
            given = [ReferenceShape("image", 1, *portraits.shape[-2:])] if task.picture else []
            given += [ReferenceShape("audio", audio_latents=voices.shape[-1])] if task.voice else []
            t, h, w = shelf.video.shape[2:]
            layout = pack(t, h, w, shelf.audio.shape[-1], text.tags, keyframes, given)
            self._laid[key] = layout, rows_of(layout, self.dit)
        return self._laid[key]

    def _visual(
        self, task: Task, shelf: Shelf, clips: NDArray[np.int64], at: torch.Tensor
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Condition rows of the pictures, and the pixels that the text encoder sees, uint8 [B, 1, H, W, 3] each."""
        rows = [patchify(shelf.stills[at, i].float()) for i in task.stills]
        pixels = [shelf.frames[at, i // 2].unsqueeze(1) for i in task.stills] if task.shown else []
        if task.picture:
            actors = [shelf.scenes[i].actors[0] for i in clips]
            where = np.array([(list(COLOURS).index(a.colour), SHAPES.index(a.shape)) for a in actors])
            shares = self.rng.integers(self.references.portraits.shape[2], size=len(actors))
            c, s, n = (torch.from_numpy(i).to(at.device) for i in (where[:, 0], where[:, 1], shares))
            rows.append(patchify(self.references.portraits[c, s, n].float()))
            pixels.append(self.references.pixels[c, s, n].unsqueeze(1))
        if not rows:
            return None, pixels
        clean = torch.cat(rows, 1)
        return VISUAL_LEVEL * clean + (1 - VISUAL_LEVEL) * torch.randn_like(clean), pixels

    def _audible(self, shelf: Shelf, clips: NDArray[np.int64]) -> torch.Tensor:
        timbres = np.array([list(TIMBRES).index(shelf.scenes[i].timbre) for i in clips])
        pitches = self.rng.integers(self.references.voices.shape[1], size=len(clips))
        device = self.references.voices.device
        return audio_rows(
            self.references.voices[torch.from_numpy(timbres).to(device), torch.from_numpy(pitches).to(device)].float()
        )


def _even(count: float) -> int:
    """A batch's size, in steps of 16 where it is large: fewer sizes, so more memory is used again."""
    return max(1, min(512, round(count / 16) * 16 if count >= 24 else round(count)))


def _before(task: Task, shown: Sequence[torch.Tensor]) -> list[str | torch.Tensor]:
    """The presentation ahead of the prompt: labels and the pixels of pictures (conditioning contract §1.3)."""
    pieces: list[str | torch.Tensor] = []
    for index, pixels in enumerate(shown, 1):
        pieces += [f"<Picture {index}>: ", pixels]
    return pieces + (["<Audio 1>: "] if task.voice else [])


def shares(batches: Mapping[str, int]) -> str:
    """How often each task came, in words."""
    total = max(1, sum(batches.values()))
    return ", ".join(f"{name} {count / total:.0%}" for name, count in sorted(batches.items()))
