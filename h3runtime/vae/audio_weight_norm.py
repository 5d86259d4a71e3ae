"""Weight norm of the official and diffusers audio VAE files, folded into the plain weights that the modules hold.

Does: the arithmetic of one tensor. Does not: know any key name; importers map names.
Fed by: importers of those checkpoints and the comparison with diffusers. Read by: nobody else.
"""

from __future__ import annotations

import torch


def fold_weight_norm(g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """w = g * v / |v|, fp32, the norm taken over all but the first dimension (conditioning contract §5.4).

    v is the convolution's weight [N, ...] as torch lays it out, so N counts outputs for Conv1d and inputs for
    ConvTranspose1d; g is [N, 1, ...].
    """
    v = v.float()
    norm: torch.Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim)), keepdim=True)
    return g.float() * (v / norm)
