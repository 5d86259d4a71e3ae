"""The joint training: tasks as batches of one layout, a step that learns, pieces that go on."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.core import SegmentKind
from h3runtime.nano import model
from h3runtime.nano.training import clips, joint, looking, samples, tasks, text_master, transformer
from h3runtime.nano.training.curriculum import Course, Sizes, rate_at
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.orthogonal import orthogonalised
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.nano.world import COLOURS, SHAPES, is_held_out
from tests.nano.training.small import SIZE, SMALL_TASKS, small_pupil
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae


@pytest.fixture(scope="module")
def pupil() -> Pupil:
    return small_pupil()


def lots(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def losses(pupil: Pupil, lectern: Lectern, task: tasks.Task, count: int) -> list[float]:
    generator = lots()
    batch = lectern.draw(lectern.bucket(0, task, count=count), generator)
    return [float(x.detach()) for x in joint.loss_of(pupil, batch, joint.Recipe(), generator, torch.float32)]


@pytest.mark.parametrize("task", SMALL_TASKS, ids=lambda task: task.name)
def test_every_task_is_a_batch_of_one_layout(lectern: Lectern, pupil: Pupil, task: tasks.Task) -> None:
    batch = lectern.draw(lectern.bucket(0, task, count=2), lots())
    layout = batch.bucket.layout
    assert batch.text.rows == layout.text_rows and layout.rows % 8 == 0 and len(batch.asked()) == 2
    conditions = layout.of_kind(SegmentKind.COND, SegmentKind.REF_IMAGE)
    assert sum(s.stop - s.start for s in conditions) == (0 if batch.visual is None else batch.visual.shape[1])
    assert (len(layout.of_kind(SegmentKind.REF_AUDIO)) == 1) == task.voice == (batch.audible is not None)
    video, audio = losses(pupil, lectern, task, 2)
    assert 0.5 < video < 50 and 0.2 < audio < 50


def test_captions_belong_to_their_clips_and_say_what_the_references_leave_out(lectern: Lectern) -> None:
    batch = lectern.draw(lectern.bucket(0, next(t for t in SMALL_TASKS if t.voice), count=6), lots())
    shelf, texts = batch.bucket.shelf, batch.bucket.texts
    for row, (words, scene) in enumerate(batch.asked()):
        pick = int(batch.picked[row])
        caption, clip = texts.captions[pick], int(texts.clips[pick])
        assert "Picture 1" in words and "Audio 1" in words and scene.sound and shelf.scenes[clip] == scene
        own = batch.text.ids[row, batch.text.rows - batch.bucket.words :]
        assert own[: len(caption.ids)].tolist() == caption.ids.tolist() and not own[len(caption.ids) :].any()
        assert torch.equal(batch.video[row], transformer.patchify(shelf.video[clip : clip + 1].float())[0])
        masked = batch.rows.mask[row].flatten().isinf() if batch.rows.mask is not None else None
        assert masked is not None and int(masked.sum()) == len(own) - len(caption.ids)
        portraits = batch.bucket.texts.actors[pick].tolist()
        assert portraits == [list(COLOURS).index(scene.actors[0].colour), SHAPES.index(scene.actors[0].shape)]


@pytest.mark.parametrize(
    "task", [t for t in tasks.TASKS if t.name in ("text", "first", "picture_64_voice")], ids=lambda t: t.name
)
@torch.no_grad()
def test_a_text_that_ends_early_is_as_if_alone(lectern: Lectern, pupil: Pupil, task: tasks.Task) -> None:
    """Each sequence of a batch of texts of many lengths is what it is in a layout of its own length."""
    bucket = lectern.bucket(0, task, count=4)
    batch = lectern.draw(bucket, lots(3))
    audio, video, base = torch.randn_like(batch.audio), torch.randn_like(batch.video), torch.rand(4)
    text = transformer.refine(pupil.dit, encode_batch(pupil.encoder, batch.text), batch.rows.text_mask)
    given = batch.visual, batch.audible
    together = transformer.predict(pupil.dit, batch.rows, text, *given, audio, video, base)
    lengths = batch.bucket.texts.lengths[batch.picked].tolist()
    assert len(set(lengths)) > 1
    for row, words in enumerate(lengths):
        one = slice(row, row + 1)
        rows = batch.text.rows - bucket.words + words
        layout = lectern.layout(0, task, words)
        own = replace(
            batch.text,
            ids=batch.text.ids[one, :rows],
            tags=batch.text.tags[:rows],
            pixels=tuple(p[one] for p in batch.text.pixels),
        )
        refined = transformer.refine(pupil.dit, encode_batch(pupil.encoder, own))
        alone = transformer.predict(
            pupil.dit,
            transformer.rows_of(layout, pupil.dit),
            refined,
            *(None if x is None else x[one] for x in given),
            audio[one],
            video[one],
            base[one],
        )
        for a, b in zip(together, alone, strict=True):
            assert float((a[one] - b).norm() / b.norm().clamp_min(1e-9)) < 1e-5


def test_training_lowers_the_loss_and_goes_on_from_pieces(lectern: Lectern, pupil: Pupil, tmp_path: Path) -> None:
    recipe = joint.Recipe(rows=200, rate=3e-3, warm=2, sizes=Sizes((SIZE,), (1.0,)))
    before = sum(losses(pupil, lectern, tasks.TASKS[0], 4))
    trainer = joint.Trainer(pupil, lectern, recipe, print)
    assert joint.train(trainer, seconds=0, steps=4, out=tmp_path) == 4
    assert sum(losses(pupil, lectern, tasks.TASKS[0], 4)) < before
    other = small_pupil()
    again = Pupil.of(other.dit, other.encoder, tmp_path)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again.named(), pupil.named(), strict=True))


def test_an_interrupt_ends_in_good_order(lectern: Lectern, pupil: Pupil, tmp_path: Path) -> None:
    trainer = joint.Trainer(pupil, lectern, joint.Recipe(rows=100, sizes=Sizes((SIZE,), (1.0,))), print)
    told: list[str] = []

    def interrupt(line: str) -> None:
        told.append(line)
        signal.raise_signal(signal.SIGINT)

    trainer.say = lambda line: interrupt(line) if len(told) < 1 else told.append(line)
    assert joint.train(trainer, seconds=1e6, out=tmp_path) == 1
    assert "1 steps" in told[-1] and len(load_pieces(tmp_path, "joint")) == len(pupil.named())


def test_numbers_that_are_none_are_taken_back(lectern: Lectern, pupil: Pupil) -> None:
    trainer = joint.Trainer(pupil, lectern, joint.Recipe(), print)
    assert "norm" in trainer.standing()
    good = pupil.mean.clone()
    pupil.mean.fill_(torch.nan)
    assert "NOT FINITE" in trainer.standing() and torch.equal(pupil.mean, good) and trainer.falls == 1
    assert torch.equal(pupil.optimiser.weights.values, good) and "norm" in trainer.standing()


def test_sampling_ends_at_the_data_where_the_network_knows_it(lectern: Lectern, pupil: Pupil) -> None:
    batch = lectern.draw(lectern.bucket(0, tasks.TASKS[0], count=2), lots())
    video, audio = samples.sample(pupil.dit, pupil.encoder, batch, 3, 0, torch.float32)
    assert video.shape == (2, 24, 2, 4, 4) and audio.shape == (2, 32, 2, 8)
    assert bool(video.isfinite().all()) and bool(audio.isfinite().all())


def test_a_picture_is_no_larger_than_the_canvas(lectern: Lectern) -> None:
    """The service would shrink it, so a larger one never comes to the model."""
    assert [task for task in tasks.TASKS if lectern.has(0, task)] == SMALL_TASKS
    assert {task.side for task in tasks.TASKS} == {0, *tasks.SIDES}


def test_small_clips_come_first_and_every_size_in_the_end() -> None:
    course = Course((0.7, 0.2, 0.1), lambda number, task: number < 2 or not task.picture, seed=0)
    early = {course.draw(0.1) for _ in range(200)}
    late = [course.draw(0.9) for _ in range(400)]
    assert {(number, task.name) for number, task in early} == {(0, "text"), (0, "first")}
    assert {number for number, _ in late} == {0, 1, 2}
    assert 0.55 < sum(number == 0 for number, _ in late) / 400 < 0.85
    assert {task.name for _, task in late} == {task.name for task in tasks.TASKS}


def test_plans_are_the_same_in_any_process() -> None:
    size = clips.Size(64, 64, 5, 3)
    with clips.Planner([size], seed=7, workers=0) as here, clips.Planner([size], seed=7, workers=1) as there:
        a, b = next(here.shelf(0)), next(there.shelf(0))
    assert a.scenes == b.scenes and np.array_equal(a.stage.casts[0].values, b.stage.casts[0].values)
    assert [c.words for c in a.captions[False, False][0]] == [c.words for c in b.captions[False, False][0]]


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(step, step / 100, rate=1.0, warm=10, cool=0.5) for step in range(100)]
    assert rates[0] == 0.1 and rates[20] == 1.0 and rates[-1] < 0.05


def test_orthogonalised_matrices_have_even_singular_values() -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(3, 40, 24)))
    assert float(values.min()) > 0.5 and float(values.max()) < 1.3


def test_pieces_stay_small_and_are_all_needed(tmp_path: Path) -> None:
    tensors = {str(i): torch.full((3_000_000,), float(i)) for i in range(3)}
    paths = save_pieces(tensors, tmp_path, "x")
    assert len(paths) == 3 and max(p.stat().st_size for p in paths) < 15_000_000
    assert all(torch.equal(load_pieces(tmp_path, "x")[k], v) for k, v in tensors.items())
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        load_pieces(tmp_path, "x")


def test_masters_are_read_back(vocabulary: Vocabulary, tmp_path: Path) -> None:
    pupil = Pupil.begin(vocabulary, torch.device("cpu"), 0, None)
    from h3runtime.nano.training.masters import filled, write_transformer

    write_transformer(pupil.dit, tmp_path / "t.safetensors")
    text_master.write_text_master(pupil.encoder, tmp_path / "e.safetensors", vocabulary)
    again = filled(model.transformer(), tmp_path / "t.safetensors")
    assert torch.equal(again.video_patch_proj.weight, pupil.dit.video_patch_proj.weight)
    assert (tmp_path / "t.safetensors").stat().st_size < 10_200_000


def test_a_look_judges_new_captions_each_once(pupil: Pupil, vocabulary: Vocabulary, tmp_path: Path) -> None:
    batch = looking.asked(pupil, vocabulary, clips.Size(64, 32, 5, 3), "held_out", 1)
    assert len({words for words, _ in batch.asked()}) == 3
    actors = [actor for _, scene in batch.asked() for actor in scene.actors]
    assert all(is_held_out(a.colour, a.shape, a.motion) for a in actors)
    found = looking.look(pupil, batch, untrained_video_vae(), untrained_audio_vae(), tmp_path, "sheet")
    assert "colour" in found and "presence" in found and (tmp_path / "sheet.png").exists()
