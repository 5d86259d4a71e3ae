// RMSNorm and modulation to NVFP4, with the gated residual before them where asked: by a scale that is known in one
// pass, else in two: the first finds each row's 1 / root mean square and the largest value of all (and leaves x with
// its residual), the second makes the rows again and packs them.
//
// The sum of a row's squares is added in the order of the Triton kernel `norm_modulate_kernel`, which decides the last
// bit: a row lies in 1, 2, 4 or 8 warps, eight neighbours a lane, in chunks; each of eight sums of a lane goes over the
// chunks, then they are added from first to last, lanes and warps in butterflies. `nvfp4_fused.py` launches it.
#include <cuda_runtime.h>

#include "bf16_producers.cuh"
#include "nvfp4_tiles.cuh"

namespace {

using namespace h3;

struct Tables {
    const BF16 *weight, *shift, *scale, *gate;
    int64_t stride;  // of shift, scale and gate
    const int32_t* index;

    __device__ __forceinline__ Vectors at(int which, int column) const {
        const int64_t from = which * stride + column;
        return {factor_of(read16(scale + from)), read16(shift + from)};
    }
};

struct Activation {
    BF16* x;
    int64_t stride;
    const BF16* update;
    int64_t update_stride;
};

struct Out {
    float* inverse_roots;  // of a first pass
    float* slots;          // likewise
    const float* tensor_scale;
    uint8_t *codes, *scales;
};

constexpr int kMostWarps = 8;    // to a row
constexpr int kRowsOfBlock = 8;  // two neighbours of each quarter of a tile: their scales share sectors
constexpr int kQuarters = kTileRows / 32;
// Of a model's row: how many at a time, and thread blocks to a multiprocessor at least. On an H200 two rows share what
// they read of the tables with profit, but not where an update is read as well. With one block more a kernel would spill:
// where E2M1 has a converter, the compiler takes more registers.
constexpr int at_once_of(bool residual) { return residual ? 1 : 2; }
constexpr int blocks_of(bool residual, bool packs) {
    if (kConverter) return residual ? 4 : 3;
    return residual ? 6 : packs ? 4 : 5;
}

// A thread block has eight rows, one or two at a time, each in all of its warps as the Triton kernel has it: strips of
// 256 columns in turn, `held` of them at most in a warp; known_warps: how many, 0: of the launch. packs: by a known
// scale; else inverse roots and largest values.
template <int held, int known_warps, int at_once, bool residual, bool packs>
__global__ void __launch_bounds__(32 * (known_warps ? known_warps : kMostWarps),
                                  known_warps ? blocks_of(residual, packs) : 1)
    whole_rows(Activation from, Tables tables, Shape shape, float eps, Out out) {
    extern __shared__ __align__(16) uint8_t made_scales[];   // packs: [8, tile_columns * 4]
    __shared__ float sums_of_warps[2][at_once][kMostWarps];  // of every other turn
    const int warps = known_warps ? known_warps : blockDim.x / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, odd = lane % 2;
    const int64_t tile = blockIdx.x / 16;
    const int first = blockIdx.x % 16 * 2;  // of a quarter
    const int scale_bytes = shape.tile_columns * kTileColumns;
    const int first_column = warp * kStrip + lane * 8, next = warps * kStrip;
    const float scale = packs ? *out.tensor_scale : 0.0f, rcp = reciprocal(scale);
    uint32_t found = 0;

    // `at_once` rows, the turn-th of the block's. whole: all are there, and strips are.
    const auto make = [&](auto whole, int turn, int64_t row) {
        const auto there = [&](int k) { return whole || row + k < shape.rows; };
        const auto inside = [&](int i) {
            return whole ? i * warps + warp < shape.strips : first_column + i * next < shape.columns;
        };
        int which[at_once];
        uint4 x[at_once][held];
        float roots[at_once];
#pragma unroll
        for (int k = 0; k < at_once; ++k) which[k] = there(k) ? tables.index[row + k] : 0;
#pragma unroll
        for (int i = 0; i < held; ++i) {
#pragma unroll
            for (int k = 0; k < at_once; ++k) {
                x[k][i] = {0, 0, 0, 0};
                if (there(k) && inside(i))
                    x[k][i] = read16_once(from.x + (row + k) * from.stride + first_column + i * next);
            }
        }
        if constexpr (residual) {
#pragma unroll
            for (int k = 0; k < at_once; ++k) {
                const BF16* const update = from.update + (row + k) * from.update_stride + first_column;
                const BF16* const gate = tables.gate + which[k] * tables.stride + first_column;
                BF16* const into = from.x + (row + k) * from.stride + first_column;
                uint4 updates[held];
#pragma unroll
                for (int i = 0; i < held; ++i)
                    if (there(k) && inside(i)) updates[i] = read16_once(update + i * next);
#pragma unroll
                for (int i = 0; i < held; ++i) {
                    if (!there(k) || !inside(i)) continue;
                    x[k][i] = add_gated8(x[k][i], updates[i], read16(gate + i * next));
                    *reinterpret_cast<uint4*>(into + i * next) = x[k][i];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            float sums[8] = {};
#pragma unroll
            for (int i = 0; i < held; ++i) add_squares(sums, x[k][i]);
            roots[k] = sum_of_warp(sum8(sums));
            if (lane == 0) sums_of_warps[turn % 2][k][warp] = roots[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < at_once; ++k)
            roots[k] = inverse_root(sum_of_warps(sums_of_warps[turn % 2][k], warps), shape.columns, eps);
        if constexpr (!packs)
            if (threadIdx.x == 0)
#pragma unroll
                for (int k = 0; k < at_once; ++k)
                    if (there(k)) out.inverse_roots[row + k] = roots[k];

        // Two at a time: a strip of two rows, or two strips of a row.
#pragma unroll
        for (int j = 0; j < held; j += at_once == 2 ? 1 : 2) {
            if (j * warps + warp >= shape.strips) continue;
            uint4 made[2];
            Weights weights{};
            Vectors by{};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = at_once == 2 ? e : 0, i = at_once == 2 ? j : j + e, column = first_column + i * next;
                made[e] = {0, 0, 0, 0};
                if (!inside(i)) continue;
                if (e == 0 || at_once == 1) weights = weights_of(read16(tables.weight + column));
                if (e == 0 || at_once == 1 || which[0] != which[k]) by = tables.at(which[k], column);
                made[e] = norm_modulate8(x[k][i], roots[k], weights, by);
                if constexpr (!packs)
                    if (there(k)) found = with_largest(found, made[e]);
            }
            if constexpr (packs) {
                uint32_t packed[2], by_two[1];
                pack8<2>(made, scale, rcp, packed, by_two);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int k = at_once == 2 ? e : 0, i = at_once == 2 ? j : j + e;
                    if (there(k) && inside(i))
                        *reinterpret_cast<uint32_t*>(out.codes + ((row + k) * shape.columns + first_column + i * next) / 2) =
                            packed[e];
                }
                const int k = at_once == 2 ? odd : 0, i = at_once == 2 ? j : j + odd;
                const int block = (first_column + i * next) / kBlock;
                if (block < scale_bytes)
                    made_scales[(turn * at_once + k) * scale_bytes + block] = there(k) && inside(i) ? by_two[0] : 0;
            }
        }
    };

    for (int turn = 0; turn < kRowsOfBlock / at_once; ++turn) {
        const int64_t row = tile * kTileRows + turn * at_once / 2 * 32 + first + turn * at_once % 2;
        if (row + at_once <= shape.rows && shape.columns % kStrip == 0) {
            make(std::true_type{}, turn, row);
        } else if (row < shape.rows) {
            make(std::false_type{}, turn, row);
        } else if constexpr (packs) {
            for (int i = threadIdx.x; i < at_once * scale_bytes; i += blockDim.x)
                made_scales[turn * at_once * scale_bytes + i] = 0;
        }
    }

    if constexpr (packs) {
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * shape.tile_columns; i += blockDim.x) {
            const int column = i / 2, odd = i % 2;
            uint32_t quarters[kQuarters];
#pragma unroll
            for (int q = 0; q < kQuarters; ++q)
                quarters[q] = *reinterpret_cast<const uint32_t*>(made_scales + (2 * q + odd) * scale_bytes + 4 * column);
            const int64_t at = (tile * shape.tile_columns + column) * kTileBytes + (first + odd) * 16;
            *reinterpret_cast<uint4*>(out.scales + at) = {quarters[0], quarters[1], quarters[2], quarters[3]};
        }
    } else {
        __syncwarp();
        leave_largest(found, out.slots);
    }
}

// Rows whose 1 / root mean square is known, by tiles. The vectors of its columns stay in a thread while the index does.
struct Normed {
    using Loaded = uint4;
    struct Row {
        float root;
        int which;
    };
    const BF16* x;
    int64_t stride;
    const float* inverse_roots;
    Tables tables;
    int width;
    const BF16* at;  // of this thread's columns in its warp's next row
    int column;
    const Row* rows;
    int which;
    Weights weights;
    Vectors by;

