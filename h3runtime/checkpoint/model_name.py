"""Metadata of files whose weights are a trained model's, but not H3's: which model, and which masters they came from.

Written by `embedded`; read by `file` (what `inspect` and `/ready` tell) and by `engine`, which completes a set from the
embedded one only with files of the same masters.
"""

from __future__ import annotations

MODEL_KEY = "h3runtime_model"
"""Metadata entry: the model's name. A file of H3 itself has none."""
MASTERS_KEY = "h3runtime_masters"
"""Metadata entry: 16 hex digits over the masters. Encoder, VAEs and transformer of others were trained apart."""
NANO = "h3-nano"
