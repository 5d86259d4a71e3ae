// BF16 or FP16 rows to NVFP4 by a tensor scale that is known: codes [M, K/2], block scales in tiles. x is read once.
//
// A thread block makes the scales of 128 rows by 16 blocks: four whole tiles, which it collects in shared memory and
// stores with full sectors, rows of padding (zeros) included, so that nobody need clear them before. A warp takes a row
// of 256 values at a time, eight a lane. Arithmetic: `nvfp4_block.cuh`. `nvfp4.py` launches it.
#include <cuda_runtime.h>

#include "nvfp4_block.cuh"

namespace {

using namespace h3;

constexpr int kWarps = 4;                                            // on an H200 3 to 5 % faster than eight
constexpr int kThreads = 32 * kWarps;
constexpr int kColumns = 256;                                        // of x to a thread block
constexpr int kTiles = kColumns / kBlock / kTileColumns;             // of scales to a thread block
constexpr int kPaddedTile = kTileBytes + 16;                         // no two tiles begin in one bank
constexpr int kRows = 4;                                             // of a warp whose loads are under way at once

// What the loop below does for one row, for any values: scale's code, eight codes. Rarely run, so kept out of the loop.
template <class T>
__device__ __noinline__ uint2 with_special_values(uint4 row, float scale, float rcp) {
    const uint32_t words[4] = {row.x, row.y, row.z, row.w};
    const BlockScale by = block_scale(larger_of_pair<T, false>(amax8<T, false>(words)), scale, rcp);
    return {by.code, codes8_by_midpoints<T>(row.x, row.y, row.z, row.w, by.encode)};
}

template <class T>
__global__ void __launch_bounds__(kThreads) pack(const T* __restrict__ x, int64_t stride, int64_t rows, int columns,
                                                 const float* __restrict__ tensor_scale, uint8_t* __restrict__ codes,
                                                 uint8_t* __restrict__ scales, int tile_columns) {
    __shared__ __align__(16) uint8_t tiles[kTiles * kPaddedTile];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = lane / 2;
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTileRows;
    const int column = blockIdx.x * kColumns + lane * 8;
    const int here = column < columns ? static_cast<int>(min(rows - first_row, static_cast<int64_t>(kTileRows))) : 0;
    const float scale = __ldg(tensor_scale), rcp = reciprocal(scale);
    const T* from = x + first_row * stride + column;
    uint8_t* const into = codes + (first_row * columns + column) / 2;
    uint8_t* const tile = tiles + block / kTileColumns * kPaddedTile + block % kTileColumns;

    for (int done = warp; done < kTileRows; done += kWarps * kRows) {
        uint4 loaded[kRows];
        BlockScale by[kRows];
        uint32_t made[kRows];
        bool ordinary = true;  // no NaN, no Inf
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int row = done + i * kWarps;
            loaded[i] = row < here ? __ldg(reinterpret_cast<const uint4*>(from + row * stride)) : uint4{0, 0, 0, 0};
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
            const float amax = larger_of_pair<T, !kConverter>(amax8<T, !kConverter>(words));
            by[i] = block_scale(amax, scale, rcp);
            ordinary = ordinary && amax <= kLargestFloat && by[i].encode >= 0.0f;
        }
        if (kConverter || __all_sync(0xffffffffu, ordinary)) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
                made[i] = codes8_ordinary<T>(words, by[i].encode);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const uint2 found = with_special_values<T>(loaded[i], scale, rcp);
                by[i].code = found.x;
                made[i] = found.y;
            }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int row = done + i * kWarps;
            if (lane % 2 == 0) tile[row % 32 * 16 + row / 32 * 4] = row < here ? by[i].code : 0;
            if (row < here) *reinterpret_cast<uint32_t*>(into + row * (columns / 2)) = made[i];
        }
    }

    __syncthreads();
    const int tile_column = blockIdx.x * kTiles + warp;
    if (warp < kTiles && tile_column < tile_columns) {
        const int64_t at = (static_cast<int64_t>(blockIdx.y) * tile_columns + tile_column) * kTileBytes + lane * 16;
        *reinterpret_cast<uint4*>(scales + at) = *reinterpret_cast<const uint4*>(tiles + warp * kPaddedTile + lane * 16);
    }
}

template <class T>
int launch(const void* x, int64_t stride, int64_t rows, int64_t columns, const void* tensor_scale, void* codes,
           void* scales, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return cudaSuccess;
    const int64_t tile_columns = (columns + kBlock * kTileColumns - 1) / (kBlock * kTileColumns);
    const dim3 grid((columns + kColumns - 1) / kColumns, (rows + kTileRows - 1) / kTileRows);
    pack<T><<<grid, kThreads, 0, stream>>>(static_cast<const T*>(x), stride, rows, static_cast<int>(columns),
                                           static_cast<const float*>(tensor_scale), static_cast<uint8_t*>(codes),
                                           static_cast<uint8_t*>(scales), static_cast<int>(tile_columns));
    return cudaGetLastError();
}

}  // namespace

// x [rows, columns], rows `stride` values apart, 16-byte aligned each; columns in multiples of 16; tensor_scale fp32
// []; codes [rows, columns/2]; scales [ru(rows, 128), ru(columns/16, 4)] in tiles, all of it written.
extern "C" int h3_nvfp4_pack_bf16(const void* x, int64_t stride, int64_t rows, int64_t columns,
                                  const void* tensor_scale, void* codes, void* scales, cudaStream_t stream) {
    return launch<__nv_bfloat16>(x, stride, rows, columns, tensor_scale, codes, scales, stream);
}

extern "C" int h3_nvfp4_pack_fp16(const void* x, int64_t stride, int64_t rows, int64_t columns,
                                  const void* tensor_scale, void* codes, void* scales, cudaStream_t stream) {
    return launch<__half>(x, stride, rows, columns, tensor_scale, codes, scales, stream);
}
