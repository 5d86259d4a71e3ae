// A tensor's NVFP4 scale, amax / (448 * 6): thread blocks of 128 walk over x, each leaving one number; a second launch
// of one block makes the scale of them. The host waits for nothing and no counter has to be cleared before.
//
// NaN anywhere makes the scale NaN, as torch's aminmax does. The quotient is a product with fl(1/2688), which is what
// torch computes on a CUDA device for a division by a number. `nvfp4.py` launches it; kernels that find the largest
// value themselves launch the second half alone.
#include <cuda_runtime.h>

#include "nvfp4_block.cuh"

namespace {

using namespace h3;

constexpr int kThreads = 128;
constexpr int kFinishThreads = 256;
constexpr int kLoads = 8;  // of 16 bytes, under way at once in a thread
constexpr float kTop = 1.0f / (448.0f * 6.0f);

__device__ __forceinline__ float larger(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

// Of all threads; thread 0 has it.
template <int threads>
__device__ __forceinline__ float larger_of_all(float mine) {
    __shared__ float of_warps[threads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) mine = larger(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < threads / 32; ++i) mine = larger(mine, of_warps[i]);
    return mine;
}

template <class T>
__device__ __forceinline__ uint32_t with(uint32_t found, uint4 four) {
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    return Pair<T>::max_nan(found, amax8<T, true>(words));
}

template <class T>
__global__ void __launch_bounds__(kThreads) largest(const uint4* __restrict__ x, int64_t count,
                                                    float* __restrict__ partials) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    uint32_t found = 0;
    for (; at + (kLoads - 1) * step < count; at += kLoads * step) {
        uint4 loaded[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) loaded[i] = __ldg(x + at + i * step);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) found = with<T>(found, loaded[i]);
    }
    for (; at < count; at += step) found = with<T>(found, __ldg(x + at));
    const float of_block = larger_of_all<kThreads>(larger_half<T, true>(found));
    if (threadIdx.x == 0) partials[blockIdx.x] = of_block;
}

__global__ void __launch_bounds__(kFinishThreads) finish(const float* __restrict__ partials, int count,
                                                         float* __restrict__ scale) {
    float mine = 0;
    for (int i = threadIdx.x; i < count; i += kFinishThreads) mine = larger(mine, partials[i]);
    mine = larger_of_all<kFinishThreads>(mine);
    if (threadIdx.x == 0) *scale = __fmul_rn(mine, kTop);
}

template <class T>
int launch(const void* x, int64_t count, void* partials, int64_t blocks, void* scale, cudaStream_t stream) {
    largest<T><<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(x), count / 8,
                                                                          static_cast<float*>(partials));
    finish<<<1, kFinishThreads, 0, stream>>>(static_cast<const float*>(partials), static_cast<int>(blocks),
                                             static_cast<float*>(scale));
    return cudaGetLastError();
}

}  // namespace

// x: `count` values without a gap, 16-byte aligned, count in multiples of 8; partials fp32 [blocks]; scale fp32 [].
extern "C" int h3_nvfp4_scale_bf16(const void* x, int64_t count, void* partials, int64_t blocks, void* scale,
                                   cudaStream_t stream) {
    return launch<__nv_bfloat16>(x, count, partials, blocks, scale, stream);
}

extern "C" int h3_nvfp4_scale_fp16(const void* x, int64_t count, void* partials, int64_t blocks, void* scale,
                                   cudaStream_t stream) {
    return launch<__half>(x, count, partials, blocks, scale, stream);
}

// partials fp32 [count], none negative -> scale fp32 [] = largest / (448 * 6).
extern "C" int h3_nvfp4_finish_scale(const void* partials, int64_t count, void* scale, cudaStream_t stream) {
    finish<<<1, kFinishThreads, 0, stream>>>(static_cast<const float*>(partials), static_cast<int>(count),
                                      static_cast<float*>(scale));
    return cudaGetLastError();
}
