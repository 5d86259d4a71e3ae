"""What each backend and lane does to h3-nano's clips, in one table: `quality_backends.py OUT [--device cuda]`.

    exact   BF16 weights, resident linears, `sdpa`
    ways    every attention backend on exact linears, every linear backend under `sdpa`, and lanes, which have both
    parts   each way is one process's, which makes every prompt's exact clip and then its ways', judges and compares

    OUT/clips-*.jsonl         one line a clip, as `quality` has them
    OUT/backends.{json,md}    one row a way: share of clips with nothing wrong, SSIM, PSNR, distance of the sound,
                              relative L2 of the latents, seconds of sampling; and why others aren't in it

A way that can't run, fails or hangs costs itself alone and is told with its reason: those that shared a process with
one that ended it are begun again, and one that found the device full is tried once more after all others. Clips of both
splits count alike. `--seconds` ends early, after a whole prompt. Seconds of sampling are of small clips on a device
that all processes share: they say which way is slow, not how fast one is.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.quality_engines import Engines, Made
from benchmarks.quality_measures import measure
from benchmarks.quality_plan import EXACT, W4A4, Schedule, Size, Way, size_of
from benchmarks.quality_prompts import SPLITS, TASKS, Prompt, draw_prompt, ends_of, request_of
from benchmarks.quality_records import Records, record_of
from benchmarks.quality_report import Row, rows_of
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.linear.nvfp4_base import FORMAT, Nvfp4LinearBase
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.select import linear_backends
from h3runtime.core import REUSE_THRESHOLDS
from h3runtime.engine.device import choose_device
from h3runtime.errors import BackendUnavailable, H3Error

SCHEDULE: Final = Schedule()
SIZE: Final = Size(128, 128, 22)
PATIENCE: Final = 240.0
"""Seconds for one process, which has a few ways."""
MEMORY: Final = 6.0
"""GiB of the device for one process; h3-nano takes 1.5 of them."""
AT, FAULT = "at: ", "fault: "
"""How lines of a process's log begin that its parent reads."""
FULL: Final = re.compile("memory|ALLOC_FAILED|INTERNAL_ERROR")
"""In what is said where a device is full."""
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
    *(Way(FORMAT, backend.name) for backend in linear_backends() if isinstance(backend, Nvfp4LinearBase)),
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
    plan = planned(given)
    if given.ways:
        return make_ways(given, [each for each in plan if each.name in given.ways])
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    faults = run_all(given, [each.name for each in plan if not each.fault])
    plan = [replace(each, fault=each.fault or faults.get(each.name, "")) for each in plan]
    print(write_report(given.output, plan))
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
    return 0


def planned(given: argparse.Namespace) -> list[Tried]:
    """All ways, those that can't run here by facts alone with the reason; only `--only`'s, if there are any."""
    listing = Attentions(choose_device(given.device).device).listing("", "")
    why_not = listing.unavailable
    names = [*listing.available, *why_not]
    plan = [Tried("lane", "exact", EXACT)]
    plan += [Tried("attention", name, Way(attention=name), why_not.get(name, "")) for name in names if name != "sdpa"]
    plan += [Tried("linear", f"{way.format}/{way.linear}", way) for way in LINEAR_WAYS]
    plan += [Tried("lane", name, way, why_not.get(way.attention, "")) for name, way in LANES.items()]
    return [each for each in plan if not given.only or each.name in given.only]


def run_all(given: argparse.Namespace, names: Sequence[str]) -> dict[str, str]:
    """Why each way failed, "" if it didn't; so many processes at a time."""
    until = time.monotonic() + given.seconds
    waiting = [list(names[part :: given.processes]) for part in range(min(given.processes, len(names)))]
    running, faults, again = list[_Part](), dict[str, str](), set[str]()
    while waiting or running:
        while waiting and len(running) < given.processes:
            running.append(_Part.begun(given, waiting.pop(0), max(0.0, until - time.monotonic())))
        for part in [part for part in running if part.is_over(given.patience)]:
            running.remove(part)
            found, rest = part.result()
            waiting += [[name] for name in rest]
            faults |= found
        full = [] if waiting or running else [n for n, why in faults.items() if FULL.search(why) and n not in again]
        again |= set(full)
        waiting += [[name] for name in full]
        time.sleep(0.05)
    return faults


