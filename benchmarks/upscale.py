"""What upscaling and refining do to a clip: `upscale.py OUT [--prompts 16] [--size 128x128x22] [--second 3:0.1 ...]`.

Prompts of the little world go through the runtime's own passes with the embedded model, and their scenes' own pictures,
drawn at both sizes and coded by the video VAE, through the same upscaler and second pass: of these the truth is known.
Which clips there are says `upscale_clips`, what is measured of their pictures `upscale_measures`.

The ways named by `--held` are held to the bounds of `upscale_bounds`: OUT/upscale.md and the last lines tell which
hold, and the exit status is 1 if one doesn't. `--processes 8` shares the prompts among eight processes, on one
accelerator too, which a small model leaves idle most of the time. Writes OUT/clips*.jsonl, a line a clip, to which a
run that was stopped adds what is missing; OUT/upscale.json and OUT/upscale.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from benchmarks.quality_parts import run_parts
from benchmarks.quality_plan import Size, size_of
from benchmarks.quality_prompts import SPLITS, TASKS, Prompt, draw_prompt
from benchmarks.script import measured_here
from benchmarks.upscale_clips import Clips, Plan, of_prompt
from benchmarks.upscale_passes import Bench, Second, second_of
from benchmarks.upscale_report import held, markdown, rows_of, told
from h3runtime.api.rules.refine import DENOISE, STEPS

SCRIPT = Path(__file__)
ASKED = Second(STEPS, DENOISE)
"""The second pass of a request that says nothing of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.processes > 1 and not given.report:
        run_parts(sys.argv[1:] if arguments is None else arguments, given.processes, SCRIPT)
        given.report = True
    part = "" if given.part is None else f"-{given.part[0]}"
    clips = Clips(given.output, part)
    if not given.report:
        head = run(given, clips)
        (given.output / f"head{part}.json").write_text(json.dumps(head, indent=1))
    return report(given, clips) if given.report or given.part is None else 0


def run(given: argparse.Namespace, clips: Clips) -> dict[str, Any]:
    """What it ran on."""
    until = time.monotonic() + given.seconds
    plan = Plan(given.scale, given.steps, given.second, others=not given.refined_only)
    done = {record.prompt for record in clips.read()}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(given.device, given.threads, Path(scratch), given.upscaler)
        facts = bench.engine.facts()
        behind = given.part is not None and given.part[0] > 0
        for prompt, size in tqdm(list(_prompts(given)), unit="prompt", disable=behind):
            if time.monotonic() > until:
                break
            if (size.name, prompt.split, prompt.index) not in done:
                clips.add(of_prompt(bench, prompt, size, plan))
        assert facts.upscaler is not None
        files = {"checkpoint": facts.checkpoint, "upscaler": facts.upscaler.sha256}
        asked = {"scale": given.scale, "steps": given.steps, "task": given.task, "seed": given.seed}
        return measured_here(bench.engine.place.name, bench.engine.device) | files | asked


def _prompts(given: argparse.Namespace) -> Iterator[tuple[Prompt, Size]]:
    """Sizes and splits by turns, so that a run that ends early has some of each."""
    part, parts = given.part or (0, 1)
    every = product(range(given.first, given.first + given.prompts), given.split, given.size)
    for turn, (index, split, size) in enumerate(every):
        if (turn + turn // parts) % parts == part:
            yield draw_prompt(given.task, split, index, given.seed), size


def report(given: argparse.Namespace, clips: Clips) -> int:
    """1 if a way that is held to the bounds isn't within."""
    records = sorted(clips.read(), key=lambda record: record.prompt)
    heads = [json.loads(path.read_text()) for path in sorted(given.output.glob("head*.json"))]
    rows, found = rows_of(records), held(records, [second.name for second in given.held])
    listed = {"rows": [asdict(row) for row in rows], "held": [asdict(each) for each in found]}
    (given.output / "upscale.json").write_text(json.dumps((heads[0] if heads else {}) | listed, indent=1))
    text = f"{markdown(rows)}\n{told(found)}"
    (given.output / "upscale.md").write_text(text)
    print(text)
    for each in found:
        for fault in each.broken:
            print(f"{each.size} {each.way}: {fault}", file=sys.stderr)
    return int(any(each.broken for each in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--prompts", type=int, default=16, help="of each split and size; default 16")
    parser.add_argument("--first", type=int, default=0, help="index of the first prompt")
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=["trained"])
    parser.add_argument("--task", choices=TASKS, default="t2va")
    parser.add_argument(
        "--size", type=size_of, nargs="+", metavar="WxHxF", default=[size_of("128x128x22")], help="of the first pass"
    )
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=8, help="of the first pass")
    named = "STEPS:DENOISE[:SAMPLER[:SCHEDULER]]"
    parser.add_argument("--second", type=second_of, nargs="+", metavar=named, default=[ASKED])
    parser.add_argument("--held", type=second_of, nargs="*", metavar=named, default=[ASKED], help="to the bounds")
    parser.add_argument("--refined-only", action="store_true", help="neither the native nor the coded clip")
    parser.add_argument("--upscaler", type=Path, help="instead of the embedded one")
    parser.add_argument("--seed", type=int, default=0, help="of scenes, captions and noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further prompt after these")
    parser.add_argument("--processes", type=int, default=1, help="share the prompts among so many, a thread each")
    parser.add_argument("--part", type=_part, metavar="K/N", help="every Nth prompt from the Kth on, counted from 0")
    parser.add_argument("--report", action="store_true", help="make nothing, tell what is there")
    return parser


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 0 <= part < parts:
        raise ValueError(text)
    return part, parts


if __name__ == "__main__":
    sys.exit(main())
