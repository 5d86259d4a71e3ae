"""Noise to latents: the DiT, modulation, schedule and sampler. Tensors in and out; knows nothing of jobs or files."""
