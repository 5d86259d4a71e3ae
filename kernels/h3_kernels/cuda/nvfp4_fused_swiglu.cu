// SwiGLU to NVFP4: silu(gate) * value of x [M, 2F], gate in its first half, with both BF16 roundings, packed.
//
// By a scale that is known x is read once. Else the first of two passes finds the largest value. It either leaves the
// product in the gate's place, or leaves x alone and lets the second pass make the product again: x is read twice.
// The other file's kernels read what is left. `nvfp4_fused.py` launches it.
#include <cuda_runtime.h>

#include "bf16_producers.cuh"
#include "nvfp4_tiles.cuh"

namespace {

using namespace h3;

struct Swiglu {
    struct Loaded {
        uint4 gate, value;
    };
    BF16* x;
    int64_t stride;
    int width;  // F
    BF16* at;  // of this thread's columns in its warp's next row

    __device__ __forceinline__ void begin(int64_t first_row, int, int column) {
        at = x + (first_row + threadIdx.x / 32) * stride + column;
    }
    __device__ __forceinline__ Loaded load(int i) const {
        const BF16* const here = at + i * kTileWarps * stride;
        return {read16_once(here), read16_once(here + width)};
    }
    __device__ __forceinline__ uint4 make(Loaded loaded, int, bool) const { return swiglu8(loaded.gate, loaded.value); }
    template <int rows>
    __device__ __forceinline__ void advance() {
        at += rows * kTileWarps * stride;
    }
    __device__ __forceinline__ void keep(uint4 made, int i) const {
        *reinterpret_cast<uint4*>(at + i * kTileWarps * stride) = made;
    }
};

#ifndef H3_SWIGLU_ROWS
#define H3_SWIGLU_ROWS 4
#endif
#ifndef H3_SWIGLU_WARPS
#define H3_SWIGLU_WARPS 24
#endif
constexpr int kRows = H3_SWIGLU_ROWS, kBlocks = H3_SWIGLU_WARPS / kTileWarps;  // to a multiprocessor

}  // namespace

// x BF16 [rows, 2 * width], rows `stride` values apart, 16-byte aligned each; width in multiples of 16. dynamic: 0 by
// tensor_scale (fp32 []), 1 tensor_scale is found and x spent, 2 it is found and x left alone. slots fp32 [256] where
// dynamic; codes [rows, width/2]; scales [ru(rows, 128), ru(width/16, 4)] in tiles, all of it written.
extern "C" int h3_nvfp4_swiglu(void* x, int64_t stride, int64_t rows, int64_t width, int64_t dynamic,
                               void* tensor_scale, void* slots, void* codes, void* scales, cudaStream_t stream) {
    if (rows == 0 || width == 0) return cudaSuccess;
    const Shape shape = shape_of(rows, width);
    const unsigned int grid = tiles_in(shape);
    const Swiglu source{static_cast<BF16*>(x), stride, static_cast<int>(width), nullptr};
    float* const scale = static_cast<float*>(tensor_scale);
    uint8_t *const codes_to = static_cast<uint8_t*>(codes), *const scales_to = static_cast<uint8_t*>(scales);
    if (dynamic) {
        float* const most = static_cast<float*>(slots);
        if (const cudaError_t error = cudaMemsetAsync(most, 0, kSlots * sizeof(float), stream)) return error;
        if (dynamic == 1)
            largest_of_tiles<Swiglu, kRows, kBlocks, true><<<grid, kTileThreads, 0, stream>>>(source, shape, most);
        else
            largest_of_tiles<Swiglu, kRows, kBlocks, false><<<grid, kTileThreads, 0, stream>>>(source, shape, most);
        if (const int error = h3_nvfp4_finish_scale(most, kSlots, scale, stream)) return error;
    }
    if (dynamic == 1) {
        const Rows made{static_cast<const BF16*>(x), stride, nullptr};
        pack_tiles<Rows, 4, 32 / kTileWarps>
            <<<grid, kTileThreads, 0, stream>>>(made, shape, true, scale, codes_to, scales_to);
    } else {
        pack_tiles<Swiglu, kRows, kBlocks>
            <<<grid, kTileThreads, 0, stream>>>(source, shape, dynamic != 0, scale, codes_to, scales_to);
    }
    return cudaGetLastError();
}
