"""Whether the image would work, asked without Docker: its steps, as Dockerfile.spark has them, in a plain virtual
environment that has PyTorch as the base image has it, and then what README tells an operator to type.

    COPY                            replayed, in a folder that stands for the image's file system
    RUN                             replayed: pip, checks and our kernels, which the CUDA toolkit here compiles for the
                                    image's architecture; users are added to files below that folder; a package manager
                                    only says what it would do
    HEALTHCHECK, ENTRYPOINT, CMD    run: healthy exactly when the server is ready, gone within the grace after SIGTERM
    README's lines                  replayed: from a clone, `docker compose run` and `up` inside that environment, with
                                    the settings that compose gives

What stands for what this machine lacks is told as `stand_ins`: its processor for arm64, a CPU for a GPU, the embedded
model for published files. As root, everything that the image runs as its user is run as that user, where this Python
can be read by others, and on a file system that can be written nowhere but where the image's can. PyTorch is pinned for
pip the way the base pins it, and must be the same afterwards. Prints one line of JSON; exit code 1 if a step failed.

    .venv/bin/python -m benchmarks.replay_image --torch torch==2.13.0 --arg CUDA_ARCH=90a
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.dockerfile import Instruction, arguments_of, environment_of, health_command, read_dockerfile
from benchmarks.readme_lines import SPARK, Line, lines_of

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile.spark"
PIP = "python3 -m pip "
READY_SECONDS = 300.0
GRACE_SECONDS = 45.0
"""H3_DRAIN_SECONDS and 15 (service-contract, small print)."""
TORCH_VERSION = "import torch; print(torch.__version__)"
KERNELS = "import sys; from h3_kernels.cuda_library import library_path; print(library_path(sys.argv[1]).parent.name)"
INSIDE = r"(?<![\w.])/(?=(?:var/(?:lib|cache)/h3runtime|models|opt/h3runtime|etc/(?:passwd|group))\b)"
"""Where an absolute path of the image's begins, in a command or a setting."""
NO_TOOLKIT = "TRITON_PTXAS_PATH"
"""Of the image's environment, what names a file of the CUDA toolkit: there is no GPU that needs it."""


class StepFailed(Exception):
    """A step of the image, or of what the image is for, that did not work."""


@dataclass(slots=True)
class Replay:
    """root: stands for the image's `/`. environment: of every command. prefix: of every command, as the image is run.
    told: what is printed at the end."""

    root: Path
    environment: dict[str, str]
    prefix: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=lambda: {"seconds": {}, "stand_ins": _stand_ins()})

    def run(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        outside: bool = False,
    ) -> str:
        """What it printed. outside: by who operates the image, and not in it."""
        began = time.monotonic()
        every = self.environment | dict(environment or {})
        whole = [*([] if outside else self.prefix), *command]
        found = subprocess.run(whole, cwd=folder, env=every, capture_output=True, text=True, check=False)
        self.told["seconds"][name] = round(time.monotonic() - began, 1)
        if found.returncode != 0:
            raise StepFailed(f"{name}: exit code {found.returncode}: {(found.stderr or found.stdout)[-2000:]}")
        return found.stdout.strip()

    def run_as(self, user: str) -> None:
        """From now on commands are the image's own: USER:GROUP, a file system that they can't write but for volumes and
        `/tmp`."""
        written = [self.root / name for name in ("var/lib/h3runtime", "var/cache/h3runtime", "tmp")]
        (self.root / "tmp").mkdir(exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        self.environment |= {"HOME": str(written[0]), "TMPDIR": str(written[2])}
        if os.geteuid() == 0:
            kept = "; ".join(f"mount --bind {path} {path}" for path in map(shlex.quote, map(str, written)))
            sealed = f'{kept}; mount -o remount,bind,ro /; exec "$@"'
            self.prefix = ["unshare", "--mount", "bash", "-euc", sealed, "sealed"]
            if _others_can_read(Path(sys.base_prefix)):
                number, group = user.split(":")
                self.prefix += ["setpriv", "--reuid", number, "--regid", group, "--clear-groups"]
            else:
                self.told["stand_ins"].append("root for the image's user")

    def inside(self, text: str) -> str:
        """Absolute paths of the image as paths below `root`."""
        return re.sub(INSIDE, f"{self.root}/", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch", help="What stands for the base's PyTorch. Default: the newest.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="Where to leave it all. Default: it is removed.")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="A build argument.")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="h3-replay-"))
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    given = dict(each.partition("=")[::2] for each in arguments.arg)
    try:
        told = replay(read_dockerfile(DOCKERFILE), folder.absolute(), arguments.torch, given)
    except StepFailed as error:
        print(json.dumps({"passed": False, "error": str(error)}))
        return 1
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"passed": True, **told}))
    return 0


