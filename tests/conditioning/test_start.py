"""What building an encoder must not cost, asked of a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch
from h3runtime.conditioning.encoder import TextEncoder
from tests.conditioning.small import CONFIG
with torch.device("meta"):
    TextEncoder(CONFIG)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_building_one_imports_no_compiler() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
