// As much of CUDA C++ as the NVFP4 producers use, on the host: thread blocks one after the other, a thread's turn ends
// where it waits for others. Exact arithmetic is the host's own; what a GPU approximates is replaced by whoever reads
// this (`nvfp4_fused_on_host.py`).
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static

struct uint4 {
    uint32_t x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};
struct Index {
    unsigned int x;
};
using cudaError_t = int;
using cudaStream_t = void*;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
inline int cudaGetLastError() { return 0; }
inline int cudaMemsetAsync(void* to, int value, size_t bytes, void*) { return memset(to, value, bytes), 0; }

static Index threadIdx, blockIdx, blockDim, gridDim;
static uint8_t dynamic_shared[1 << 17];

// ---- Threads.

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(96 << 10);
    bool done;
};
struct Barrier {
    int arrived = 0, turn = 0;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static std::function<void()> kernel;
static Barrier of_block, of_warp[32];

inline void wait_for_others(Barrier& barrier, int expected) {
    const int turn = barrier.turn;
    if (++barrier.arrived == expected) barrier.arrived = 0, barrier.turn++;
    const Index me = threadIdx;
    while (barrier.turn == turn) swapcontext(&threads[me.x].context, &scheduler), threadIdx = me;
}
inline void __syncthreads() { wait_for_others(of_block, static_cast<int>(blockDim.x)); }
inline void __syncwarp(unsigned int = ~0u) { wait_for_others(of_warp[threadIdx.x / 32], 32); }

static void run_thread() {
    kernel();
    threads[threadIdx.x].done = true;
    swapcontext(&threads[threadIdx.x].context, &scheduler);
}

// Aborts where threads wait for each other for ever.
inline void run_blocks(unsigned int blocks, unsigned int size, std::function<void()> body) {
    gridDim = {blocks}, blockDim = {size}, kernel = std::move(body);
    threads.resize(size);
    for (unsigned int block = 0; block < blocks; ++block) {
        blockIdx = {block};
        memset(dynamic_shared, 0xaa, sizeof dynamic_shared);
        for (auto& thread : threads) {
            thread.done = false;
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data();
            thread.context.uc_stack.ss_size = thread.stack.size();
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, run_thread, 0);
        }
        for (long rounds = 0, left = size; left; ++rounds) {
            if (rounds > 1000000) fprintf(stderr, "threads of block %u wait for ever\n", block), abort();
            for (unsigned int i = 0; i < size; ++i) {
                if (threads[i].done) continue;
                threadIdx = {i};
                swapcontext(&scheduler, &threads[i].context);
                left -= threads[i].done;
            }
        }
    }
}

// ---- What a warp's and a block's threads tell each other.

static uint32_t told[1024];

inline uint32_t told_by(uint32_t mine, unsigned int thread) {
    told[threadIdx.x] = mine;
    __syncwarp();
    const uint32_t found = told[thread];
    __syncwarp();
    return found;
}
inline uint32_t __shfl_sync(unsigned int, uint32_t mine, int lane) { return told_by(mine, threadIdx.x / 32 * 32 + lane); }
inline uint32_t __shfl_xor_sync(unsigned int, uint32_t mine, int step) { return told_by(mine, threadIdx.x ^ step); }
inline float __shfl_xor_sync(unsigned int all, float mine, int step) {
    uint32_t bits;
    memcpy(&bits, &mine, 4);
    bits = __shfl_xor_sync(all, bits, step);
    memcpy(&mine, &bits, 4);
    return mine;
}
inline uint32_t __reduce_max_sync(unsigned int all, uint32_t mine) {
    for (int step = 1; step < 32; step *= 2) mine = max(mine, __shfl_xor_sync(all, mine, step));
    return mine;
}
inline bool __all_sync(unsigned int all, bool mine) { return !__reduce_max_sync(all, !mine); }
inline bool __syncthreads_or(bool mine) {
    static bool any;
    __syncthreads();
    any = false;
    __syncthreads();
    if (mine) any = true;
    __syncthreads();
    return any;
}
inline unsigned int atomicMax(unsigned int* at, unsigned int value) {
    const unsigned int before = *at;
    *at = max(before, value);
    return before;
}

// ---- Arithmetic. Compiled without contraction.

inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
template <class T>
inline T __ldg(const T* from) {
    return *from;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, int by) { return high << by | low >> (32 - by); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half) { abort(); }

inline float saturated(float value) { return value > 0 ? fminf(value, 1.0f) : 0.0f; }
inline float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }
inline uint32_t bf16_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
template <class Operation>
inline uint32_t of_halves(uint32_t a, uint32_t b, Operation made) {
    return bf16_bits(made(bf16_value(a & 0xffff), bf16_value(b & 0xffff))) |
           bf16_bits(made(bf16_value(a >> 16), bf16_value(b >> 16))) << 16;
}
inline float max_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }
inline float min_nan(float a, float b) { return a != a || b != b ? NAN : fminf(a, b); }
inline float e4m3_value(uint32_t code) {
    const int power = code >> 3 & 15;
    return power ? ldexpf(1.0f + (code & 7) / 8.0f, power - 7) : ldexpf((code & 7) / 8.0f, -6);
}
// value in [0, 448], to nearest even.
inline uint16_t e4m3_code(float value) {
    uint16_t nearest = 0;
    for (uint16_t code = 1; code < 0x7f; ++code) {
        const float now = fabsf(e4m3_value(code) - value), before = fabsf(e4m3_value(nearest) - value);
        if (now < before || (now == before && code % 2 == 0)) nearest = code;
    }
    return nearest;
}
