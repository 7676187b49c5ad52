// Detects AVX-512, AVX512-BF16 and AMX, and tests that the products of the latter two have the bits
// of the modelled AMX tiles.
#include "backends/kernels/amx_probe.h"

#include <vector>

#include "backends/kernels/gemm.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace twinrun {
namespace {

// ---- the self test: products whose bits show the order, the flushing and the rounding

enum class Data {
  kPlain,
  kWide,
  kCancelling,
  kTiny,
  kDenormal,
  kLargestDenormal,
  kSpecial,
  kSmallestNormal,
  kOverflowing
};
constexpr Data kAllData[] = {Data::kPlain,   Data::kWide,           Data::kCancelling,
                             Data::kTiny,    Data::kDenormal,       Data::kLargestDenormal,
                             Data::kSpecial, Data::kSmallestNormal, Data::kOverflowing};

// Pseudo-random bits of bf16 numbers, the same in every process.
class Source {
 public:
  explicit Source(uint32_t seed) : state_(seed * 2654435761u + 1u) {}
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }
  // A number whose biased exponent is one of `count` values from `low` on.
  uint16_t number(uint32_t low, uint32_t count) {
    const uint32_t r = next();
    return static_cast<uint16_t>((r & 0x8000u) | (low + (r >> 16) % count) << 7 | (r & 0x7Fu));
  }
  uint16_t draw(Data data) {
    const uint32_t pick = next();
    switch (data) {
      case Data::kWide:
        return number(70, 115);
      case Data::kTiny:  // products around 2^-126
        return number(58, 12);
      case Data::kDenormal:
        if (pick % 4 == 0) return static_cast<uint16_t>(next() & 0x8000u);
        return pick % 4 == 1 ? static_cast<uint16_t>(next() & 0x807Fu) : number(120, 10);
      case Data::kLargestDenormal:  // which the nearest bf16 would make a normal number
        return pick % 2 == 0 ? 0x007F : number(140, 10);
      case Data::kSpecial: {
        constexpr uint16_t kSpecial[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0xFF7F, 0x8000};
        return pick % 96 < 6 ? kSpecial[pick % 96] : number(120, 10);
      }
      case Data::kOverflowing:  // products from 2^126 to 2^129, whose sums may be finite
        return number(pick % 4 == 0 ? 191 : 190, 1);
      default:
        return number(120, 10);
    }
  }
  // The lower half of a binary32 whose upper half is drawn from `data`: what rounding to bf16 has
  // to deal with, where the products do not depend on exact operands.
  uint32_t lower_half(Data data) {
    const bool exact = data == Data::kCancelling || data == Data::kSmallestNormal;
    const uint32_t r = next();
    return exact || r % 4 == 0 ? 0 : r % 4 == 1 ? 0x8000u : r >> 16;
  }

 private:
  uint32_t state_;
};

struct Sample {
  int rows, columns, k;
  bool start, finish, by_columns;
};
constexpr Sample kSamples[] = {{32, 32, 256, true, true, false},  {32, 32, 96, false, false, true},
                               {16, 16, 33, true, false, true},   {19, 27, 77, false, true, false},
                               {32, 7, 31, true, true, true},     {5, 32, 1, true, false, false},
                               {16, 32, 64, false, false, false}, {31, 16, 129, false, true, true}};

class Problem {
 public:
  Problem(const Sample& s, Data data, uint32_t seed) : sample_(s) {
    Source source(seed);
    a_.resize(static_cast<size_t>(s.rows * s.k));
    b_.resize(static_cast<size_t>(s.k * s.columns));
    for (float& x : a_) x = bf16_to_f32(source.draw(data));
    for (float& x : b_) x = bf16_to_f32(source.draw(data));
    // Operands of k repeat those of k - 1 (the other chain) or of k - 2 (the last of its own
    // chain), a with the sign changed and b sometimes with the last bit changed, so that products
    // cancel wholly or nearly.
    if (data == Data::kCancelling) {
      for (int k = 2; k < s.k; ++k) {
        const int other = k - 1 - k / 2 % 2;
        for (int i = 0; i < s.rows; ++i) at(a_, i * s.k + k) = -at(a_, i * s.k + other);
        for (int j = 0; j < s.columns; ++j)
          at(b_, k * s.columns + j) = from_bits(to_bits(at(b_, other * s.columns + j)) ^
                                                (source.next() % 3 == 0 ? 0x10000u : 0));
      }
    }
    // Each chain gives 2^-126 - 2^-151 * (1 to 4), which may or may not be tiny after rounding.
    if (data == Data::kSmallestNormal) {
      for (int k = 0; k < s.k; ++k) {
        for (int i = 0; i < s.rows; ++i)
          at(a_, i * s.k + k) = bf16_to_f32(static_cast<uint16_t>(k < 2   ? 0x2000
                                                                  : k < 4 ? 0x1980 + i * 4
                                                                          : 0));
        for (int j = 0; j < s.columns; ++j)
          at(b_, k * s.columns + j) =
              bf16_to_f32(static_cast<uint16_t>(k < 2 ? 0x2000 : 0x9A00 + j * 4));
      }
    }
    for (float& x : a_) x = from_bits(to_bits(x) | source.lower_half(data));
    for (float& x : b_) x = from_bits(to_bits(x) | source.lower_half(data));
    c_.resize(static_cast<size_t>(s.rows * kStride));
    for (float& x : c_) x = bf16_to_f32(source.number(120, 10));
  }

