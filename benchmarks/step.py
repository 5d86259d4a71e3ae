"""One forward of the whole transformer, lane beside lane and peer: `step.py [--workload W] [--peer diffusers] [...]`.

The published 50 blocks (`--sizes small`: a look without a GPU) with random weights made on the device, on a contract's
sequence, at one sigma. In every round each lane and each peer runs once, in another order, so that all share what the
machine does meanwhile. Nothing is timed before its first blocks were run and gave numbers. Prints tables and writes
JSON with `--output`, again after every round. Does not judge. On a GPU the work is done in a process of its own
(`watched`): an attention that hangs or loses the device is left out and the next best taken; what else can't be had
costs itself alone, and is told.

    lanes        exact, high, reuse, sparse, medium (`step_lanes`), or one of `--attention X --linear Y --producers Z`
    diffusers    with `--peer`: its model on the same weights (`step_peer`), eager; `--peer-compiled`: compiled too
    ms           median of the rounds, the least and the most beside it; device clock where there is one
    ratio        the peer's time over this one's in the same round: median, least and most of the rounds
    floor        the lane's own kernels, each measured alone afterwards (`step_floor`); above: what a forward takes more
    ceiling      of a large matrix product measured in the same run: what the work would take at that rate, over ms
    sampling     with `--samplings A,B,..`: whole ones of a request, in that order (`step_sampling`), wall; forwards and
                 reused steps (`medium@3+5`: these, whatever the rule says); the peer's own whole one over it, and as
                 many of its median forward
    loop         wall of a few steps of the sampling loop (`step_loop`), all of them computed, and as many of the peer's
                 forwards over it; overhead: 1 - busy / wall, and how often the host waited
    error        relative L2 of both velocities against the peer's, or against the first lane's without one
    growth       with `--scaling W`: one forward there over one here, against the same ratio of the work

    work = 2 S (parameters of the blocks' four linears) + 4 S^2 H D * blocks          (performance.md)

On one H200 with the published sizes and S = 37,810, measured: BF16 weights 66.4 GB, shared by all; high's codes and the
peer's fc1 make it 101.8; a forward takes 3.8 more (exact), 4.7 (high), 6.8 (peer). Weights, imports and kernels that
compile 23 s, the compiled peer 10, a round of exact, high and both peers 22.4, floors 5, loops of two steps 20: 130 s
for three rounds; `--scaling` 60 s more, a whole sampling of the peer 80. `--sizes few`: four blocks of these.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.attention import PEERS
from benchmarks.contract import Unreadable, contract_names
from benchmarks.script import names, positive
from benchmarks.step_lanes import DEFAULT, EASY, LANES, SHARE, Lane, lane_of
from benchmarks.step_report import table
from benchmarks.step_session import SIZES, Asked, Wanted, measure
from benchmarks.watched import Beat, run
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS
from h3runtime.cli.report import print_error, say
from h3runtime.core import REUSE_THRESHOLDS, StepReuse
from h3runtime.engine.device import choose_device
from h3runtime.errors import H3Error, Offence, invalid

PATIENCE: Final = 120.0
"""Seconds without a sign of life: a forward of 362 frames takes 35, the compiler 60 on a busy machine."""
SCALING: Final = "t2va-1344x768-362f"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        _require_folder(given.output)
        if given.watched is None and choose_device(given.device).device.type == "cuda":
            return run(Path(__file__), sys.argv[1:] if arguments is None else arguments, PATIENCE)
        report = measure(_asked(given), given.device, partial(_write, given.output), Beat(given.watched))
    except H3Error as error:
        print_error(error)
        return 1
    except Unreadable as error:
        say(f"error: {error}")
        return 1
    print(table(report))
    if given.output is not None:
        say(f"{given.output}: written")
    return 0 if not report["faults"] else 1


def _require_folder(output: Path | None) -> None:
    """Judged before minutes of measuring."""
    if output is not None and not output.absolute().parent.is_dir():
        raise invalid([Offence("output", f"{output.parent} is not a folder", "a folder that exists")])


def _write(output: Path | None, report: dict[str, Any]) -> None:
    """Whole or not at all: who is ended in between leaves the report of the round before."""
    if output is not None:
        part = output.with_name(f"{output.name}.part")
        part.write_text(json.dumps(report, indent=2) + "\n")
        part.replace(output)


def _asked(given: argparse.Namespace) -> Asked:
    reuse = _reuse(given)
    lanes = [lane_of(name, given.share, reuse) for name in given.lanes]
    if given.attention or given.linear or given.producers:
        base = LANES["exact"]
        asked = Lane(
            "asked",
            (given.attention,) if given.attention else base.attentions,
            given.linear or base.linear,
            (given.producers,) if given.producers else base.producers,
            required=True,
        )
        lanes.append(asked)
    elif not lanes:
        lanes = [LANES[name] for name in DEFAULT]
    peer = PEERS[0] if given.peer_compiled else given.peer
    return Asked(
        given.workload,
        given.sizes,
        tuple(lanes),
        peer,
        given.peer_compiled,
        given.rounds,
        not given.no_floor,
        given.steps,
        given.scaling,
        given.seconds,
        dict(given.without),
        _samplings(given.samplings, reuse),
        given.sampling_steps,
    )


def _reuse(given: argparse.Namespace) -> StepReuse:
    mode = given.cache_mode
    threshold = REUSE_THRESHOLDS[mode] if given.cache_threshold is None else given.cache_threshold
    return StepReuse(mode, threshold, given.cache_start, given.cache_end)


def _samplings(told: Sequence[str], reuse: StepReuse) -> tuple[Wanted, ...]:
    """InvalidRequest for what can't be sampled."""
    legal = (*LANES, "asked", *PEERS)
    found, offences = [], []
    for text in told:
        try:
            found.append(Wanted.of(text))
        except ValueError:
            offences.append(Offence("samplings", f"{text!r} names no steps from 1 on", "medium, medium@3+5+7"))
            continue
        if found[-1].name not in legal:
            offences.append(Offence("samplings", f"no lane or peer {found[-1].name!r}", ", ".join(legal)))
        elif found[-1].skipped is not None and LANES.get(found[-1].name, LANES["exact"]).reuse is None:
            offences.append(Offence("samplings", f"{text!r}: that one reuses nothing", "reuse, medium"))
        elif found[-1].skipped is not None and reuse.mode == "first_block":
            offences.append(Offence("cache_mode", "first_block can't be told steps", "easycache, h3_cache"))
    if offences:
        raise invalid(offences)
    return tuple(found)


