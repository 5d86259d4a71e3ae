"""The tags that the prompt linter knows are those of the real tokenizer."""

import pytest

from h3runtime.api.prompt.labels import TOKENS, unknown_tags


def test_the_linter_knows_what_the_tokenizer_knows(real_tokenizer) -> None:
    assert frozenset(real_tokenizer.added) == TOKENS


@pytest.mark.parametrize(
    "prompt,unknown",
    [
        ("<d>[English] Hello there.</d>", ()),
        ("<|cutoff|> <cutoff> <scenetrans> <Picture 1> <Subject 12> [Shot 1] (S1)", ()),
        ("<think>x</think> <|im_end|> <|image_pad|>", ()),
        ("<D>hi</D>", ("<D>", "</D>")),
        ("<|lyrics|> la <|lyrics|>", ("<|lyrics|>",)),
        ("<dialogue> <Foo 1>", ("<dialogue>", "<Foo 1>")),
        ("1 < 2 > 0, a <- b, x <3 y>", ()),
        ("", ()),
    ],
)
def test_only_tags_that_mean_nothing_are_reported(prompt: str, unknown: tuple[str, ...]) -> None:
    assert unknown_tags(prompt) == unknown
