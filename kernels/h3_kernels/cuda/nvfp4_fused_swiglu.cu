// SwiGLU to NVFP4: silu(gate) * value of x [M, 2F], gate in its first half, with both BF16 roundings, packed.
//
// By a scale that is known x is read once. Else twice: a first pass finds the largest product, a second makes all of
// them again. To leave them in x between the passes moves as many bytes, and took longer on an H200 (1.169 ms against
// 1.143 for 37,810 rows of 14,336). `nvfp4_fused.py` launches it.
#include <cuda_runtime.h>

#include "bf16_producers.cuh"
#include "nvfp4_tiles.cuh"

namespace {

using namespace h3;

struct Swiglu {
    struct Loaded {
        uint4 gate, value;
    };
    const BF16* x;
    int64_t stride;
    int width;  // F
    const BF16* at;  // of this thread's columns in its warp's next row

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
};

constexpr int kRows = 4, kBlocks = 24 / kTileWarps;  // to a multiprocessor, at least

}  // namespace

// x BF16 [rows, 2 * width], rows `stride` values apart, 16-byte aligned each; width in multiples of 16. dynamic:
// tensor_scale (fp32 []) is found, not given; then slots fp32 [256]. codes [rows, width/2]; scales [ru(rows, 128),
// ru(width/16, 4)] in tiles, all of it written.
extern "C" int h3_nvfp4_swiglu(const void* x, int64_t stride, int64_t rows, int64_t width, int64_t dynamic,
                               void* tensor_scale, void* slots, void* codes, void* scales, cudaStream_t stream) {
    if (rows == 0 || width == 0) return cudaSuccess;
    const Shape shape = shape_of(rows, width);
    const unsigned int grid = tiles_in(shape);
    const Swiglu source{static_cast<const BF16*>(x), stride, static_cast<int>(width), nullptr};
    if (dynamic) {
        float* const most = static_cast<float*>(slots);
        if (const cudaError_t error = cudaMemsetAsync(most, 0, kSlots * sizeof(float), stream)) return error;
        largest_of_tiles<Swiglu, kRows, kBlocks><<<grid, kTileThreads, 0, stream>>>(source, shape, most);
        if (const int error = h3_nvfp4_finish_scale(most, kSlots, tensor_scale, stream)) return error;
    }
    pack_tiles<Swiglu, kRows, kBlocks><<<grid, kTileThreads, 0, stream>>>(
        source, shape, dynamic != 0, static_cast<const float*>(tensor_scale), static_cast<uint8_t*>(codes),
        static_cast<uint8_t*>(scales));
    return cudaGetLastError();
}
