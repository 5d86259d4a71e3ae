"""`--lora NAME[:STRENGTH]` as a request has it."""

import argparse
from typing import Any

import pytest

from h3runtime.__main__ import build_parser
from h3runtime.cli import demo, generate
from h3runtime.cli.generation.flags import OWN_TURBO, add_request_flags, blank, request_of
from h3runtime.nano.training.turbo.schedule import FORWARDS, NAME


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["turbo"], [{"name": "turbo"}]),
        (["turbo:0.5", "style"], [{"name": "turbo", "strength": 0.5}, {"name": "style"}]),
        (["v1:a:-1"], [{"name": "v1:a", "strength": -1.0}]),
        (["v1:a"], [{"name": "v1:a"}]),
        ([":2"], [{"name": ":2"}]),
    ],
)
def test_what_follows_the_last_colon_is_a_strength_if_it_is_a_number(given: list[str], meant: list[object]) -> None:
    parser = argparse.ArgumentParser()
    add_request_flags(parser)
    found = parser.parse_args([part for text in given for part in ("--lora", text)])
    asked = argparse.Namespace(**(blank() | {name: v for name, v in vars(found).items() if v is not None}))
    assert request_of(asked) == {"loras": meant}


@pytest.mark.parametrize("name", [NAME, "another"])
def test_the_demo_takes_the_own_adapter_s_forwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(generate, "make", lambda arguments, _: asked.append(request_of(arguments)))
    assert demo.run(build_parser().parse_args(["demo", "--quiet", "--lora", f"{name}:0.5"])) == 0
    (request,) = asked
    assert request["loras"] == [{"name": name, "strength": 0.5}] and NAME == OWN_TURBO
    found = request["steps"], request.get("sampler"), request.get("scheduler")
    assert found == ((FORWARDS, "euler", "simple") if name == NAME else (12, None, None))


def test_no_flag_is_no_field() -> None:
    assert request_of(argparse.Namespace(**blank())) == {}
