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

    __device__ __forceinline__ int64_t row_of(int64_t row) const { return index[row] * stride; }
    __device__ __forceinline__ Vectors at(int64_t which, int column) const {
        return {read16(weight + column), factor_of(read16(scale + which + column)), read16(shift + which + column)};
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
    Guess guess;
    const float* tensor_scale;
    uint8_t *codes, *scales;
};

constexpr int kMostWarps = 8;    // to a row
constexpr int kRowsOfBlock = 8;  // two neighbours of each quarter of a tile: their scales share sectors
constexpr int kQuarters = kTileRows / 32;
#ifndef H3_NORM_BLOCKS
#define H3_NORM_BLOCKS 4
#endif

__device__ __forceinline__ uint4 read_row(const Activation& from, int64_t row, int column) {
    return read16_once(from.x + row * from.stride + column);
}

// x + update * gate of the row, left in x.
__device__ __forceinline__ uint4 add_to_row(const Activation& from, uint4 x, uint4 update, uint4 gate, int64_t row,
                                            int column) {
    const uint4 sum = add_gated8(x, update, gate);
    *reinterpret_cast<uint4*>(from.x + row * from.stride + column) = sum;
    return sum;
}

// A thread block has eight rows, two at a time, each in all of its warps as the Triton kernel has it: strips of 256
// columns in turn, `held` of them at most in a warp. packs: by a known scale; else inverse roots and largest values.
template <int held, int most_threads, int blocks, bool residual, bool packs, bool guesses>
__global__ void __launch_bounds__(most_threads, kConverter && blocks > 3 ? 3 : blocks)  // there four would spill
    whole_rows(Activation from, Tables tables, Shape shape, float eps, Out out) {
    extern __shared__ __align__(16) uint8_t made_scales[];  // packs: [8, tile_columns * 4]
    __shared__ float sums_of_warps[2][2][kMostWarps];       // of every other turn, of either row
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int64_t tile = blockIdx.x / 16;
    const int first = blockIdx.x % 16 * 2;  // of a quarter
    const int scale_bytes = shape.tile_columns * kTileColumns;
    float scale = packs && !guesses ? *out.tensor_scale : 0.0f, rcp = reciprocal(scale);
    uint32_t found = 0;

    for (int quarter = 0; quarter < kQuarters; ++quarter) {
        const int64_t row = tile * kTileRows + quarter * 32 + first;
        if (row >= shape.rows) {
            if constexpr (packs)
                for (int i = threadIdx.x; i < 2 * scale_bytes; i += blockDim.x)
                    made_scales[quarter * 2 * scale_bytes + i] = 0;
            continue;
        }
        const bool there[2] = {true, row + 1 < shape.rows};
        const int64_t which[2] = {there[0] ? tables.row_of(row) : 0, there[1] ? tables.row_of(row + 1) : 0};
        uint4 x[2][held];
        float roots[2];
        uint32_t so_far = 0;
        if constexpr (guesses) so_far = largest_so_far(out.guess);
#pragma unroll
        for (int i = 0; i < held; ++i) {
            const int column = (i * warps + warp) * kStrip + lane * 8;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                x[k][i] = {0, 0, 0, 0};
                if (there[k] && column < shape.columns) x[k][i] = read_row(from, row + k, column);
            }
        }
        if constexpr (residual) {
#pragma unroll
            for (int i = 0; i < held; ++i) {
                const int column = (i * warps + warp) * kStrip + lane * 8;
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    if (there[k] && column < shape.columns)
                        x[k][i] = add_to_row(from, x[k][i],
                                             read16_once(from.update + (row + k) * from.update_stride + column),
                                             read16(tables.gate + which[k] + column), row + k, column);
            }
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float sums[8] = {};
#pragma unroll
            for (int i = 0; i < held; ++i) add_squares(sums, x[k][i]);
            roots[k] = sum_of_warp(sum8(sums));
            if (lane == 0) sums_of_warps[quarter % 2][k][warp] = roots[k];
        }
        __syncthreads();
        if constexpr (guesses) {
            scale = __fmul_rn(__uint_as_float(so_far), kTop);
            rcp = reciprocal(scale);
            found = 0;
        }
#pragma unroll
        for (int k = 0; k < 2; ++k)
            roots[k] = inverse_root(sum_of_warps(sums_of_warps[quarter % 2][k], warps), shape.columns, eps);

#pragma unroll
        for (int i = 0; i < held; ++i) {
            const int strip = i * warps + warp, column = strip * kStrip + lane * 8;
            if (strip >= shape.strips) continue;
            const bool inside = column < shape.columns;
            Vectors by{};
            if (inside) by = tables.at(which[0], column);
            uint4 made[2];
            made[0] = norm_modulate8(x[0][i], roots[0], by);
            if (which[1] != which[0] && inside) by = tables.at(which[1], column);
            made[1] = norm_modulate8(x[1][i], roots[1], by);
            if constexpr (guesses || !packs) {
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    if (there[k] && inside) found = with_largest(found, made[k]);
            }
            if constexpr (packs) {
                uint32_t packed[2], by_two[1];
                pack8<2>(made, scale, rcp, packed, by_two);
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    if (there[k] && inside)
                        *reinterpret_cast<uint32_t*>(out.codes + ((row + k) * shape.columns + column) / 2) = packed[k];
                if (column / kBlock < scale_bytes)
                    made_scales[(quarter * 2 + lane % 2) * scale_bytes + column / kBlock] =
                        there[lane % 2] && inside ? by_two[0] : 0;
            }
        }
        if (guesses || !packs) {
            if (threadIdx.x < 2 && there[threadIdx.x]) out.inverse_roots[row + threadIdx.x] = roots[threadIdx.x];
        }
        if constexpr (guesses) {
            __syncwarp();
            const uint32_t mine = largest_of_warp(found);
            if (mine > so_far && lane == 0) atomicMax(out.guess.running, mine);
            // Warps may have seen another one so far: each says what it used.
            if (lane < 2 && there[lane]) out.guess.used[(row + lane) * kMostWarps + warp] = so_far;
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
    const BF16* x;
    int64_t stride;
    const float* inverse_roots;
    Tables tables;
    int width;
    const BF16* from;
    int column;
    const float* roots;
    const int64_t* rows;
    int64_t which;
    Vectors by;
    int warps;  // of `whole_rows`

    __device__ __forceinline__ bool wrong(const Guess& guess, const Place&, const Shape&, int64_t first_row, int here) const {
        bool found = false;
        for (int i = threadIdx.x; i < here * kMostWarps; i += kTileThreads)
            found = found || (i % kMostWarps < warps && guess.used[first_row * kMostWarps + i] != *guess.running);
        return __syncthreads_or(found);
    }
    __device__ __forceinline__ void begin(int64_t first_row, int here, int first_column) {
        __shared__ float root_of[kTileRows];
        __shared__ int64_t row_of[kTileRows];
        for (int i = threadIdx.x; i < here; i += kTileThreads) {
            root_of[i] = inverse_roots[first_row + i];
            row_of[i] = tables.row_of(first_row + i);
        }
        __syncthreads();
        from = x + first_row * stride + first_column;
        column = first_column;
        roots = root_of;
        rows = row_of;
        which = -1;
        by = {};
    }
    __device__ __forceinline__ Loaded load(int row) const { return read16_once(from + row * stride); }
    __device__ __forceinline__ uint4 make(Loaded loaded, int row, bool inside) {
        if (rows[row] != which && inside) {
            which = rows[row];
            by = tables.at(which, column);
        }
        return norm_modulate8(loaded, roots[row], by);
    }
};

constexpr int kModelHeld = 6, kModelWarps = 4;  // 5,376 columns, and all from 4,097 to 6,144
constexpr int kMostHeld = 8;                    // any width up to 16,384

template <bool residual, bool packs, bool guesses>
void launch_rows(const Activation& from, const Tables& tables, const Shape& shape, float eps, int warps, const Out& out,
                 cudaStream_t stream) {
    const unsigned int grid = static_cast<unsigned int>((shape.rows + kTileRows - 1) / kTileRows * 16);
    const size_t bytes = packs ? static_cast<size_t>(kRowsOfBlock) * shape.tile_columns * kTileColumns : 0;
    if (warps == kModelWarps && shape.strips <= kModelHeld * kModelWarps)
        whole_rows<kModelHeld, 32 * kModelWarps, H3_NORM_BLOCKS, residual, packs, guesses>
            <<<grid, 32 * warps, bytes, stream>>>(from, tables, shape, eps, out);
    else
        whole_rows<kMostHeld, 32 * kMostWarps, 1, residual, packs, guesses>
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
                                      void* slots, void* used, void* codes, void* scales, cudaStream_t stream) {
    if (rows == 0 || width == 0) return cudaSuccess;
    const Shape shape = shape_of(rows, width);
    if (triton_warps < 1 || triton_warps > kMostWarps || shape.strips > kMostHeld * triton_warps)
        return cudaErrorInvalidValue;
    const Activation from{static_cast<BF16*>(x), stride, static_cast<const BF16*>(update), update_stride};
    const Tables tables{static_cast<const BF16*>(weight), static_cast<const BF16*>(shift),
                        static_cast<const BF16*>(scale),  static_cast<const BF16*>(gate),
                        table_stride,                     static_cast<const int32_t*>(index)};
    const Out out{static_cast<float*>(inverse_roots), static_cast<float*>(slots),
                  {static_cast<uint32_t*>(slots), static_cast<uint32_t*>(used)},
                  static_cast<const float*>(tensor_scale), static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scales)};
    const int warps = static_cast<int>(triton_warps);
    if (!dynamic) {
        if (update)
            launch_rows<true, true, false>(from, tables, shape, eps, warps, out, stream);
        else
            launch_rows<false, true, false>(from, tables, shape, eps, warps, out, stream);
        return cudaGetLastError();
    }
    if (const cudaError_t error = cudaMemsetAsync(slots, 0, kSlots * sizeof(float), stream)) return error;
    if (dynamic == 3) {
        if (update)
            launch_rows<true, true, true>(from, tables, shape, eps, warps, out, stream);
        else
            launch_rows<false, true, true>(from, tables, shape, eps, warps, out, stream);
    } else {
        if (update)
            launch_rows<true, false, false>(from, tables, shape, eps, warps, out, stream);
        else
            launch_rows<false, false, false>(from, tables, shape, eps, warps, out, stream);
    }
    if (const int error = h3_nvfp4_finish_scale(slots, kSlots, tensor_scale, stream)) return error;
    Normed source{};
    source.x = from.x;
    source.stride = stride;
    source.inverse_roots = out.inverse_roots;
    source.tables = tables;
    source.width = shape.columns;
    source.warps = warps;
    if (dynamic == 3)
        pack_tiles<Normed, 4, 3, By::last><<<tiles_in(shape), kTileThreads, 0, stream>>>(
            source, shape, true, out.tensor_scale, out.guess, out.codes, out.scales);
    else
        pack_tiles<Normed, 4, 3, By::known><<<tiles_in(shape), kTileThreads, 0, stream>>>(
            source, shape, true, out.tensor_scale, {}, out.codes, out.scales);
    return cudaGetLastError();
}
