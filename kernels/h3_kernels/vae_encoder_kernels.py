# mypy: ignore-errors
"""Device code of the video encoder's steps; `vae_encoder` launches it and says what every argument is.

Frames are [B*T, H*W, C], channels last. Arithmetic is fp32; a value is rounded to the tensor's dtype (fp16 or fp32)
wherever the definition stores it. Kernels are compiled for a number of channels, but not for sizes: a tile of another
size waits for no compiler.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _plus(y, owed, c, inside, dtype: tl.constexpr, OWED: tl.constexpr):
    """y + owed[c], rounded to `dtype`; y where there is nothing to add."""
    if OWED:
        y = (y + tl.load(owed + c, mask=inside, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
    return y


@triton.jit(do_not_specialize=["pixels"])
def moments_kernel(
    x,
    owed,
    partial,
    pixels,
    channels,
    OWED: tl.constexpr,
    PER_PROGRAM: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Of PER_PROGRAM pixels of one frame, per channel: mean, and the sum of squares about it: partial [frame, chunk, 2,
    C]. Sums are taken about the first pixel, so that a large mean doesn't cancel."""
    frame = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    first = chunk * PER_PROGRAM
    c = tl.arange(0, CHANNELS)
    here = x + frame * pixels * channels
    dtype: tl.constexpr = x.dtype.element_ty
    shift = tl.load(here + first.to(tl.int64) * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    shift = _plus(shift, owed, c, c < channels, dtype, OWED)
    p = tl.arange(0, PIXELS)[:, None]
    sums = tl.zeros([PIXELS, CHANNELS], tl.float32)
    squares = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for step in range(0, PER_PROGRAM, PIXELS):
        at = first + step + p
        inside = (at < pixels) & (c < channels)[None, :]
        y = tl.load(here + at.to(tl.int64) * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
        y = _plus(y, owed, c[None, :], (c < channels)[None, :], dtype, OWED)
        y = tl.where(inside, y - shift[None, :], 0.0)
        sums += y
        squares += y * y
    count = tl.minimum(pixels - first, PER_PROGRAM).to(tl.float32)
    total = tl.sum(sums, 0)
    mean = total / count
    out = partial + (frame * tl.num_programs(1) + chunk) * 2 * channels + c
    tl.store(out, shift + mean, mask=c < channels)
    tl.store(out + channels, tl.sum(squares, 0) - total * mean, mask=c < channels)


@triton.jit(do_not_specialize=["chunks", "pixels"])
def parameters_kernel(
    partial,
    weight,
    bias,
    parameters,
    chunks,
    pixels,
    channels,
    eps,
    PER_PROGRAM: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Of one frame and one group of WIDTH channels: norm(x) = a*x + b; parameters fp32 [frame, 2, C]. On CUDA
    PyTorch keeps mean and 1 / deviation in the dtype of x, on a CPU in fp32: in fp16 that moves a third of the values
    by an ulp."""
    dtype: tl.constexpr = weight.dtype.element_ty
    frame = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH_BLOCK)
    channel = tl.program_id(1) * WIDTH + c
    k = tl.arange(0, CHUNKS)[:, None]
    inside = (k < chunks) & (c < WIDTH)[None, :]
    at = partial + (frame * chunks + k) * 2 * channels + channel[None, :]
    means = tl.load(at, mask=inside, other=0.0)
    squares = tl.load(at + channels, mask=inside, other=0.0)
    counts = tl.where(inside, tl.minimum(pixels - k * PER_PROGRAM, PER_PROGRAM).to(tl.float32), 0.0)
    size = pixels.to(tl.float32) * WIDTH
    mean = tl.sum(tl.sum(means * counts, 1), 0) / size
    off = tl.where(inside, means - mean, 0.0)
    variance = tl.sum(tl.sum(squares + counts * off * off, 1), 0) / size
    r = tl.rsqrt(variance + eps)
    if not INTERPRETED:
        mean = mean.to(dtype).to(tl.float32)
        r = r.to(dtype).to(tl.float32)
    w = tl.load(weight + channel, mask=c < WIDTH, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=c < WIDTH, other=0.0).to(tl.float32)
    a = r * w
    out = parameters + frame * 2 * channels + channel
    tl.store(out, a, mask=c < WIDTH)
    tl.store(out + channels, tl.fma(-a, mean, b), mask=c < WIDTH)


@triton.jit(do_not_specialize=["frames", "height", "width"])
def pad_kernel(
    x,
    owed,
    parameters,
    out,
    frames,
    height,
    width,
    channels,
    FRONT: tl.constexpr,
    BEFORE: tl.constexpr,
    NORM: tl.constexpr,
    OWED: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Pixels of one padded frame: FRONT frames of zeros, then x, with what it is owed, and as silu(a*x + b) where NORM;
    sides reflect it."""
    padded = tl.program_id(0).to(tl.int64)
    frame = padded % (frames + FRONT) - FRONT
    source = padded // (frames + FRONT) * frames + frame
    dtype: tl.constexpr = x.dtype.element_ty
    tall, wide = height + BEFORE + 1, width + BEFORE + 1
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    c = tl.arange(0, CHANNELS)[None, :]
    inside = (at < tall * wide)[:, None] & (c < channels)
    # |i| reflects the first row; what is behind the last one, n - 1 - |n - 1 - i|.
    row = height - 1 - tl.abs(height - 1 - tl.abs(at // wide - BEFORE))
    column = width - 1 - tl.abs(width - 1 - tl.abs(at % wide - BEFORE))
    here = (source * height * width + row * width + column)[:, None] * channels + c
    y = tl.load(x + here, mask=inside & (frame >= 0), other=0.0).to(tl.float32)
    y = _plus(y, owed, c, (c < channels) & (frame >= 0), dtype, OWED)
    if NORM:
        of_frame = parameters + source * 2 * channels + c
        a = tl.load(of_frame, mask=(c < channels) & (frame >= 0), other=0.0)
        b = tl.load(of_frame + channels, mask=(c < channels) & (frame >= 0), other=0.0)
        y = tl.fma(y, a, b).to(dtype).to(tl.float32)
        # CUDA's own expf and a true division, as PyTorch's silu has them. Zero stays zero.
        e = tl.exp(-y) if INTERPRETED else libdevice.exp(-y)
        y = tl.div_rn(y, 1.0 + e)
    there = (padded * tall * wide + at)[:, None] * channels + c
    tl.store(out + there, y.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["pixels"])
def join_kernel(
    shortcut,
    shortcut_owed,
    x,
    owed,
    out,
    pixels,
    channels,
    SHORTCUT_OWED: tl.constexpr,
    OWED: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Pixels of all frames: shortcut + x, each with what it is owed, rounded after every sum."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    c = tl.arange(0, CHANNELS)[None, :]
    inside = (p < pixels) & (c < channels)
    at = p.to(tl.int64) * channels + c
    dtype: tl.constexpr = x.dtype.element_ty
    s = tl.load(shortcut + at, mask=inside, other=0.0).to(tl.float32)
    s = _plus(s, shortcut_owed, c, c < channels, dtype, SHORTCUT_OWED)
    y = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    y = _plus(y, owed, c, c < channels, dtype, OWED)
    tl.store(out + at, (s + y).to(dtype), mask=inside)
