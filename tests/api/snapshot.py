"""The OpenAPI document as it was looked at last. `python -m tests.api.snapshot` writes the present one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from h3runtime.api.app import create_app
from h3runtime.api.service import Service
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.settings import Settings
from tests.api.desk import ffmpeg

FILE = Path(__file__).with_name("openapi.json")


def present() -> dict[str, Any]:
    """As a server without keys tells it."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Settings(data_dir=Path(folder)), EngineRecipe("nothing:here", ()), tool=ffmpeg())
        try:
            return create_app(service).openapi()
        finally:
            service.close()


if __name__ == "__main__":
    FILE.write_text(json.dumps(present(), indent=1, sort_keys=True) + "\n")
