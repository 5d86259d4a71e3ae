import pytest

from h3runtime.conditioning.prompt_tags import unknown_tags


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
def test_only_tags_that_mean_nothing_are_reported(real_tokenizer, prompt, unknown) -> None:
    assert unknown_tags(prompt, real_tokenizer.added) == unknown
