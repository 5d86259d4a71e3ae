// NVFP4 on the device: a block's E4M3 scale, E2M1 codes of its 16 values, and where a scale lies in cuBLAS's tiles.
//
// The arithmetic is that of comfy-kitchen's CUDA packer as its binaries have it (built with fast math), written out
// instruction by instruction, so that no compiler flag decides a bit. With g the tensor's scale and m a block's
// largest |x|, everything in FP32 with subnormals flushed to zero:
//
//     s      = E4M3(min((m * fl(1/6)) * rcp(g), 448))       rounded to nearest even; min passes NaN over: 448
//     encode = min(rcp(g * s), FLT_MAX)                     rcp: MUFU.RCP, not the IEEE quotient
//     code   = E2M1(encode * x)                             nearest, ties to even, saturating; NaN becomes +6
//
// Read by every kernel that ends in NVFP4; launches nothing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace h3 {

constexpr int kBlock = 16;        // values to a scale
constexpr int kTileRows = 128;    // of a tile of scales
constexpr int kTileColumns = 4;   // likewise
constexpr int kTileBytes = 512;
constexpr float kSixth = 0.16666667163372039795f;
constexpr float kLargestE4m3 = 448.0f;
constexpr float kLargestFloat = 3.402823466e+38f;

// E2M1 by the converter of SM 10.0 and later, or by arithmetic.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kConverter = true;
#else
constexpr bool kConverter = false;
#endif

__device__ __forceinline__ float mul_ftz(float a, float b) {
    float out;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

__device__ __forceinline__ float min_ftz(float a, float b) {
    float out;
    asm("min.ftz.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

__device__ __forceinline__ float reciprocal(float a) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(a));
    return out;
}

// |a| * b; the sign costs nothing, it is an operand's modifier.
__device__ __forceinline__ float mul_abs_ftz(float a, float b) {
    float out;
    asm("{\n.reg .f32 size;\nabs.f32 size, %1;\nmul.rn.ftz.f32 %0, size, %2;\n}" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

__device__ __forceinline__ float mul_sat(float a, float b) {
    float out;
    asm("mul.rn.ftz.sat.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

__device__ __forceinline__ float fma_sat(float a, float b, float c) {
    float out;
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(a), "f"(b), "f"(c));
    return out;
}

// Two neighbouring values in one word, the even column below.
template <class T>
struct Pair;

template <>
struct Pair<__nv_bfloat16> {
    static __device__ __forceinline__ float low(uint32_t word) { return __uint_as_float(word << 16); }
    static __device__ __forceinline__ float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
    // max passes NaN over, max_nan hands it on.
    static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b) {
        uint32_t out;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
        return out;
    }
    static __device__ __forceinline__ uint32_t max_nan(uint32_t a, uint32_t b) {
        uint32_t out;
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
        return out;
    }
};

template <>
struct Pair<__half> {
    static __device__ __forceinline__ float low(uint32_t word) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
    }
    static __device__ __forceinline__ float high(uint32_t word) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
    }
    static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b) {
        uint32_t out;
        asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
        return out;
    }
    static __device__ __forceinline__ uint32_t max_nan(uint32_t a, uint32_t b) {
        uint32_t out;
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
        return out;
    }
};

constexpr uint32_t kNoSigns = 0x7fff7fffu;

struct BlockScale {
    uint32_t code;  // E4M3, what is stored
    float encode;   // what values are multiplied with
};

// amax: largest |x| of the block; tensor_rcp: reciprocal(tensor_scale), the same for all blocks.
__device__ __forceinline__ BlockScale block_scale(float amax, float tensor_scale, float tensor_rcp) {
    const float wanted = min_ftz(mul_ftz(mul_ftz(amax, kSixth), tensor_rcp), kLargestE4m3);
    uint16_t code;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(code) : "f"(0.0f), "f"(wanted));
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(code));
    const float stored = Pair<__half>::low(halves);
    return {code & 0xffu, min_ftz(reciprocal(mul_ftz(tensor_scale, stored)), kLargestFloat)};
}

