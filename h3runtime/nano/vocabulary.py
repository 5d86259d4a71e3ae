"""The small vocabulary of h3-nano: real token ids <-> rows of a compact embedding table.

    real     0..n-1, then 151643..151675: what `conditioning.tokenizer` gives and a published table is indexed by
    compact  0..n-1, then n..n+32: the same tokens in the same order without the gap

The training holds a table of `rows` rows; `expand` makes the published one of 151,936 rows, zeros where no token is.
The tokenizer's files are the package's own, made by `training.tokenizer`. Fed with text and ids by the training; the
runtime needs none of this: to it the derived files are an encoder and a tokenizer like any other.

The master of the text encoder (`training.text_master`) describes itself, so that `checkpoint` can derive the published
file without this module: next to ComfyUI's names it holds `token_ids`, int64 [rows], the real id of each row of its
`model.embed_tokens.weight`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.checkpoint.synthetic.byte_tokenizer import ADDED, FIRST_ADDED, H3_TOKENS
from h3runtime.conditioning.tokenizer import PromptTokenizer

TOKENIZER: Final = Path(__file__).parent / "masters" / "tokenizer"
"""vocab.json, merges.txt and tokenizer_config.json, as they travel in the wheel."""
TABLE_ROWS: Final = 151_936
"""Rows of a published embedding table (conditioning contract §1.1)."""
SPACE: Final = "Ġ"
"""The byte character of a space, with which a word inside a sentence begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """tokens: those with an ordinary id, in its order, spelt in byte characters."""

    tokenizer: PromptTokenizer
    tokens: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path = TOKENIZER) -> Vocabulary:
        """The package's own. Raises CheckpointError if a file is absent or not what H3 needs."""
        tokenizer = PromptTokenizer.from_folder(folder)
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        assert sorted(ids.values()) == list(range(len(ids))), "ordinary ids have gaps"
        assert sorted(tokenizer.added.values()) == list(range(FIRST_ADDED, tokenizer.ids)), "added ids have gaps"
        return cls(tokenizer, tuple(sorted(ids, key=ids.__getitem__)))

    @property
    def ordinary(self) -> int:
        """Tokens below the added ones."""
        return len(self.tokens)

    @property
    def rows(self) -> int:
        """Rows of the compact table: the ordinary tokens, then the added ones."""
        return self.ordinary + len(ADDED) + len(H3_TOKENS)

    def compact(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Real ids of any shape -> rows of the compact table."""
        rows = np.where(ids < FIRST_ADDED, ids, ids - FIRST_ADDED + self.ordinary)
        known = np.where(ids < FIRST_ADDED, ids < self.ordinary, rows < self.rows)
        assert np.all(known & (ids >= 0)), "an id of another vocabulary"
        return rows

    def real(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the compact table -> real ids."""
        assert np.all((rows >= 0) & (rows < self.rows)), f"a row outside 0..{self.rows - 1}"
        return np.where(rows < self.ordinary, rows, rows - self.ordinary + FIRST_ADDED)

    def token_ids(self) -> NDArray[np.int64]:
        """The real id of every row, int64 [rows]."""
        return self.real(np.arange(self.rows, dtype=np.int64))

    def expand(self, table: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [151936, hidden] of the same dtype and device, zeros where no token is."""
        assert len(table) == self.rows, f"{len(table)} rows, not {self.rows}"
        out = table.new_zeros(TABLE_ROWS, table.shape[1])
        out[torch.from_numpy(self.token_ids()).to(table.device)] = table.detach()
        return out

    def kin(self) -> NDArray[np.int64]:
        """For every row, that of the same word as it stands inside a sentence, ` red` for `Red` and `red`; else its
        own. int64 [rows]."""
        spelt = {token: row for row, token in enumerate(self.tokens)}
        inside = [spelt.get(SPACE + t.removeprefix(SPACE).lower(), row) for row, t in enumerate(self.tokens)]
        return np.array([*inside, *range(self.ordinary, self.rows)], dtype=np.int64)