def replay(instructions: list[Instruction], folder: Path, torch: str, given: Mapping[str, str]) -> dict[str, Any]:
    """given: build arguments. `StepFailed` at the first step that does not work."""
    work = Replay(folder / "root", _environment(folder, environment_of(instructions)))
    work.root.mkdir(parents=True)
    work.run("venv", [sys.executable, "-m", "venv", str(folder / "venv")], folder)
    work.run("base_torch", ["python3", "-m", "pip", "install", "-q", torch], folder)
    before = work.run("torch_version", ["python3", "-c", TORCH_VERSION], folder)
    _pin(work, folder, before)
    build(instructions, work, given)
    if (after := work.run("torch_again", ["python3", "-c", TORCH_VERSION], folder)) != before:
        raise StepFailed(f"PyTorch was moved from {before} to {after}")
    work.told |= {"torch": before, "version": work.run("version", ["h3runtime", "--version"], folder)}
    arch = (arguments_of(instructions) | dict(given))["CUDA_ARCH"]
    if (found := work.run("kernels", ["python3", "-c", KERNELS, arch], folder)) != "prebuilt":
        raise StepFailed(f"the kernels for {arch} are taken from {found}, not as the build left them")
    home = work.root / "var/lib/h3runtime"
    made = json.loads(work.run("demo", ["h3runtime", "demo", "--output", "demo.mp4"], home))
    work.told["demo"] = {name: made[name] for name in ("width", "height", "frames", "bytes")}
    work.told["serve"] = _serve(health_command(instructions), work, folder)
    work.told["readme"] = _operate(lines_of(SPARK), health_command(instructions), work, folder)
    work.told["venv_bytes"] = sum(file.stat().st_size for file in folder.glob("venv/**/*") if file.is_file())
    return work.told


def build(instructions: list[Instruction], work: Replay, given: Mapping[str, str] | None = None) -> None:
    """Every step that leaves something, in the order and the folders of the image; arguments are variables of RUN's
    shell, as Docker has them, from the line on that names them."""
    values, here, count = arguments_of(instructions) | dict(given or {}), work.root, 0
    known: dict[str, str] = {}
    for instruction in instructions:
        text = instruction.filled(values)
        if instruction.word == "ARG":
            name = instruction.text.partition("=")[0]
            known[name] = values[name]
        elif instruction.word == "WORKDIR":
            here = work.root / text.lstrip("/")
            here.mkdir(parents=True, exist_ok=True)
        elif instruction.word == "COPY":
            _copy(text, here)
        elif instruction.word == "RUN":
            count += 1
            work.run(f"run_{count}", ["sh", "-euc", _stood_in(instruction.text, work)], here, known)
        elif instruction.word == "USER":
            work.run_as(text)


def _stood_in(text: str, work: Replay) -> str:
    """A step as it can be taken here: packages are looked up and not installed, users added to files of our own."""
    if text.startswith("apt-get "):
        return re.sub(r" && rm -rf \S+", "", text.replace("install -y", "install --simulate"))
    if text.startswith("groupadd "):
        etc = work.root / "etc"
        etc.mkdir(exist_ok=True)
        for name in ("passwd", "group"):
            (etc / name).touch()
        added = re.sub(r"\b(groupadd|useradd)\b", rf"\1 --prefix {work.root}", text)
        return work.inside(added.replace("h3:h3", '"${USER_ID}:${GROUP_ID}"'))
    return text


