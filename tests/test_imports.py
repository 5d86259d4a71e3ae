"""What may be imported without torch, and that importing does nothing: asked of a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h3runtime

LIGHT = ("api", "jobs", "client", "packing", "quality", "media", "core", "settings", "errors", "observe")
PROGRAM = """
import importlib, json, sys, threading
for name in sys.argv[1:]:
    importlib.import_module(name)
heavy = [name for name in ("torch", "transformers", "diffusers", "safetensors.torch") if name in sys.modules]
print(json.dumps({"heavy": heavy, "threads": threading.active_count()}))
"""


def modules_of(package: str) -> list[str]:
    root = Path(h3runtime.__file__).parent
    files = [root / f"{package}.py"] if (root / f"{package}.py").exists() else sorted((root / package).rglob("*.py"))
    names = [".".join(("h3runtime", *file.relative_to(root).with_suffix("").parts)) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def test_the_light_half_needs_no_torch() -> None:
    modules = [module for package in LIGHT for module in modules_of(package)]
    assert len(modules) > 20
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *modules], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"heavy": [], "threads": 1}


def test_only_settings_reads_the_environment() -> None:
    root = Path(h3runtime.__file__).parent
    readers = [
        str(file.relative_to(root))
        for file in sorted(root.rglob("*.py"))
        if any(word in file.read_text() for word in ("os.environ", "getenv", "environb"))
    ]
    assert readers == ["settings.py"]
