"""The small vocabulary, made from the grammar: a byte-level BPE in which every word of `captions` is one token.

    vocab.json             0..255 the byte characters, then one token per merge
    merges.txt             pairs in the order in which they were learnt, no header line
    tokenizer_config.json  H3's own form: the added tokens at their real ids 151643..151675 (conditioning contract §1.4)

Trained on weighted words, so that the grammar's come first in all three spellings (after a space, alone, with a
capital) and common English fills the rest. Deterministic: the same files on every machine for one grammar. Read by
`vocabulary` from the package; `write_tokenizer` puts them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from h3runtime.checkpoint.synthetic.byte_tokenizer import byte_characters
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files as byte_tokenizer_files
from h3runtime.checkpoint.writer import write_whole
from h3runtime.conditioning.tokenizer import SPLIT
from h3runtime.nano import captions
from h3runtime.nano.vocabulary import TOKENIZER
from h3runtime.nano.world import FLOORS

ORDINARY: Final = 867
"""Ids below the added tokens; with those, 900 rows of the embedding table."""
GLUE: Final = ("a", "an", "and")
"""Words that `captions` writes between those of its tables."""
LABELS: Final = ("<Picture 1>: ", "<Audio 1>: ", "<Video 1>: ", " <Picture 1>,", " <Audio 1>.", "<0.2 seconds>")
SPACED, CAPITAL, BARE, LABEL, COMMON_MOST = 1000, 300, 200, 1000, 100
"""How often a spelling is seen: the rarest one of a grammar word more often than any other English word."""
COMMON: Final = """
    the of and to in is it that for with as at by this from or be are was not but all one two three has have his her
    they its their there then into up down out off over under around behind front back side next near between through
    big small large little tiny huge round long short high low fast slow quickly slowly gently suddenly very again
    while when where which who what how some any each other another more most only also just like black brown pink gray
    cyan silver dark light bright soft color colour circle star heart oval diamond shape line dot cloud
    moves jumps falls rolls flies spins turns stops starts plays runs walks goes comes flying spinning turning playing
    running walking person man woman child boy girl people face hand head eye dog cat bird fish horse car train boat
    house street city room wall window door table tree flower grass water sea river mountain sky sun moon night day
    camera shot scene video picture image film close view wide zoom background music voice sound noise song speech
    says speaks sings loud quiet piano drum bell time first last second then left right top bottom
"""
"""Other English, the more wanted words first; as many become tokens as there is room for."""


def tokenizer_files() -> dict[str, bytes]:
    """File name -> contents."""
    merges = _merges()
    tokens = [*byte_characters(), *map("".join, merges)]
    return {
        "vocab.json": json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False, indent=1).encode(),
        "merges.txt": "".join(f"{left} {right}\n" for left, right in merges).encode(),
        "tokenizer_config.json": byte_tokenizer_files()["tokenizer_config.json"],
    }


def write_tokenizer(folder: Path = TOKENIZER) -> None:
    """Make the three files anew. A trained encoder fits only the ones that it was trained with."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer_files().items():
        write_whole(folder / name, content)


def grammar_words() -> list[str]:
    """Every word that a caption may hold, in lower case and alphabetical order."""
    tables = captions.COLOUR_WORDS, captions.SHAPE_WORDS, captions.VERBS, captions.PLACE_WORDS, captions.TIMBRE_WORDS
    lists = captions.OPENINGS, captions.GROUNDS, captions.SILENCES, captions.PICTURED, captions.HEARD
    phrases = [phrase for table in tables for phrases in table.values() for phrase in phrases]
    phrases += [phrase for phrases in lists for phrase in phrases]
    return _words([*phrases, *FLOORS, *GLUE, *LABELS])


def _words(phrases: Iterable[str]) -> list[str]:
    return sorted({word.lower() for phrase in phrases for word in re.findall("[A-Za-z]+", phrase)})


def _merges() -> list[tuple[str, str]]:
    tokenizer = Tokenizer(BPE())
    split = Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = BpeTrainer(
        vocab_size=ORDINARY, min_frequency=1, show_progress=False, initial_alphabet=sorted(byte_characters())
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _corpus() -> Iterator[str]:
    for word in grammar_words():
        yield from [f" {word}"] * SPACED + [word.capitalize()] * CAPITAL + [word] * BARE
    for label in LABELS:
        yield from [label] * LABEL
    common = COMMON.split()
    for rank, word in enumerate(common):
        yield from [f" {word}"] * (COMMON_MOST - rank * COMMON_MOST // (2 * len(common)))