@dataclass(frozen=True, slots=True)
class _Part:
    """A process with some of the ways."""

    names: list[str]
    child: subprocess.Popen[bytes]
    log: Path
    began: float

    @classmethod
    def begun(cls, given: argparse.Namespace, names: list[str], seconds: float) -> _Part:
        """seconds: after which it begins no further prompt."""
        log = given.output / f"log-{slug(names[0])}.txt"
        command = [*_command(given), "--seconds", str(seconds), "--ways", *names]
        with log.open("wb") as file:
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        return cls(names, child, log, time.monotonic())

    def is_over(self, patience: float) -> bool:
        if self.child.poll() is None and time.monotonic() - self.began > patience:
            self.child.kill()
            self.child.wait()
        return self.child.poll() is not None

    def result(self) -> tuple[dict[str, str], list[str]]:
        """Faults by way, and the ways to begin again, since another one ended their process."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line.removeprefix(FAULT).partition(": ")[::2] for line in lines if line.startswith(FAULT)]
        faults, took = dict.fromkeys(self.names, "") | dict(told), time.monotonic() - self.began
        rest: list[str] = []
        if self.child.returncode != 0:
            at = next((line.removeprefix(AT) for line in reversed(lines) if line.startswith(AT)), self.names[0])
            last = lines[-1][:200] if lines else "nothing said"
            faults[at] = faults.get(at) or f"ended its process with status {self.child.returncode}: {last}"
            rest = [name for name in self.names if name != at and not faults[name]]
            faults = {name: why for name, why in faults.items() if name not in rest}
        for name, why in faults.items():
            print(f"{name}: {why or 'done'} ({took:.0f} s)", file=sys.stderr, flush=True)
        return faults, rest


def prompts_of(given: argparse.Namespace) -> list[Prompt]:
    """As many of both splits, of all tasks in turn."""
    every = [
        draw_prompt(task, split, index, given.seed)
        for index in range(given.prompts)
        for task in given.task
        for split in SPLITS
    ]
    return every[: given.prompts]


def make_ways(given: argparse.Namespace, ways: Sequence[Tried]) -> int:
    """Every prompt's clips, judged and compared with the exact one; what fails is left out from then on, and told."""
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, given.memory * 2**30 / whole))
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        engines = Engines(given.device, 1, scratch)
        files = {each.name: _emptied(given.output, each.way) for each in ways}
        left = list(ways)
        for number, prompt in enumerate(prompts_of(given)):
            if not left or time.monotonic() > until:
                break
            exact, ends = Exact(engines, prompt, given.size, scratch), ends_of(prompt, given.size)
            for each in list(left):
                print(AT + each.name, flush=True)
                try:
                    made = exact.made if each.way == EXACT else exact.other(each.way, is_first=number == 0)
                except Exception as fault:
                    traceback.print_exc()
                    print(f"{FAULT}{each.name}: {_told(fault)}", flush=True)
                    left.remove(each)
                    _raise_if_lost(fault)
                    continue
                figures = measure(made, prompt, ends, None if each.way == EXACT else exact.made, None)
                record = record_of(prompt, given.size, given.seed, each.way, SCHEDULE, exact.origin, figures)
                files[each.name].add(record)
    return 0


class Exact:
    """One prompt's exact clip, and others from the same conditions."""

    def __init__(self, engines: Engines, prompt: Prompt, size: Size, scratch: Path) -> None:
        self.engines = engines
        self.spec, self.conditioned = engines.condition(request_of(prompt, size, ends_of(prompt, size), scratch))
        self.made = engines.make(EXACT, SCHEDULE, self.spec, self.conditioned)

    @property
    def origin(self) -> tuple[str, str]:
        return self.engines.checkpoint, self.engines.engine(EXACT).place.name

    def other(self, way: Way, *, is_first: bool) -> Made:
        """The first clip of a way is sampled twice: it compiles what the way needs."""
        if is_first:
            self.engines.sample(way, SCHEDULE, self.spec, self.conditioned)
            raise_if_given_away(way.attention, self.engines.engine(way).attentions.tally)
        return self.engines.make(way, SCHEDULE, self.spec, self.conditioned)


def _emptied(folder: Path, way: Way) -> Records:
    (folder / f"clips-{slug(way.name)}.jsonl").unlink(missing_ok=True)
    return Records(folder, f"-{slug(way.name)}")


def _told(fault: Exception) -> str:
    if isinstance(fault, H3Error):
        return fault.message.partition("\n")[0]
    return f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}"[:300]


def _raise_if_lost(fault: Exception) -> None:
    """A device that is lost is lost for the process; the parent begins the others again."""
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise lost from fault


def raise_if_given_away(name: str, tally: Tally) -> None:
    """BackendUnavailable where another backend made the whole clip: its figures are none of this one's."""
    given = [fallback for fallback in tally.fallbacks if fallback.backend == name]
    if given and not tally.dispatches[name]:
        raise BackendUnavailable(f"every call went to {given[0].to}: {given[0].why}")


def write_report(folder: Path, plan: Sequence[Tried]) -> str:
    """backends.json and backends.md; the latter's text."""
    records = [replace(record, split="trained") for record in Records(folder).read()]
    rows = {row.way: row for row in rows_of(records)}
    plan = [replace(each, fault=each.fault or "no clip in time" * (each.way not in rows)) for each in plan]
    report = [asdict(each) | {"row": asdict(rows[each.way]) if each.way in rows else None} for each in plan]
    (folder / "backends.json").write_text(json.dumps(report, indent=1))
    text = markdown(plan, rows)
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


def _command(given: argparse.Namespace) -> list[str]:
    numbers = {"prompts": given.prompts, "seed": given.seed, "memory": given.memory}
    told = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    told += ["--device", given.device, "--size", given.size.name, "--task", *given.task]
    return [sys.executable, str(Path(__file__)), str(given.output), *told]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=24, help="in all; default 24")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=["t2va"])
    parser.add_argument("--size", type=size_of, metavar="WxHxF", default=SIZE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=10, help="at a time; default 10")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further prompt after these")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one process")
    parser.add_argument("--memory", type=float, default=MEMORY, help="GiB of the device for one process")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="ways by their names")
    parser.add_argument("--ways", nargs="+", default=(), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
