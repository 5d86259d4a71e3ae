"""`triton`: our own kernels, three passes over memory for a norm with its padding, channels last; CUDA only.

Statistics are added up in another order than PyTorch's, which moves a normed value by an ulp now and then; padding
alone is the definition's bit for bit. cuDNN multiplies channels-last tensors as they lie, where it would turn others
around before and after every convolution. Imports `h3_kernels`, and Triton with it, at the first call. Fed by the
encoder; holds nothing. `backends.vit.triton`, which is chosen with it, says where it can run.
"""

from __future__ import annotations

import torch

from h3runtime.backends.cnn.base import FrameNorm


class TritonSteps:
    name = "triton"
    layout = torch.channels_last_3d
    adds_biases = True

    def padded(
        self, x: torch.Tensor, norm: FrameNorm | None, front: int, before: int, owed: torch.Tensor | None = None
    ) -> torch.Tensor:
        from h3_kernels import vae_encoder

        there = None
        if norm is not None:
            there = vae_encoder.GroupNorm(norm.weight, norm.bias, norm.groups, norm.eps)
        return vae_encoder.padded(x.contiguous(memory_format=self.layout), there, front, before, owed)

    def joined(
        self,
        shortcut: torch.Tensor,
        x: torch.Tensor,
        shortcut_owed: torch.Tensor | None = None,
        owed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        from h3_kernels import vae_encoder

        shortcut, x = (part.contiguous(memory_format=self.layout) for part in (shortcut, x))
        return vae_encoder.joined(shortcut, x, shortcut_owed, owed)
