"""The few-step adapter: its rule, its training, its file, and the runtime's own loading of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.backends.linear.adapted import adapted
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.lora.binding import Target, bind
from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.layout import layout_of
from h3runtime.checkpoint.lora.reading import read_bound
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import StoredAdapter, read_stored, read_tensor
from h3runtime.checkpoint.model_name import MASTERS_KEY
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import PackedLayout, SamplerSettings, TextFeatures
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.noise import target_noise
from h3runtime.denoiser.schedule import audio_sigma, sigmas
from h3runtime.nano import model
from h3runtime.nano.training import clips, joint, transformer
from h3runtime.nano.training.curriculum import Sizes
from h3runtime.nano.training.lectern import Batch, Lectern
from h3runtime.nano.training.pieces import load_pieces
from h3runtime.nano.training.tasks import TASKS
from h3runtime.nano.training.turbo import captions, command, schedule, stepping
from h3runtime.nano.training.turbo.adapter import FILE, write_adapter
from h3runtime.nano.training.turbo.distilling import TurboRecipe, TurboTrainer
from h3runtime.nano.training.turbo.landing import Asked, landed, moved
from h3runtime.nano.training.turbo.student import PIECES, Student
from h3runtime.nano.training.turbo.teacher import Teacher, read_teacher
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.packing.layout import pack
from tests.nano.training.small import CPU, SIZE, SIZES, small_dit, small_pupil, spoken
from tests.nano.training.tape import TapeRecorder
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae

RANK = 8
RULE = SamplerSettings(4, seed=3, sampler="euler", scheduler="simple", shift=12.0, audio_shift=3.0)
RECIPE = TurboRecipe(rows=160, rate=1e-2, warm=1, parts=2, sizes=Sizes((SIZE,), (1.0,)), tell=1e9)


@pytest.fixture(scope="module")
def taught() -> Dit:
    """A DiT that has something to say: fresh heads are silent."""
    return spoken(small_dit())


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return small_pupil().encoder.requires_grad_(False)


@pytest.fixture(scope="module")
def lectern(taught: Dit, vocabulary: Vocabulary) -> Lectern:
    """Of captions alone."""
    none = torch.zeros(0)
    shelf = captions.plain_shelf(SIZE, taught.config, 1, CPU)
    return captions.CaptionLectern([shelf], clips.References({}, {}, none), vocabulary, taught)


def trainer_of(taught: Dit, encoder: TextEncoder, lectern: Lectern, recipe: TurboRecipe = RECIPE) -> TurboTrainer:
    student = Student.beside(taught, encoder, RANK, 0)
    trainer = TurboTrainer(taught, student, lectern, recipe, lambda _: None)
    trainer.dtype = torch.float32
    return trainer


def far(trainer: TurboTrainer) -> float:
    """The loss on a lesson that is always the same, apart from where the student's own steps lead."""
    lots = torch.Generator().manual_seed(9)
    batch = trainer.lectern.draw(trainer.lectern.bucket(0, TASKS[0], count=4), lots)
    kept, trainer.recordings.generator = trainer.recordings.generator, lots
    trainer.pupil.merge()
    with torch.no_grad():
        video, audio = trainer.loss(trainer.fresh(batch))
    trainer.recordings.generator = kept
    return float(video + audio)


def moving(student: Student) -> Student:
    """Pairs that do something, of values that BF16 holds."""
    lots = torch.Generator().manual_seed(4)
    for name, value in student.named():
        scale = 0.3 if "ups" in name else 1.0
        value.data.copy_((value.data + scale * 0.1 * torch.randn(value.shape, generator=lots)).bfloat16())
    student.merge()
    return student


def stored_in(path: Path) -> StoredAdapter:
    with closing(open_source(path)) as source:
        return read_stored(source)


@pytest.mark.parametrize("scheduler", ["simple", "linear"])
def test_it_steps_by_the_published_rule_on_both_clocks(scheduler: str) -> None:
    own = [transformer.sigmas_of(torch.tensor(b, dtype=torch.float64)) for b in schedule.bases(schedule.FORWARDS)]
    published = sigmas(replace(RULE, scheduler=scheduler)).double()
    assert torch.allclose(torch.stack([video for video, _ in own]), published, rtol=0, atol=1e-6)
    heard = torch.stack([audio_sigma(sigma, 12.0, 3.0) for sigma in published])
    assert torch.allclose(torch.stack([audio for _, audio in own]), heard, rtol=0, atol=1e-6)
    assert [float(audio) for _, audio in own] == pytest.approx([1.0, 0.9, 0.75, 0.5, 0.0])


