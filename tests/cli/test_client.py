"""`submit`, `watch`, `cancel` and `jobs` against a server with a key: what they print, exit with and leave behind."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from h3runtime.__main__ import main
from h3runtime.cli import jobs as jobs_command
from h3runtime.client import Client
from tests.api.server import PATIENCE, Running, picture, running, until

KEY = "a-key"
FLAGS = ("--width", "64", "--height", "64", "--frames", "5", "--steps", "2")


@dataclass(frozen=True)
class Found:
    code: int
    lines: list[dict[str, Any]]
    out: str
    err: str

    @property
    def only(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


Command = Callable[..., Found]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """The server runs in this process, and its log lines are not the commands'."""
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("asked") / "data", api_key=KEY) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Client:
    return Client(server.url, KEY)


@pytest.fixture
def command(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """A command with a current folder of its own and the environment of a person who has a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("H3_URL", server.url)
    monkeypatch.setenv("H3_API_KEY", KEY)

    def run(*arguments: str) -> Found:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert len(err.splitlines()) <= 2 and "Traceback" not in err, err
        return Found(code, lines, out, err)

    return run


def submitted(command: Command, *flags: str, prompt: str = "x") -> str:
    return str(command("submit", "--prompt", prompt, *FLAGS, *flags).only["id"])


def test_submit_answers_at_once(command: Command, client: Client) -> None:
    found = command("submit", "--prompt", "hold", *FLAGS)
    assert found.code == 0 and found.err == "" and found.only["status"] in ("queued", "running")
    assert client.job(found.only["id"]).facts["width"] == 64
    command("cancel", found.only["id"])


def test_files_of_this_machine_are_uploaded(command: Command, client: Client, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.png").write_bytes(picture(64, 64))
    (tmp_path / "b.png").write_bytes(picture(64, 96))
    request = {"prompt": "x", "first_frame": {"path": "a.png"}, "keyframes": [{"frame": 3, "image": {"path": "a.png"}}]}
    (tmp_path / "below" / "request.json").write_text(json.dumps(request))
    found = command("submit", "below/request.json", "--last-frame", "b.png", *FLAGS, "--output", "out.mp4")
    assert found.code == 0 and found.only["task"] == "fl2va" and found.only["fetched"] == ["out.mp4"]
    made = (tmp_path / "out.mp4").read_bytes()
    assert made.count(picture(64, 64)) == 2 and picture(64, 96) in made
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b.png", "below", "out.mp4"]
    assert client.job(found.only["id"]).outputs[0]["bytes"] == len(made)


def test_several_clips_are_fetched_under_numbered_names(command: Command, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"prompt": "x", "n": 2, "seed": 5}))
    found = command("submit", "r.json", *FLAGS, "--output", "out.mp4")
    assert found.only["fetched"] == ["out-0.mp4", "out-1.mp4"]
    assert (tmp_path / "out-0.mp4").read_bytes() != (tmp_path / "out-1.mp4").read_bytes()


@pytest.mark.parametrize("flags", [("--wait",), ("--watch",), ("--output", "a.mp4")])
def test_waiting_shows_how_it_ended(command: Command, flags: tuple[str, ...]) -> None:
    found = command("submit", "--prompt", "fail_at=mux", *FLAGS, *flags)
    assert found.code == 1 and found.only["status"] == "failed"
    assert found.err == (
        f"error: job {found.only['id']} failed in mux: encoder_failed: the encoder ended with status 1\n"
    )


def test_what_is_wrong_is_told_before_or_by_the_server(command: Command, client: Client, tmp_path: Path) -> None:
    (tmp_path / "there.mp4").write_bytes(b"mine")
    (tmp_path / "chain.json").write_text("[{}, {}]")
    before = [job.id for job in client.jobs(100)[0]]
    for arguments, told in [
        (("--output", "there.mp4"), "output: there.mp4 exists"),
        (("--output", "no/a.mp4"), "no is not a folder"),
        (("--first-frame", "no.png"), "first_frame: "),
        (("chain.json",), "only `generate` makes one clip of"),
        (("--steps", "0"), "steps: "),
        (("--url", "nowhere"), "is no http or https address"),
        (("--url", "http://127.0.0.1:9"), "can't be reached: Connection refused"),
    ]:
        found = command("submit", "--prompt", "x", *arguments)
        assert found.code == 1 and found.err.startswith("error: ") and told in found.err and found.out == ""
    assert [job.id for job in client.jobs(100)[0]] == before and (tmp_path / "there.mp4").read_bytes() == b"mine"
    assert command("submit", "--prompt", "x", *FLAGS, "--output", "there.mp4", "--overwrite").code == 0
    assert (tmp_path / "there.mp4").read_bytes() != b"mine"


def test_a_key_is_needed_and_told_in_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("H3_API_KEY")
    found = command("jobs")
    assert found.code == 1 and found.err.startswith("error: ") and "key" in found.err


def test_the_same_key_of_a_request_is_the_same_job(command: Command) -> None:
    first, second = (submitted(command, "--idempotency-key", "mine", "--seed", "3") for _ in range(2))
    assert first == second != submitted(command, "--seed", "3")


def test_an_estimate_makes_no_job(command: Command, client: Client) -> None:
    before = client.jobs(1)[0][0].id
    found = command("submit", "--prompt", "x", *FLAGS, "--estimate")
    assert found.code == 0 and found.only["admitted"] is True and client.jobs(1)[0][0].id == before


def test_watch_follows_and_fetches(command: Command, tmp_path: Path) -> None:
    job_id = submitted(command, prompt="step_seconds=0.05")
    found = command("watch", job_id, "--output", "seen.mp4")
    assert (found.code, found.only["status"], found.err) == (0, "succeeded", "")
    assert len((tmp_path / "seen.mp4").read_bytes()) == found.only["bytes"]
    assert command("watch", job_id, "--quiet").out == ""
    assert "no job" in command("watch", "nobody").err


def test_whoever_interrupts_a_watch_is_told_that_the_job_goes_on(command: Command, client: Client) -> None:
    job_id = submitted(command, prompt="hold")
    watch = Client.watch

    def interrupted(*given: Any, **named: Any) -> Iterator[Any]:
        for event in watch(*given, **named):
            if event.data.get("status") == "running":
                signal.raise_signal(signal.SIGINT)
            yield event

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "watch", interrupted)
        found = command("watch", job_id)
    assert found.code == 128 + signal.SIGINT and found.out == ""
    assert found.err == f"job {job_id} goes on; to stop it: h3runtime cancel {job_id}\ninterrupted\n"
    assert client.job(job_id).status == "running"
    assert command("cancel", job_id).only["id"] == job_id
    assert command("watch", job_id).err == f"error: job {job_id} is cancelled\n"


def test_cancel_goes_on_past_unknown_jobs(command: Command, client: Client) -> None:
    running_id = submitted(command, prompt="hold")
    waiting = submitted(command)
    found = command("cancel", waiting, "nobody", running_id)
    assert found.code == 1 and [line["id"] for line in found.lines] == [waiting, running_id]
    assert "no job 'nobody'" in found.err and client.job(waiting).status == "cancelled"
    assert [*_states(client, running_id)][-1] == "cancelled"


def test_delete_leaves_nothing(command: Command, server: Running) -> None:
    job_id = command("submit", "--prompt", "x", *FLAGS, "--wait").only["id"]
    clip = server.service.folders.outputs / f"{job_id}.mp4"
    assert clip.is_file()
    assert command("cancel", "--delete", job_id).only["id"] == job_id
    assert not clip.exists() and command("jobs", job_id).code == 1


def test_jobs_are_listed_as_lines_and_as_a_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [submitted(command, prompt=str(number)) for number in range(5)]
    for job_id in made:
        command("watch", job_id)
    monkeypatch.setattr(jobs_command, "PAGE", 2)
    assert [line["id"] for line in command("jobs", "--limit", "5").lines] == made[::-1]
    assert command("jobs", made[0]).only["prompt"] == "0"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    heading, *rows = command("jobs", "--limit", "3").out.splitlines()
    assert heading.split()[:3] == ["ID", "STATUS", "TASK"] and [row.split()[0] for row in rows] == made[:1:-1]
    assert rows[0].split()[1:6] == ["succeeded", "t2va", "64x64", "5", "100%"]
    assert command("jobs", "--limit", "0").code == 1


def test_a_watch_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    """The same address, the same data: the stream ends at the drain, and the job is taken up again."""
    seen: list[str] = []
    with running(tmp_path / "data") as first:
        port = int(first.url.rpartition(":")[2])
        client = Client(first.url)
        request = {"prompt": f"until={tmp_path / 'second'}", "width": 64, "height": 64, "frames": 5, "steps": 2}
        job = client.submit(request)
        watching = threading.Thread(target=lambda: seen.extend(_states(client, job.id)))
        watching.start()
        first.wait(job.id, "running")
        until(lambda: seen)
    (tmp_path / "second").touch()
    with running(tmp_path / "data", port=port) as second:
        second.wait(job.id)
        watching.join(PATIENCE)
    assert not watching.is_alive() and seen[-1] == "succeeded"


def _states(client: Client, job_id: str) -> Iterator[str]:
    return (str(event.data["status"]) for event in client.watch(job_id) if event.kind == "state")