    __device__ __forceinline__ void begin(int64_t first_row, int here, int first_column) {
        __shared__ Row rows_of_tile[kTileRows];
        at = x + (first_row + threadIdx.x / 32) * stride + first_column;
        column = first_column;
        rows = rows_of_tile;
        weights = {};
        by = {};
        which = tables.index[first_row];
        if (column < width) {
            weights = weights_of(read16(tables.weight + column));
            by = tables.at(which, column);
        }
        for (int i = threadIdx.x; i < here; i += kTileThreads)
            rows_of_tile[i] = {inverse_roots[first_row + i], tables.index[first_row + i]};
        __syncthreads();
    }
    __device__ __forceinline__ Loaded load(int i) const { return read16_once(at + i * kTileWarps * stride); }
    __device__ __forceinline__ uint4 make(Loaded loaded, int row, bool inside) {
        const Row of = rows[row];
        if (of.which != which && inside) {
            which = of.which;
            by = tables.at(which, column);
        }
        return norm_modulate8(loaded, of.root, weights, by);
    }
    template <int count>
    __device__ __forceinline__ void advance() {
        at += count * kTileWarps * stride;
    }
};

constexpr int kModelHeld = 6, kModelWarps = 4;  // 5,376 columns, and all from 4,097 to 6,144
constexpr int kMostHeld = 8;                    // any width up to 16,384

template <bool residual, bool packs>
void launch_rows(const Activation& from, const Tables& tables, const Shape& shape, float eps, int warps, const Out& out,
                 cudaStream_t stream) {
    const unsigned int grid = static_cast<unsigned int>((shape.rows + kTileRows - 1) / kTileRows * 16);
    const size_t bytes = packs ? static_cast<size_t>(kRowsOfBlock) * shape.tile_columns * kTileColumns : 0;
    if (warps == kModelWarps && shape.strips <= kModelHeld * kModelWarps)
        whole_rows<kModelHeld, kModelWarps, at_once_of(residual), residual, packs>
            <<<grid, 32 * warps, bytes, stream>>>(from, tables, shape, eps, out);
    else
        whole_rows<kMostHeld, 0, 1, residual, packs>
            <<<grid, 32 * warps, bytes, stream>>>(from, tables, shape, eps, out);
}

}  // namespace

