// Attributes of HLO instructions, from text to numbers, for the rules that lower them. Malformed
// attributes throw Unsupported.
//
//   const Dims dims = list_attribute(in, "dimensions");       // {0, 1} of dimensions={0,1}
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program/import/hlo_module.h"

namespace twinrun {

// Thrown while one instruction is lowered. Says what was found and what is allowed.
struct Unsupported {
  std::string what;
};

// "{0,1}" -> {0, 1}. An absent attribute is an error if it is required, else {}.
Dims list_attribute(const HloInstruction& in, const std::string& key, bool required = true);
int64_t number_attribute(const HloInstruction& in, const std::string& key,
                         std::optional<int64_t> otherwise = std::nullopt);
std::string text_attribute(const HloInstruction& in, const std::string& key,
                           const std::string& otherwise = "");

// window={size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0}
struct HloWindow {
  Dims size, stride, pad_low, pad_high, lhs_dilate, rhs_dilate, reversal;
};
HloWindow window_attribute(const HloInstruction& in, size_t rank);

// dim_labels=b01f_01io->b01f: the positions of the dimensions of both operands and of the result.
struct ConvolutionLabels {
  int64_t lhs_batch = -1, lhs_feature = -1, rhs_input = -1, rhs_output = -1, out_batch = -1,
          out_feature = -1;
  Dims lhs_spatial, rhs_spatial, out_spatial;
};
ConvolutionLabels labels_attribute(const HloInstruction& in);

// padding=0_1_2x0_0: low, high and interior of each dimension.
struct HloPadding {
  Dims low, high, interior;
};
HloPadding padding_attribute(const HloInstruction& in, size_t rank);

// slice={[0:5:2], [1:3]}
struct HloSlice {
  Dims start, limit, stride;
};
HloSlice slice_attribute(const HloInstruction& in, size_t rank);

}  // namespace twinrun
