"""`compare --a --b` on the embedded model at its smallest: what is told, what is written, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from h3runtime.__main__ import main
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.cli.sides import session
from h3runtime.cli.sides.film import Stage
from h3runtime.engine import room
from h3runtime.errors import CheckpointError, Offence
from h3runtime.media.clip_stream import each_block, each_frame, outline

SMALL = ("--prompt", "a red ball bouncing on a blue floor", "--width", "64", "--height", "64", "--frames", "5")
QUICK = (*SMALL, "--steps", "2", "--seed", "3", "--device", "cpu", "--json")
FILES = [
    "a.mp4",
    "a.mp4.latents.safetensors",
    "b.mp4",
    "b.mp4.latents.safetensors",
    "plot.png",
    "report.json",
    "side-by-side.mp4",
]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plot and film, whose own test has them."""
    monkeypatch.setattr(session, "chart_png", lambda _: b"")
    monkeypatch.setattr(session, "write_film", lambda _, path, *__: path.touch())


def compare(capsys: pytest.CaptureFixture[str], out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["compare", *QUICK, "--out", str(out), *arguments])
    told, err = capsys.readouterr()
    assert "Traceback" not in err and sorted(out.parent.glob(".h3runtime-*")) == []
    return code, json.loads(told) if told else {}, err


def test_four_bit_products_differ_and_all_of_it_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "ab"
    sides = ("--a", "linear=dequant", "--b", "linear=nvfp4_emulated", "--max-rel-l2", "0.001")
    code, facts, err = compare(capsys, out, *sides)
    assert code == 1 and "rel_l2 of the final video latents" in err and not facts["passed"]
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert json.loads((out / "report.json").read_text()) == facts
    assert facts["engines"] == "shared" and not facts["identical"] and facts["steps"]["pairing"] == "step"
    assert (facts["a"]["linear"], facts["b"]["linear"], facts["a"]["words"]) == ("dequant", "nvfp4_emulated", sides[1])
    first, second, final = facts["steps"]["latents"]
    assert first["video"]["rel_l2"] == 0 < second["video"]["rel_l2"] < final["video"]["rel_l2"]
    assert all(point[s]["rel_l2"] > 0 for point in facts["steps"]["denoised"] for s in ("video", "audio"))
    for step in facts["blocks"]:
        assert step["entering"]["identical"] and len(step["blocks"]) == 6
        for block in step["blocks"]:
            differ = {name for name, part in block["parts"].items() if not part["identical"]}
            assert differ == {"qkv", "out", "fc1", "fc2"} and block["worst_part"] in differ and block["rel_l2"] > 0
    assert len(facts["video"]["per_frame"]) == 5 and 0 < facts["video"]["ssim"] < 1
    assert len(facts["audio"]["per_span"]) == 2 and facts["audio"]["log_mel_db"] > 0
    with Image.open(out / "plot.png") as plot:
        assert plot.width == 1280 and plot.height > 900 and len(plot.convert("RGB").getcolors(2**24) or ()) > 1000
    _judge_film(out)


def _judge_film(out: Path) -> None:
    """As many frames as the clips, three panels wide, A's sound left and B's right."""
    path, stage = out / "side-by-side.mp4", Stage.of(64, 64)
    seen = outline(path, "film")
    assert seen.pictures is not None and seen.sound is not None
    assert (seen.pictures.width, seen.pictures.height) == stage.shape == (1200, 384 + 56 + 104)
    frames = list(each_frame(path, "film"))
    assert (len(frames), float(seen.pictures.rate), seen.sound.channels, seen.sound.rate) == (5, 24, 2, 32_000)
    for name, panel in (("a", 0), ("b", 1)):
        own = list(each_frame(out / f"{name}.mp4", name))[2].astype(float)
        shown = frames[2][56 : 56 + stage.h, stage.left(panel) : stage.left(panel) + stage.w].astype(float)
        assert np.abs(shown.reshape(64, 6, 64, 6, 3).mean(axis=(1, 3)) - own).mean() < 4
    film, own = (np.concatenate(list(each_block(p, "x", 0.0)), axis=1) for p in (path, out / "a.mp4"))
    length = min(film.shape[1], own.shape[1])
    assert np.corrcoef(film[0, :length], own[:, :length].mean(axis=0))[0, 1] > 0.9


@pytest.mark.usefixtures("undrawn")
def test_reused_steps_are_told_and_no_block_is_blamed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, reuse = tmp_path / "ab", "cache_mode=h3_cache,cache_threshold=3,cache_start_percent=0,cache_end_percent=1"
    _, facts, _ = compare(
        capsys, out, "--steps", "4", "--blocks-at", "3", "--b", f"{reuse},linear=dequant", "--a", "linear=dequant"
    )
    reused = [point["reused_b"] for point in facts["steps"]["denoised"]]
    assert sum(reused) == facts["b"]["skipped_steps"] > 0 and not any(p["reused_a"] for p in facts["steps"]["denoised"])
    assert facts["b"]["forwards"] + facts["b"]["skipped_steps"] == facts["a"]["forwards"] == 4
    first = reused.index(True)
    assert [p["video"]["identical"] for p in facts["steps"]["denoised"]][: first + 1] == [True] * first + [False]
    assert all(step["worst"] is None for step in facts["blocks"]) and not facts["identical"]


