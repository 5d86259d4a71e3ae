"""The contract table of public few-step adapters, row by row, as requests meet it: what is legal and what offends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_loras
from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import read_stored
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.core import AdapterFacts, AdapterFit, BackendChoice, EngineFacts, Task
from tests.checkpoint.lora.models import PRUNED, write

PLAIN = BackendChoice("x", "it is there", ("x",), {"x": "reference"}, {})
FL2VA, REF2VA = (Task.T2VA, Task.I2VA, Task.L2VA, Task.FL2VA), (Task.REF2VA,)
LARRYVRH = TransformerSizes(
    hidden=16, layers=50, refiner_layers=2, heads=1, head_dim=16, ffn=8, channels=4, audio_channels=8, text_dim=8,
    rope_freqs=2, curve=None, sinusoid=8, time_hidden=8, time_dim=2688,
)  # fmt: skip
"""So many layers and such an AdaLN as the published one has, and little else."""


@dataclass(frozen=True)
class Row:
    """file: a published name. layout: that its shape is made in. alpha: to be named where the file has none."""

    file: str
    layout: str
    steps: tuple[int, ...]
    shift: tuple[float, ...]
    tasks: tuple[Task, ...]
    alpha: float | None
    schedulers: tuple[str, ...] = ("simple", "linear")
    rank: int = 128

    @property
    def legal(self) -> dict[str, Any]:
        return {"steps": self.steps[0], "shift": self.shift[0], "sampler": "euler", "scheduler": "simple"}


def turbo(stem: str, steps: tuple[int, ...], shift: tuple[float, ...], tasks: tuple[Task, ...], alpha: float | None):
    """As Diffusers' names and as `comfyui` have it."""
    names = (f"minimax_h3_{stem}_bf16", "diffusers"), (f"minimax_h3_{stem}_comfyui_bf16", "comfyui_turbo")
    return [Row(name, layout, steps, shift, tasks, alpha) for name, layout in names]


TABLE = [
    *turbo("fl2v_turbo_4step_v0.1", (4,), (12.0,), FL2VA, 8.0),
    *turbo("fl2v_turbo_8step_v1.0", (8, 4), (12.0,), FL2VA, 8.0),
    *turbo("fl2v_turbo_4step_v1.0_768p", (4,), (6.0,), FL2VA, 128.0),
    *turbo("fl2v_turbo_4step_v1.1_768p", (4,), (6.0,), FL2VA, 128.0),
    *turbo("fl2v_turbo_4step_v1.2_768p", (4,), (6.0,), FL2VA, 8.0),
    *turbo("fl2v_turbo_8step_v1.0_768p", (8,), (6.0,), FL2VA, 8.0),
    *turbo("ref2v_turbo_4step_v0.1", (4,), (12.0,), REF2VA, 8.0),
    *turbo("ref2v_turbo_8step_v1.0_768p", (8,), (6.0, 12.0), REF2VA, None),
    Row("h3_nano_turbo_4step", "comfyui_turbo", (4,), (12.0,), FL2VA, 48.0, rank=48),
    Row("minimax_h3_turbo_v4_step600_ema", "bare", (4, 5, 6, 7, 8), (12.0,), FL2VA, 64.0, rank=64),
    Row("MiniMax-H3-Acc-FL2VA", "pdd", (8, 4), (12.0,), (*FL2VA, *REF2VA), None, ()),
    Row("h3_acc_comfy", "pdd_comfyui", (8, 4), (12.0,), (*FL2VA, *REF2VA), None, ()),
    Row("fasth3_preview", "fasth3", (4,), (12.0,), (Task.T2VA,), None),
]
IDS = [f"{row.file}" for row in TABLE]


def facts_of(row: Row, tmp_path: Path, *, stripped: bool = False, rank: int | None = None) -> AdapterFacts:
    """Of such a file. stripped: its alpha is gone. rank: another than the published one."""
    made = adapter(row.layout, LARRYVRH if row.layout == "bare" else PRUNED, rank=rank or row.rank)
    if stripped:
        tensors = {name: tensor for name, tensor in made.tensors.items() if not name.endswith(".alpha")}
        made = replace(made, tensors=tensors, metadata={})
    path = write(tmp_path / f"{row.file}.safetensors", made.tensors, made.metadata)
    source = open_source(path)
    stored = read_stored(source)
    source.close()
    scales = scales_of(stored)
    fits = {partition: AdapterFit(len(stored.layers), len(stored.layers)) for partition in ("fl2va", "ref2va")}
    contract = contract_of(stored, row.file)
    assert contract is not None and contract.source
    return AdapterFacts(
        row.file, path.name, "5" * 64, 10, rank=scales.rank, alpha=scales.alpha, ratio=scales.ratio,
        needs_alpha=bool(scales.missing), fits=fits, contract=contract,
    )  # fmt: skip


