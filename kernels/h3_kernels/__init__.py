"""Owned Triton and CUDA kernels of h3runtime; reached through `h3runtime.backends` and `h3runtime.quant` only."""
