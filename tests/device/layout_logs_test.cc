// Tests layouts against sizes that out-of-memory messages of TPUs print: shape, layout, padded and
// unpadded size, expansion. The logs are public and cited by repository and issue. Equal shapes are
// listed once; u32 is written as i32 here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "device/layout.h"
#include "program/base/sizes.h"

namespace twinrun::tpu {
namespace {

struct Allocation {
  TensorType type;
  std::vector<int64_t> minor_to_major;
  const char* layout;  // as printed; where the log shows no tiles, as newer logs print it
  const char* size;
  const char* unpadded;
  const char* expansion;  // "": the log shows no padding
  const char* source;
};

std::vector<Allocation> logged() {
  const auto f32 = [](Dims dims) { return TensorType{DType::kF32, std::move(dims)}; };
  const auto s32 = [](Dims dims) { return TensorType{DType::kI32, std::move(dims)}; };
  const auto bf16 = [](Dims dims) { return TensorType{DType::kBF16, std::move(dims)}; };
  const char* colab = "sokrypton/ColabFold issue 62 (v2)";
  const char* unet = "tensorflow/tensorflow issue 30803 (v3)";
  const char* retina = "a RetinaNet's log in a public repository, 2019 (v3)";
  const char* onehot = "a blog post on padding, copied in a public repository (v3)";
  return {
      {f32({512, 245, 256}),
       {2, 1, 0},
       "f32[512,245,256]{2,1,0:T(8,128)}",
       "124.00M",
       "122.50M",
       "1.0x",
       colab},
      {f32({1024, 245, 64}),
       {1, 2, 0},
       "f32[1024,245,64]{1,2,0:T(8,128)}",
       "64.00M",
       "61.25M",
       "1.0x",
       colab},
      {s32({8388608, 8, 4}),
       {2, 1, 0},
       "s32[8388608,8,4]{2,1,0:T(8,128)}",
       "32.00G",
       "1.00G",
       "32.0x",
       "DifferentiableUniverseInitiative/flowpm issue 27 (v3)"},
      {f32({256, 512, 128, 2}),
       {3, 2, 1, 0},
       "f32[256,512,128,2]{3,2,1,0:T(8,128)}",
       "8.00G",
       "128.00M",
       "64.0x",
       unet},
      {f32({32, 128, 32, 64}),
       {3, 0, 2, 1},
       "f32[32,128,32,64]{3,0,2,1:T(8,128)}",
       "64.00M",
       "32.00M",
       "2.0x",
       unet},
      {s32({12582912, 1}),
       {1, 0},
       "s32[12582912,1]{1,0:T(8,128)}",
       "6.00G",
       "48.00M",
       "128.0x",
       "pytorch/xla issue 1965 (v3)"},
      {bf16({512, 16, 3072}),
       {2, 1, 0},
       "bf16[512,16,3072]{2,1,0:T(8,128)(2,1)}",
       "48.00M",
       "48.00M",
       "",
       "pytorch/xla issue 1965 (v3)"},
      {f32({4, 128, 128, 9, 18}),
       {4, 3, 0, 2, 1},
       "f32[4,128,128,9,18]{4,3,0,2,1:T(8,128)}",
       "512.00M",
       "40.50M",
       "12.6x",
       retina},
      {f32({4, 256, 256, 256}),
       {3, 0, 2, 1},
       "f32[4,256,256,256]{3,0,2,1:T(4,128)}",
       "256.00M",
       "256.00M",
       "",
       retina},
      {f32({4, 256, 256, 64}),
       {3, 0, 2, 1},
       "f32[4,256,256,64]{3,0,2,1:T(4,128)}",
       "128.00M",
       "64.00M",
       "2.0x",
       retina},
      {bf16({4, 512, 512, 64}),
       {3, 0, 2, 1},
       "bf16[4,512,512,64]{3,0,2,1:T(4,128)(2,1)}",
       "256.00M",
       "128.00M",
       "2.0x",
       retina},
      {bf16({4, 256, 256, 256}),
       {3, 0, 2, 1},
       "bf16[4,256,256,256]{3,0,2,1:T(4,128)(2,1)}",
       "128.00M",
       "128.00M",
       "",
       retina},
      {s32({29360128, 10}),
       {1, 0},
       "s32[29360128,10]{1,0:T(8,128)}",
       "14.00G",
       "1.09G",
       "12.8x",
       onehot},
      {f32({128, 256, 896, 18}),
       {0, 3, 2, 1},
       "f32[128,256,896,18]{0,3,2,1:T(8,128)}",
       "2.62G",
       "1.97G",
       "1.3x",
       onehot},
      {f32({29184, 2, 2560}),
       {2, 1, 0},
       "f32[29184,2,2560]{2,1,0:T(2,128)}",
       "570.00M",
       "570.00M",
       "",
       "pytorch/xla issue 3041"},
      {f32({29184, 1, 2560}),
       {2, 1, 0},
       "f32[29184,1,2560]{2,1,0:T(2,128)}",
       "570.00M",
       "285.00M",
       "2.0x",
       "pytorch/xla issue 3041"},
      {bf16({2048, 1, 2048, 128}),
       {0, 1, 3, 2},
       "bf16[2048,1,2048,128]{0,1,3,2:T(4,128)(2,1)}",
       "4.00G",
       "1.00G",
       "4.0x",
       "pytorch/xla issue 6674 (v3)"},
      {bf16({16, 4096, 4096}),
       {1, 2, 0},
       "bf16[16,4096,4096]{1,2,0:T(8,128)(2,1)}",
       "512.00M",
       "512.00M",
       "",
       "huggingface/diffusers issue 856 (v2)"},
      {f32({1, 524288, 512}),
       {2, 1, 0},
       "f32[1,524288,512]{2,1,0:T(8,128)}",
       "1.00G",
       "1.00G",
       "",
       "google/trax issue 1343"},
      {f32({524288, 512}),
       {1, 0},
       "f32[524288,512]{1,0:T(8,128)}",
       "1.00G",
       "1.00G",
       "",
       "google/trax issue 1343"},
  };
}

TEST(LayoutLogs, PaddedAndUnpaddedSizes) {
  int cases = 0;
  for (const Allocation& a : logged()) {
    const Layout layout = with_order(a.type, a.minor_to_major);
    const auto unpadded = static_cast<int64_t>(a.type.bytes());
    const int64_t padded = padded_bytes(a.type, layout);
    EXPECT_EQ(to_string(a.type, layout), a.layout) << a.source;
    EXPECT_EQ(size_text(padded), a.size) << a.layout;
    EXPECT_EQ(size_text(unpadded), a.unpadded) << a.layout;
    const std::string expansion =
        padded == unpadded
            ? ""
            : fmt::format("{:.1f}x", static_cast<double>(padded) / static_cast<double>(unpadded));
    EXPECT_EQ(expansion, a.expansion) << a.layout;
    ++cases;
  }
  EXPECT_GE(cases, 16);
}

// The layouts that the compiler chose for activations of convolutions have the padded size of the
// layout that we call the smallest.
TEST(LayoutLogs, ConvolutionsHaveBatchAndFeaturesOnTiles) {
  for (const Allocation& a : logged()) {
    const auto& order = a.minor_to_major;
    if (a.type.rank() != 4 || order[0] + order[1] != 3 || order[0] * order[1] != 0) continue;
    EXPECT_EQ(padded_bytes(a.type, smallest_layout(a.type)),
              padded_bytes(a.type, with_order(a.type, order)))
        << a.layout;
  }
}

TEST(LayoutLogs, OneDimensionAndNone) {
  const auto text = [](DType dtype, Dims dims) {
    const TensorType type{dtype, std::move(dims)};
    return to_string(type, default_layout(type));
  };
  // The first five are from the RetinaNet log and trax issue 1343; the bf16 scalar is from the same
  // log.
  EXPECT_EQ(text(DType::kF32, {64}), "f32[64]{0:T(256)}");
  EXPECT_EQ(text(DType::kF32, {256}), "f32[256]{0:T(256)}");
  EXPECT_EQ(text(DType::kF32, {512}), "f32[512]{0:T(512)}");
  EXPECT_EQ(text(DType::kF32, {524288}), "f32[524288]{0:T(1024)}");
  EXPECT_EQ(text(DType::kF32, {}), "f32[]{:T(256)}");
  EXPECT_EQ(text(DType::kBF16, {}), "bf16[]{:T(512)(2,1)}");
  EXPECT_EQ(padded_bytes({DType::kF32, {257}}, default_layout({DType::kF32, {257}})), 512 * 4);
}

TEST(Sizes, AsXlaPrintsThem) {
  EXPECT_EQ(size_text(0), "0B");
  EXPECT_EQ(size_text(512), "512B");
  EXPECT_EQ(size_text(4096), "4.0K");
  EXPECT_EQ(size_text(530LL << 20), "530.00M");
  EXPECT_EQ(size_text((8LL << 30) - (128LL << 20)),
            "7.88G");                         // 7.875, as in the log of issue 30803
  EXPECT_EQ(size_text(21LL << 27), "2.62G");  // 2.625
}

}  // namespace
}  // namespace twinrun::tpu
