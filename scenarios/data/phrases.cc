// `phrases`: procedural token sequences of unequal length, for embedding models. Token 0 is
// padding. Each class has tokens of its own, its markers; the rest belongs to no class:
//
//   markers of class c = 1 + c*m .. 1 + c*m + m-1     m = (vocabulary - 1) / (2 * classes)
//   noise              = 1 .. vocabulary-1            every token that is not padding
//
// Sample i has class i mod classes and length 4 .. T. Each of its tokens is a marker of its class
// with probability 1/4 and noise otherwise; at one random position it is always a marker. So every
// sample can be classified, but noise includes markers of other classes, and a single token decides
// little. With probability 1/2 a length is the smaller of two draws, so that most are short and
// cores that share a batch get unequal numbers of tokens.
#include <fmt/format.h>

#include <algorithm>

#include "scenarios/data/draws.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr int64_t kShortest = 4;
constexpr int64_t kMaxTokens = int64_t{1} << 28;

Samples make(const DataRequest& request, int64_t count, uint32_t first) {
  const int64_t longest = request.window;
  const auto markers = static_cast<uint32_t>((request.vocabulary - 1) / (2 * request.classes));
  Samples out{Tensor::zeros({DType::kI32, {count, longest}}), Tensor::empty({DType::kI32, {count}}),
              Tensor::zeros({DType::kF32, {count, longest}})};
  for (int64_t i = 0; i < count; ++i) {
    Draws draws({request.seed, kStreamPhrases}, 0, first + static_cast<uint32_t>(i));
    const auto label = static_cast<uint32_t>(i % request.classes);  // balanced
    const auto lengths = static_cast<uint32_t>(longest - kShortest + 1);
    uint32_t extra = draws.below(lengths);
    if (draws.below(2) == 1) extra = std::min(extra, draws.below(lengths));
    const int64_t length = kShortest + extra;
    const int64_t sure = draws.below(static_cast<uint32_t>(length));
    int32_t* const tokens = out.features.as<int32_t>().data() + i * longest;
    float* const weights = out.weights.as<float>().data() + i * longest;
    for (int64_t t = 0; t < length; ++t) {
      const bool marker = draws.below(4) == 0 || t == sure;
      tokens[t] = static_cast<int32_t>(
          marker ? 1 + label * markers + draws.below(markers)
                 : 1 + draws.below(static_cast<uint32_t>(request.vocabulary - 1)));
      weights[t] = 1.0f;
    }
    out.labels.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(label);
  }
  return out;
}

}  // namespace

Result<Pool> phrases_pool(const DataRequest& request) {
  TWINRUN_RETURN_IF_ERROR(check_classes(request, 2, 64));
  TWINRUN_ASSIGN(const Counts counts, procedural_counts(request));
  const int64_t most = kMaxTokens / std::max(counts.train, counts.eval);
  if (request.window < kShortest || request.window > most) {
    return Error{
        fmt::format("data.window is {}; allowed for phrases with so many samples: {} to {}",
                    request.window, kShortest, most),
        request.where, "set data.window = 16"};
  }
  const int64_t least = 2 * request.classes + 1;
  if (request.vocabulary < least || request.vocabulary > (1 << 24)) {
    return Error{fmt::format("data.vocabulary is {}; allowed for phrases of {} classes: {} to {}",
                             request.vocabulary, request.classes, least, 1 << 24),
                 request.where,
                 fmt::format("set data.vocabulary = {}", std::max<int64_t>(64, least))};
  }
  Pool pool{make(request, counts.train, 0), make(request, counts.eval, kHeldOut), "phrases"};
  pool.vocabulary = request.vocabulary;
  return pool;
}

}  // namespace twinrun::data
