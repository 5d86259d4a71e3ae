"""What approximations do to pictures and sound: `quality.py OUT [--format nvfp4 ...] [--steps 4 ...] [--device cuda]`.

Prompts of the little world go through the runtime's own engine with the embedded model, once exactly (BF16 weights,
reference linear, exact attention) and once for every other combination of what the flags list, or for every `--way`:

    --way "high=bf16/fp8/h3_attn8" "reuse=bf16/dequant/sdpa/easycache:0.2" "late=bf16/dequant/sdpa/easycache:0.4:0.3:1"

A way that can't run here is told and left out. The judge says what each
clip shows and sounds like; SSIM, PSNR, log-mel distance and relative L2 of the latents say how far it is from the exact
clip of the same schedule, and from the anchor, an exact clip of many forwards, if there is one.

    OUT/clips*.jsonl              one line a clip; a run that was stopped goes on where it was
    OUT/quality.{json,md}         shares and means, a row for each task, split, size and combination
    OUT/TASK-SPLIT-SIZE.png       the rows drawn
    OUT/ways.json                 the names that `--way` gave, for `quality_bundles`

`--truth` lists formats x forwards x samplers x schedulers, with an anchor. `--processes 8` shares the prompts among
eight processes (on one accelerator, too, which a small model leaves idle most of the time); `--part 2/8` is one of
them by hand, which makes no report. `--report` makes tables and plots of what is there. `--seconds` ends a run early,
after a whole prompt: those that there are, are of all tasks, splits and sizes alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tqdm import tqdm

from benchmarks.quality_engines import Engines, Made
from benchmarks.quality_measures import measure
from benchmarks.quality_parts import run_parts
from benchmarks.quality_plan import (
    CACHES,
    EXACT,
    FORECASTS,
    FORMATS,
    SAMPLERS,
    SCHEDULERS,
    TRUTH_STEPS,
    Schedule,
    Size,
    Way,
    caches_of,
    named_way,
    schedule_of,
    schedules_of,
    size_of,
    ways_of,
)
from benchmarks.quality_plot import plot_of
from benchmarks.quality_prompts import SPLITS, TASKS, Prompt, draw_prompt, ends_of, request_of
from benchmarks.quality_records import Records, key_of, record_of
from benchmarks.quality_report import Row, markdown, rows_of
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.observe.cores import engine_threads

PROMPTS = 200
ANCHOR = "50"
WAYS = "ways.json"
MEMORY = 0.9
"""Of a device, what all processes may take together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make of every prompt. anchor: the schedule of an exact clip that all are compared with too."""

    ways: tuple[Way, ...]
    schedules: tuple[Schedule, ...]
    anchor: Schedule | None
    seed: int

    @property
    def combinations(self) -> list[tuple[Way, Schedule]]:
        """By schedule, the exact way first; the anchor's own clip ahead of all."""
        ahead = [] if self.anchor is None or self.anchor in self.schedules else [(EXACT, self.anchor)]
        return ahead + [(way, schedule) for schedule in self.schedules for way in self.ways]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.truth:
        given.format, given.steps, given.sampler, given.scheduler = FORMATS, TRUTH_STEPS, SAMPLERS, SCHEDULERS
        given.anchor = given.anchor or schedule_of(ANCHOR)
    if given.processes > 1 and not given.report:
        run_parts(sys.argv[1:] if arguments is None else arguments, given.processes)
        given.report = True
    records = Records(given.output, "" if given.part is None else f"-{given.part[0]}")
    if given.way:
        (given.output / WAYS).write_text(json.dumps({name: asdict(way) for name, way in given.way}, indent=1))
    if not given.report:
        run(given, records)
    if given.report or given.part is None:
        write_report(given.output, records, given.checkpoint)
    return 0


def run(given: argparse.Namespace, records: Records) -> None:
    schedules = schedules_of(given.steps, given.sampler, given.scheduler)
    plan = Plan(_ways(given), schedules, given.anchor, given.seed)
    until = time.monotonic() + given.seconds
    if given.part is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(MEMORY / given.part[1])
    with tempfile.TemporaryDirectory() as scratch:
        engines = Engines(given.device, given.threads, Path(scratch), given.masters)
        given.checkpoint = engines.checkpoint
        origin = engines.checkpoint, engines.engine(EXACT).place.name
        prompts = list(_prompts(given))
        if given.way:
            plan = replace(plan, ways=tuple(way for way in plan.ways if _runs(way, engines)))
        behind = given.part is not None and given.part[0] > 0
        with tqdm(total=len(prompts) * len(plan.combinations), unit="clip", smoothing=0.1, disable=behind) as bar:
            for prompt, size in prompts:
                if time.monotonic() > until:
                    break
                _one_prompt(prompt, size, plan, engines, origin, records, Path(scratch), bar.update)


def _ways(given: argparse.Namespace) -> tuple[Way, ...]:
    if given.way:
        return tuple(dict.fromkeys([EXACT, *(way for _, way in given.way)]))
    caches = caches_of(given.cache, given.cache_threshold, given.cache_forecast)
    return ways_of(given.format, given.linear_backend, given.attention_backend, caches)