// Byte of the scale of that row and block; tile_columns: ceil(K / 64).
__device__ __forceinline__ int64_t tiled_offset(int64_t row, int block, int tile_columns) {
    const int64_t tile = row / kTileRows * tile_columns + block / kTileColumns;
    const int inside = static_cast<int>(row % 32) * 16 + static_cast<int>(row % kTileRows) / 32 * 4;
    return tile * kTileBytes + inside + block % kTileColumns;
}

// ---- The largest |x| of a block.

struct Amax {
    float value;
    bool finite;  // no value of the block is NaN or infinite; always true where the converter does the rounding
};

// Of eight values in four words, both halves: the answer is the larger one of the word. hand_on: NaN as well.
template <class T, bool hand_on>
__device__ __forceinline__ uint32_t amax8(const uint32_t (&words)[4]) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i] & kNoSigns;
    if constexpr (hand_on) return Pair<T>::max_nan(Pair<T>::max_nan(a[0], a[1]), Pair<T>::max_nan(a[2], a[3]));
    return Pair<T>::max(Pair<T>::max(a[0], a[1]), Pair<T>::max(a[2], a[3]));
}

template <class T, bool hand_on>
__device__ __forceinline__ float larger_half(uint32_t both) {
    const uint32_t turned = __funnelshift_l(both, both, 16);
    return Pair<T>::low(hand_on ? Pair<T>::max_nan(both, turned) : Pair<T>::max(both, turned));
}

// The same of the pair of lanes (2i, 2i+1), each with its `amax8`. All lanes named by `lanes` call.
template <class T, bool hand_on>
__device__ __forceinline__ float larger_of_pair(uint32_t mine, uint32_t lanes = 0xffffffffu) {
    const uint32_t other = __shfl_xor_sync(lanes, mine, 1);
    return larger_half<T, hand_on>(hand_on ? Pair<T>::max_nan(mine, other) : Pair<T>::max(mine, other));
}

// A block in a pair of lanes of eight values each. All lanes of the warp call; both of a pair get the same.
template <class T>
__device__ __forceinline__ Amax amax16_of_pair(const uint32_t (&words)[4]) {
    if constexpr (kConverter) return {larger_of_pair<T, false>(amax8<T, false>(words)), true};
    const float found = larger_of_pair<T, true>(amax8<T, true>(words));
    if (found <= kLargestFloat) return {found, true};
    return {larger_of_pair<T, false>(amax8<T, false>(words), 3u << (threadIdx.x & 30)), false};
}

// A block in one thread: 16 values in eight words, the first eight values in `first`.
template <class T>
__device__ __forceinline__ Amax amax16(const uint32_t (&first)[4], const uint32_t (&second)[4]) {
    if constexpr (!kConverter) {
        const float found = larger_half<T, true>(Pair<T>::max_nan(amax8<T, true>(first), amax8<T, true>(second)));
        if (found <= kLargestFloat) return {found, true};
    }
    return {larger_half<T, false>(Pair<T>::max(amax8<T, false>(first), amax8<T, false>(second))), kConverter};
}

// ---- E2M1 codes. Eight values in four words -> four bytes, in order, the even column in the high nibble.

template <class T>
__device__ __forceinline__ uint32_t codes8_converted(const uint32_t (&words)[4], float encode) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[2 * i] = mul_ftz(Pair<T>::low(words[i]), encode);
        v[2 * i + 1] = mul_ftz(Pair<T>::high(words[i]), encode);
    }
    uint32_t out = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    asm("{\n"
        ".reg .b8 b0, b1, b2, b3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %1, %2;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b1, %3, %4;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %5, %6;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b3, %7, %8;\n"
        "mov.b32 %0, {b0, b1, b2, b3};\n"
        "}"
        : "=r"(out)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
#endif
    return out;
}