def _reasoned(text: str) -> tuple[str, str]:
    name, _, why = text.partition("=")
    return name, why or "was left out by --without"


def _lanes(text: str) -> tuple[str, ...]:
    found = names(text)
    if unknown := [name for name in found if name not in LANES]:
        raise argparse.ArgumentTypeError(f"no lane {', '.join(unknown)} (legal: {', '.join(LANES)})")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="step.py", description="Time one forward of the whole transformer.")
    parser.add_argument(
        "--workload", choices=contract_names(), default="t2va-1344x768-124f", metavar="W", help="A contract's name."
    )
    parser.add_argument("--sizes", choices=tuple(SIZES), default="published", help="Default: published.")
    parser.add_argument(
        "--lanes", type=_lanes, default=(), metavar="A,B", help=f"Of {', '.join(LANES)}. Default: {', '.join(DEFAULT)}."
    )
    lane = parser.add_argument_group("another lane", "Alone, or after --lanes; what isn't named is the exact lane's.")
    lane.add_argument("--attention", metavar="X", help="A backend's name.")
    lane.add_argument("--linear", metavar="Y", help="A backend's name.")
    lane.add_argument("--producers", metavar="Z", help="A family's name.")
    lever = parser.add_argument_group("sparse, reuse and medium", "What these lanes approximate.")
    lever.add_argument(
        "--share", type=int, choices=PERCENTS, default=SHARE, help=f"Per cent of cubes that are read. Default: {SHARE}."
    )
    lever.add_argument(
        "--cache-mode", choices=tuple(REUSE_THRESHOLDS), default=EASY.mode, help=f"Default: {EASY.mode}."
    )
    lever.add_argument("--cache-threshold", type=float, metavar="X", help="Default: the mode's own.")
    lever.add_argument("--cache-start", type=float, default=EASY.start, metavar="X", help=f"Default: {EASY.start}.")
    lever.add_argument("--cache-end", type=float, default=EASY.end, metavar="X", help=f"Default: {EASY.end}.")
    parser.add_argument(
        "--samplings", type=names, default=(), metavar="A,B", help="Whole ones of these lanes and peers, in order."
    )
    parser.add_argument("--sampling-steps", type=positive, metavar="N", help="Default: the contract's.")
    parser.add_argument("--peer", choices=PEERS, help="Time it in the same run and print ratios.")
    parser.add_argument("--peer-compiled", action="store_true", help="And compiled block by block.")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="Timed forwards of each. Default: 3.")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="Of the loop; 0 for none. Default: 2.")
    parser.add_argument("--no-floor", action="store_true", help="Don't measure the parts alone.")
    parser.add_argument(
        "--scaling",
        nargs="?",
        const=SCALING,
        choices=contract_names(),
        metavar="W",
        help=f"One forward of each lane there, too. Default: {SCALING}.",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="Begin nothing new after so many.")
    parser.add_argument(
        "--without", type=_reasoned, action="append", default=[], metavar="NAME=WHY", help="An attention, lane or peer."
    )
    parser.add_argument("--watched", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N. Default: auto.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON, after every round.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
