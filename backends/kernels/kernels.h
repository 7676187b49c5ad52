// The kernels that cpu and tpu share, behind one entry point and templated on arithmetic inside.
// The interpreter calls them. Bits are those of docs/method/numerics.md, whatever the thread count,
// the instruction set or the alignment.
//
//   KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true}};
//   run_kernel(context, op, inputs, output);  // output is allocated by the caller with op.type
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

// In ascending order, so that a machine's best can be compared with what is asked for; kNeon is on
// AArch64 only, all but kScalar and kAmxModel on x86-64 only.
// kAmxModel: the tiles of AMX modelled in plain C++, slow; only force_isa selects it.
enum class Isa : uint8_t { kScalar, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx, kAmxModel };
std::string_view to_string(Isa isa);
// The best instruction set that this machine has, or the one that TWINRUN_ISA names
// ("scalar|neon|avx2|avx512|avx512bf16|amx"). A request for more than the machine has falls back to the
// best.
Isa active_isa();
// Whether kernels other than matrix tiles use AVX-512, too.
bool vectors_of_512();
void force_isa(Isa isa);  // tests
// An error if TWINRUN_ISA names no known instruction set. Without this check an unknown name means
// the best there is.
Status check_isa_request();
// Why bf16 dots do not use AMX tiles: "no AMX", "the kernel refused tiles", "self test failed",
// "TWINRUN_ISA asks for less"; empty where they can be used.
std::string_view amx_refusal();
// Why bf16 dots do not use VDPBF16PS: "no AVX512-BF16", "self test failed", "TWINRUN_ISA asks for
// less", "AMX is faster", "FMA is faster on this CPU"; empty where they do.
std::string_view avx512bf16_refusal();

struct KernelContext {
  ThreadPool* pool = nullptr;
  Arithmetic arithmetic;
};

// Computes an op of any kind in ops.def but parameter and all_reduce. Parallelises over
// context.pool.
void run_kernel(const KernelContext& context, const Op& op, std::span<const Tensor> inputs,
                Tensor& output);

// The contract's ring sum (numerics.md, section 6) over the contributions of N >= 1 replicas.
void all_reduce_sum(const KernelContext& context, std::span<const Tensor> contributions,
                    Tensor& output);
// Hops of that ring, for a ring that is cut into pieces: adds the terms to the partial sum in their
// order. Both are of the type `dtype`, which each hop rounds to.
void ring_hops(const KernelContext& context, DType dtype, std::byte* partial,
               std::span<const std::byte* const> terms, int64_t elements);

// Correctly rounded binary32 elementary functions (NaN in, canonical NaN out).
float exp_f32(float x);
float log_f32(float x);
float tanh_f32(float x);
float erf_f32(float x);
float log1p_f32(float x);
float sin_f32(float x);
float cos_f32(float x);

}  // namespace twinrun
