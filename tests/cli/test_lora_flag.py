"""`--lora NAME[:STRENGTH]` as a request has it."""

import argparse

import pytest

from h3runtime.cli.generation.flags import add_request_flags, blank, request_of


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


def test_no_flag_is_no_field() -> None:
    assert request_of(argparse.Namespace(**blank())) == {}
