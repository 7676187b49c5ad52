// The kernels that cpu and tpu share: one entry point, templated on arithmetic inside. Bits are those of docs/numerics.md,
// whatever the thread count, the instruction set or the alignment.
//
//   KernelContext context{&pool, {.precision = DotPrecision::kBf16, .flush = true}};
//   run_kernel(context, op, inputs, output);       // output is allocated by the caller with op.type
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "program/base/result.h"
#include "program/base/tensor.h"
#include "program/base/thread_pool.h"
#include "program/ops/op.h"

namespace twinrun {

enum class DotArithmetic : uint8_t {
  kF32,   // one fma chain per output (cpu; tpu.precision = "f32")
  kBf16,  // bf16 operands, blocks of 32 in AMX order
  kBf16x3,
  kBf16x6,
};

struct Arithmetic {
  DotArithmetic dot = DotArithmetic::kF32;
  bool flush = false;   // MXCSR FTZ|DAZ semantics in arithmetic ops
  bool poison = false;  // NaN in the padding cells of dot tiles (must not change a bit)
};

// kAmxModel: the tiles of AMX modelled in plain C++, slow; only force_isa reaches it.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAmx, kAmxModel };
std::string_view to_string(Isa isa);
// The best that this machine has, or what TWINRUN_ISA says ("scalar|avx2|avx512|amx"); asking for more than the machine
// has falls back to the best.
Isa active_isa();
// AVX-512 for what is no tile, too.
bool vectors_of_512();
void force_isa(Isa isa);  // tests
// An error if TWINRUN_ISA names no instruction set. Whoever does not ask gets the best there is.
Status check_isa_request();
// Why bf16 dots do without AMX tiles: "no AMX", "the kernel refused tiles", "self test failed", "TWINRUN_ISA asks for
// less"; empty where they can be used.
std::string_view amx_refusal();

struct KernelContext {
  ThreadPool* pool = nullptr;
  Arithmetic arithmetic;
};

// Every kind of ops.def but parameter and all_reduce. Parallelises over context.pool.
void run_kernel(const KernelContext& context, const Op& op, std::span<const Tensor> inputs,
                Tensor& output);

// The contract's ring (numerics.md rule 7) over the contributions of N >= 1 replicas.
void all_reduce_sum(const KernelContext& context, std::span<const Tensor> contributions,
                    Tensor& output);

// Correctly rounded binary32 elementary functions (NaN in, canonical NaN out).
float exp_f32(float x);
float log_f32(float x);
float tanh_f32(float x);
float erf_f32(float x);
float log1p_f32(float x);

}  // namespace twinrun