// x BF16 [rows, width], rows `stride` values apart, width in multiples of 16; update: likewise, or null, then gate is
// not read; weight [width]; shift, scale, gate: tables, rows `table_stride` apart; index int32 [rows]; triton_warps: of
// the kernel whose bits are wanted. Every row 16-byte aligned. dynamic: tensor_scale (fp32 []) is found, not given;
// then inverse_roots fp32 [rows] and slots fp32 [256]. codes [rows, width/2]; scales [ru(rows, 128), ru(width/16, 4)]
// in tiles, all of it written. cudaErrorInvalidValue: a row doesn't fit into that many warps.
extern "C" int h3_nvfp4_norm_modulate(void* x, int64_t stride, int64_t rows, int64_t width, const void* update,
                                      int64_t update_stride, const void* weight, const void* shift, const void* scale,
                                      const void* gate, int64_t table_stride, const void* index, float eps,
                                      int64_t triton_warps, int64_t dynamic, void* tensor_scale, void* inverse_roots,
                                      void* slots, void* codes, void* scales, cudaStream_t stream) {
    if (rows == 0 || width == 0) return cudaSuccess;
    const Shape shape = shape_of(rows, width);
    if (triton_warps < 1 || triton_warps > kMostWarps || shape.strips > kMostHeld * triton_warps)
        return cudaErrorInvalidValue;
    const Activation from{static_cast<BF16*>(x), stride, static_cast<const BF16*>(update), update_stride};
    const Tables tables{static_cast<const BF16*>(weight), static_cast<const BF16*>(shift),
                        static_cast<const BF16*>(scale),  static_cast<const BF16*>(gate),
                        table_stride,                     static_cast<const int32_t*>(index)};
    const Out out{static_cast<float*>(inverse_roots), static_cast<float*>(slots),
                  static_cast<const float*>(tensor_scale), static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scales)};
    const int warps = static_cast<int>(triton_warps);
    if (!dynamic) {
        if (update)
            launch_rows<true, true>(from, tables, shape, eps, warps, out, stream);
        else
            launch_rows<false, true>(from, tables, shape, eps, warps, out, stream);
        return cudaGetLastError();
    }
    if (const cudaError_t error = cudaMemsetAsync(slots, 0, kSlots * sizeof(float), stream)) return error;
    if (update)
        launch_rows<true, false>(from, tables, shape, eps, warps, out, stream);
    else
        launch_rows<false, false>(from, tables, shape, eps, warps, out, stream);
    if (const int error = h3_nvfp4_finish_scale(slots, kSlots, tensor_scale, stream)) return error;
    Normed source{};
    source.x = from.x;
    source.stride = stride;
    source.inverse_roots = out.inverse_roots;
    source.tables = tables;
    source.width = shape.columns;
    pack_tiles<Normed, 4, 24 / kTileWarps>
        <<<tiles_in(shape), kTileThreads, 0, stream>>>(source, shape, true, out.tensor_scale, out.codes, out.scales);
    return cudaGetLastError();
}
