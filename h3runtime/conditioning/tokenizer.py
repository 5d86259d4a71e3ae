"""Text -> token ids, as ComfyUI's H3 tokenizer gives them (conditioning contract §1.4).

    raw text -> cut added tokens out -> NFC on what is left -> Qwen2 split -> bytes as characters -> BPE

Reads a folder with `vocab.json`, `merges.txt` and `tokenizer_config.json`. The ids of added tokens come from the config
alone, never from the size of the vocabulary, so that a small byte vocabulary with the same added ids works too. Knows
nothing of presentations, adds no token of its own and never truncates. Fed by the engine (a folder); read by
`presentation`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from h3runtime.errors import CheckpointError, Offence, invalid

ENDOFTEXT: Final = 151643
VISION_START: Final = 151652
VISION_END: Final = 151653
IMAGE_PAD: Final = 151655

REQUIRED: Final[Mapping[str, int]] = {
    "<|endoftext|>": ENDOFTEXT,
    "<|vision_start|>": VISION_START,
    "<|vision_end|>": VISION_END,
    "<|image_pad|>": IMAGE_PAD,
    "<d>": 151669,
    "</d>": 151670,
    "<|cutoff|>": 151671,
    "<|lyrics_start|>": 151672,
    "<|lyrics_end|>": 151673,
    "<|caption_start|>": 151674,
    "<|caption_end|>": 151675,
}
"""Ids that H3 was trained with: four presentation markers, H3's own seven tokens (conditioning contract §1.3, §1.4)."""

# The Qwen2 split (conditioning contract §1.4): every match is one piece.
SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PromptTokenizer:
    """`added` maps each added token to its id; those stay whole wherever they are typed. Every id is below `ids`."""

    def __init__(self, vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], added: Mapping[str, int]) -> None:
        """Raises CheckpointError if a required id, or one of the 256 byte characters, is missing."""
        _check_added(vocab, added)
        _check_bytes(vocab)
        self.added = dict(added)
        self.ids = 1 + max(*vocab.values(), *added.values())
        self._bpe = _byte_level_bpe(vocab, merges)
        longest_first = sorted(self.added, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Raises CheckpointError naming the folder and the file that is absent, unreadable or not what H3 needs."""
        try:
            return cls._from_files(folder)
        except CheckpointError as error:
            raise CheckpointError(f"{folder.name}: {error.message}", error.offences) from None

    @classmethod
    def _from_files(cls, folder: Path) -> PromptTokenizer:
        vocab = _read_json(folder / "vocab.json")
        if not all(isinstance(i, int) for i in vocab.values()):
            raise CheckpointError("vocab.json doesn't map each token to an integer id")
        return cls(vocab, _read_merges(folder / "merges.txt"), _added_tokens(folder / "tokenizer_config.json", vocab))

    def encode(self, text: str) -> list[int]:
        """Ids of `text` on its own; empty text gives none. Raises InvalidRequest for text that isn't Unicode."""
        _check_unicode(text)
        ids: list[int] = []
        for part in self._cut.split(text):
            if part in self.added:
                ids.append(self.added[part])
            elif part:
                ids.extend(self._bpe.encode(part, add_special_tokens=False).ids)
        return ids


def _byte_level_bpe(vocab: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> Tokenizer:
    try:
        tokenizer = Tokenizer(BPE(vocab=dict(vocab), merges=list(merges)))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"merges.txt and vocab.json don't fit each other: {error}") from error
    tokenizer.normalizer = NFC()
    split = Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def _added_tokens(path: Path, vocab: Mapping[str, int]) -> dict[str, int]:
    """`added_tokens_decoder`, then the entries of `additional_special_tokens` without an id, numbered on in list order
    (conditioning contract §1.4)."""
    config = _read_json(path)
    try:
        added = {entry["content"]: int(i) for i, entry in config.get("added_tokens_decoder", {}).items()}
        listed = [t if isinstance(t, str) else t["content"] for t in config.get("additional_special_tokens") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} lists added tokens in an unknown form") from error
    following = 1 + max([*added.values(), *vocab.values()], default=-1)
    for token in listed:
        if token not in added and token not in vocab:
            added[token] = following
            following += 1
    return added


def _check_added(vocab: Mapping[str, int], added: Mapping[str, int]) -> None:
    wrong = [
        Offence(token, f"has id {added[token]}" if token in added else "is absent", str(expected))
        for token, expected in REQUIRED.items()
        if added.get(token) != expected
    ]
    taken = {i: token for token, i in vocab.items()}
    wrong += [Offence(t, f"shares id {i} with {taken[i]!r}") for t, i in added.items() if taken.get(i, t) != t]
    if wrong:
        listed = ", ".join(f"{o.field} {o.message}" + (f" (must be {o.legal})" if o.legal else "") for o in wrong)
        raise CheckpointError(f"tokenizer_config.json isn't H3's: {listed}", wrong)


def _check_bytes(vocab: Mapping[str, int]) -> None:
    """BPE would drop a character outside its vocabulary without a word."""
    missing = sorted(set(ByteLevel.alphabet()) - vocab.keys())
    if missing:
        raise CheckpointError(
            f"vocab.json lacks {len(missing)} of the 256 byte characters", [Offence(c, "is absent") for c in missing]
        )


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"holds a lone surrogate at character {error.start}"
        raise invalid([Offence("prompt", message, "text of whole Unicode characters")]) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"the tokenizer's {path.name} can't be read", [Offence(path.name, "is absent or not UTF-8")]
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path.name} isn't JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} isn't a JSON object")
    return content


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """One pair a line. H3's file has no header line; other releases begin with `#version`."""
    lines = _read_text(path).split("\n")
    if lines[0].startswith("#version"):
        lines = lines[1:]
    merges = []
    for number, line in enumerate(lines, 1):
        left, space, right = line.rstrip("\r").partition(" ")
        if space and left and right and " " not in right:
            merges.append((left, right))
        elif line.strip():
            raise CheckpointError(f"merges.txt: line {number} isn't a pair")
    return merges
