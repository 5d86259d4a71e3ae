"""A result made up for a test: what a sound run of a contract would have written, changed where the test says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.contract import STAGES, Signed

SECONDS = {stage: 1.0 + index for index, stage in enumerate(STAGES)}
CPU = {
    "device": "cpu",
    "device_count": 1,
    "device_bytes": None,
    "driver": None,
    "cuda": None,
    "cpu": "A Processor",
    "cores": 2,
    "threads": 1,
    "system": "Linux",
    "python": "3.11.7",
    "torch": "2.13.0",
}
GB10 = CPU | {"device": "NVIDIA GB10", "device_bytes": 2**37, "driver": "580.1", "cuda": "13.0", "cpu": "Grace"}


def made(signed: Signed, **changes: Any) -> dict[str, Any]:
    """As JSON. `changes` by path, `run__rows__text=99`; `seconds` scales every sample."""
    contract = signed.contract
    scale = changes.pop("seconds", 1.0)
    rows = contract.rows.model_dump(mode="json")
    if rows["references"] is None:
        rows |= {"references": 50, "total": rows["total"] + 50}
    result: dict[str, Any] = {
        "contract": contract.name,
        "contract_sha256": signed.sha256,
        "recorded_at": "2026-11-30T12:00:00Z",
        "runtime": {"version": "0.1.0", "commit": None, "changed": None},
        "machine": CPU,
        "checkpoints": [
            {
                "component": "transformer",
                "file": "dit.safetensors",
                "sha256": "ab" * 32,
                "format": "nvfp4",
                "bytes": 100,
                "synthetic": False,
            }
        ],
        "backends": {"attention": "sdpa", "linear": "dequant"},
        "precision": {
            "compute": "bfloat16",
            "transformer": "nvfp4",
            "text_encoder": "nvfp4_awq",
            "video_vae": "fp16",
            "audio_vae": "fp32",
        },
        "approximations": [],
        "run": {
            "task": contract.task.value,
            "width": contract.width,
            "height": contract.height,
            "frames": contract.frames,
            "latents": contract.latents.model_dump(mode="json"),
            "rows": rows,
            "sampling": contract.sampling.model_dump(mode="json"),
            "prompt_sha256": "cd" * 32,
            "prompt_cache": "off",
            "warm_up_runs": 1,
        },
        "samples": {stage: [scale * seconds * jitter for jitter in (1, 0.5, 2)] for stage, seconds in SECONDS.items()},
        "start": {"cold_start_seconds": 9.0, "load_seconds": 5.0, "first_request_seconds": 2.0},
        "peaks": {"host_bytes": 2**30, "device_bytes": None},
    }
    for path, value in changes.items():
        put(result, path, value)
    return result


def put(result: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split("__")
    for name in way:
        result[name] = dict(result[name])
        result = result[name]
    result[last] = value


def written(folder: Path, name: str, result: Any) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result))
    return str(path)
