"""What approximations do to a clip: which clips are made, that it is the engine that makes them, and how they count."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import quality, quality_engines
from benchmarks.quality_engines import Engines, Made
from benchmarks.quality_measures import distance
from benchmarks.quality_parts import part_arguments
from benchmarks.quality_plan import (
    EXACT,
    FORMATS,
    W4A4,
    Schedule,
    Size,
    Way,
    caches_of,
    named_way,
    schedule_of,
    size_of,
    ways_of,
)
from benchmarks.quality_prompts import SPLITS, TASKS, draw_prompt, ends_of, request_of
from benchmarks.quality_records import Record, Records
from benchmarks.quality_report import markdown, rows_of
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.core import REUSE_THRESHOLDS, Latents, StepReuse
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.errors import BackendUnavailable
from h3runtime.nano.judge import ITEMS
from h3runtime.nano.pictures import render
from h3runtime.nano.sounds import sound
from h3runtime.nano.world import is_held_out
from h3runtime.packing.geometry import audio_latents
from h3runtime.settings import default_cache_dir

TINY = Size(64, 64, 5)


@given(st.sampled_from(TASKS), st.sampled_from(SPLITS), st.integers(0, 1000))
def test_a_prompt_is_the_same_wherever_it_is_drawn(task: str, split: Any, index: int) -> None:
    one = draw_prompt(task, split, index)
    assert one == draw_prompt(task, split, index) and one.noise != draw_prompt(task, split, index + 1).noise
    for actor in one.scene.actors:
        assert is_held_out(actor.colour, actor.shape, actor.motion) is (split == "held_out")
    assert ("<Picture 1>" in one.caption) is (task in ("picture", "voice"))
    assert ("<Audio 1>" in one.caption) is (task == "voice")


@pytest.mark.parametrize("task", TASKS)
def test_a_request_is_one_that_the_runtime_takes(tmp_path: Path, task: str) -> None:
    prompt, size = draw_prompt(task, "trained", 3), Size(96, 64, 22)
    ends = ends_of(prompt, size)
    assert ((ends.first is not None), (ends.last is not None)) == (task in ("i2va", "fl2va"), task in ("l2va", "fl2va"))
    ruling = quality_engines.rule_on(request_of(prompt, size, ends, tmp_path), tmp_path, tmp_path, quality_settings())
    ruling.faults.raise_any()
    spec = ruling.spec(tmp_path / "a.mp4", tmp_path)
    assert spec.task == (task if task in ("t2va", "i2va", "l2va", "fl2va") else "ref2va")
    assert [reference.kind for reference in spec.references] == {"picture": ["image"], "voice": ["image", "audio"]}.get(
        task, []
    )


def quality_settings() -> Any:
    return quality_engines.resolve({})


def test_ways_are_all_combinations_and_the_exact_one_first() -> None:
    found = ways_of(FORMATS, ["dequant"], ["sdpa"])
    assert found[0] == EXACT and len(found) == len(FORMATS) == len(set(found))
    assert Way(W4A4, Nvfp4EmulatedLinear.name) in found
    assert ways_of(["nvfp4"], ["dequant"], ["sdpa"]) == (EXACT, Way("nvfp4"))
    assert (schedule_of("50"), schedule_of("8:euler:linear")) == (Schedule(50), Schedule(8, "euler", "linear"))
    assert size_of("192x128x22") == Size(192, 128, 22)
    for wrong in ("192x128", "axbxc", ""):
        with pytest.raises(ValueError, match="WIDTH"):
            size_of(wrong)


def test_a_named_way_is_told_by_its_own_name() -> None:
    for told in ("bf16/fp8/h3_attn8", "nvfp4/nvfp4/sdpa/easycache:0.2", "bf16/int8/sdpa/h3_cache:0.1:hold:0.3:1"):
        name, way = named_way(f"some {told}={told}")
        assert (name, way.name) == (f"some {told}", told)
    assert named_way("a=bf16/dequant/sdpa/easycache:0.4:0.3:1")[1].reuse == StepReuse("easycache", 0.4, 0.3, 1.0)
    wrong = (
        "bf16/fp8/sdpa",
        "a=bf16/fp8",
        "a=half/fp8/sdpa",
        "a=bf16/fp8/sdpa/none:1",
        "=bf16/fp8/sdpa",
        "a=1/2/3/4/5",
    )
    for text in (*wrong, "a=bf16/fp8/sdpa/easycache", "a=bf16/fp8/sdpa/easycache:0.1:0.2"):
        with pytest.raises(ValueError, match=r"NAME=|reuses|MODE:THRESHOLD"):
            named_way(text)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines on the tiny set, which stands for every format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality_engines, "embedded_set", lambda *_, **__: tiny_set(default_cache_dir()))
        yield Engines("cpu", 1, tmp_path_factory.mktemp("scratch"))


def test_it_is_the_engine_s_own_path(tiny: Engines, tmp_path: Path) -> None:
    prompt = draw_prompt("i2va", "trained", 0)
    request = request_of(prompt, TINY, ends_of(prompt, TINY), tmp_path)
    spec, given = tiny.condition(request)
    schedule = Schedule(2, "euler", "simple")
    made = tiny.make(EXACT, schedule, spec, given)
    asked = replace(
        spec,
        sampling=replace(spec.sampling, steps=2, sampler="euler", scheduler="simple"),
        output=tmp_path / "a.mp4",
        save_latents=True,
    )
    tiny.engine(EXACT).generate(asked, lambda _: None, lambda: False)
    kept, _ = read_latents(latents_path(asked.output))
    assert torch.equal(kept.video, made.latents.video) and torch.equal(kept.audio, made.latents.audio)
    assert made.checks.keys() == {"latents", "audio", "video"} and made.checks["video"].figures["frames"] == 5
    assert made.frames.shape == (5, 64, 64, 3) and made.samples.shape == (2, 800 * audio_latents(5))
    again = tiny.make(EXACT, schedule, spec, given)
    assert distance(made, again) == {"ssim": 1, "psnr": None, "log_mel_db": 0, "video_l2": 0, "audio_l2": 0}
    emulated = tiny.make(Way(W4A4, Nvfp4EmulatedLinear.name), schedule, spec, given)
    assert 0 < distance(made, emulated)["video_l2"] < 1


class Painter:
    """In place of the engines: the exact way makes the scene itself, the others something noisy."""

    checkpoint = "painted"
    made = 0

    def __init__(self, *_: Any) -> None:
        Painter.made = 0

    def engine(self, _: Way) -> Any:
        return type("Engine", (), {"place": type("Place", (), {"name": "nowhere"})})

    def condition(self, request: dict[str, Any]) -> tuple[Any, Any]:
        return request, None

    def make(self, way: Way, schedule: Schedule, request: dict[str, Any], _: Any) -> Made:
        Painter.made += 1
        (scene,) = (
            p.scene
            for split in SPLITS
            for index in range(2)
            if str((p := draw_prompt("t2va", split, index)).noise) == request["seed"]
        )
        frames = render([scene], request["width"], request["height"], request["frames"])[0].numpy()
        heard = sound([scene], request["frames"])[0].numpy()
        rng = np.random.default_rng(schedule.steps)
        if way != EXACT:
            frames = np.clip(frames + rng.normal(0, 20, frames.shape), 0, 255).astype(np.uint8)
        video = torch.full((1, 4), 1.0 + (way != EXACT))
        return Made(Latents(video, video), torch.from_numpy(frames), heard, 0.5, 0.4, schedule.steps)


@pytest.fixture(name="painted")
def _painted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "Engines", Painter)


FEW = ("--prompts", "1", "--size", "128x128x22", "--split", "held_out")
RUN = (*FEW, "--format", "nvfp4", "--steps", "4", "8", "--anchor", "20")


@pytest.mark.usefixtures("painted")
def test_a_run_is_judged_told_drawn_and_taken_up(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert quality.main([str(folder), *RUN]) == 0
    told = json.loads((folder / "quality.json").read_text())
    rows = {(row["split"], row["way"]["format"], row["schedule"]["steps"]): row for row in told["rows"]}
    assert len(rows) == 2 * 2 + 1 and {row["clips"] for row in rows.values()} == {1}
    for (_, form, steps), row in rows.items():
        assert form != "bf16" or row["judged"]["all"][0] == 1, "the scene itself has nothing wrong in it"
        assert (row["exact"] == {}) is (form == "bf16") and (row["anchor"] == {}) is (steps == 20)
    far = rows["held_out", "nvfp4", 4]["exact"]
    assert far["ssim"] < 0.9 and 20 < far["psnr"] < 25 and far["video_l2"] == 1 and far["log_mel_db"] == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "clips.jsonl",
        "quality.json",
        "quality.md",
        "t2va-held_out-128x128x22.png",
    ]
    lines = (folder / "clips.jsonl").read_text().splitlines()
    (folder / "clips.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    quality.main([str(folder), *RUN])
    assert Painter.made == 3, "what was cut off, and what it is compared with"
    quality.main([str(folder), *RUN])
    assert Painter.made == 0
    assert json.loads((folder / "quality.json").read_text()) == told


@pytest.mark.usefixtures("painted")
def test_named_ways_are_made_alone_and_one_that_can_t_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def choose(name: str) -> None:
        if name == "fa4":
            raise BackendUnavailable("no such device")

    place = type("Place", (), {"name": "nowhere"})
    attentions = type("Attentions", (), {"choose": staticmethod(choose)})
    monkeypatch.setattr(Painter, "engine", lambda *_: type("Engine", (), {"place": place, "attentions": attentions}))
    ways = ("--way", "other=bf16/dequant/fa4", "rough=bf16/int8/sdpa")
    quality.main([str(tmp_path), *FEW, *ways])
    assert {record.way for record in Records(tmp_path).read()} == {EXACT, Way(linear="int8")}
    assert "bf16/dequant/fa4: no such device" in capsys.readouterr().err
    named = json.loads((tmp_path / quality.WAYS).read_text())
    assert {name: Way(**told) for name, told in named.items()} == {
        "other": Way(attention="fa4"),
        "rough": Way(linear="int8"),
    }


@pytest.mark.usefixtures("painted")
def test_parts_share_the_prompts_and_a_run_ends_in_time(tmp_path: Path) -> None:
    few = ("--prompts", "2", "--size", "128x128x22", "--steps", "2", "--split", "trained")
    for part in ("0/2", "1/2"):
        quality.main([str(tmp_path), *few, "--part", part])
    assert sorted(record.index for record in Records(tmp_path).read()) == [0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"clips-0.jsonl", "clips-1.jsonl"}
    quality.main([str(tmp_path / "late"), *few, "--seconds", "-1"])
    assert Painter.made == 0
    given = [quality._parser().parse_args(part) for part in part_arguments([str(tmp_path), "--threads", "2"], 3)]
    assert [(each.part, each.threads, each.processes) for each in given] == [((n, 3), 1, 1) for n in range(3)]


@pytest.mark.parametrize(("prompts", "parts"), [(8, 16), (3, 2), (5, 3)])
def test_every_prompt_is_some_part_s_and_no_part_gets_one_kind(prompts: int, parts: int) -> None:
    command = ["out", "--prompts", str(prompts), "--size", "64x64x5", "96x64x5"]
    shares = [
        [(p.index, p.split, size) for p, size in quality._prompts(quality._parser().parse_args(part))]
        for part in part_arguments(command, parts)
    ]
    every = sorted((each for share in shares for each in share), key=str)
    assert every == sorted(product(range(prompts), SPLITS, (Size(64, 64, 5), Size(96, 64, 5))), key=str)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(len({(split, size) for _, split, size in share}) >= min(len(share), 2) for share in shares)


def record(index: int, **figures: Any) -> Record:
    verdict = dict.fromkeys(ITEMS) | figures.pop("verdict", {})
    told = (
        {"exact": None, "anchor": None, "first": None, "last": None, "seconds": 1.0, "alarms": [], "checks": {}}
        | figures
        | {"verdict": verdict}
    )
    return Record("c", "cpu", "t2va", "trained", index, 0, TINY, Way("nvfp4"), Schedule(), "a red ball", told)


def test_shares_are_of_the_clips_that_say_something() -> None:
    near = {"ssim": 1.0, "psnr": None, "log_mel_db": 0.0, "video_l2": 0.0, "audio_l2": 0.0}
    far = {"ssim": 0.5, "psnr": 20.0, "log_mel_db": 2.0, "video_l2": 0.5, "audio_l2": 0.25}
    records = [
        record(0, verdict={"colour": True, "pitch": True}, exact=near, checks={"video luma": 10.0}),
        record(1, verdict={"colour": True, "pitch": None}, exact=far),
        record(2, verdict={"colour": False}, first=0.9, alarms=["audio: silent"], checks={"video luma": 20.0}),
    ]
    (row,) = rows_of(records)
    assert row.judged == {"colour": (2 / 3, 3), "pitch": (1.0, 1), "all": (2 / 3, 3)}
    assert row.exact["psnr"] == pytest.approx(20 + 10 * np.log10(2)) and row.exact["ssim"] == 0.75
    assert row.first == 0.9 and row.last is None and row.anchor == {}
    assert (row.alarms, row.checks) == (1 / 3, {"video luma": (10.0, 20.0)})
    table = markdown([row])
    distances = "0.7500 | 23.0 | 1.00 | 0.2500 | 0.1250"
    assert f"| nvfp4 | 12 res_multistep beta | 3 | 66.7 | 66.7 | 100.0 | 0.900 | {distances} | 33.3 | 1.00 |" in table
    assert "shape" not in table and "anchor" not in table


def test_reuse_is_named_by_what_it_does() -> None:
    named = caches_of(["none", "easycache", "first_block"], [0.1, 0.25], ["hold", "taylor"])
    assert named == (
        "",
        "easycache:0.1:hold",
        "easycache:0.1",
        "easycache:0.25:hold",
        "easycache:0.25",
        "first_block:0.1",
        "first_block:0.25",
    )
    assert Way(cache="easycache:0.25:hold").reuse == StepReuse("easycache", 0.25, forecast="hold")
    assert Way(cache="first_block:0.1").reuse == StepReuse("first_block", 0.1) and Way().reuse is None
    assert caches_of(["h3_cache"], [], ["taylor"]) == (f"h3_cache:{REUSE_THRESHOLDS['h3_cache']:g}",)
    assert ways_of(["bf16"], ["dequant"], ["sdpa"], named)[0].name == "bf16/dequant/sdpa"
