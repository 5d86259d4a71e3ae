"""An inspection as one JSON object: bytes are numbers, dtypes are safetensors' names, what doesn't apply is null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from h3runtime import __version__
from h3runtime.checkpoint.report import FileReport
from h3runtime.engine.inspection import Inspection, Machine

HINT = "only the file's name tells; the tensors of both partitions are alike"


def document(found: Inspection) -> dict[str, Any]:
    report = found.report
    return {
        "file": report.file,
        "family": report.family,
        "component": report.component,
        "supported": report.reason is None,
        "reason": report.reason,
        "partition": {"hint": report.partition_hint, "certain": False, "why": HINT}
        if _is_transformer(report)
        else None,
        "layout": report.layout,
        "prefix": report.prefix,
        "format": report.format,
        "formats": [asdict(group) for group in report.formats],
        **_transformer(report),
        "lora": asdict(report.lora) if report.lora is not None else None,
        "dtypes": {name: asdict(tally) for name, tally in report.dtypes.items()},
        "tensors": report.tensors,
        "bytes": report.bytes,
        "data_bytes": report.data_bytes,
        "sha256": found.sha256,
        "files": [{**asdict(part), "sha256": found.digests.get(part.name)} for part in report.parts],
        "synthetic": report.synthetic,
        "model": report.model,
        "metadata": dict(report.metadata),
        "dimensions": dict(found.dimensions),
        "machine": _machine(found.machine),
        "warnings": list(report.warnings),
        "version": __version__,
    }


def _is_transformer(report: FileReport) -> bool:
    return report.adaln is not None


def _transformer(report: FileReport) -> Mapping[str, Any]:
    """`adaln` and `qkv` are single words; what stands behind them has a name of its own."""
    adaln, qkv = report.adaln, report.qkv
    curve = adaln is not None and adaln.form == "pruned"
    return {
        "adaln": adaln.form if adaln is not None else None,
        "adaln_curve": {"grid": adaln.grid, "rank": adaln.rank} if adaln is not None and curve else None,
        "qkv": qkv.order if qkv is not None else None,
        "qkv_decision": {"how": qkv.how, "why": qkv.why, "warning": qkv.warning} if qkv is not None else None,
        "head_bank": report.head_bank,
        "gate_compress": report.gate_compress if adaln is not None else None,
    }


def _machine(machine: Machine | None) -> dict[str, Any] | None:
    return {**asdict(machine), "fits": machine.fits} if machine is not None else None
