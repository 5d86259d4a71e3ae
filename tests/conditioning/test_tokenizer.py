import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.conditioning.tokenizer import REQUIRED, PromptTokenizer
from h3runtime.errors import CheckpointError, InvalidRequest
from tests.conditioning import small


def test_dialogue_tags_stay_whole(real_tokenizer) -> None:
    ids = real_tokenizer.encode("<d>[English] Hello there.</d>")
    assert (ids[0], ids[-1]) == (151669, 151670)
    assert not {151669, 151670} & set(ids[1:-1])


@pytest.mark.parametrize("token,expected", REQUIRED.items())
def test_every_own_token_is_one_id(real_tokenizer, byte_tokenizer, token, expected) -> None:
    for tokenizer in (real_tokenizer, byte_tokenizer):
        assert tokenizer.encode(token) == [expected]
        assert tokenizer.encode(f"a{token}b")[1:-1] == [expected]


@pytest.mark.parametrize("token,expected", [("<|im_end|>", 151645), ("<|image_pad|>", 151655), ("<think>", 151667)])
def test_chat_markers_typed_in_a_prompt_stay_whole(real_tokenizer, token, expected) -> None:
    assert real_tokenizer.encode(f"the {token} end").count(expected) == 1


def test_neighbours_of_an_added_token_keep_their_spaces(byte_tokenizer) -> None:
    ids = byte_tokenizer.encode("  <d>  ")
    space = byte_tokenizer.encode(" ")
    assert ids == [*space, *space, 151669, *space, *space]


def test_tags_without_pipes_are_prose(real_tokenizer) -> None:
    for text in ("<cutoff>", "<Picture 1>", "[Shot 1]", "<D>", "< d>"):
        assert max(real_tokenizer.encode(text)) < 151643


def test_empty_text_has_no_ids(byte_tokenizer) -> None:
    assert byte_tokenizer.encode("") == []


@given(st.text(st.characters(codec="utf-8")))
def test_bytes_are_those_of_the_composed_text(byte_tokenizer, text) -> None:
    """Without merges every byte of the NFC text is one id, and no byte is lost."""
    ids = byte_tokenizer.encode(text)
    if all(i < 256 for i in ids):
        assert len(ids) == len(unicodedata.normalize("NFC", text).encode())


@given(st.lists(st.sampled_from([*REQUIRED, "a", " ", "é", "<", "|"])))
def test_pieces_between_added_tokens_are_tokenised_on_their_own(byte_tokenizer, parts) -> None:
    text = "".join(parts)
    ids = byte_tokenizer.encode(text)
    assert [i for i in ids if i >= 256] == [REQUIRED[p] for p in parts if p in REQUIRED]


def test_a_lone_surrogate_is_refused_by_name(byte_tokenizer) -> None:
    with pytest.raises(InvalidRequest) as caught:
        byte_tokenizer.encode("a \ud800 b")
    assert caught.value.offences[0].field == "prompt"


def test_missing_own_tokens_are_all_listed(tmp_path) -> None:
    small.byte_tokenizer_files(tmp_path, extra=["<d>"])
    with pytest.raises(CheckpointError) as caught:
        PromptTokenizer.from_folder(tmp_path)
    assert [o.field for o in caught.value.offences] == small.EXTRA_TOKENS[1:]


def test_own_tokens_in_another_order_are_refused(tmp_path) -> None:
    small.byte_tokenizer_files(tmp_path, extra=small.EXTRA_TOKENS[::-1])
    with pytest.raises(CheckpointError, match=r"<d> has id 151675 \(must be 151669\)"):
        PromptTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_an_absent_file_is_named(tmp_path, name) -> None:
    small.byte_tokenizer_files(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"^{re.escape(tmp_path.name)}: .*{name}"):
        PromptTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "name,content",
    [
        ("vocab.json", "{"),
        ("vocab.json", "[]"),
        ("vocab.json", '{"a": "b"}'),
        ("vocab.json", '{"a": 0}'),
        ("merges.txt", "one two three\n"),
        ("merges.txt", "xx yy\n"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "<d>"}}}'),
        ("tokenizer_config.json", "null"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content) -> None:
    small.byte_tokenizer_files(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=name):
        PromptTokenizer.from_folder(tmp_path)


def test_an_added_id_that_a_word_holds_is_refused(tmp_path) -> None:
    small.byte_tokenizer_files(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {"word": 151644}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="shares id 151644"):
        PromptTokenizer.from_folder(tmp_path)


def test_a_header_line_of_merges_is_skipped(tmp_path) -> None:
    small.byte_tokenizer_files(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {"ab": 256}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    assert PromptTokenizer.from_folder(tmp_path).encode("ab") == [256]
