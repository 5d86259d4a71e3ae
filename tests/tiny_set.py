"""The tiny set by the names of the settings: random weights, two transformers that differ, checks that only warn."""

from pathlib import Path

from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.settings import default_cache_dir


def tiny_paths() -> dict[str, Path]:
    """In the user's cache, made once for all tests."""
    made = tiny_set(default_cache_dir())
    return {
        "model_path": made.transformer,
        "ref2va_model_path": made.ref2va,
        "text_encoder_path": made.text_encoder,
        "video_vae_path": made.video_vae,
        "audio_vae_path": made.audio_vae,
        "tokenizer_path": made.tokenizer,
    }