def _stand_ins() -> list[str]:
    """What this machine lacks of the image's, and what stands for it."""
    found = [
        "a CPU for a GPU",
        "the embedded model for published files",
        "a virtual environment for the base image",
        "apt-get --simulate for its installation",
    ]
    if platform.machine() != "aarch64":
        found.append(f"{platform.machine()} for arm64")
    if os.geteuid() != 0:
        found.append("this user for the image's, and a file system that can be written for one that can't")
    return found


def _others_can_read(path: Path) -> bool:
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (path, *path.parents))


def _copy(text: str, here: Path) -> None:
    *sources, target = text.split()
    for source in sources:
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "prebuilt", "prebuilt_folder.txt")
            shutil.copytree(ROOT / source, here / target, ignore=ignored)
        else:
            shutil.copy2(ROOT / source, here / target)


def _environment(folder: Path, of_image: Mapping[str, str]) -> dict[str, str]:
    """Of the image, with its folders below ours. Settings of whoever runs this are no part of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("H3_", "PYTHON"))}
    inside = {
        name: re.sub(r"^/var/", f"{folder}/root/var/", value) for name, value in of_image.items() if name != NO_TOOLKIT
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
    """From start to SIGTERM, twice: the second finds what the first left on its volumes."""
    work.environment["H3_DISK_FLOOR_BYTES"] = "0"
    log = folder / "serve.log"
    with _server(work, log) as server:
        unhealthy, ready = _until_healthy(health, work, server, log)
        server.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        code = server.wait(GRACE_SECONDS)
        stopped = time.monotonic() - asked
    foreign = [line for line in log.read_text().splitlines() if not line.startswith("{")]
    if code != 0 or not unhealthy or _is_healthy(health, work) or foreign:
        raise StepFailed(f"serve: exit code {code}, {unhealthy} unhealthy answers before, lines {foreign[:3]}")
    return {
        "healthy_after_seconds": round(ready, 1),
        "stopped_after_seconds": round(stopped, 2),
        "unhealthy": unhealthy,
    }


def _operate(lines: Sequence[Line], health: list[str], work: Replay, folder: Path) -> list[dict[str, Any]]:
    """README's lines, one after the other; the server that one of them starts runs until the last is done."""
    there, log = folder / "operator", folder / "operator.log"
    there.mkdir()
    told: list[dict[str, Any]] = []
    with _later_server(work, log) as start:
        for line in lines:
            began = time.monotonic()
            said = line.replay(work, there, lambda given: _until_healthy(health, work, start(given), log))
            told.append({"line": line.text, "seconds": round(time.monotonic() - began, 1), "said": said[-300:]})
    return told


def _until_healthy(health: list[str], work: Replay, server: subprocess.Popen[bytes], log: Path) -> tuple[int, float]:
    """How often it wasn't, and after how many seconds it was."""
    began, unhealthy = time.monotonic(), 0
    while not _is_healthy(health, work):
        unhealthy += 1
        if server.poll() is not None or time.monotonic() - began > READY_SECONDS:
            raise StepFailed(f"serve never became healthy: {log.read_text()[-2000:]}")
        time.sleep(0.2)
    return unhealthy, time.monotonic() - began


def _is_healthy(command: list[str], work: Replay) -> bool:
    return subprocess.run(command, env=work.environment, capture_output=True, check=False).returncode == 0


@contextmanager
def _server(work: Replay, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with _later_server(work, log) as start:
        yield start({})


@contextmanager
def _later_server(work: Replay, log: Path) -> Iterator[Any]:
    """Gives what starts one, with further settings."""
    running: list[subprocess.Popen[bytes]] = []

    def start(given: Mapping[str, str]) -> subprocess.Popen[bytes]:
        home = work.root / "var/lib/h3runtime"
        with log.open("wb") as file:
            running.append(
                subprocess.Popen(
                    [*work.prefix, "h3runtime", "serve"], cwd=home, env=work.environment | dict(given), stdout=file
                )
            )
        return running[-1]

    try:
        yield start
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
