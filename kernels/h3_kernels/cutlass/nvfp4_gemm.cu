// NVFP4 times NVFP4 on Blackwell's tensor cores, through CUTLASS's collective builders.
//
//     D[m, n] = bf16(alpha * sum_k a[m, k] b[n, k])        a, b = E2M1 code * E4M3 scale of its 16, sums in FP32
//
// A [M, K/2] and B [N, K/2] bytes, both with K innermost; D bf16 [M, N]; alpha is one float in device memory, so that
// the host never waits for the scale of an activation. Scales lie in tiles of 128 rows by 4 blocks, and rows and blocks
// are padded to whole tiles (the order of h3runtime's quant/tiles.py); a tile that sticks out of A, B or D is clipped by
// the copy engine, so M is free. K is a multiple of 32 and N one of 8: 16 bytes of either.
//
// Which nibble of a byte is the even column doesn't matter as long as A and B agree: both orders pair the same codes of
// the same block, and a block's products share one scale. (The order of additions inside a block may differ.)
//
// One architecture a library: 100a, 103a (tcgen05, two SMs a tile) or 120a, 121a (warp-level MMA, one SM, no cluster).
// Anything else is refused while compiling. Nothing here reads the environment, allocates or synchronises, so that a
// call can be captured into a CUDA graph. Compiled and loaded by h3_kernels/nvfp4_cutlass.py; torch isn't needed.

// Checked before CUTLASS, which takes a minute to compile and leaves a kernel that only prints where there is no FP4.
#define H3_FIRST(first, ...) first
#define H3_FIRST_OF(list) H3_FIRST(list, )
#define H3_ARCHITECTURE H3_FIRST_OF(__CUDA_ARCH_LIST__)
#if H3_ARCHITECTURE != 1000 && H3_ARCHITECTURE != 1030 && H3_ARCHITECTURE != 1200 && H3_ARCHITECTURE != 1210
#error "NVFP4 products need sm_100a, sm_103a, sm_120a or sm_121a"
#endif
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_SPECIFIC__) && !defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#error "FP4 products are specific to an architecture: it must end in a, as in sm_121a"
#endif

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

#include "nvfp4_gemm.cuh"

namespace {

constexpr int ARCHITECTURE = H3_ARCHITECTURE / 10;
constexpr int ARCHITECTURES[] = {__CUDA_ARCH_LIST__};
static_assert(sizeof(ARCHITECTURES) == sizeof(int), "one architecture a library: their kernels have other types");

// Tile and cluster of each kind of tensor core. `Tile` is that of one MMA, over both SMs where there are two.
template <int Major>
struct Target;

template <>
struct Target<10> {
  using Arch = cutlass::arch::Sm100;
  using Tile = cute::Shape<cute::_256, cute::_256, cute::_256>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
};

template <>
struct Target<12> {
  using Arch = cutlass::arch::Sm120;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_128>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
};

using Here = Target<ARCHITECTURE / 10>;

// Both operands; the scales are E4M3 without a sign, whose bytes are those of E4M3 for what is positive.
using Operand = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
using Result = cutlass::bfloat16_t;
constexpr int OPERAND_ALIGNMENT = 32;  // elements, 16 bytes
constexpr int RESULT_ALIGNMENT = 8;
constexpr int BLOCK = 16;  // codes a scale

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    Here::Arch, cutlass::arch::OpClassBlockScaledTensorOp, Here::Tile, Here::Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    void, cutlass::layout::RowMajor, RESULT_ALIGNMENT,
    Result, cutlass::layout::RowMajor, RESULT_ALIGNMENT,
    cutlass::epilogue::collective::EpilogueScheduleAuto,
    cutlass::epilogue::fusion::ScaledAcc<Result, float>>::CollectiveOp;

using Stages = cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename Epilogue::SharedStorage)>;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    Here::Arch, cutlass::arch::OpClassBlockScaledTensorOp,
    Operand, cutlass::layout::RowMajor, OPERAND_ALIGNMENT,
    Operand, cutlass::layout::ColumnMajor, OPERAND_ALIGNMENT,
    float, Here::Tile, Here::Cluster, Stages,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;

using Kernel =
    cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, void>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// What a caller gives; null pointers serve where only sizes are asked for.
struct Problem {
  int64_t m, n, k;
  void const* a = nullptr;
  void const* a_scale = nullptr;
  void const* b = nullptr;
  void const* b_scale = nullptr;
  float const* alpha = nullptr;
  void* d = nullptr;

  bool sensible() const {
    constexpr int64_t most = std::numeric_limits<int>::max();
    return m > 0 && n > 0 && k > 0 && m <= most && n <= most && k <= most;
  }

  // As the copy engine needs it; with assertions off CUTLASS would launch on a descriptor that couldn't be made.
  bool aligned() const {
    for (void const* address : {a, a_scale, b, b_scale, static_cast<void const*>(d)}) {
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
    }
    return true;
  }
};

