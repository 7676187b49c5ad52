// Chooses the instruction set: the best that the machine has, or what TWINRUN_ISA requests.
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "backends/kernels/amx_probe.h"
#include "backends/kernels/gemm.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

constexpr Isa kNamed[] = {Isa::kScalar, Isa::kNeon,       Isa::kAvx2,
                          Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

Isa best_vectors() {
#if defined(__x86_64__)
  return has_avx512() ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kNeon;
#endif
}

std::string_view requested_name() {
  const char* text = std::getenv("TWINRUN_ISA");
  return text == nullptr ? "" : text;
}
std::optional<Isa> named(std::string_view name) {
  for (Isa isa : kNamed) {
    if (to_string(isa) == name) return isa;
  }
  return std::nullopt;
}

// What TWINRUN_ISA names; the most where it names nothing, or NEON on a machine without.
Isa requested() {
  const Isa wanted = named(requested_name()).value_or(Isa::kAmx);
  return wanted == Isa::kNeon && best_vectors() != Isa::kNeon ? Isa::kAmx : wanted;
}

std::string_view trouble_of_avx512bf16() {
  static const std::string_view trouble = probe_avx512bf16();
  return trouble;
}

// VDPBF16PS makes twice the products of an FMA. AMD's CPUs run as many of either; Intel's run a
// quarter as many (docs/developers/processors.md), and are not given it unless they are asked to use it.
bool prefers_avx512bf16() { return is_amd() && trouble_of_avx512bf16().empty(); }

// The best instruction set up to `wanted` that this machine has. What needs a self test is probed
// only if it may be the answer.
Isa limited(Isa wanted) {
  if (wanted == Isa::kAmxModel) return wanted;
  if (wanted == Isa::kAmx && amx_refusal().empty()) return wanted;
  const bool bf16 = wanted == Isa::kAvx512Bf16 ? trouble_of_avx512bf16().empty()
                                               : wanted == Isa::kAmx && prefers_avx512bf16();
  return bf16 ? Isa::kAvx512Bf16 : std::min(wanted, best_vectors());
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{limited(requested())};
  return isa;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kNeon:
      return "neon";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
    case Isa::kAmxModel:
      return "amx-model";
  }
  return "?";
}

bool vectors_of_512() { return active_isa() >= Isa::kAvx512 && best_vectors() == Isa::kAvx512; }
Isa active_isa() { return current().load(std::memory_order_relaxed); }
void force_isa(Isa isa) { current().store(limited(isa), std::memory_order_relaxed); }

Status check_isa_request() {
  const std::string_view name = requested_name();
  if (name.empty() || named(name)) return Ok{};
  std::vector<std::string> known;
  for (Isa isa : kNamed) known.emplace_back(to_string(isa));
  return Error{
      "unknown instruction set '" + std::string(name) + "' (known: " + join(known, ", ") + ")",
      "TWINRUN_ISA", did_you_mean(name, known) + " Unset: the best there is"};
}

std::string_view amx_refusal() {
  if (requested() < Isa::kAmx) return "TWINRUN_ISA asks for less";
  static const std::string_view refusal = probe_amx();
  return refusal;
}

std::string_view avx512bf16_refusal() {
  const Isa wanted = requested();
  if (wanted < Isa::kAvx512Bf16) return "TWINRUN_ISA asks for less";
  if (!trouble_of_avx512bf16().empty()) return trouble_of_avx512bf16();
  if (wanted == Isa::kAvx512Bf16) return "";
  if (amx_refusal().empty()) return "AMX is faster";
  return prefers_avx512bf16() ? "" : "FMA is faster on this CPU";
}

const GemmKernels& gemm_kernels(Isa isa, bool bf16) {
  switch (isa) {
    case Isa::kScalar:
      return kGemmScalar;
    case Isa::kAmxModel:
      return bf16 ? kGemmAmxModel : gemm_kernels(best_vectors(), bf16);
#if defined(__x86_64__)
    case Isa::kNeon:
    case Isa::kAvx2:
      return kGemmAvx2;
    case Isa::kAvx512:
      return kGemmAvx512;
    case Isa::kAvx512Bf16:
      return bf16 ? kGemmAvx512Bf16 : kGemmAvx512;
    case Isa::kAmx:
      return bf16 ? kGemmAmx : kGemmAvx512;
#else
    default:
      return kGemmNeon;
#endif
  }
  return kGemmScalar;
}

}  // namespace twinrun
