"""The adapter in the package: its file, what it does to each step, and what the judge says of clips made with it.

Bounds are of what was measured (`benchmarks/LOG.md`): the file of another training has to be as good.
"""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from h3runtime.backends.linear.adapted import merged
from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.packaged import ADAPTERS, FOLDER
from h3runtime.checkpoint.expected import expectations
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.lora.binding import Target, bind
from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.layout import layout_of
from h3runtime.checkpoint.lora.reading import read_bound
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import read_stored
from h3runtime.checkpoint.model_name import MASTERS_KEY
from h3runtime.checkpoint.sources import open_source
from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.turbo import judging, stepping
from h3runtime.nano.training.turbo.adapter import FILE, read_pairs
from h3runtime.nano.training.turbo.command import RANK
from h3runtime.nano.training.turbo.schedule import NAME
from h3runtime.nano.training.turbo.student import Student
from h3runtime.nano.training.turbo.teacher import Teacher, read_teacher

PATH = ADAPTERS / FILE
SIZE = Size(128, 128, 22, 8)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return read_teacher(FOLDER, torch.device("cpu"))


@pytest.fixture(scope="module")
def student(teacher: Teacher) -> Student:
    return Student.beside(teacher.dit, teacher.encoder, RANK, 0, PATH)


def test_it_is_an_adapter_of_the_public_layout_for_these_masters(teacher: Teacher) -> None:
    """Read as any other; every layer's change is the product of the pairs that were trained, at scale 1."""
    target = Target({name: tuple(t.shape) for name, t in teacher.dit.state_dict().items()}, teacher.dit.config.head_dim)
    with closing(open_source(PATH)) as source:
        stored = read_stored(source)
        bound = bind(stored, target, PATH)
        loaded = read_bound(source, bound, target, torch.device("cpu"))
        metadata, dtypes = source.metadata, {e.dtype for n, e in source.entries.items() if "lora" in n}
    assert (layout_of(stored), dtypes, loaded.not_finite) == ("comfyui_turbo", {torch.bfloat16}, ())
    assert (bound.fit.matched, bound.fit.total, bound.fit.unmatched) == (28, 28, ())
    assert (metadata[MASTERS_KEY], metadata["name"]) == (read_listing(FOLDER).trained, NAME)
    contract, scales = contract_of(stored, "whatever"), scales_of(stored)
    assert contract is not None and contract.name == NAME and contract.alpha == scales.alpha == RANK
    pairs = read_pairs(PATH)
    for layer, change in loaded.scaled(scales.by_layer).items():
        own = teacher.dit.get_submodule(layer).weight.detach().float()
        found = merged(own, [(1.0, change)]) - own
        count = sum(name.startswith(f"{layer}.ups") for name in pairs)
        wanted = torch.cat([pairs[f"{layer}.ups.{i}"] @ pairs[f"{layer}.downs.{i}"] for i in range(count)])
        assert count == (3 if layer.endswith("qkv_proj") else 1)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-6)


def test_it_is_the_file_that_is_listed_and_small() -> None:
    (said,) = expectations(PATH, PATH.stat().st_size)
    assert said.binding and said.digest == sha256_of(PATH)
    assert PATH.stat().st_size <= 4_000_000


def test_every_step_lands_nearer_to_the_teacher_with_it(teacher: Teacher, student: Student) -> None:
    steps = stepping.step_errors(teacher, student, SIZE, torch.float32, 5)
    plain, adapted = stepping.total(steps, adapted=False), stepping.total(steps, adapted=True)
    assert adapted[0] < 0.7 * plain[0] and adapted[1] < 0.75 * plain[1], (plain, adapted)


def test_four_forwards_with_it_score_as_twenty_without(teacher: Teacher, student: Student) -> None:
    """At least nine tenths of the judge's score, and nearer to the clips of twenty than four forwards without it."""
    many, plain, adapted = judging.compared(teacher, student, SIZE, torch.float32)
    assert many.share > 0.9
    assert adapted.share >= 0.9 * many.share and adapted.whole >= 0.9 * many.whole
    assert adapted.video_l2 < 0.7 * plain.video_l2 and adapted.ssim > plain.ssim, (plain, adapted)
