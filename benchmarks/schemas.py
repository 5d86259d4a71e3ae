"""`schemas.py`: writes `schema/*.schema.json` (JSON Schema 2020-12) from the models, which are the one source.

What a schema can't say (that rows add up, that shapes follow from sizes) the models judge beyond it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contract import Contract
from benchmarks.result import Result

FOLDER = Path(__file__).parent / "schema"
KINDS: dict[str, type[BaseModel]] = {"contract": Contract, "result": Result}


def schema_text(name: str) -> str:
    """The schema of `contract` or `result` as its file holds it."""
    schema = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"{name}.schema.json"}
    return json.dumps(schema | KINDS[name].model_json_schema(), indent=2) + "\n"


def main() -> int:
    for name in KINDS:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