  // What the kernels make of it, with every way of packing B.
  std::vector<float> run(const GemmKernels& kernels, bool b_by_rows) const {
    const Sample& s = sample_;
    const KernelContext context{nullptr,
                                {.dot = DotArithmetic::kBf16, .flush = true, .poison = true}};
    const GemmPlan plan(context, kernels);
    std::vector<float> a(a_.size()), b(b_.size());
    std::vector<int64_t> offsets(static_cast<size_t>(s.k));
    for (int k = 0; k < s.k; ++k) {
      at(offsets, k) = s.by_columns ? k * s.rows : k;
      for (int i = 0; i < s.rows; ++i) {
        const float x = at(a_, i * s.k + k);
        at(a, s.by_columns ? k * s.rows + i : i * s.k + k) =
            kernels.rounds_a ? x : bf16_to_f32(bf16_round_flush(x));
      }
      for (int j = 0; j < s.columns; ++j)
        at(b, b_by_rows ? k * s.columns + j : j * s.k + k) = at(b_, k * s.columns + j);
    }
    const MatrixB matrix =
        b_by_rows ? MatrixB{b.data(), 1, s.columns, s.k, 0} : MatrixB{b.data(), s.k, 1, s.k, 0};
    std::vector<float> packed(
        static_cast<size_t>(plan.packed_size(plan.packed_columns(s.columns), s.k)));
    pack_b(plan, matrix, Term::kFirst, 0, s.k, 0, s.columns, packed.data());
    std::vector<float> c = c_;
    std::vector<RowTile> tiles;
    const int64_t row_stride = s.by_columns ? 1 : s.k;
    for (int i = 0; i < s.rows; i += kernels.rows)
      tiles.push_back({i * row_stride, i, std::min(kernels.rows, s.rows - i)});
    multiply_block(plan,
                   {a.data(), row_stride, offsets.data(), s.k, packed.data(), c.data(), kStride,
                    s.columns, s.start, s.finish},
                   tiles.data(), static_cast<int64_t>(tiles.size()));
    return c;
  }

 private:
  static constexpr int kStride = 40;
  template <typename T>
  static T& at(std::vector<T>& v, int i) {
    return v[static_cast<size_t>(i)];
  }
  template <typename T>
  static const T& at(const std::vector<T>& v, int i) {
    return v[static_cast<size_t>(i)];
  }
  Sample sample_;
  std::vector<float> a_, b_, c_;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (to_bits(canonical(a[i])) != to_bits(canonical(b[i]))) return false;
  }
  return true;
}

#if defined(__x86_64__)
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx >> 22 & 1u) != 0 && (edx >> 24 & 1u) != 0;  // AMX-BF16, AMX-TILE
}

// Whether the operating system's kernel saves tile registers on a thread switch and grants them to
// this process.
bool kernel_allows_tiles() {
#if defined(__linux__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx >> 27 & 1u) == 0)
    return false;  // OSXSAVE
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;
  if ((low & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

bool keeps_amx_order(const GemmKernels& kernels) {
  uint32_t seed = 0;
  for (const Data data : kAllData) {
    for (const Sample& sample : kSamples) {
      const Problem problem(sample, data, ++seed);
      const std::vector<float> want = problem.run(kGemmAmxModel, true);
      for (const bool b_by_rows : {true, false}) {
        if (!same(problem.run(kernels, b_by_rows), want)) return false;
      }
    }
  }
  return true;
}

bool has_avx512() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
#else
  return false;
#endif
}

bool has_avx512bf16() {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

std::string_view probe_amx() {
#if defined(__x86_64__)
  if (!has_tiles() || !has_avx512bf16()) return "no AMX";
  if (!kernel_allows_tiles()) return "the kernel refused tiles";
  return keeps_amx_order(kGemmAmx) ? "" : "self test failed";
#else
  return "no AMX";
#endif
}

std::string_view probe_avx512bf16() {
#if defined(__x86_64__)
  if (!has_avx512bf16()) return "no AVX512-BF16";
  return keeps_amx_order(kGemmAvx512Bf16) ? "" : "self test failed";
#else
  return "no AVX512-BF16";
#endif
}

bool is_amd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace twinrun
