"""`--lora NAME[:STRENGTH]/ALPHA`, for adapters whose files have no alpha; and the same of a side of `compare`."""

import pytest

from h3runtime.cli.generation.flags import lora_of
from h3runtime.cli.sides.given import read_side


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("turbo/8", {"name": "turbo", "alpha": 8.0}),
        ("turbo:0.5/8", {"name": "turbo", "strength": 0.5, "alpha": 8.0}),
        ("v1:a:-1/128", {"name": "v1:a", "strength": -1.0, "alpha": 128.0}),
        ("turbo/eight", {"name": "turbo/eight"}),
        ("/8", {"name": "/8"}),
        ("turbo/", {"name": "turbo/"}),
    ],
)
def test_what_follows_a_slash_is_an_alpha_if_it_is_a_number(text: str, meant: dict[str, object]) -> None:
    assert lora_of(text) == meant
    assert read_side("a", [f"lora={text}"]).request["loras"] == [meant]
