"""`measure.py --contract NAME --output R.json`: run a contract on this machine and write a result.

Loads the engine in this process as the settings say, makes the clip once to warm up and N times with the clock running.
`compare.py` judges the file. Does not judge, and runs no peer.

    cold start      from the import of PyTorch to an engine that takes a request
    first request   the first clip of the process: it pays for what is initialised late
    samples         the clips after the warm-up; the prompt cache is off, so each of them encodes its prompt
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contract import CONTRACTS, Contract, Unreadable, contract_names, read_contract
from benchmarks.workload import fit_prompt, spec_of
from h3runtime.cli.options import refuse_taken
from h3runtime.cli.report import print_error, print_os_error, say
from h3runtime.core import Clip, GenerateSpec
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.observe import memory
from h3runtime.observe.cores import engine_threads
from h3runtime.settings import SERVICE_ONLY, Settings, add_flags, resolve

if TYPE_CHECKING:
    from benchmarks.record import Session
    from h3runtime.engine.resident import ResidentEngine

NO_CACHE = {"prompt_cache_bytes": 0}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 with a result written, else why not on stderr."""
    try:
        _run(_parser().parse_args(arguments))
    except Unreadable as error:
        say(f"error: {error}")
    except H3Error as error:
        print_error(error)
    except OSError as error:
        print_os_error(error)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    else:
        return 0
    return 1


def _run(given: argparse.Namespace) -> None:
    signed = read_contract(given.contract, given.contracts)
    runs = given.runs or signed.contract.measuring.minimum_samples
    _require_place(given.output, overwrite=given.overwrite)
    settings = resolve(vars(given) | NO_CACHE, given.config)
    session = measure(signed.contract, settings, runs, say)
    from benchmarks.record import result_of

    result = result_of(signed, session)
    given.output.write_text(result.model_dump_json(indent=2, by_alias=True) + "\n")
    say(f"{given.output}: written")


def measure(contract: Contract, settings: Settings, runs: int, tell: Callable[[str], None]) -> Session:
    """Load, warm up, time `runs` clips. What a run raises is the engine's."""
    began = time.monotonic()
    from benchmarks.record import Session
    from h3runtime.engine.latents_file import latents_path, read_latents
    from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine

    partitions = (contract.task.runs_on,)
    engine = ResidentEngine(settings, engine_threads(), profile_memory=True, warm_up=False, partitions=partitions)
    engine.load(lambda _: None)
    cold, resident = time.monotonic() - began, [memory.peak_resident_bytes()]
    tell(f"loaded in {cold:.2f} s on {engine.facts().device}")
    with tempfile.TemporaryDirectory(prefix="h3-benchmark-") as folder:
        count = _counter(engine)
        prompt = fit_prompt(contract.prompt, contract.rows.text, count)
        prompt_rows = count(prompt)
        spec = spec_of(contract, prompt, Path(folder))
        told = replace(spec, diagnostics=True, save_latents=True)
        warm = [_make(engine, told, "warm-up", resident, tell) for _ in range(contract.measuring.warm_up_runs)]
        saved, _ = read_latents(latents_path(spec.output))
        timed = [_make(engine, spec, f"{i + 1} of {runs}", resident, tell) for i in range(runs)]
    facts = engine.facts()
    engine.close()
    return Session(facts, spec, tuple(warm), tuple(timed), saved, COMPUTE_DTYPE, cold, max(resident), prompt_rows)


def _make(
    engine: ResidentEngine, spec: GenerateSpec, name: str, resident: list[int], tell: Callable[[str], None]
) -> Clip:
    clip = engine.generate(spec, lambda _: None, lambda: False)
    resident.append(memory.peak_resident_bytes())
    tell(f"{name}: {clip.timings['total']:.3f} s, of which sampling {clip.timings['sampling']:.3f} s")
    return clip


def _counter(engine: ResidentEngine) -> Callable[[str], int]:
    from h3runtime.conditioning.pieces import keyframe_pieces
    from h3runtime.conditioning.presentation import present

    return lambda prompt: present(keyframe_pieces(prompt), engine.conditioner.tokenizer).rows


def _require_place(output: Path, *, overwrite: bool) -> None:
    """Judged before minutes of loading and measuring."""
    refuse_taken(output, overwrite=overwrite)
    if not output.absolute().parent.is_dir():
        raise invalid([Offence("output", f"{output.parent} is not a folder", "a folder that exists")])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="measure.py", description="Run a contract in this process and write a result for compare.py."
    )
    names = ", ".join(contract_names())
    parser.add_argument("--contract", required=True, metavar="NAME", help=f"One of {names}.")
    parser.add_argument("--output", type=Path, required=True, metavar="R.json", help="Where the result goes.")
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing result.")
    parser.add_argument("--runs", type=_runs, metavar="N", help="Timed clips. Default: as many as the contract wants.")
    parser.add_argument(
        "--contracts", type=Path, default=CONTRACTS, metavar="DIR", help="Folder of the contracts. Default: this one."
    )
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY | NO_CACHE.keys())
    return parser


def _runs(text: str) -> int:
    runs = int(text)
    if runs < 1:
        raise ValueError(text)
    return runs


if __name__ == "__main__":
    sys.exit(main())