def _runs(way: Way, engines: Engines) -> bool:
    """Whether its backends can run here; if not, the reason is told."""
    try:
        engines.engine(way).attentions.choose(way.attention)
    except (BackendUnavailable, InvalidRequest) as fault:
        print(f"{way.name}: {fault.message}", file=sys.stderr, flush=True)
        return False
    return True


def _prompts(given: argparse.Namespace) -> Iterator[tuple[Prompt, Size]]:
    """Both splits, all tasks and sizes in turn, so that a run that ends early has some of each. Parts take turns, and
    begin each round one further on, so that none gets all of one kind."""
    part, parts = given.part or (0, 1)
    every = product(range(given.prompts), given.task, given.split, given.size)
    for turn, (index, task, split, size) in enumerate(every):
        if (turn + turn // parts) % parts == part:
            yield draw_prompt(task, split, index, given.seed), size


def _one_prompt(
    prompt: Prompt,
    size: Size,
    plan: Plan,
    engines: Engines,
    origin: tuple[str, str],
    records: Records,
    scratch: Path,
    on_clips: Callable[[int], object],
) -> None:
    """Every clip of a prompt that isn't recorded yet, and those that it takes to compare them with."""
    base = key_of(*origin, prompt.task, prompt.split, prompt.index, plan.seed, size)
    missing = [each for each in plan.combinations if (*base, each[0].name, each[1].name) not in records.done]
    on_clips(len(plan.combinations) - len(missing))
    if not missing:
        return
    ends = ends_of(prompt, size)
    spec, given = engines.condition(request_of(prompt, size, ends, scratch))
    anchor = None if plan.anchor is None else engines.make(EXACT, plan.anchor, spec, given)
    exact: dict[Schedule, Made] = {} if plan.anchor is None or anchor is None else {plan.anchor: anchor}
    for way, schedule in missing:
        if schedule not in exact:
            exact = {s: m for s, m in exact.items() if s == plan.anchor}
            exact[schedule] = engines.make(EXACT, schedule, spec, given)
        reference = exact[schedule]
        made = reference if way == EXACT else engines.make(way, schedule, spec, given)
        against = None if way == EXACT else reference, None if made is anchor else anchor
        figures = measure(made, prompt, ends, *against)
        records.add(record_of(prompt, size, plan.seed, way, schedule, origin, figures))
        on_clips(1)


def write_report(folder: Path, records: Records, checkpoint: str | None) -> None:
    """Of one checkpoint: the one that ran, or that of the last line."""
    found = list(records.read())
    wanted = checkpoint or (found[-1].checkpoint if found else None)
    rows = rows_of(record for record in found if record.checkpoint == wanted)
    (folder / "quality.json").write_text(
        json.dumps({"checkpoint": wanted, "rows": [asdict(row) for row in rows]}, indent=1)
    )
    (folder / "quality.md").write_text(f"Checkpoint {wanted}.\n\n{markdown(rows)}")
    for group in dict.fromkeys(row.group for row in rows):
        same: list[Row] = [row for row in rows if row.group == group]
        task, split, size = group
        (folder / f"{task}-{split}-{size.name}.png").write_bytes(plot_of(same))
    print(markdown(rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of the results")
    many: dict[str, Any] = {"nargs": "+"}
    parser.add_argument("--format", **many, choices=FORMATS, default=["bf16"])
    parser.add_argument("--linear-backend", **many, default=["dequant"])
    parser.add_argument("--attention-backend", **many, default=["sdpa"])
    parser.add_argument("--cache", **many, choices=CACHES, default=["none"], help="how steps are reused")
    parser.add_argument("--cache-threshold", **many, type=float, default=[], help="of each; default: the modes' own")
    parser.add_argument("--cache-forecast", **many, choices=FORECASTS, default=["taylor"])
    parser.add_argument(
        "--way", **many, type=named_way, metavar="NAME=FORMAT/LINEAR/ATTENTION[/CACHE]", help="these, no combinations"
    )
    parser.add_argument("--steps", **many, type=int, default=[12])
    parser.add_argument("--sampler", **many, choices=SAMPLERS, default=["res_multistep"])
    parser.add_argument("--scheduler", **many, choices=SCHEDULERS, default=["beta"])
    parser.add_argument("--truth", action="store_true", help="all formats, 4 to 50 forwards, samplers and schedulers")
    parser.add_argument("--anchor", type=schedule_of, metavar="STEPS[:SAMPLER[:SCHEDULER]]")
    parser.add_argument("--task", **many, choices=TASKS, default=["t2va"])
    parser.add_argument("--split", **many, choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--size", **many, type=size_of, metavar="WxHxF", default=[size_of("192x192x39")])
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"of each task, split and size; default {PROMPTS}")
    parser.add_argument("--seed", type=int, default=0, help="of scenes, captions and noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=engine_threads())
    parser.add_argument("--masters", type=Path, default=FOLDER, help="trained weights; default: the package's")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further prompt after these")
    parser.add_argument("--processes", type=int, default=1, help="share the prompts among so many, a thread each")
    parser.add_argument("--part", type=_part, metavar="K/N", help="every Nth prompt from the Kth on, counted from 0")
    parser.add_argument("--report", action="store_true", help="make nothing, tell what is there")
    parser.set_defaults(checkpoint=None)
    return parser


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 0 <= part < parts:
        raise ValueError(text)
    return part, parts


if __name__ == "__main__":
    sys.exit(main())