cudaError_t this_device(cutlass::KernelHardwareInfo& found) {
  if (cudaError_t failed = cudaGetDevice(&found.device_id); failed != cudaSuccess) return failed;
  return cudaDeviceGetAttribute(&found.sm_count, cudaDevAttrMultiProcessorCount, found.device_id);
}

Gemm::Arguments arguments(Problem const& asked, cutlass::KernelHardwareInfo const& device) {
  using Tiles = typename Mainloop::Sm1xxBlkScaledConfig;
  using Scale = typename Mainloop::ElementSF;
  auto const shape = cute::make_shape(int(asked.m), int(asked.n), int(asked.k), 1);
  auto const k_inner = cute::make_stride(asked.k, cute::_1{}, int64_t(0));
  auto const n_inner = cute::make_stride(asked.n, cute::_1{}, int64_t(0));

  Gemm::Arguments made{};
  made.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  made.problem_shape = shape;
  made.mainloop.ptr_A = static_cast<decltype(made.mainloop.ptr_A)>(asked.a);
  made.mainloop.dA = k_inner;
  made.mainloop.ptr_B = static_cast<decltype(made.mainloop.ptr_B)>(asked.b);
  made.mainloop.dB = k_inner;
  made.mainloop.ptr_SFA = static_cast<Scale const*>(asked.a_scale);
  made.mainloop.layout_SFA = Tiles::tile_atom_to_shape_SFA(shape);
  made.mainloop.ptr_SFB = static_cast<Scale const*>(asked.b_scale);
  made.mainloop.layout_SFB = Tiles::tile_atom_to_shape_SFB(shape);
  made.epilogue.thread.alpha_ptr = asked.alpha;
  made.epilogue.dC = n_inner;
  made.epilogue.ptr_D = static_cast<Result*>(asked.d);
  made.epilogue.dD = n_inner;
  made.hw_info = device;
  return made;
}

int told(cutlass::Status status) {
  switch (status) {
    case cutlass::Status::kSuccess:
      return cudaSuccess;
    case cutlass::Status::kErrorNotSupported:
    case cutlass::Status::kErrorArchMismatch:
      return cudaErrorNotSupported;
    case cutlass::Status::kErrorInternal:
      return cudaErrorLaunchFailure;
    default:
      return cudaErrorInvalidValue;
  }
}

int why_not(Problem const& asked, cutlass::KernelHardwareInfo const& device) {
  return asked.sensible() ? told(Gemm::can_implement(arguments(asked, device))) : int(cudaErrorInvalidValue);
}

}  // namespace

int h3_nvfp4_gemm_architecture(void) { return ARCHITECTURE; }

int h3_nvfp4_gemm_can_implement(int64_t m, int64_t n, int64_t k) {
  cutlass::KernelHardwareInfo any;
  any.sm_count = 1;
  return why_not({m, n, k}, any);
}

int h3_nvfp4_gemm_scale_offsets(int64_t rows, int64_t k, int64_t* offsets) {
  if (!Problem{rows, rows, k}.sensible()) return cudaErrorInvalidValue;
  using Tiles = typename Mainloop::Sm1xxBlkScaledConfig;
  auto const shape = cute::make_shape(int(rows), int(rows), int(k), 1);
  auto const of_a = Tiles::tile_atom_to_shape_SFA(shape);
  auto const of_b = Tiles::tile_atom_to_shape_SFB(shape);
  for (int r = 0; r < int(rows); ++r) {
    for (int c = 0; c < int(k) / BLOCK; ++c) {
      auto const offset = int64_t(of_a(r, c * BLOCK, 0));
      if (offset != int64_t(of_b(r, c * BLOCK, 0))) return cudaErrorUnknown;
      *offsets++ = offset;
    }
  }
  return cudaSuccess;
}

int h3_nvfp4_gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, int64_t* bytes) {
  cutlass::KernelHardwareInfo device;
  if (cudaError_t failed = this_device(device); failed != cudaSuccess) return failed;
  Problem const asked{m, n, k};
  if (int failed = why_not(asked, device); failed != cudaSuccess) return failed;
  *bytes = int64_t(Gemm::get_workspace_size(arguments(asked, device)));
  return cudaSuccess;
}

int h3_nvfp4_gemm_run(const void* a, const void* a_scale, const void* b, const void* b_scale, const float* alpha,
                      void* d, void* workspace, int64_t m, int64_t n, int64_t k, void* stream) {
  cutlass::KernelHardwareInfo device;
  if (cudaError_t failed = this_device(device); failed != cudaSuccess) return failed;
  Problem const asked{m, n, k, a, a_scale, b, b_scale, alpha, d};
  if (!asked.aligned()) return cudaErrorMisalignedAddress;
  if (int failed = why_not(asked, device); failed != cudaSuccess) return failed;
  auto const queue = static_cast<cudaStream_t>(stream);
  Gemm gemm;
  if (int failed = told(gemm.initialize(arguments(asked, device), workspace, queue)); failed != cudaSuccess) {
    return failed;
  }
  return told(gemm.run(queue));
}
