"""Whether the image would work, asked without Docker: its install steps, as Dockerfile.spark has them, in a plain
virtual environment that has PyTorch as the base image has it.

    COPY, and RUN lines of pip      replayed, in a folder that stands for the image's file system
    other RUN lines                 of a package manager or of users; skipped and told
    HEALTHCHECK, ENTRYPOINT, CMD    run: healthy exactly when the server is ready, gone within the grace after SIGTERM

PyTorch is pinned for pip the way the base pins it, and must be the same afterwards. Prints one line of JSON; exit code
1 if a step failed.

    .venv/bin/python -m benchmarks.replay_image --torch torch==2.13.0
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.dockerfile import Instruction, arguments_of, environment_of, health_command, read_dockerfile

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile.spark"
PIP = "python3 -m pip "
READY_SECONDS = 300.0
GRACE_SECONDS = 45.0
"""H3_DRAIN_SECONDS and 15 (service-contract, small print)."""
TORCH_VERSION = "import torch; print(torch.__version__)"


class StepFailed(Exception):
    """A step of the image, or of what the image is for, that did not work."""


@dataclass(slots=True)
class Replay:
    """root: stands for the image's `/`. environment: of every command. told: what is printed at the end."""

    root: Path
    environment: dict[str, str]
    told: dict[str, Any] = field(default_factory=lambda: {"seconds": {}, "skipped": []})

    def run(self, name: str, command: list[str], folder: Path) -> str:
        began = time.monotonic()
        found = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        self.told["seconds"][name] = round(time.monotonic() - began, 1)
        if found.returncode != 0:
            raise StepFailed(f"{name}: exit code {found.returncode}: {(found.stderr or found.stdout)[-2000:]}")
        return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch", help="What stands for the base's PyTorch. Default: the newest.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="Where to leave it all. Default: it is removed.")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="h3-replay-"))
    try:
        told = replay(read_dockerfile(DOCKERFILE), folder.absolute(), arguments.torch)
    except StepFailed as error:
        print(json.dumps({"passed": False, "error": str(error)}))
        return 1
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"passed": True, **told}))
    return 0


def replay(instructions: list[Instruction], folder: Path, torch: str) -> dict[str, Any]:
    """`StepFailed` at the first step that does not work."""
    work = Replay(folder / "root", _environment(folder, environment_of(instructions)))
    work.root.mkdir(parents=True)
    work.run("venv", [sys.executable, "-m", "venv", str(folder / "venv")], folder)
    work.run("base_torch", ["python3", "-m", "pip", "install", "-q", torch], folder)
    before = work.run("torch_version", ["python3", "-c", TORCH_VERSION], folder)
    _pin(work, folder, before)
    build(instructions, work)
    if (after := work.run("torch_again", ["python3", "-c", TORCH_VERSION], folder)) != before:
        raise StepFailed(f"PyTorch was moved from {before} to {after}")
    work.told |= {"torch": before, "version": work.run("version", ["h3runtime", "--version"], folder)}
    made = json.loads(work.run("demo", ["h3runtime", "demo", "--output", "demo.mp4"], folder))
    work.told["demo"] = {name: made[name] for name in ("width", "height", "frames", "bytes")}
    work.told["serve"] = _serve(health_command(instructions), work, folder)
    work.told["venv_bytes"] = sum(file.stat().st_size for file in folder.glob("venv/**/*") if file.is_file())
    return work.told


def build(instructions: list[Instruction], work: Replay) -> None:
    """COPY and pip, in the order and the folders of the image."""
    values, here, count = arguments_of(instructions), work.root, 0
    for instruction in instructions:
        text = instruction.filled(values)
        if instruction.word == "WORKDIR":
            here = work.root / text.lstrip("/")
            here.mkdir(parents=True, exist_ok=True)
        elif instruction.word == "COPY":
            _copy(text, here)
        elif instruction.word == "RUN" and text.startswith(PIP):
            count += 1
            work.run(f"pip_{count}", ["bash", "-euc", text], here)
        elif instruction.word == "RUN":
            work.told["skipped"].append(text)


def _copy(text: str, here: Path) -> None:
    *sources, target = text.split()
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, here / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / source, here / target)


def _environment(folder: Path, of_image: Mapping[str, str]) -> dict[str, str]:
    """Of the image, with its folders below ours. Settings of whoever runs this are no part of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("H3_", "PYTHON"))}
    inside = {
        name: re.sub(r"^/var/", f"{folder}/root/var/", value)
        for name, value in of_image.items()
        if name != "TRITON_PTXAS_PATH"
    }
    return clean | inside | {"PATH": f"{folder}/venv/bin:{os.environ['PATH']}", "H3_PORT": str(_free_port())}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _pin(work: Replay, folder: Path, torch: str) -> None:
    """As the base's /etc/pip/constraint.txt does."""
    constraint = folder / "constraint.txt"
    constraint.write_text(f"torch=={torch}\n")
    work.environment["PIP_CONSTRAINT"] = str(constraint)


def _serve(health: list[str], work: Replay, folder: Path) -> dict[str, Any]:
    work.environment["H3_DISK_FLOOR_BYTES"] = "0"
    began = time.monotonic()
    with _server(work, folder) as server:
        unhealthy = 0
        while not _is_healthy(health, work):
            unhealthy += 1
            if server.poll() is not None or time.monotonic() - began > READY_SECONDS:
                raise StepFailed(f"serve never became healthy: {(folder / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.2)
        ready = time.monotonic() - began
        server.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        code = server.wait(GRACE_SECONDS)
        stopped = time.monotonic() - asked
    lines = (folder / "serve.log").read_text().splitlines()
    foreign = [line for line in lines if not line.startswith("{")]
    if code != 0 or not unhealthy or _is_healthy(health, work) or foreign:
        raise StepFailed(f"serve: exit code {code}, {unhealthy} unhealthy answers before, lines {foreign[:3]}")
    return {
        "healthy_after_seconds": round(ready, 1),
        "stopped_after_seconds": round(stopped, 2),
        "unhealthy": unhealthy,
    }


def _is_healthy(command: list[str], work: Replay) -> bool:
    return subprocess.run(command, env=work.environment, capture_output=True, check=False).returncode == 0


@contextmanager
def _server(work: Replay, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(["h3runtime", "serve"], cwd=folder, env=work.environment, stdout=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
