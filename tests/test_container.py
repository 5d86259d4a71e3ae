"""Dockerfile.spark and compose.spark.yml: what they promise, read out of them. No Docker is needed."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from h3_kernels.cuda_compiler import ARCHITECTURES

from benchmarks.dockerfile import arguments_of, environment_of, health_command, read_dockerfile
from benchmarks.replay_image import PIP
from h3runtime.backends.policy import row_of
from h3runtime.settings import Settings, resolve, variable

ROOT = Path(__file__).parents[1]
DOCKERFILE = read_dockerfile(ROOT / "Dockerfile.spark")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.spark.yml").read_text())
SERVICE: dict[str, Any] = COMPOSE["services"]["h3-hot-runtime"]
SHELL: dict[str, Any] = COMPOSE["services"]["shell"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECONDS = {"s": 1, "m": 60}


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def runs() -> list[str]:
    return [instruction.text for instruction in DOCKERFILE if instruction.word == "RUN"]


def installed() -> list[str]:
    """What the first pip line names."""
    first = next(text for text in runs() if text.startswith(PIP))
    return [word for word in shlex.split(first.removeprefix(PIP)) if re.match(r"[a-z]", word) and word != "install"]


def test_the_image_installs_what_the_project_depends_on() -> None:
    wanted = [item for item in PROJECT["dependencies"] if not item.startswith("torch")]
    assert installed() == wanted + PROJECT["optional-dependencies"]["gpu"]


def test_the_image_never_touches_the_bases_torch() -> None:
    assert not [text for text in runs() if re.search(r"\btorch(vision|audio)?\b", text)]
    assert not [
        text for text in runs() if re.search(r"constraint|--upgrade|\s-U\b|--index-url|--ignore-installed", text)
    ]
    (own,) = [text for text in runs() if text.endswith(" .")]
    assert "--no-deps" in own
    named = re.findall(r"-m pip install (.*?)(?:;|&&|$)", " ; ".join(runs()[2:]))
    assert len(named) == 4 and all("--no-deps" in text for text in named)


def test_what_is_compiled_is_compiled_for_the_spark_or_for_what_an_argument_says() -> None:
    arguments = arguments_of(DOCKERFILE)
    assert arguments["CUDA_ARCH"] == "121a" in ARCHITECTURES.values()
    kernels = [text for text in runs() if "h3_kernels.cuda_library" in text]
    assert len(kernels) == 1 and '--arch "${CUDA_ARCH}"' in kernels[0]
    assert [arguments[name] for name in ("COMFY_KITCHEN", "SAGEATTENTION", "CUTLASS")] == [""] * 3
    table = re.findall(r"CUDA_ARCH=(\w+)$", (ROOT / "Dockerfile.spark").read_text(), re.MULTILINE)
    assert set(table) | {"121a"} == set(ARCHITECTURES.values())


@pytest.mark.parametrize(("arch", "dotted"), [("121a", "12.1a"), ("120a", "12.0a"), ("100a", "10.0a"), ("90a", "9.0a")])
def test_sageattention_is_built_for_the_same_architecture(arch: str, dotted: str, tmp_path: Path) -> None:
    """Its step as Docker's shell runs it, with a pip that tells what it was given."""
    (step,) = [text for text in runs() if "TORCH_CUDA_ARCH_LIST" in text]
    pip = tmp_path / "python3"
    pip.write_text('#!/bin/sh\necho "$TORCH_CUDA_ARCH_LIST $*"\n')
    pip.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_ARCH": arch, "SAGEATTENTION": "git+https://x@y"}
    said = subprocess.run(["sh", "-euc", step], env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split()[0] == dotted and said.split()[-1] == "git+https://x@y"
    assert "--no-build-isolation" in said and "--no-deps" in said
    environment["SAGEATTENTION"] = ""
    assert subprocess.run(["sh", "-euc", step], env=environment, capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize(("parts", "code"), [(["_C.abi3.so"], 0), ([], 1)])
def test_a_comfy_kitchen_without_its_cuda_part_fails_the_build(parts: list[str], code: int, tmp_path: Path) -> None:
    """As pip takes it where no compiled wheel fits: the one for any machine, and says nothing."""
    (step,) = [text for text in runs() if "COMFY_CUDA_ARCHS" in text]
    folder = tmp_path / "comfy_kitchen" / "backends" / "cuda"
    folder.mkdir(parents=True)
    (tmp_path / "comfy_kitchen" / "__init__.py").write_text("raise SystemExit('imported')")
    for part in parts:
        (folder / part).touch()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "COMFY_KITCHEN": "", "CUDA_ARCH": "121a"}
    found = subprocess.run(["sh", "-euc", step], env=environment, capture_output=True, text=True)
    assert found.returncode == code and ("name a source by COMFY_KITCHEN" in found.stderr) == bool(code)


def test_compose_hands_every_argument_of_the_build_on() -> None:
    arguments, handed = arguments_of(DOCKERFILE), COMPOSE["x-runtime"]["build"]["args"]
    assert {name: re.fullmatch(r"\$\{(\w+):-(.*)\}", text).groups() for name, text in handed.items()} == {
        name: (name, default) for name, default in arguments.items()
    }
    told = (ROOT / "compose.spark.yml").read_text().partition("\nname:")[0]
    assert all(name in told for name in arguments)


def test_the_image_copies_what_the_builder_is_sent() -> None:
    copied = [name for i in DOCKERFILE if i.word == "COPY" for name in i.text.split()[:-1]]
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied == sent and all((ROOT / name).exists() for name in copied)


def test_the_image_runs_as_nobody_special() -> None:
    arguments = arguments_of(DOCKERFILE)
    (user,) = [i.filled(arguments) for i in DOCKERFILE if i.word == "USER"]
    assert user == "10001:10001"
    assert arguments["BASE"] == COMPOSE["x-runtime"]["build"]["args"]["BASE"].removeprefix("${BASE:-").removesuffix("}")
    assert not [i for i in DOCKERFILE if i.word == "ADD"] and DOCKERFILE[-2:] == [
        i for i in DOCKERFILE if i.word in ("ENTRYPOINT", "CMD")
    ]


def test_every_setting_that_the_files_name_is_one() -> None:
    known = {variable(field) for field in Settings.model_fields}
    named = {name for name in [*environment_of(DOCKERFILE), *SERVICE["environment"]] if name.startswith("H3_")}
    assert named <= known and {"H3_HOST", "H3_PORT", "H3_DATA_DIR"} <= named


def test_a_sparks_switches_are_those_of_its_row_and_h3_env_wins() -> None:
    first, second = SERVICE["env_file"]
    assert first == {"path": "./spark.env"} and second == {"path": "${ENV_FILE:-./h3.env}", "required": False}
    lines = dict(line.split("=") for line in (ROOT / "spark.env").read_text().splitlines() if line.startswith("H3_"))
    spark = row_of("cuda", (12, 1))
    assert lines == {variable(name): "1" for name in spark.switches.value}
    settings = resolve(config=ROOT / "spark.env")
    assert all(getattr(settings, name) is True for name in spark.switches.value)
    assert not any(getattr(Settings(), name) for name in spark.switches.value)
    assert spark.compiled.value == arguments_of(DOCKERFILE)["CUDA_ARCH"]


def test_what_is_written_lies_on_volumes() -> None:
    targets = {volume.removesuffix(":ro").rpartition(":")[2] for volume in SERVICE["volumes"]}
    environment = environment_of(DOCKERFILE)
    written = ("_DIR", "CACHE_HOME", "CACHE_PATH", "CONFIGDIR")
    places = [value for name, value in environment.items() if name.endswith(written)]
    assert len(places) == 7
    assert all(any(place.startswith(target) for target in targets) for place in places)
    assert [volume.endswith(":/models:ro") for volume in SERVICE["volumes"] if "/models" in volume] == [True]
    assert SERVICE["read_only"] is True and SERVICE["tmpfs"][0].startswith("/tmp")


def test_the_service_is_run_as_a_service() -> None:
    assert SERVICE["init"] is True and SERVICE["restart"] == "unless-stopped"
    assert seconds(SERVICE["stop_grace_period"]) >= Settings.model_fields["drain_seconds"].default + 15
    (port,) = SERVICE["ports"]
    assert port.replace("${BIND:-127.0.0.1}", "127.0.0.1") == "127.0.0.1:8001:8001"
    resources = SERVICE["deploy"]["resources"]
    assert resources["reservations"]["devices"] == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert resources["limits"]["memory"] and resources["limits"]["pids"] > 0
    assert SERVICE["logging"]["options"]["max-size"] and SERVICE["logging"]["options"]["max-file"]
    assert SERVICE["cap_drop"] == ["ALL"] and SERVICE["ulimits"]["memlock"] == -1


def test_the_shell_starts_nothing() -> None:
    assert SHELL["profiles"] == ["shell"] and SHELL["entrypoint"] == ["bash"] and SHELL["command"] == []
    assert not {"ports", "deploy", "secrets"} & SHELL.keys()
    assert SHELL["restart"] == "no" and SHELL["healthcheck"] == {"disable": True}
    assert "profiles" not in SERVICE and set(COMPOSE["services"]) == {"h3-hot-runtime", "shell"}


def test_both_files_ask_the_same_of_a_healthy_server() -> None:
    check = SERVICE["healthcheck"]
    assert check["test"] == ["CMD", *health_command(DOCKERFILE)]
    (told,) = [i.text for i in DOCKERFILE if i.word == "HEALTHCHECK"]
    options = dict(re.findall(r"--([a-z-]+)=(\S+)", told))
    assert options["interval"] == check["interval"] == "10s" and int(options["retries"]) == check["retries"]
    assert seconds(options["start-period"]) == seconds(check["start_period"]) >= 300


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_tells_ready_from_the_rest(status: int | None, code: int) -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status or 500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        if status is None:
            server.shutdown()
            server.server_close()
        command = [sys.executable, *health_command(DOCKERFILE)[1:]]
        # Docker hands its own proxies on to what it runs.
        environment = {**os.environ, "H3_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        found = subprocess.run(command, env=environment, capture_output=True, timeout=120)
        if status is not None:
            server.shutdown()
        thread.join()
    assert found.returncode == code and asked == (["/ready"] if status else [])


def test_the_health_check_speaks_tls_where_the_server_does(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-subj", "/CN=h3.example", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        command = [sys.executable, *health_command(DOCKERFILE)[1:]]
        environment = {**os.environ, "H3_PORT": str(server.server_port), "H3_TLS_CERT": str(cert)}
        assert subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode == 0
        thread.join()


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass
