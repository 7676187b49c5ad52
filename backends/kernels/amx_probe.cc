// Detects AVX-512 and AMX, and tests that AMX products have the bits of the model.
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

enum class Data { kPlain, kWide, kCancelling, kTiny, kDenormal, kSpecial, kSmallestNormal };
constexpr Data kAllData[] = {Data::kPlain,    Data::kWide,    Data::kCancelling,    Data::kTiny,
                             Data::kDenormal, Data::kSpecial, Data::kSmallestNormal};

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
      case Data::kSpecial: {
        constexpr uint16_t kSpecial[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0xFF7F, 0x8000};
        return pick % 96 < 6 ? kSpecial[pick % 96] : number(120, 10);
      }
      default:
        return number(120, 10);
    }
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
    const int padded = (s.k + 31) / 32 * 32;
    std::vector<uint16_t> a(static_cast<size_t>(s.rows * s.k)),
        b(static_cast<size_t>(s.k * s.columns));
    for (uint16_t& x : a) x = source.draw(data);
    for (uint16_t& x : b) x = source.draw(data);
    // Operands of k repeat those of k - 1 (the other chain) or of k - 2 (the last of its own
    // chain), a with the sign changed and b sometimes with the last bit changed, so that products
    // cancel wholly or nearly.
    if (data == Data::kCancelling) {
      for (int k = 2; k < s.k; ++k) {
        const int other = k - 1 - k / 2 % 2;
        for (int i = 0; i < s.rows; ++i) at(a, i * s.k + k) = at(a, i * s.k + other) ^ 0x8000u;
        for (int j = 0; j < s.columns; ++j)
          at(b, k * s.columns + j) =
              static_cast<uint16_t>(at(b, other * s.columns + j) ^ (source.next() % 3 == 0));
      }
    }
    // Each chain gives 2^-126 - 2^-151 * (1 to 4), which may or may not be tiny after rounding.
    if (data == Data::kSmallestNormal) {
      for (int k = 0; k < s.k; ++k) {
        for (int i = 0; i < s.rows; ++i)
          at(a, i * s.k + k) = static_cast<uint16_t>(k < 2 ? 0x2000 : k < 4 ? 0x1980 + i * 4 : 0);
        for (int j = 0; j < s.columns; ++j)
          at(b, k * s.columns + j) = static_cast<uint16_t>(k < 2 ? 0x2000 : 0x9A00 + j * 4);
      }
    }
    a_.resize(a.size());
    offsets_.resize(static_cast<size_t>(s.k));
    for (int k = 0; k < s.k; ++k) {
      at(offsets_, k) = s.by_columns ? k * s.rows : k;
      for (int i = 0; i < s.rows; ++i)
        at(a_, s.by_columns ? k * s.rows + i : i * s.k + k) = bf16_to_f32(at(a, i * s.k + k));
    }
    const int tiles = s.columns > 16 ? 2 : 1;
    b_.resize(static_cast<size_t>(padded * tiles * 8));
    for (int k = 0; k < s.k; ++k) {
      for (int j = 0; j < s.columns; ++j) {
        const int word = (k / 32 * tiles + j / 16) * 256 + k % 32 / 2 * 16 + j % 16;
        const uint32_t half = at(b, k * s.columns + j);
        at(b_, word) = from_bits(to_bits(at(b_, word)) | half << (k % 2 * 16));
      }
    }
    c_.resize(static_cast<size_t>(s.rows * kStride));
    for (float& x : c_) x = bf16_to_f32(source.number(120, 10));
  }

  std::vector<float> run(GemmBlockFunction block) const {
    std::vector<float> c = c_;
    std::vector<uint16_t> images(kImageTiles * kImageSize + 32);
    const size_t misaligned = reinterpret_cast<uintptr_t>(images.data()) % 64 / 2;
    const RowTile tile{0, 0, sample_.rows};
    const int64_t row_stride = sample_.by_columns ? 1 : sample_.k;
    const BlockProduct p{a_.data(), row_stride, offsets_.data(), sample_.k,     b_.data(),
                         c.data(),  kStride,    sample_.columns, sample_.start, sample_.finish};
    block(p, &tile, 1, images.data() + (32 - misaligned) % 32, true);
    return c;
  }

 private:
  static constexpr int kStride = 40;
  template <typename T>
  static T& at(std::vector<T>& v, int i) {
    return v[static_cast<size_t>(i)];
  }
  Sample sample_;
  std::vector<float> a_, b_, c_;
  std::vector<int64_t> offsets_;
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

bool keeps_amx_order(GemmBlockFunction block) {
  uint32_t seed = 0;
  for (const Data data : kAllData) {
    for (const Sample& sample : kSamples) {
      const Problem problem(sample, data, ++seed);
      if (!same(problem.run(block), problem.run(kGemmAmxModel.block))) return false;
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

std::string_view probe_amx() {
#if defined(__x86_64__)
  if (!has_tiles() || !has_avx512()) return "no AMX";
  if (!kernel_allows_tiles()) return "the kernel refused tiles";
  return keeps_amx_order(kGemmAmx.block) ? "" : "self test failed";
#else
  return "no AMX";
#endif
}

}  // namespace twinrun
