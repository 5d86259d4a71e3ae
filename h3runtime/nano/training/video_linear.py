"""First values of the video VAE's encoder: a linear code of the world's patches, as far as its channels can carry one.

Each strided convolution makes what it reads (2 x 2 pixels, and 2 frames where it halves time) into principal components
of it; residual blocks hardly add to them. The last norm would take away what a group's channels have in common, so a
group of three holds a component, an anchor (`video_start`) and the component's opposite. `conv_out` is the best linear
map from there to the code. The first latent of a piece sees one frame and zeros: no linear code suits both kinds well.

Fed by `video_vae` with views of the world.
"""

from __future__ import annotations

import torch

from h3runtime.nano.training.causal_conv import Pieces, halved
from h3runtime.nano.training.video_basis import Basis
from h3runtime.nano.training.video_encoding import pieces_of, through_block, through_conv, through_norm
from h3runtime.vae.video_config import GROUPS
from h3runtime.vae.video_encoder import CausalConv3d, Level, ResidualBlock, VideoEncoder

QUIET = 0.01
"""Of residual branches, against what `video_start` made of them: their norms make much of frames without edges."""
SCALE = 0.2
"""Standard deviation of each of the last components, against the anchors' 2: they reach ten deviations."""
WEAKEST = 0.01
"""Of a component, against the strongest: weaker ones are not made as large."""
RIDGE = 1e-4


@torch.no_grad()
def encode_basis(encoder: VideoEncoder, basis: Basis, pixels: torch.Tensor, count: int) -> float:
    """Set the encoder to the first `count` coefficients of normalised pixels [B, F, H, W, 3] over their deviations.

    Returns the mean square that is missing, of 1.
    """
    pieces, used = pieces_of(pixels.shape[1]), pixels.shape[-1]
    _carry(encoder.conv_in.weight[:, :, -1, 1, 1], used)
    encoder.conv_in.weight[:used, :, :-1] = 0
    encoder.conv_in.weight[:used, :, -1] *= _centre(encoder.conv_in.weight)
    x = through_conv(encoder.conv_in, pixels, pieces)
    for level in encoder.down:
        assert isinstance(level, Level)
        x, used, pieces = _through_level(level, x, used, pieces)
    features = through_norm(encoder.norm_out, x).flatten(0, 3)
    wanted = basis.code(pixels, count).permute(0, 2, 3, 4, 1).flatten(0, 3)
    return _fit(encoder.conv_out, features, wanted)


def _through_level(level: Level, x: torch.Tensor, used: int, pieces: Pieces) -> tuple[torch.Tensor, int, Pieces]:
    """What comes out, how many of its channels are used, and its pieces."""
    for block in level.block:
        assert isinstance(block, ResidualBlock)
        if block.nin_shortcut is None and not bool(block.conv2.weight.any()):
            continue
        block.conv2.weight *= QUIET
        if block.nin_shortcut is not None:
            shortcut = block.nin_shortcut.weight[:, :, 0, 0, 0]
            if level.downsample is None:
                spread = x[..., :used].flatten(0, -2).std(0)
                _mirror(shortcut, SCALE / spread.clamp_min(WEAKEST * float(spread.amax())))
            else:
                _carry(shortcut, used)
        x = through_block(block, x, pieces)
    if level.downsample is None:
        return x, used, pieces
    conv = level.downsample.conv
    used = _compress(conv, x[..., :used], pieces)
    return through_conv(conv, x, pieces), used, halved(pieces, conv.stride[0])


def _centre(weight: torch.Tensor) -> torch.Tensor:
    """[3, 3]: 1 in the middle."""
    middle = weight.new_zeros(3, 3)
    middle[1, 1] = 1
    return middle


def _carry(weight: torch.Tensor, used: int) -> None:
    """[O, I]: the first `used` channels as they are; the others as they were, from what is used."""
    weight[:used] = 0
    weight[:used, :used] = torch.eye(used, device=weight.device)


def _mirror(weight: torch.Tensor, scale: torch.Tensor) -> None:
    """[O, I]: of each group of channels, the first is a component times its scale [I] and the last its opposite."""
    weight.zero_()
    size = len(weight) // GROUPS
    for group in range(min(GROUPS, len(scale))):
        weight[size * group, group], weight[size * group + size - 1, group] = scale[group], -scale[group]


def _compress(conv: CausalConv3d, x: torch.Tensor, pieces: Pieces) -> int:
    """The convolution's outputs become principal components of the window that it moves by; how many there are."""
    deep = conv.stride[0]
    windows = torch.stack([x[:, frames] for frames in _own(pieces, deep)], -1) if deep > 1 else x.unsqueeze(-1)
    batch, count, high, wide, channels, _ = windows.shape
    windows = windows.reshape(batch, count, high // 2, 2, wide // 2, 2, channels, deep)
    rows = windows.permute(0, 1, 2, 4, 6, 7, 3, 5).flatten(0, 3).flatten(1)
    mean = rows.mean(0)
    kept = min(rows.shape[1], conv.out_channels)
    vectors = torch.linalg.eigh((rows - mean).mT @ (rows - mean))[1].flip(1)[:, :kept].mT / 2
    assert conv.bias is not None
    conv.weight[:kept] = 0
    conv.weight[:, :channels] = 0
    conv.weight[:kept, :channels, 3 - deep :, :2, :2] = vectors.unflatten(1, (channels, deep, 2, 2))
    conv.bias[:kept] = -vectors @ mean
    return kept


def _own(pieces: Pieces, deep: int) -> list[list[int]]:
    """Where the frames of each window are, first to last, in all windows that are whole."""
    found: list[list[int]] = [[] for _ in range(deep)]
    begin = 0
    for length in pieces:
        for last in range(deep, length, deep):
            for index in range(deep):
                found[index].append(begin + last - deep + 1 + index)
        begin += length
    return found


def _fit(conv: CausalConv3d, features: torch.Tensor, wanted: torch.Tensor) -> float:
    """The convolution's first outputs become `wanted` [N, C], as near as a linear map of `features` [N, I] can."""
    mean, target = features.mean(0), wanted.mean(0)
    centred = features - mean
    gram = centred.mT @ centred
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    found = torch.linalg.solve(gram, centred.mT @ (wanted - target))
    assert conv.bias is not None
    conv.weight[: wanted.shape[1]] = 0
    conv.weight[: wanted.shape[1], :, -1, 1, 1] = found.mT
    conv.bias[: wanted.shape[1]] = target - mean @ found
    return float((centred @ found - (wanted - target)).square().mean())