def test_the_teacher_visits_the_same_places_and_more_between_them() -> None:
    coarse, fine = schedule.bases(4), schedule.bases(20)
    walked = [b for i in range(4) for b in schedule.between(coarse[i], coarse[i + 1], 5)[:-1]]
    assert (*walked, 0.0) == pytest.approx(fine)
    assert sum(schedule.lengths(*coarse[i : i + 2])[0] for i in range(4)) == pytest.approx(1.0)


def test_a_step_with_the_landing_velocity_lands() -> None:
    state, end = ((torch.randn(2, 4, 32), torch.randn(2, 6, 96)) for _ in range(2))
    for a, b in zip(moved(state, landed(state, end, 0.75, 0.5), 0.75, 0.5), end, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_lesson_leads_where_the_teacher_goes(taught: Dit, encoder: TextEncoder, lectern: Lectern) -> None:
    """Euler with the lesson's velocities, from noise, is the teacher's run of all its small steps."""
    trainer = trainer_of(taught, encoder, lectern, replace(RECIPE, own=0.0))
    batch = lectern.draw(lectern.bucket(0, TASKS[0], count=2), torch.Generator().manual_seed(2))
    given = trainer.fresh(batch)
    assert given.base.tolist() == [1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25]
    state = given.states[0][:2], given.states[1][:2]
    with torch.no_grad():
        end = Asked.of(taught, given.hidden, batch).walked(state, schedule.bases(8))
    for i, now in enumerate(schedule.bases(4)[:-1]):
        velocity = tuple(v[2 * i : 2 * i + 2] for v in given.velocities)
        state = moved(state, velocity, now, schedule.bases(4)[i + 1])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(state, end, strict=True))


def test_half_of_the_sequences_go_where_the_student_went(taught: Dit, encoder: TextEncoder, lectern: Lectern) -> None:
    trainer = trainer_of(taught, encoder, lectern, replace(RECIPE, own=1.0))
    moving(trainer.pupil)
    batch = lectern.draw(lectern.bucket(0, TASKS[0], count=2), torch.Generator().manual_seed(2))
    given = trainer.fresh(batch)
    first = given.states[0][:2], given.states[1][:2]
    with torch.no_grad():
        went = Asked.of(trainer.pupil.dit, given.hidden, batch).stepped(first, 1.0, 0.75)
    assert torch.equal(given.states[0][2:4], went[0]) and torch.equal(given.states[1][2:4], went[1])


def test_those_that_are_led_back_land_where_the_teacher_went(
    taught: Dit, encoder: TextEncoder, lectern: Lectern
) -> None:
    """Every step's velocity leads from where the student came to the teacher's own way from the noise."""
    trainer = trainer_of(taught, encoder, lectern, replace(RECIPE, own=1.0, home=True))
    moving(trainer.pupil)
    batch = lectern.draw(lectern.bucket(0, TASKS[0], count=2), torch.Generator().manual_seed(2))
    given = trainer.fresh(batch)
    noise, visited = (given.states[0][:2], given.states[1][:2]), schedule.bases(4)
    for i, now in enumerate(visited[:-1]):
        part = slice(2 * i, 2 * i + 2)
        state, velocity = ((pair[0][part], pair[1][part]) for pair in (given.states, given.velocities))
        with torch.no_grad():
            end = Asked.of(taught, given.hidden, batch).walked(noise, schedule.bases(8)[: 2 * i + 3])
        landing = moved(state, velocity, now, visited[i + 1])
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(landing, end, strict=True))
    assert not torch.allclose(
        given.states[1][2:4], moved(noise, (given.velocities[0][:2], given.velocities[1][:2]), 1.0, 0.75)[1]
    )


def test_nothing_of_a_backward_pass_outlives_it(taught: Dit, encoder: TextEncoder, lectern: Lectern) -> None:
    """What is left of one binds gradients to the stream that it ran on, and no other could record an update."""
    trainer = trainer_of(taught, encoder, lectern)
    trainer.step(trainer.bucket(0, TASKS[0]), 0.0)
    assert all(side.merged.grad_fn is None for side in trainer.pupil.sides.values())


def test_a_training_goes_on_from_the_adapter_that_another_left(
    taught: Dit, encoder: TextEncoder, tmp_path: Path
) -> None:
    """But for the rounding to BF16, which `moving` leaves nothing to do."""
    student = moving(Student.beside(taught, encoder, RANK, 0, masters="0123456789abcdef"))
    student.mean.copy_(student.optimiser.weights.values)
    student.save(tmp_path)
    with closing(open_source(tmp_path / FILE)) as source:
        assert source.metadata[MASTERS_KEY] == "0123456789abcdef"
    again = Student.beside(taught, encoder, RANK, 1, tmp_path / FILE)
    assert all(torch.equal(value, student.pairs[name]) for name, value in again.named())
    with pytest.raises(RuntimeError):
        Student.beside(taught, encoder, RANK + 1, 1, tmp_path / FILE)


