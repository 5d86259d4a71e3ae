"""The joint training: tasks as batches of one layout, a step that learns, pieces that go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.core import SegmentKind
from h3runtime.nano import model
from h3runtime.nano.training import clips, joint, samples, tasks, text_master, transformer
from h3runtime.nano.training.orthogonal import orthogonalised
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.vocabulary import Vocabulary
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae

SIZE = clips.Size(64, 64, 5, 12)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load()


@pytest.fixture(scope="module")
def lectern(vocabulary: Vocabulary) -> tasks.Lectern:
    video, audio = untrained_video_vae(), untrained_audio_vae()
    with clips.Planner([SIZE], seed=1, workers=0) as planner:
        shelves = clips.shelves([SIZE], planner, video, audio, CPU, print)
    dit = model.transformer()
    transformer.initialise(dit, 0)
    references = clips.references(video, audio, CPU, side=64)
    return tasks.Lectern(shelves, [1.0], references, vocabulary, dit, rows=300, seed=2)


@pytest.fixture(scope="module")
def pupil(vocabulary: Vocabulary) -> joint.Pupil:
    return joint.Pupil.begin(vocabulary, CPU, 0, None)


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda task: task.name)
def test_every_task_is_a_batch_of_one_layout(lectern: tasks.Lectern, pupil: joint.Pupil, task: tasks.Task) -> None:
    batch = lectern.draw(task, count=2)
    assert batch.text.rows == batch.layout.text_rows and len(batch.clips) == len(batch.captions) == 2
    conditions = batch.layout.of_kind(SegmentKind.COND, SegmentKind.REF_IMAGE)
    assert sum(s.stop - s.start for s in conditions) == (0 if batch.visual is None else batch.visual.shape[1])
    assert (len(batch.layout.of_kind(SegmentKind.REF_AUDIO)) == 1) == task.voice == (batch.audible is not None)
    video, audio = joint.loss_of(pupil, batch, joint.Recipe(), torch.float32)
    assert 0.5 < float(video.detach()) < 50 and 0.2 < float(audio.detach()) < 50


def test_captions_say_what_the_references_leave_out(lectern: tasks.Lectern) -> None:
    batch = lectern.draw(next(t for t in tasks.TASKS if t.name == "picture_voice"), count=4)
    scenes = [batch.shelf.scenes[i] for i in batch.clips]
    assert all("Picture 1" in words and "Audio 1" in words for words in batch.captions)
    assert all(scene.sound for scene in scenes)


def test_training_lowers_the_loss_and_goes_on_from_pieces(
    lectern: tasks.Lectern, pupil: joint.Pupil, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    recipe = joint.Recipe(rows=300, rate=3e-3, warm=2, sizes=joint.Sizes((SIZE,), (1.0,)))
    batch = lectern.draw(tasks.TASKS[0], count=4)

    def loss() -> float:
        torch.manual_seed(0)
        return sum(float(part.detach()) for part in joint.loss_of(pupil, batch, recipe, torch.float32))

    before = loss()
    steps = joint.train(
        pupil, lectern.shelves, lectern.references, vocabulary, recipe, seconds=0, steps=5, out=tmp_path, say=print
    )
    assert steps == 5 and loss() < before
    again = joint.Pupil.begin(vocabulary, CPU, 1, tmp_path)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again.named(), pupil.named(), strict=True))


def test_sampling_ends_at_the_data_where_the_network_knows_it(lectern: tasks.Lectern, pupil: joint.Pupil) -> None:
    batch = lectern.draw(tasks.TASKS[0], count=2)
    video, audio = samples.sample(pupil.dit, pupil.encoder, batch, 3, 0, torch.float32)
    assert video.shape == (2, 24, 2, 4, 4) and audio.shape == (2, 32, 2, 8)
    assert bool(video.isfinite().all()) and bool(audio.isfinite().all())


def test_plans_are_the_same_in_any_process() -> None:
    size = clips.Size(64, 64, 5, 3)
    with clips.Planner([size], seed=7, workers=0) as here, clips.Planner([size], seed=7, workers=1) as there:
        a, b = next(here.shelf(0)), next(there.shelf(0))
    assert a.scenes == b.scenes and np.array_equal(a.stage.casts[0].values, b.stage.casts[0].values)
    assert [c.words for c in a.captions[False, False][0]] == [c.words for c in b.captions[False, False][0]]


def test_the_rate_rises_and_falls() -> None:
    recipe = joint.Recipe(rate=1.0, warm=10, cool=0.5)
    rates = [joint.rate_at(recipe, step, step / 100) for step in range(100)]
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


def test_masters_are_read_back(pupil: joint.Pupil, vocabulary: Vocabulary, tmp_path: Path) -> None:
    from h3runtime.nano.training.masters import filled, write_transformer

    write_transformer(pupil.dit, tmp_path / "t.safetensors")
    text_master.write_text_master(pupil.encoder, tmp_path / "e.safetensors", vocabulary)
    again = filled(model.transformer(), tmp_path / "t.safetensors")
    assert torch.equal(again.video_patch_proj.weight, pupil.dit.video_patch_proj.weight)
    assert (tmp_path / "t.safetensors").stat().st_size < 10_200_000
