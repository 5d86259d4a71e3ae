"""Every line, from every source, is one JSON object; none holds a prompt."""

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h3runtime.core import Task
from h3runtime.observe import logs

RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")


@pytest.fixture(autouse=True)
def undo():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(stream)
    return stream


def lines(stream: io.StringIO) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in stream.getvalue().splitlines()]


def test_a_line_has_time_level_event_logger_and_what_was_given(stream):
    structlog.get_logger("h3runtime.test").info("engine_ready", seconds=1.5, device="cpu", task=Task.T2VA)
    (line,) = lines(stream)
    assert list(line)[:4] == ["time", "level", "event", "logger"]
    assert RFC3339_UTC.fullmatch(line.pop("time"))
    assert line == {
        "level": "info", "event": "engine_ready", "logger": "h3runtime.test", "seconds": 1.5, "device": "cpu",
        "task": "t2va",
    }  # fmt: skip


def test_stdlib_uvicorn_and_warnings_go_the_same_way(stream):
    logging.getLogger("some.library").warning("it took %d s", 3)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.access").info('%s - "%s" %d', "127.0.0.1", "GET /live", 200)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("soon gone", DeprecationWarning, stacklevel=1)
    found = lines(stream)
    assert [line["event"] for line in found[:3]] == [
        "it took 3 s",
        "Started server process [7]",
        '127.0.0.1 - "GET /live" 200',
    ]
    assert [line["level"] for line in found] == ["warning", "info", "info", "warning"]
    assert "soon gone" in found[3]["event"]
    assert found[3]["logger"] == "py.warnings"


def test_handlers_that_uvicorn_brought_are_gone():
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("uvicorn").propagate = False
    stream = io.StringIO()
    logs.configure(stream)
    logging.getLogger("uvicorn").error("once")
    assert [line["event"] for line in lines(stream)] == ["once"]
    assert logging.getLogger("uvicorn").handlers == []


def test_a_traceback_is_part_of_the_line(stream):
    for log in (structlog.get_logger("ours"), logging.getLogger("theirs")):
        try:
            raise KeyError("gone")
        except KeyError:
            log.exception("engine_bug")
    for line in lines(stream):
        assert line["event"] == "engine_bug"
        assert line["level"] == "error"
        assert "KeyError: 'gone'" in line["exception"]


def test_context_is_bound_to_every_line_in_it(stream):
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger().info("inside")
        logging.getLogger("lib").info("too")
    structlog.get_logger().info("outside")
    assert [line.get("request_id") for line in lines(stream)] == ["r1", "r1", None]


def test_prompts_never_appear(stream):
    @dataclass
    class Spec:
        prompt: str = "a secret cat"

    structlog.get_logger().info(
        "job",
        prompt="a secret cat",
        request={"prompt": "a secret cat"},
        spec=Spec(),
        nested=[{"prompt": "a secret cat", "seed": 1}],
    )
    assert "secret" not in stream.getvalue()
    assert lines(stream)[0]["spec"] == "<Spec>"
    assert lines(stream)[0]["nested"] == [{"seed": 1}]


def test_the_level_holds_for_everyone(stream):
    logs.configure(stream, level="WARNING")
    structlog.get_logger().info("no")
    logging.getLogger("lib").info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="'loud' is none of"):
        logs.configure(io.StringIO(), level="loud")


def test_the_last_configuration_wins_and_a_file_gets_the_lines_too(tmp_path: Path):
    first, second = io.StringIO(), io.StringIO()
    logs.configure(first)
    log = structlog.get_logger()
    log.info("one")
    logs.configure(second, file=tmp_path / "h3.log")
    log.info("two")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["two"]
    assert json.loads((tmp_path / "h3.log").read_text())["event"] == "two"


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(Path("/a")), st.builds(object)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(), st.dictionaries(st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1), values, max_size=4)
)
def test_whatever_is_logged_is_one_line_of_strict_json(stream, event, given):
    stream.seek(0)
    stream.truncate()
    structlog.get_logger().bind(**{f"k_{key}": value for key, value in given.items()}).info(event)
    (line,) = lines(stream)
    assert line["event"] == event


def test_standard_output_holds_nothing_but_json_when_it_is_the_target():
    program = (
        "import logging, structlog, warnings\n"
        "from h3runtime.observe import logs\n"
        "logs.configure('stdout')\n"
        "structlog.get_logger('a').info('x'); logging.getLogger('b').error('y'); warnings.warn('z')\n"
        "import sys; assert 'torch' not in sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line)["logger"] for line in ended.stdout.splitlines()] == ["a", "b", "py.warnings"]
    assert ended.stderr == ""
