// Products of 32 x 32 tiles on AMX: four accumulators, two tiles of A, two of B. The instructions
// are written as asm, because GCC 12's intrinsics need a literal for a tile's number and do not say
// that a load reads memory.
#include "backends/kernels/gemm_amx_tiles.h"
#include "backends/kernels/gemm_images_avx512bf16.h"

namespace twinrun {
namespace {

// What LDTILECFG reads: palette 1, tiles 0 to 7 of 16 rows x 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Configures this thread's tiles on construction and releases them on destruction.
class AmxUnit {
 public:
  AmxUnit() { asm volatile("ldtilecfg %0" ::"m"(kConfig)); }
  ~AmxUnit() { asm volatile("tilerelease" ::: "memory"); }
  AmxUnit(const AmxUnit&) = delete;
  AmxUnit& operator=(const AmxUnit&) = delete;

  template <int T>
  TWINRUN_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  TWINRUN_INLINE void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
  }
  template <int T>
  TWINRUN_INLINE void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
  }
  template <int C, int A, int B>
  TWINRUN_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace

const GemmKernels kGemmAmx = {.rows = 32,
                              .lanes = 16,
                              .packing = Packing::kPairs,
                              .block = multiply_tiles<AmxUnit, RoundedImages<Packing::kPairs>>,
                              .rounds_a = true,
                              .packers = &kImagePackers<Packing::kPairs>};

}  // namespace twinrun
