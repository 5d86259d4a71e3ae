// The producers' arithmetic on eight BF16 values in four words, the even column below: what Triton makes of
// `producer_kernels.py` for SM 9.0 and later, instruction by instruction, so that a kernel which ends in NVFP4 has the
// bits of one that stores BF16 (`tests/gpu/test_nvfp4_fused.py` holds both together).
//
// No product is contracted with a sum: every operation says how it rounds.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "nvfp4_block.cuh"

namespace h3 {

using Bf16 = Pair<__nv_bfloat16>;

__device__ __forceinline__ uint32_t add_bf16x2(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ uint32_t rounded(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// The larger and the smaller absolute value; what sign it has means nothing. `nan`: a NaN is handed on, else passed over.
__device__ __forceinline__ uint32_t larger_nan(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ uint32_t larger_number(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ uint32_t smaller_nan(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("min.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

constexpr uint32_t kOnes = 0x3f803f80u;

// ---- Residual, norm, modulation.

// x + update * gate, rounded once.
__device__ __forceinline__ uint4 add_gated8(uint4 x, uint4 update, uint4 gate) {
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, u[4] = {update.x, update.y, update.z, update.w};
    const uint32_t g[4] = {gate.x, gate.y, gate.z, gate.w};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        out[i] = rounded(__fmaf_rn(Bf16::low(u[i]), Bf16::low(g[i]), Bf16::low(a[i])),
                         __fmaf_rn(Bf16::high(u[i]), Bf16::high(g[i]), Bf16::high(a[i])));
    return {out[0], out[1], out[2], out[3]};
}

// Of eight columns: the norm's weight; 1 + scale and shift of one row of a table.
struct Weights {
    float of[8];
};
struct Vectors {
    uint4 factor, shift;
};

__device__ __forceinline__ Weights weights_of(uint4 words) {
    return {Bf16::low(words.x), Bf16::high(words.x), Bf16::low(words.y), Bf16::high(words.y),
            Bf16::low(words.z), Bf16::high(words.z), Bf16::low(words.w), Bf16::high(words.w)};
}

__device__ __forceinline__ uint4 factor_of(uint4 scale) {
    return {add_bf16x2(scale.x, kOnes), add_bf16x2(scale.y, kOnes), add_bf16x2(scale.z, kOnes),
            add_bf16x2(scale.w, kOnes)};
}

__device__ __forceinline__ uint32_t norm_modulate2(uint32_t x, float r, float first, float second, uint32_t factor,
                                                   uint32_t shift) {
    const float low = __fmul_rn(__fmul_rn(Bf16::low(x), r), first);
    const float high = __fmul_rn(__fmul_rn(Bf16::high(x), r), second);
    return add_bf16x2(mul_bf16x2(rounded(low, high), factor), shift);
}

// r: of the row, 1 / root mean square.
__device__ __forceinline__ uint4 norm_modulate8(uint4 x, float r, const Weights& w, const Vectors& by) {
    return {norm_modulate2(x.x, r, w.of[0], w.of[1], by.factor.x, by.shift.x),
            norm_modulate2(x.y, r, w.of[2], w.of[3], by.factor.y, by.shift.y),
            norm_modulate2(x.z, r, w.of[4], w.of[5], by.factor.z, by.shift.z),
            norm_modulate2(x.w, r, w.of[6], w.of[7], by.factor.w, by.shift.w)};
}

// Adds the squares of eight values to eight sums. A square of a BF16 number is exact in FP32 (but below 2^-126, where
// it is nothing beside eps), so a fused multiply-add rounds as a product and a sum do.
__device__ __forceinline__ void add_squares(float (&sums)[8], uint4 x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float low = Bf16::low(words[i]), high = Bf16::high(words[i]);
        sums[2 * i] = __fmaf_rn(low, low, sums[2 * i]);
        sums[2 * i + 1] = __fmaf_rn(high, high, sums[2 * i + 1]);
    }
}

__device__ __forceinline__ float sum8(const float (&sums)[8]) {
    float sum = sums[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) sum = __fadd_rn(sum, sums[i]);
    return sum;
}

// Of all lanes, added in a butterfly; every lane has it.
__device__ __forceinline__ float sum_of_warp(float mine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) mine = __fadd_rn(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    return mine;
}

// Of the first `count` warps' parts, a power of two up to eight: a butterfly again, as its lane 0 has it.
__device__ __forceinline__ float sum_of_warps(const float (&of_warps)[8], int count) {
    float parts[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[i] = of_warps[i];
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; ++i)
            if (step < count) parts[i] = __fadd_rn(parts[i], parts[i + step]);
    return parts[0];
}

__device__ __forceinline__ float inverse_root(float sum_of_squares, int width, float eps) {
    float out;
    asm("rsqrt.approx.ftz.f32 %0, %1;"
        : "=f"(out)
        : "f"(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(width)), eps)));
    return out;
}

// ---- SwiGLU.

// 1 + e^-x: CUDA's own expf, with subnormals of the exponent's arithmetic flushed, as libdevice has it under Triton.
__device__ __forceinline__ float one_plus_exp_minus(float x) {
    const float minus = __fsub_rn(0.0f, x);
    float part, j, z, power;
    asm("fma.rn.ftz.sat.f32 %0, %1, 0f3BBB989D, 0f3F000000;" : "=f"(part) : "f"(minus));
    asm("fma.rm.ftz.f32 %0, %1, 0f437C0000, 0f4B400001;" : "=f"(j) : "f"(part));
    const float whole = __fadd_rn(j, -12583039.0f);
    asm("fma.rn.ftz.f32 %0, %1, 0f3FB8AA3B, %2;" : "=f"(z) : "f"(minus), "f"(-whole));
    asm("fma.rn.ftz.f32 %0, %1, 0f32A57060, %2;" : "=f"(z) : "f"(minus), "f"(z));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
    return __fadd_rn(1.0f, __fmul_rn(power, __uint_as_float(__float_as_uint(j) << 23)));
}

// a / b, once corrected: FP32's nearest but for a few in ten thousand, and BF16's nearest for every gate that `silu8`
// hands it, with a reciprocal that is off by up to 3 ulp and a power by up to 4 (all were tried).
__device__ __forceinline__ float quotient(float a, float b) {
    const float r = reciprocal(b), q = __fmul_rn(a, r);
    return __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
}

// silu of two values by the compiler's own division, for what `silu8` doesn't take; rarely run.
static __device__ __noinline__ uint32_t silu2_by_division(uint32_t gate) {
    const float low = Bf16::low(gate), high = Bf16::high(gate);
    return rounded(__fdiv_rn(low, one_plus_exp_minus(low)), __fdiv_rn(high, one_plus_exp_minus(high)));
}

// Gates whose silu may be had by `quotient`: 2^-60 <= |gate| <= 64. Of a word, both halves at once.
constexpr float kSmallestGate = 8.673617379884035e-19f, kLargestGate = 64.0f;

__device__ __forceinline__ uint4 silu8(uint4 gate) {
    const uint32_t words[4] = {gate.x, gate.y, gate.z, gate.w};
    uint32_t out[4];
    const uint32_t high = larger_nan(larger_nan(words[0], words[1]), larger_nan(words[2], words[3])) & kNoSigns;
    const uint32_t low = smaller_nan(smaller_nan(words[0], words[1]), smaller_nan(words[2], words[3])) & kNoSigns;
    const bool ordinary = Bf16::low(high) <= kLargestGate &&
                          Bf16::high(high) <= kLargestGate && Bf16::low(low) >= kSmallestGate &&
                          Bf16::high(low) >= kSmallestGate;
    if (ordinary) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float even = Bf16::low(words[i]), odd = Bf16::high(words[i]);
            out[i] = rounded(quotient(even, one_plus_exp_minus(even)), quotient(odd, one_plus_exp_minus(odd)));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = silu2_by_division(words[i]);
    }
    return {out[0], out[1], out[2], out[3]};
}

// silu(gate) rounded, times value, rounded.
__device__ __forceinline__ uint4 swiglu8(uint4 gate, uint4 value) {
    const uint4 s = silu8(gate);
    return {mul_bf16x2(s.x, value.x), mul_bf16x2(s.y, value.y), mul_bf16x2(s.z, value.z), mul_bf16x2(s.w, value.w)};
}

}  // namespace h3