@pytest.mark.usefixtures("undrawn")
def test_what_is_done_to_one_product_is_found_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B multiplies as A does, but for one weight, which it finds by the order of the first calls of a forward."""
    exact, known = DequantLinear(), list[int]()

    def apply(self: Nvfp4EmulatedLinear, x: torch.Tensor, resident: Any) -> torch.Tensor:  # noqa: ARG001
        known.extend([id(resident)] if id(resident) not in known else [])
        y = exact.apply(x, resident)
        # qkv, out, fc1, fc2 of each block in turn.
        return y * 1.02 if known.index(id(resident)) == 4 * 3 + 2 else y

    monkeypatch.setattr(Nvfp4EmulatedLinear, "apply", apply)
    out = tmp_path / "ab"
    _, facts, _ = compare(capsys, out, "--a", "linear=dequant", "--b", "linear=nvfp4_emulated", "--blocks-at", "1")
    (step,) = facts["blocks"]
    assert (step["step"], step["worst"], step["worst_part"]) == (1, 3, "fc1")
    for index, block in enumerate(step["blocks"]):
        assert (block["rel_l2"] > 0) == (index == 3)
        assert [n for n, part in block["parts"].items() if not part["identical"]] == (["fc1"] if index == 3 else [])
    assert step["blocks"][3]["parts"]["fc1"]["rel_l2"] == pytest.approx(0.02, rel=0.05)


@pytest.mark.usefixtures("undrawn")
def test_in_turn_where_both_don_t_fit_and_equal_sides_are_equal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused producers give the definition's values, so two engines that differ in them alone make the same."""
    calls: list[int] = []

    def require_room(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise CheckpointError("short by 1 GiB", [Offence("memory", "short by 1 GiB")])

    monkeypatch.setattr(room, "require_room", require_room)
    code, facts, _ = compare(capsys, tmp_path / "ab", "--a", "fused=torch", "--b", "fused=cpu", "--min-ssim", "1")
    assert (code, len(calls), facts["engines"], facts["identical"]) == (0, 3, "in turn", True)
    assert "the sides differ in fused; together they don't fit" in facts["why"]
    points = [*facts["steps"]["denoised"], *facts["steps"]["latents"]]
    told = [point[stream] for point in points for stream in ("video", "audio")]
    told += [part for step in facts["blocks"] for block in step["blocks"] for part in block["parts"].values()]
    told += [block for step in facts["blocks"] for block in step["blocks"]]
    told += [*facts["video"]["per_frame"], *facts["audio"]["per_span"], facts["video"], facts["audio"]]
    assert len(told) > 150 and {(t["identical"], t["max"], t["rel_l2"], t["cosine"]) for t in told} == {(True, 0, 0, 1)}
    assert facts["video"]["ssim"] == 1 and facts["audio"]["log_mel_db"] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--b", "linaer=fp8"), "b.linaer: there is no such field; did you mean linear?"),
        (("--a", "steps=0,sampler=heun"), "a.sampler: 'heun'"),
        (("--a", "cache_threshold=0.1"), "a.cache_threshold: does nothing without a cache_mode"),
        (("--b", "attention=none"), "side b: attention: there is no backend 'none'"),
        (("--b", "linear=nvfp5"), "side b: linear: there is no backend 'nvfp5'"),
        (("--a", "linear=nvfp4"), "side a: linear: nvfp4 can't run here"),
        (("--b", "vae_dtype=bf16"), "bfloat16 is refused"),
        (("--b", "embedded=fp4"), "'fp4' is no format of the embedded model"),
        (("--b", "steps=4", "--height", "65"), "height: 65"),
        (("--a", "", "--blocks-at", "2"), "blocks_at: side A has no step 2: it takes 2"),
        (("--a", "", "-n", "2"), "n: 2 clips: one is compared"),
        (("--a", "", "--plot", "x.png", "c.mp4"), "A: is for two files; --plot: is for two files"),
        (("--a", "", "--min-ssim", "7"), "min_ssim: 7.0 is out of range"),
    ],
)
def test_bad_sides_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    code, facts, err = compare(capsys, tmp_path / "ab", *arguments)
    assert (code, facts) == (1, {}) and told in err and not (tmp_path / "ab").exists()


def test_flags_of_the_other_way_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compare", "a.mp4", "b.mp4", "--prompt", "x", "--device", "cpu"]) == 1
    assert "--prompt: is for two ways of making a request; --device: is for two" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", "a.mp4"])
    assert "the following arguments are required: B (or --a and --b)" in capsys.readouterr().err
    assert main(["compare", *QUICK, "--a", "steps=2"]) == 1
    assert "out: is missing" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert main(["compare", *QUICK, "--a", "steps=2", "--out", str(tmp_path / "full")]) == 1
    assert "holds files already" in capsys.readouterr().err