def test_what_was_learnt_shows_in_the_steps(
    taught: Dit, encoder: TextEncoder, lectern: Lectern, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """On other captions and noise: fresh pairs change nothing, those that learnt make every mean error smaller."""
    small = Teacher(taught, encoder, untrained_video_vae(), untrained_audio_vae(), vocabulary)
    trainer = trainer_of(taught, encoder, lectern)

    def errors() -> list[stepping.StepError]:
        return stepping.step_errors(small, trainer.pupil, replace(SIZE, clips=3), torch.float32, 2)

    fresh = errors()
    assert [step.base for step in fresh] == [1.0, 0.75, 0.5, 0.25]
    assert all((step.video, step.audio) == (step.adapted_video, step.adapted_audio) for step in fresh)
    joint.train(trainer, seconds=0, steps=6, out=tmp_path)
    (video, audio), learnt = stepping.total(fresh, adapted=False), stepping.total(errors(), adapted=True)
    assert learnt[0] < video and learnt[1] < audio


@pytest.mark.parametrize("repeats", [1, 2])
def test_the_loss_falls_and_a_later_run_goes_on(
    repeats: int, taught: Dit, encoder: TextEncoder, lectern: Lectern, tmp_path: Path
) -> None:
    trainer = trainer_of(taught, encoder, lectern, replace(RECIPE, repeats=repeats))
    untouched = {name: value.clone() for name, value in taught.state_dict().items()}
    begun = far(trainer)
    assert joint.train(trainer, seconds=0, steps=4, out=tmp_path) == 4
    learnt = far(trainer)
    assert learnt < 0.97 * begun, (begun, learnt)
    assert all(torch.equal(value, untouched[name]) for name, value in taught.state_dict().items())
    again = trainer_of(taught, encoder, lectern)
    again.pupil = Student.beside(taught, encoder, RANK, 5, tmp_path)
    assert far(again) == pytest.approx(learnt, rel=1e-4)
    assert joint.train(again, seconds=0, steps=3, out=tmp_path) == 3 and far(again) < learnt
    assert set(load_pieces(tmp_path, PIECES)) == {name for name, _ in again.pupil.named()}


def test_nothing_of_a_step_comes_from_the_host(taught: Dit, encoder: TextEncoder, lectern: Lectern) -> None:
    """So it can be recorded on a GPU: replayed, it goes on learning."""
    trainer = trainer_of(taught, encoder, lectern)
    trainer.recordings._recorder, trainer.recordings.failed = TapeRecorder(), None
    bucket = trainer.bucket(0, TASKS[0])
    trainer.step(bucket, 0.0)
    assert trainer.recordings.failed is None
    before = trainer.pupil.optimiser.weights.values.clone()
    trainer.step(bucket, 0.0)
    assert trainer.steps == 4 and not torch.equal(before, trainer.pupil.optimiser.weights.values)


def test_the_file_has_the_public_layout(tmp_path: Path) -> None:
    dit, path = model.transformer(), tmp_path / "x.safetensors"
    transformer.initialise(dit, 0)
    write_adapter(moving(Student.beside(dit, model.text_encoder(8), RANK, 0)).pairs, path)
    made = adapter("comfyui_turbo", model.TRANSFORMER, rank=RANK)
    with closing(open_source(path)) as source:
        found = {name: (entry.dtype, tuple(entry.shape)) for name, entry in source.entries.items()}
        ups = [e for n, e in source.entries.items() if n.endswith("qkv_proj.lora_B.weight")]
        up = read_tensor(source, ups[0]).view(3, -1, 3, RANK)
        alphas = {n: float(read_tensor(source, e)) for n, e in source.entries.items() if n.endswith(".alpha")}
        metadata = source.metadata
    assert found == {name: (value.dtype, tuple(value.shape)) for name, value in made.tensors.items()}
    assert alphas == {name: float(value) for name, value in made.tensors.items() if name.endswith(".alpha")}
    assert all(bool(up[i, :, j].any()) == (i == j) for i in range(3) for j in range(3))
    assert metadata["converted_layout"] == made.metadata["converted_layout"]
    assert layout_of(stored_in(path)) == "comfyui_turbo"


def test_requests_are_held_to_what_it_was_trained_for(taught: Dit, tmp_path: Path) -> None:
    """Whatever the file is called."""
    write_adapter(Student.beside(taught, model.text_encoder(8), RANK, 0).pairs, tmp_path / "mine.safetensors")
    stored = stored_in(tmp_path / "mine.safetensors")
    contract = contract_of(stored, "mine")
    assert contract is not None and contract.name == schedule.NAME
    assert (contract.steps, contract.shift, contract.audio_shift) == ((4,), (12.0,), (3.0,))
    assert (contract.samplers, contract.schedulers) == (("euler",), ("simple", "linear"))
    scales = scales_of(stored)
    assert (scales.rank, scales.ratio, scales.missing) == (RANK, 1.0, ())


@torch.no_grad()
def test_the_runtime_makes_with_it_what_the_student_makes(taught: Dit, tmp_path: Path) -> None:
    """Its loader, its layers, its schedule and its sampler, against the training's batched forward."""
    student, path = moving(Student.beside(taught, model.text_encoder(8), RANK, 0)), tmp_path / FILE
    write_adapter(student.pairs, path)
    layout = pack(2, 4, 4, 8, np.ones(5, np.int64), [], [])
    hidden = torch.randn(1, 5, SIZES.text_dim, generator=torch.Generator().manual_seed(6))
    noise = target_noise(RULE.seed, 2, 4, 4, 8, channels=24, audio_channels=32)
    start = transformer.audio_rows(noise.audio), transformer.patchify(noise.video)
    ends = Asked.of(student.dit, hidden, batch_of(layout, student.dit)).walked(start, schedule.bases(4))
    without = run(taught, layout, hidden)
    with closing(open_source(path)) as source:
        target = Target({name: tuple(t.shape) for name, t in taught.state_dict().items()}, taught.config.head_dim)
        bound = bind(stored := read_stored(source), target, path)
        changes = read_bound(source, bound, target, CPU).scaled(scales_of(stored).by_layer)
    assert (bound.fit.matched, bound.fit.total, bound.fit.unmatched) == (12, 12, ())
    with adapted(taught, {layer: [(1.0, change)] for layer, change in changes.items()}):
        video, audio = run(taught, layout, hidden)
    found = transformer.audio_rows(audio), transformer.patchify(video)
    for a, b in zip(found, ends, strict=True):
        assert float((a - b).norm() / b.norm()) < 2e-5
    assert float((without[0] - video).norm() / video.norm()) > 0.05


def run(dit: Dit, layout: PackedLayout, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    text = TextFeatures(hidden, np.ones(hidden.shape[1], np.int64))
    made = denoise(dit, layout, text, [], [], RULE, device=CPU, dtype=torch.float32)
    return made.video, made.audio


def batch_of(layout: PackedLayout, dit: Dit) -> Batch:
    none = torch.zeros(0)
    return Batch(None, none, transformer.rows_of(layout, dit), None, None, None, none, none)


def test_captions_alone_ask_for_no_keyframes(lectern: Lectern) -> None:
    (shelf,) = lectern.shelves
    assert shelf.video.shape == (12, 24, 2, 4, 4) and shelf.audio.shape == (12, 32, 2, 8)
    assert [task.name for task in TASKS if lectern.has(0, task)] == ["text"]


def test_with_clips_there_are_keyframes_and_never_references(
    taught: Dit, encoder: TextEncoder, vocabulary: Vocabulary
) -> None:
    small = Teacher(taught, encoder, untrained_video_vae(), untrained_audio_vae(), vocabulary)
    sizes = Sizes((replace(SIZE, clips=2),), (1.0,))
    made = captions.lectern(small, sizes, 1, 0, keyframes=True, say=lambda _: None)
    assert {task.name for task in TASKS if made.has(0, task)} == {"text", "first", "first_last", "last", "guide"}
    first = next(task for task in TASKS if task.name == "first")
    trainer = trainer_of(taught, encoder, made)
    given = trainer.fresh(made.draw(made.bucket(0, first, count=2), torch.Generator().manual_seed(2)))
    trainer.pupil.merge()
    assert all(bool(loss.isfinite()) for loss in trainer.loss(given))


def test_the_masters_are_read_whole() -> None:
    teacher = read_teacher(FOLDER, CPU)
    assert not any(value.requires_grad for value in teacher.dit.parameters())
    ids = teacher.vocabulary.compact(np.array(teacher.vocabulary.tokenizer.encode("a red ball"), np.int64))
    assert bool(teacher.encoder.model.embed_tokens.weight[ids].any(1).all())


def test_the_command_writes_judges_and_goes_on(
    taught: Dit, encoder: TextEncoder, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Teacher(taught, encoder, untrained_video_vae(), untrained_audio_vae(), vocabulary)
    monkeypatch.setattr(command, "read_teacher", lambda *_: small)
    given = [str(tmp_path), "--device", "cpu", "--sizes", "64x64x5x6", "--rows", "100", "--rank", "4", "--parts", "1"]
    assert command.main([*given, "--seconds", "0.1", "--judged", "2"]) == 0
    assert len(stored_in(tmp_path / FILE).pairs) == 12 and "with the adapter" in (tmp_path / "judged.json").read_text()
    first = (tmp_path / FILE).read_bytes()
    assert command.main([*given, "--seconds", "0", "--judged", "0", "--resume"]) == 0
    assert (tmp_path / FILE).read_bytes() == first
    assert "going on" in (tmp_path / "turbo.log").read_text()