def offences(facts: AdapterFacts, task: Task, alpha: float | None, **fields: Any) -> dict[str, tuple[str, str]]:
    lora = {"name": facts.name} | ({} if alpha is None or not facts.needs_alpha else {"alpha": alpha})
    read = read_body({"prompt": "x", "loras": [lora], **fields})
    assert not read.offences
    verdict = Verdict(read)
    judge_loras(read.body, task, EngineFacts("cpu", "x", (), PLAIN, PLAIN, {}, {}, adapters=(facts,)), verdict)
    return {o.field: (o.message, o.legal) for o in verdict.offences}


@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_what_it_was_trained_for_is_legal(tmp_path: Path, row: Row) -> None:
    facts = facts_of(row, tmp_path)
    for task in row.tasks:
        for steps in row.steps:
            for shift in row.shift:
                assert offences(facts, task, row.alpha, **row.legal | {"steps": steps, "shift": shift}) == {}


@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_every_other_value_is_refused_by_its_field(tmp_path: Path, row: Row) -> None:
    """A15: the field, the value that it has, and the legal ones."""
    facts = facts_of(row, tmp_path)
    wrong: dict[str, list[Any]] = {
        "steps": [n for n in (1, 3, 4, 5, 6, 8, 9, 20) if n not in row.steps],
        "shift": [shift for shift in (3.0, 6.0, 7.0, 12.0) if shift not in row.shift],
        "audio_shift": [12.0, 1.0],
        "sampler": ["res_multistep"],
        "scheduler": ["beta"] if row.schedulers else [],
    }
    legal = {
        "steps": row.steps, "shift": row.shift, "audio_shift": (3.0,), "sampler": ("euler",),
        "scheduler": row.schedulers,
    }  # fmt: skip
    for field, values in wrong.items():
        for value in values:
            found = offences(facts, row.tasks[0], row.alpha, **row.legal | {field: value})
            assert list(found) == [field], (field, value)
            message, allowed = found[field]
            assert message.startswith(f"{value:g}:" if isinstance(value, int | float) else f"{value}:")
            assert allowed == " or ".join(f"{v:g}" if isinstance(v, int | float) else v for v in legal[field])
    for task in (*FL2VA, *REF2VA):
        if task not in row.tasks:
            assert "task" in offences(facts, task, row.alpha, **row.legal)


@pytest.mark.parametrize("row", [row for row in TABLE if row.alpha is not None], ids=lambda row: row.file)
def test_an_alpha_that_its_file_lost_has_to_be_the_published_one(tmp_path: Path, row: Row) -> None:
    """A13: 16 times too strong otherwise; nothing stands in for it."""
    facts = facts_of(row, tmp_path, stripped=True)
    assert facts.needs_alpha
    missing = offences(facts, row.tasks[0], None, **row.legal)
    assert list(missing) == ["loras[0].alpha"] and missing["loras[0].alpha"][1] == f"{row.alpha:g}, as published"
    other = offences(facts, row.tasks[0], 16.0, **row.legal)
    assert list(other) == ["loras[0].alpha"] and other["loras[0].alpha"][1] == f"{row.alpha:g}"
    assert offences(facts, row.tasks[0], row.alpha, **row.legal) == {}


def test_of_a_resized_one_nobody_knows_the_alpha(tmp_path: Path) -> None:
    """`*_resized_avg_rank_21` bears the published name; its scale is in its matrices."""
    facts = facts_of(TABLE[0], tmp_path, stripped=True, rank=21)
    assert facts.contract is not None and facts.contract.alpha is None and facts.contract.steps == (4,)
    missing = offences(facts, Task.T2VA, None, **TABLE[0].legal)
    assert missing["loras[0].alpha"][1] == "the alpha that it was trained with"
    assert offences(facts, Task.T2VA, 21.0, **TABLE[0].legal) == {}
