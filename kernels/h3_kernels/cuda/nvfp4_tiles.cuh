// Tiles of 128 rows by 256 columns of something made on the way, BF16, to NVFP4; or its largest absolute value.
//
// A `Source` makes eight neighbouring values of a row: `begin` once for a thread's columns, `load` what is in memory of
// the warp's i-th row from here, `make` the values, `advance` past some rows. A thread block makes the scales of its tile in shared memory and stores full sectors, padding
// (zeros) included. Eight values lie in a lane, a block of 16 in a pair of lanes. Read by the fused producers.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "bf16_producers.cuh"
#include "nvfp4_block.cuh"

namespace h3 {

constexpr int kTileWarps = 4;
constexpr int kTileThreads = 32 * kTileWarps;
constexpr int kStrip = 256;  // columns of a warp's row
constexpr int kStripTiles = kStrip / kBlock / kTileColumns;
constexpr int kPaddedTile = kTileBytes + 16;  // no two tiles begin in one bank
constexpr int kSlots = 256;                   // of largest values, fp32 >= 0 as bits

using BF16 = __nv_bfloat16;

__device__ __forceinline__ uint4 read16(const void* from) { return __ldg(static_cast<const uint4*>(from)); }

// What is read once and not again soon.
__device__ __forceinline__ uint4 read16_once(const void* from) {
    uint4 out;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "l"(from));
    return out;
}

// What `pack8` does for one row, for any values: the scale's code, eight codes. Rarely run, so kept out of the loops.
static __device__ __noinline__ uint2 pack8_with_special_values(uint4 row, float scale, float rcp) {
    const uint32_t words[4] = {row.x, row.y, row.z, row.w};
    const BlockScale by = block_scale(larger_of_pair<BF16, false>(amax8<BF16, false>(words)), scale, rcp);
    return {by.code, codes8_by_midpoints<BF16>(row.x, row.y, row.z, row.w, by.encode)};
}

// The largest absolute value of eight, both halves; signs mean nothing.
__device__ __forceinline__ uint32_t largest8(uint4 v) {
    if constexpr (kConverter) return larger_number(larger_number(v.x, v.y), larger_number(v.z, v.w));
    return larger_nan(larger_nan(v.x, v.y), larger_nan(v.z, v.w));
}

// Eight values a lane of `count` rows, an even number. Of two rows' blocks, which lie in a pair of lanes, the even lane
// makes the first one's scale and the odd lane the second one's: `scales[i]` is that of row 2i + lane % 2. All lanes of
// the warp call.
template <int count>
__device__ __forceinline__ void pack8(const uint4 (&values)[count], float scale, float rcp, uint32_t (&codes)[count],
                                      uint32_t (&scales)[count / 2]) {
    const bool odd = threadIdx.x % 2;
    float encode[count];
    bool ordinary = true;  // no NaN, no Inf
#pragma unroll
    for (int i = 0; i < count; i += 2) {
        const uint32_t a = largest8(values[i]), b = largest8(values[i + 1]);
        const uint32_t mine = odd ? b : a, other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
        const uint32_t both = (kConverter ? larger_number(mine, other) : larger_nan(mine, other)) & kNoSigns;
        const float amax = larger_half<BF16, !kConverter>(both);
        const BlockScale by = block_scale(amax, scale, rcp);
        const float others = __shfl_xor_sync(0xffffffffu, by.encode, 1);
        scales[i / 2] = by.code;
        encode[i] = odd ? others : by.encode;
        encode[i + 1] = odd ? by.encode : others;
        ordinary = ordinary && amax <= kLargestFloat && by.encode >= 0.0f;
    }
    if (kConverter || __all_sync(0xffffffffu, ordinary)) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const uint32_t words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
            codes[i] = codes8_ordinary<BF16>(words, encode[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const uint2 found = pack8_with_special_values(values[i], scale, rcp);
            if (i % 2 == odd) scales[i / 2] = found.x;
            codes[i] = found.y;
        }
    }
}

// Begins at 0.
__device__ __forceinline__ uint32_t with_largest(uint32_t found, uint4 v) {
    return larger_nan(found, larger_nan(larger_nan(v.x, v.y), larger_nan(v.z, v.w)));
}

// found: `with_largest` of a lane. All lanes of the warp call.
__device__ __forceinline__ void leave_largest(uint32_t found, float* slots) {
    const uint32_t most = __reduce_max_sync(0xffffffffu, __float_as_uint(larger_half<BF16, true>(found & kNoSigns)));
    // Not negative, so bits are in the order of values, NaN above all.
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned int*>(slots) + blockIdx.x % kSlots, most);
}

struct Shape {
    int64_t rows;
    int columns;
    int tile_columns;  // ceil(columns / 64)
    int strips;        // ceil(columns / 256)
};

static inline Shape shape_of(int64_t rows, int64_t columns) {
    const int wide = static_cast<int>(columns);
    return {rows, wide, (wide + kBlock * kTileColumns - 1) / (kBlock * kTileColumns), (wide + kStrip - 1) / kStrip};
}

static inline unsigned int tiles_in(const Shape& shape) {
    return static_cast<unsigned int>((shape.rows + kTileRows - 1) / kTileRows * shape.strips);
}