// One code by the midpoints between neighbours; where two are as near, the even code. NaN: +6.
__device__ __forceinline__ uint32_t code_by_midpoints(float v) {
    const float a = fabsf(v);
    if (a != a) return 7;
    const uint32_t size = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return size | (__float_as_uint(v) >> 31 << 3);
}

// For what `codes8_by_fma` doesn't take; rarely run, so kept out of the loops.
template <class T>
__device__ __noinline__ uint32_t codes8_by_midpoints(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, float encode) {
    const uint32_t words[4] = {w0, w1, w2, w3};
    uint32_t out = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t even = code_by_midpoints(mul_ftz(Pair<T>::low(words[i]), encode));
        const uint32_t odd = code_by_midpoints(mul_ftz(Pair<T>::high(words[i]), encode));
        out |= (even << 4 | odd) << 8 * i;
    }
    return out;
}

// Shifts the codes in t = 2^23 + codes up by a nibble and adds the code of a >= 0, which must not be NaN.
//
// E2M1's steps are 1/2 below 2, 1 below 4 and 2 below 6, each of two or four codes; a/2, a/2 - 1 and a/2 - 2, clamped
// to [0, 1], are how much of each stretch a has passed. Added to 2^23, where neighbours are 1 apart, each is rounded
// to a whole code, ties to even, and no stretch is begun before the last one is full (an even code): one rounding.
template <bool first>
__device__ __forceinline__ float append_code(float t, float a) {
    if constexpr (!first) t = __fmaf_rn(t, 16.0f, -15.0f * 8388608.0f);
    t = __fmaf_rn(mul_sat(a, 0.5f), 4.0f, t);
    t = __fmaf_rn(fma_sat(a, 0.5f, -1.0f), 2.0f, t);
    return __fadd_rn(fma_sat(a, 0.5f, -2.0f), t);
}

// Sizes of four values in two words, as nibbles: the low 16 bits.
template <class T>
__device__ __forceinline__ uint32_t sizes4(uint32_t first, uint32_t second, float encode) {
    float t = append_code<true>(8388608.0f, mul_abs_ftz(Pair<T>::low(second), encode));
    t = append_code<false>(t, mul_abs_ftz(Pair<T>::high(second), encode));
    t = append_code<false>(t, mul_abs_ftz(Pair<T>::low(first), encode));
    t = append_code<false>(t, mul_abs_ftz(Pair<T>::high(first), encode));
    return __float_as_uint(t);
}

// Values finite, encode >= 0.
template <class T>
__device__ __forceinline__ uint32_t codes8_by_fma(const uint32_t (&words)[4], float encode) {
    const uint32_t sizes = __byte_perm(sizes4<T>(words[0], words[1], encode), sizes4<T>(words[2], words[3], encode), 0x5410);
    const uint32_t signs01 = __byte_perm(words[0], words[1], 0x7531), signs23 = __byte_perm(words[2], words[3], 0x7531);
    const uint32_t even = __byte_perm(signs01, signs23, 0x6420), odd = __byte_perm(signs01, signs23, 0x7531);
    return sizes | (even & 0x80808080u) | (odd >> 4 & 0x08080808u);
}

// Values finite and encode >= 0, unless the converter does it.
template <class T>
__device__ __forceinline__ uint32_t codes8_ordinary(const uint32_t (&words)[4], float encode) {
    return kConverter ? codes8_converted<T>(words, encode) : codes8_by_fma<T>(words, encode);
}

// finite: `Amax.finite` of the values' block; encode: `BlockScale.encode`.
template <class T>
__device__ __forceinline__ uint32_t codes8(const uint32_t (&words)[4], float encode, bool finite) {
    if constexpr (kConverter) return codes8_converted<T>(words, encode);
    if (finite && encode >= 0.0f) return codes8_by_fma<T>(words, encode);
    return codes8_by_midpoints<T>(words[0], words[1], words[2], words[3], encode);
}

}  // namespace h3
