"""How the values of made-up checkpoints are chosen, for any sizes: one recipe a component, with values that live.

"Live" means: the text, the pictures and the seed change the result, latents keep a standard deviation near 1, decoded
frames have colour and texture, the sound is audible and neither clipped nor constant. The recipes set each tensor's
spread; where a network needs more than spread (a decoder that undoes the latent statistics, output heads that shrink
noise) a function writes the tensor. tests/checkpoint/synthetic/test_tiny.py measures the result.
"""