// Strips of one tile of rows are neighbours in the launch. backwards: the last rows first, which the cache may still
// hold from a launch that went forwards.
struct Place {
    int64_t tile;
    int strip;
};

__device__ __forceinline__ Place place_of(const Shape& shape, bool backwards) {
    const unsigned int at = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return {at / shape.strips, static_cast<int>(at % shape.strips)};
}

template <class Source, int rows_at_once, int blocks>
__global__ void __launch_bounds__(kTileThreads, blocks)
    pack_tiles(Source source, Shape shape, bool backwards, const float* __restrict__ tensor_scale,
               uint8_t* __restrict__ codes, uint8_t* __restrict__ scales) {
    __shared__ __align__(16) uint8_t tiles[kStripTiles * kPaddedTile];
    const Place place = place_of(shape, backwards);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = lane / 2;
    const int64_t first_row = place.tile * kTileRows;
    const int column = place.strip * kStrip + lane * 8;
    const int rows = static_cast<int>(min(shape.rows - first_row, static_cast<int64_t>(kTileRows)));
    const int here = column < shape.columns ? rows : 0;
    const float scale = *tensor_scale, rcp = reciprocal(scale);
    uint8_t* into = codes + ((first_row + warp) * shape.columns + column) / 2;
    const int64_t into_step = static_cast<int64_t>(kTileWarps) * (shape.columns / 2);
    uint8_t* const tile = tiles + block / kTileColumns * kPaddedTile + block % kTileColumns;
    source.begin(first_row, rows, column);

    // A warp's rows are `kTileWarps` apart; `turn` counts them. whole: every row and column is there.
    const auto pack = [&](auto whole) {
        for (int turn = 0; turn < kTileRows / kTileWarps; turn += rows_at_once) {
            typename Source::Loaded loaded[rows_at_once];
            uint4 made[rows_at_once];
            uint32_t packed[rows_at_once], by_two[rows_at_once / 2];
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i) {
                if constexpr (!whole) loaded[i] = {};
                if (whole || warp + (turn + i) * kTileWarps < here) loaded[i] = source.load(i);
            }
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i) {
                const int row = warp + (turn + i) * kTileWarps;
                if (whole || row < rows)
                    made[i] = source.make(loaded[i], row, whole || row < here);
                else
                    made[i] = {0, 0, 0, 0};
            }
            source.template advance<rows_at_once>();
            pack8<rows_at_once>(made, scale, rcp, packed, by_two);
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i) {
                const int own = warp + (turn + i + lane % 2) * kTileWarps;
                if (i % 2 == 0) tile[own % 32 * 16 + own / 32 * 4] = whole || own < here ? by_two[i / 2] : 0;
                if (whole || warp + (turn + i) * kTileWarps < here)
                    *reinterpret_cast<uint32_t*>(into + i * into_step) = packed[i];
            }
            into += rows_at_once * into_step;
        }
    };
    if (rows == kTileRows && (place.strip + 1) * kStrip <= shape.columns)
        pack(std::true_type{});
    else
        pack(std::false_type{});

    __syncthreads();
    const int tile_column = place.strip * kStripTiles + warp;
    if (warp < kStripTiles && tile_column < shape.tile_columns) {
        const int64_t at = (place.tile * shape.tile_columns + tile_column) * kTileBytes + lane * 16;
        *reinterpret_cast<uint4*>(scales + at) = *reinterpret_cast<const uint4*>(tiles + warp * kPaddedTile + lane * 16);
    }
}

// The largest absolute value into `slots`.
template <class Source, int rows_at_once, int blocks>
__global__ void __launch_bounds__(kTileThreads, blocks)
    largest_of_tiles(Source source, Shape shape, float* __restrict__ slots) {
    const Place place = place_of(shape, false);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first_row = place.tile * kTileRows;
    const int column = place.strip * kStrip + lane * 8;
    const int rows = static_cast<int>(min(shape.rows - first_row, static_cast<int64_t>(kTileRows)));
    const int here = column < shape.columns ? rows : 0;
    source.begin(first_row, rows, column);
    uint32_t found = 0;
    const auto look = [&](auto whole) {
        for (int turn = 0; turn < kTileRows / kTileWarps; turn += rows_at_once) {
            typename Source::Loaded loaded[rows_at_once];
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i) {
                if constexpr (!whole) loaded[i] = {};
                if (whole || warp + (turn + i) * kTileWarps < here) loaded[i] = source.load(i);
            }
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i) {
                const int row = warp + (turn + i) * kTileWarps;
                if (!whole && row >= here) continue;
                found = with_largest(found, source.make(loaded[i], row, true));
            }
            source.template advance<rows_at_once>();
        }
    };
    if (rows == kTileRows && (place.strip + 1) * kStrip <= shape.columns)
        look(std::true_type{});
    else
        look(std::false_type{});
    __syncwarp();
    leave_largest(found, slots);
}

}  // namespace h3

// Of `nvfp4_scale.cu`.
extern "C" int h3_nvfp4_finish_scale(const void* partials, int64_t count, void* scale, cudaStream_t stream);
