"""What each backend and lane does to h3-nano's clips, in one table: `quality_backends.py OUT [--device cuda]`.

    exact     every prompt once, BF16 weights, resident linears, `sdpa`; by several processes, kept in OUT/exact
    ways      a process each, `--processes` at a time: every attention backend on exact linears, every linear backend
              under `sdpa`, and lanes, which have both; each judged and compared with the exact clips

    OUT/clips-*.jsonl         one line a clip, as `quality` has them
    OUT/backends.{json,md}    one row a way: share of clips with nothing wrong, SSIM, PSNR, distance of the sound,
                              relative L2 of the latents, seconds of sampling; and why others aren't in it

A way that can't run, fails or hangs costs itself alone and is told with its reason. Clips of both splits count alike.
Seconds are of small clips on a device that all processes share: they say which way is slow, not how fast one is.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.quality_engines import Engines, Made
from benchmarks.quality_measures import measure
from benchmarks.quality_plan import EXACT, W4A4, Schedule, Size, Way, size_of
from benchmarks.quality_prompts import SPLITS, TASKS, Prompt, draw_prompt, ends_of, request_of
from benchmarks.quality_records import Records, record_of
from benchmarks.quality_report import Row, rows_of
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.core import REUSE_THRESHOLDS, Latents
from h3runtime.engine.device import choose_device
from h3runtime.errors import BackendUnavailable, H3Error

SCHEDULE: Final = Schedule()
SIZE: Final = Size(128, 128, 22)
PATIENCE: Final = 150.0
"""Seconds for one way: the longest has a kernel to compile beside nine other processes."""
LINEAR_WAYS: Final = (
    Way("nvfp4"),
    Way("int8_convrot"),
    Way("fp8_scaled"),
    Way(linear="fp32"),
    Way(linear="fp8"),
    Way("fp8_scaled", "fp8"),
    Way("nvfp4", "fp8"),
    Way(linear="int8"),
    Way("int8_convrot", "int8"),
    Way(W4A4, Nvfp4EmulatedLinear.name),
    Way("nvfp4", "nvfp4"),
)
"""A format with `dequant` is what the format itself costs; the others multiply in fewer bits."""
EIGHT_BIT: Final = ("h3_attn8", "sage2")
REUSED: Final = f"easycache:{REUSE_THRESHOLDS['easycache']:g}"
LANES: Final = {
    **{f"high, {name}": Way(linear="fp8", attention=name) for name in EIGHT_BIT},
    **{f"medium, {name}": Way(linear="fp8", attention=name, cache=REUSED) for name in EIGHT_BIT},
    "high, int8, sage2": Way(linear="int8", attention="sage2"),
    "medium, sla_topk_25": Way(linear="fp8", attention="sla_topk_25"),
    "medium, sol_attn": Way(linear="fp8", attention="sol_attn"),
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A way by the name that its row has. fault: why it has none."""

    group: str
    name: str
    way: Way
    fault: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.part is not None:
        return _child(lambda: make_exact(given))
    if given.way is not None:
        return _child(lambda: make_way(given, Way(*given.way)))
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    parts = [("exact", ["--part", f"{part}/{given.processes}"]) for part in range(given.processes)]
    if any((faults := run_all(given, parts)).values()):
        print(f"no exact clips: {faults}", file=sys.stderr)
        return 1
    print(f"exact clips: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    plan = planned(given)
    found = run_all(given, [(each.name, ["--way", *_words(each.way)]) for each in plan if not each.fault])
    plan = [replace(each, fault=each.fault or found.get(each.name, "")) for each in plan]
    print(write_report(given.output, plan))
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
    return 0


def planned(given: argparse.Namespace) -> list[Tried]:
    """All ways, those that can't run here by facts alone with the reason; only `--only`'s, if there are any."""
    listing = Attentions(choose_device(given.device).device).listing("", "")
    why_not = listing.unavailable
    names = [*listing.available, *why_not]
    plan = [Tried("attention", name, Way(attention=name), why_not.get(name, "")) for name in names if name != "sdpa"]
    plan += [Tried("linear", f"{way.format}/{way.linear}", way) for way in LINEAR_WAYS]
    plan += [Tried("lane", name, way, why_not.get(way.attention, "")) for name, way in LANES.items()]
    return [each for each in plan if not given.only or each.name in given.only]


def run_all(given: argparse.Namespace, jobs: Iterable[tuple[str, list[str]]]) -> dict[str, str]:
    """Each in a process of its own, so many at a time; why it failed by name, "" if it didn't."""
    waiting, running, faults = list(jobs), dict[str, tuple[subprocess.Popen[bytes], Path, float]](), dict[str, str]()
    while waiting or running:
        while waiting and len(running) < given.processes:
            name, words = waiting.pop(0)
            log = given.output / f"log-{slug(' '.join(words))}.txt"
            with log.open("wb") as file:
                child = subprocess.Popen([*_command(given), *words], stdout=file, stderr=subprocess.STDOUT)
            running[f"{name} {words[-1]}" if name == "exact" else name] = child, log, time.monotonic()
        for name, (child, log, began) in list(running.items()):
            hangs = time.monotonic() - began > given.patience
            if child.poll() is None and not hangs:
                continue
            child.kill()
            child.wait()
            del running[name]
            faults[name] = f"no end after {given.patience:.0f} s" if hangs else why_it_ended(child.returncode, log)
            print(f"{name}: {faults[name] or 'done'} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        time.sleep(0.05)
    return faults


def why_it_ended(code: int, log: Path) -> str:
    if code == 0:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines() or ["nothing said"]
    return lines[-1][:300] if code == 1 else f"ended its process with status {code}: {lines[-1][:200]}"


def prompts_of(given: argparse.Namespace) -> list[Prompt]:
    """As many of both splits, of all tasks in turn."""
    every = [
        draw_prompt(task, split, index, given.seed)
        for index in range(given.prompts)
        for task in given.task
        for split in SPLITS
    ]
    return every[: given.prompts]


def make_exact(given: argparse.Namespace) -> None:
    """The exact clips of one part of the prompts, kept and judged."""
    part, parts = map(int, given.part.split("/"))
    for prompt, made, record in _made(given, EXACT, prompts_of(given)[part::parts], f"exact-{part}"):
        record(measure(made, prompt, ends_of(prompt, given.size), None, None))
        path = _exact_path(given.output, prompt)
        path.parent.mkdir(exist_ok=True)
        video, audio = made.latents.video.cpu().numpy(), made.latents.audio.cpu().numpy()
        np.savez(path, frames=made.frames, samples=made.samples, video=video, audio=audio)


def make_way(given: argparse.Namespace, way: Way) -> None:
    """Every prompt's clip, judged and compared with the exact one."""
    for prompt, made, record in _made(given, way, prompts_of(given), way.name):
        with np.load(_exact_path(given.output, prompt)) as kept:
            latents = (torch.from_numpy(kept[name]).to(made.latents.video.device) for name in ("video", "audio"))
            exact = Made(Latents(*latents), kept["frames"], kept["samples"], 0.0)
        record(measure(made, prompt, ends_of(prompt, given.size), exact, None))


Recorder = Callable[[dict[str, Any]], None]


def _made(
    given: argparse.Namespace, way: Way, prompts: Sequence[Prompt], part: str
) -> Iterator[tuple[Prompt, Made, Recorder]]:
    """Each clip, and what writes its figures. The first one is made twice: it compiles what a way needs."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        engines = Engines(given.device, 1, scratch)
        origin = engines.checkpoint, engines.engine(EXACT).place.name
        path = given.output / f"clips-{slug(part)}.jsonl"
        path.unlink(missing_ok=True)
        records = Records(given.output, f"-{slug(part)}")
        for number, prompt in enumerate(prompts):
            ends = ends_of(prompt, given.size)
            spec, conditioned = engines.condition(request_of(prompt, given.size, ends, scratch))
            if number == 0:
                engines.sample(way, SCHEDULE, spec, conditioned)
                raise_if_given_away(way.attention, engines.engine(way).attentions.tally)
            made = engines.make(way, SCHEDULE, spec, conditioned)

            def record(figures: dict[str, Any], prompt: Prompt = prompt) -> None:
                records.add(record_of(prompt, given.size, given.seed, way, SCHEDULE, origin, figures))

            yield prompt, made, record


def raise_if_given_away(name: str, tally: Tally) -> None:
    """BackendUnavailable where another backend made the whole clip: its figures are none of this one's."""
    given = [fallback for fallback in tally.fallbacks if fallback.backend == name]
    if given and not tally.dispatches[name]:
        raise BackendUnavailable(f"every call went to {given[0].to}: {given[0].why}")


def write_report(folder: Path, plan: Sequence[Tried]) -> str:
    """backends.json and backends.md; the latter's text."""
    records = [replace(record, split="trained") for record in Records(folder).read()]
    rows = {row.way: row for row in rows_of(records)}
    told = [Tried("lane", "exact", EXACT), *plan]
    report = [asdict(each) | {"row": asdict(rows[each.way]) if each.way in rows else None} for each in told]
    (folder / "backends.json").write_text(json.dumps(report, indent=1))
    text = markdown(told, rows)
    (folder / "backends.md").write_text(text)
    return text


HEAD: Final = ("", "way", "clips", "judge %", "SSIM", "PSNR", "sound dB", "video L2", "audio L2", "sampling s")


def markdown(told: Sequence[Tried], rows: dict[Way, Row]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for each in told:
        if not each.fault and each.way in rows:
            lines.append("| " + " | ".join(_cells(each, rows[each.way])) + " |")
    return "\n".join([*lines, "", *(f"{each.group} {each.name}: {each.fault}" for each in told if each.fault)]) + "\n"


def _cells(each: Tried, row: Row) -> list[str]:
    def figure(name: str, digits: int) -> str:
        if not row.exact:
            return ""
        value = row.exact.get(name)
        return "∞" if value is None else f"{value:.{digits}f}"

    distances = [figure("ssim", 4), figure("psnr", 1), figure("log_mel_db", 2)]
    latents = [figure("video_l2", 4), figure("audio_l2", 4)]
    judged = f"{100 * row.judged['all'][0]:.1f}"
    took = "" if row.sampling is None else f"{row.sampling:.2f}"
    return [each.group, each.name, str(row.clips), judged, *distances, *latents, took]


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def _exact_path(folder: Path, prompt: Prompt) -> Path:
    return folder / "exact" / f"{prompt.task}-{prompt.split}-{prompt.index}.npz"


def _child(work: Callable[[], None]) -> int:
    """Why it failed is the last line that it says."""
    torch.set_num_threads(1)
    try:
        work()
    except H3Error as error:
        print(error.message.partition("\n")[0], flush=True)
        return 1
    except Exception as fault:
        traceback.print_exc()
        print(f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}", flush=True)
        return 1
    return 0


def _command(given: argparse.Namespace) -> list[str]:
    size = given.size.name
    told = ["--device", given.device, "--prompts", str(given.prompts), "--seed", str(given.seed), "--size", size]
    return [sys.executable, str(Path(__file__)), str(given.output), *told, "--task", *given.task]


def _words(way: Way) -> list[str]:
    return [way.format, way.linear, way.attention, way.cache]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=24, help="in all; default 24")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=["t2va"])
    parser.add_argument("--size", type=size_of, metavar="WxHxF", default=SIZE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=10, help="at a time; default 10")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one way")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="ways by their names")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--way", nargs=4, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
