"""The small vocabulary: its files, its ids, and what it makes of captions and of anything else."""

import re
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.checkpoint.synthetic.byte_tokenizer import byte_characters
from h3runtime.conditioning.tokenizer import IMAGE_PAD, REQUIRED
from h3runtime.nano.captions import caption
from h3runtime.nano.training.tokenizer import grammar_words, tokenizer_files
from h3runtime.nano.vocabulary import TOKENIZER, Vocabulary
from h3runtime.nano.world import draw_scene

VOCABULARY = Vocabulary.load()
BYTES = {
    character: byte
    for byte, character in zip(
        [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)], byte_characters(), strict=False
    )
}
BYTES |= {chr(0x100 + n): byte for n, byte in enumerate(b for b in range(256) if b not in BYTES.values())}


@pytest.fixture(scope="module")
def captions() -> list[str]:
    rng = np.random.default_rng(3)
    return [caption(draw_scene(rng, "any"), rng, pictured=i % 3 == 0, heard=i % 2 == 0) for i in range(400)]


def spell(ids: list[int]) -> str:
    """Text of ordinary and added ids, by way of bytes."""
    added = {i: token for token, i in VOCABULARY.tokenizer.added.items()}
    parts = [added[i].encode() if i in added else bytes(BYTES[c] for c in VOCABULARY.tokens[i]) for i in ids]
    return b"".join(parts).decode()


def test_the_package_holds_the_files_that_the_grammar_makes() -> None:
    made = tokenizer_files()
    assert {name: (TOKENIZER / name).read_bytes() for name in made} == made


def test_byte_characters_come_first_and_the_added_tokens_have_their_real_ids() -> None:
    assert list(VOCABULARY.tokens[:256]) == byte_characters()
    assert VOCABULARY.rows == VOCABULARY.ordinary + 33 <= 900
    assert {token: VOCABULARY.tokenizer.added[token] for token in REQUIRED} == REQUIRED


@pytest.mark.parametrize("spelling", [" {}", "{}", "capital"])
def test_every_word_of_the_grammar_is_one_token(spelling: str) -> None:
    texts = [w.capitalize() if spelling == "capital" else spelling.format(w) for w in grammar_words()]
    assert [t for t in texts if len(VOCABULARY.tokenizer.encode(t)) != 1] == []


def test_captions_have_one_token_per_word(captions: list[str]) -> None:
    for text in captions:
        pieces = re.findall(r" ?[A-Za-z]+|[0-9]| ?[^A-Za-z0-9 ]+| ", text)
        joined = re.sub(r"(^|\|)<\|Picture", r"\1<Picture", "|".join(pieces))  # `<Picture` is one where it comes first
        assert "|".join(spell([i]) for i in VOCABULARY.tokenizer.encode(text)) == joined


def test_labels_stay_short() -> None:
    for label in ("<Picture 1>: ", "<Picture 2>: ", "<Audio 1>: ", "<Video 1>: "):
        assert len(VOCABULARY.tokenizer.encode(label)) == 5


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    assert spell(VOCABULARY.tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_compact_rows_and_real_ids_are_each_other_s_inverse() -> None:
    ids = VOCABULARY.token_ids()
    assert len(set(ids.tolist())) == VOCABULARY.rows
    assert ids[-1] == 151675 and ids[VOCABULARY.ordinary] == 151643
    assert np.array_equal(VOCABULARY.compact(ids), np.arange(VOCABULARY.rows))
    assert VOCABULARY.compact(np.array([[5, IMAGE_PAD]])).tolist() == [[5, VOCABULARY.ordinary + 12]]


@pytest.mark.parametrize("alien", [-1, VOCABULARY.ordinary, 151642, 151676])
def test_an_id_of_another_vocabulary_has_no_row(alien: int) -> None:
    with pytest.raises(AssertionError, match="another vocabulary"):
        VOCABULARY.compact(np.array([alien]))


def test_the_expanded_table_has_every_row_at_its_real_id() -> None:
    table = torch.arange(1, VOCABULARY.rows + 1).unsqueeze(1).bfloat16()
    expanded = VOCABULARY.expand(table)
    assert expanded.shape == (151936, 1) and expanded.dtype == torch.bfloat16
    assert torch.equal(expanded[VOCABULARY.token_ids()], table)
    assert int((expanded != 0).sum()) == VOCABULARY.rows


def test_kin_is_the_word_inside_a_sentence() -> None:
    def row(text: str) -> int:
        (i,) = VOCABULARY.tokenizer.encode(text)
        return i

    kin = VOCABULARY.kin()
    assert kin[row("Red")] == kin[row("red")] == kin[row(" red")] == row(" red")
    assert kin[row(",")] == row(",")
    assert np.array_equal(kin[VOCABULARY.ordinary :], np.arange(VOCABULARY.ordinary, VOCABULARY.rows))
