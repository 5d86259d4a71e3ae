// What the library of nvfp4_gemm.cu offers; plain C. Every function returns a cudaError_t.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of which architecture the library is: 100, 103, 120 or 121.
int h3_nvfp4_gemm_architecture(void);

// 0 if a product of these sizes can be had. Nothing runs and no device is needed.
int h3_nvfp4_gemm_can_implement(int64_t m, int64_t n, int64_t k);

// Writes where the kernel looks for the scale of row r, block c of an operand [rows, k]: offsets [rows, k/16], in bytes
// from its first scale. Host memory; no device is needed, so that any machine can hold it against `quant/tiles.py`.
int h3_nvfp4_gemm_scale_offsets(int64_t rows, int64_t k, int64_t* offsets);

// Writes the bytes of device memory that a product needs beside its operands, on the current device.
int h3_nvfp4_gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, int64_t* bytes);

// Queues D = bf16(alpha A B^T) on `stream` of the current device. All but the sizes is device memory, 16 bytes aligned:
//   a, b              bytes of two E2M1 codes, [m, k/2] and [n, k/2]
//   a_scale, b_scale  E4M3 in tiles of 128 rows by 4 blocks of 16, [ru(m, 128), ru(k/16, 4)] and the same of n
//   alpha             one float (of any alignment that floats have)
//   d                 bf16 [m, n]
//   workspace         as many bytes as `workspace_bytes` says; may be null for none
int h3_nvfp4_gemm_run(const void* a, const void* a_scale, const void* b, const void* b_scale, const float* alpha,
                      void* d, void* workspace, int64_t m, int64_t n, int64_t k, void* stream);

#ifdef __cplusplus
}
#endif
