"""Made-up weights for any sizes of the four components: every tensor of the published layouts, with values that live.

"Live" means: the text, the pictures and the seed change the result, latents keep a standard deviation near 1, decoded
frames have colour and texture, the sound is audible and neither clipped nor constant. The recipes set each tensor's
spread; where a network needs more than spread (a decoder that undoes the latent statistics, output heads that shrink
noise) a function writes the tensor. tests/checkpoint/test_embedded.py measures the result.

The door to `recipes`; read by `made_files` and the tests. `storage` packs the weights as files hold them.
"""

from __future__ import annotations

from h3runtime.checkpoint.recipes.audio_vae import audio_vae
from h3runtime.checkpoint.recipes.recipe import Recipe, Spread
from h3runtime.checkpoint.recipes.text_encoder import pre_quant_scales, text_encoder
from h3runtime.checkpoint.recipes.transformer import transformer
from h3runtime.checkpoint.recipes.video_vae import video_vae

__all__ = ["Recipe", "Spread", "audio_vae", "pre_quant_scales", "text_encoder", "transformer", "video_vae"]
