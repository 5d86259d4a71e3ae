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

from benchmarks.dockerfile import arguments_of, environment_of, health_command, read_dockerfile
from benchmarks.replay_image import PIP
from h3runtime.settings import Settings, variable

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
    assert environment_of(DOCKERFILE)["TORCH_CUDA_ARCH_LIST"] == "12.1a"


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
