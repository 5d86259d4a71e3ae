"""`--refine` and its two companions become the request's `refine`."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from h3runtime.__main__ import build_parser
from h3runtime.api.rules.refine import DENOISE, STEPS
from h3runtime.cli.generation.flags import REFINE, add_request_flags, blank, request_of


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (["--refine", "2"], {"scale": 2.0}),
        (
            ["--refine", "1.5", "--refine-steps", "3", "--refine-denoise", "0.2"],
            {"scale": 1.5, "steps": 3, "denoise": 0.2},
        ),
        (["--refine-steps", "3"], {"steps": 3}),
        ([], None),
    ],
)
def test_flags_are_the_field(flags: list[str], meant: dict[str, Any] | None) -> None:
    parser = argparse.ArgumentParser()
    add_request_flags(parser)
    given = {name: value for name, value in vars(parser.parse_args(flags)).items() if value is not None}
    assert request_of(argparse.Namespace(**(blank() | given))).get("refine") == meant


def test_the_demo_can_be_refined_too() -> None:
    given = vars(build_parser().parse_args(["demo", "--refine", "2", "--refine-steps", "5"]))
    assert request_of(argparse.Namespace(**(blank() | given)))["refine"] == {"scale": 2.0, "steps": 5}


def test_help_tells_what_a_request_that_names_nothing_gets() -> None:
    assert REFINE["refine_steps"][2].endswith(f"Default: {STEPS}.")
    assert REFINE["refine_denoise"][2].endswith(f"Default: {DENOISE:g}.")
