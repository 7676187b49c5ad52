// Evaluates ops through the files of this folder, and compares a subject's results with the bounds.
#include "backends/oracle/oracle.h"

#include <algorithm>
#include <cmath>

#include "backends/kernels/intrinsics.h"
#include "backends/oracle/internal.h"

namespace twinrun {
namespace {

bool any_wide(std::span<const Tensor> inputs) {
  return std::ranges::any_of(inputs, [](const Tensor& t) { return t.dtype() == DType::kF64; });
}

// Ops whose elements are computed from a few elements of the operands, and so are cheap to
// recompute in blocks.
bool pointwise(OpKind kind) {
  const OpClass c = class_of(kind);
  return kind != OpKind::kParameter && kind != OpKind::kSortOrder &&
         (c == OpClass::kSource || c == OpClass::kRandom || c == OpClass::kMove ||
          c == OpClass::kElementwise);
}

// True if every |x - value| is at most most * radius and all of them are numbers: then no element
// is worse than `most`.
bool none_beyond(const float* x, const double* value, const double* radius, int64_t n,
                 double most) {
  const __m256d factor = _mm256_set1_pd(most), sign = _mm256_set1_pd(-0.0),
                huge = _mm256_set1_pd(oracle::kInfinity);
  __m256d bad = _mm256_setzero_pd();
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256d r = _mm256_loadu_pd(radius + i);
    const __m256d gap = _mm256_andnot_pd(
        sign, _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), _mm256_loadu_pd(value + i)));
    bad = _mm256_or_pd(bad, _mm256_cmp_pd(gap, _mm256_mul_pd(r, factor), _CMP_NLE_UQ));
    bad = _mm256_or_pd(bad, _mm256_cmp_pd(r, huge, _CMP_NLT_UQ));
  }
  bool good = _mm256_movemask_pd(bad) == 0;
  for (; i < n; ++i) {
    good = good && std::fabs(x[i] - value[i]) <= radius[i] * most && oracle::finite(radius[i]);
  }
  return good;
}

// Judges elements [begin, end) of the subject; value[0] and radius[0] belong to element `begin`.
void judge_range(const double* value, const double* radius, const Tensor& subject, int64_t begin,
                 int64_t end, OracleVerdict& verdict) {
  verdict.elements += end - begin;
  const bool f32 = subject.dtype() == DType::kF32;
  constexpr int64_t kStretch = 256;
  for (int64_t from = begin; from < end; from += kStretch) {
    const int64_t to = std::min(end, from + kStretch);
    // Fast path: skip a stretch without an element that is worse than the worst so far. A ratio
    // that only rounds up to the worst so far is not worse.
    if (f32 && verdict.worst_element >= 0 && verdict.worst <= 1 &&
        none_beyond(subject.as<float>().data() + from, value + (from - begin),
                    radius + (from - begin), to - from, verdict.worst)) {
      continue;
    }
    for (int64_t i = from; i < to; ++i) {
      const double v = value[i - begin], r = radius[i - begin];
      const double x = number_at(subject, i);
      if (!oracle::finite(r)) {
        ++verdict.untestable;
        continue;
      }
      verdict.note(i, x, {v, r}, oracle::ratio(x, {v, r}));
    }
  }
}

// Judges ranges of the subject in parallel and combines the verdicts in order, so that of equally
// bad elements the first one is reported, whatever the number of threads.
template <typename F>
OracleVerdict judge_ranges(const Tensor& subject, ThreadPool* pool, F of_range) {
  const int64_t n = subject.elements();
  std::vector<OracleVerdict> parts(static_cast<size_t>((n + oracle::kRange - 1) / oracle::kRange));
  oracle::in_ranges(pool, n, [&](int64_t begin, int64_t end) {
    of_range(begin, end, parts[static_cast<size_t>(begin / oracle::kRange)]);
  });
  OracleVerdict all;
  for (const OracleVerdict& part : parts) all.add(part);
  return all;
}

// Evaluates a pointwise op in blocks that fit in L1, and calls f(estimates, begin, end) for each.
template <typename F>
void in_blocks(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
               ThreadPool* pool, unsigned unrounded, int64_t begin, int64_t end, F f) {
  constexpr int64_t kBlock = 1024;
  static thread_local OracleResult block{std::vector<double>(kBlock), std::vector<double>(kBlock)};
  const bool wide = any_wide(inputs);
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t stop = std::min(end, i + kBlock);
    oracle::eval_pointwise({declared, op, inputs, pool, block, wide, i, unrounded}, i, stop);
    f(block, i, stop);
  }
}

// Evaluates an op that is not pointwise, as a whole.
void whole_op(const oracle::Call& call) {
  switch (call.op.kind) {
    case OpKind::kParameter:  // given, not computed: there is nothing to compare it with
      if (call.bounded) std::ranges::fill(call.out.radius, oracle::kInfinity);
      break;
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
      oracle::eval_dot(call);
      break;
    case OpKind::kReduce:
      oracle::eval_reduce(call);
      break;
    case OpKind::kSortOrder:
      oracle::eval_sort_order(call);
      break;
    case OpKind::kScatterAdd:
      oracle::eval_scatter_add(call);
      break;
    case OpKind::kReduceWindow:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      oracle::eval_window(call);
      break;
    case OpKind::kAllReduce:
      oracle::eval_all_reduce(call);
      break;
    default:
      break;
  }
}

}  // namespace

OracleResult eval_op(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     ThreadPool* pool, unsigned unrounded) {
  OracleResult result;
  const auto n = static_cast<size_t>(op.type.elements());
  result.value.resize(n);
  result.radius.resize(n);
  const oracle::Call call{declared, op, inputs, pool, result, any_wide(inputs), 0, unrounded};
  if (pointwise(op.kind)) {
    oracle::in_ranges(pool, op.type.elements(), [&](int64_t begin, int64_t end) {
      oracle::eval_pointwise(call, begin, end);
    });
    return result;
  }
  whole_op(call);
  return result;
}

Tensor eval_value(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                  ThreadPool* pool) {
  const DType dtype = op.type.dtype;
  const bool exact = dtype == DType::kI32 || dtype == DType::kPred;
  const DType stored = exact ? dtype : DType::kF64;
  if (op.kind == OpKind::kReshape && inputs[0].dtype() == stored)
    return inputs[0].reshaped(op.type.dims);
  Tensor out = Tensor::empty({stored, op.type.dims});
  const bool wide = any_wide(inputs);
  OracleResult none;
  if (!exact) {
    double* const to = out.as<double>().data();
    const oracle::Call call{declared, op, inputs, pool, none, wide, 0, 0, false, to};
    if (!pointwise(op.kind)) {
      whole_op(call);
      return out;
    }
    oracle::in_ranges(pool, out.elements(), [&](int64_t begin, int64_t end) {
      oracle::eval_pointwise(call, begin, end);
    });
    return out;
  }
  const auto put = [&](const double* values, int64_t begin, int64_t end) {
    if (dtype == DType::kI32) {
      std::transform(values, values + (end - begin), out.as<int32_t>().data() + begin,
                     [](double x) { return static_cast<int32_t>(x); });
    } else {
      std::transform(values, values + (end - begin), out.as<uint8_t>().data() + begin,
                     [](double x) { return x != 0; });
    }
  };
  if (!pointwise(op.kind)) {
    std::vector<double> values(static_cast<size_t>(out.elements()));
    whole_op({declared, op, inputs, pool, none, wide, 0, 0, false, values.data()});
    put(values.data(), 0, out.elements());
    return out;
  }
  oracle::in_ranges(pool, out.elements(), [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 1024;
    double values[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t stop = std::min(end, i + kBlock);
      oracle::eval_pointwise({declared, op, inputs, pool, none, wide, i, 0, false, values}, i,
                             stop);
      put(values, i, stop);
    }
  });
  return out;
}

OracleVerdict judge(const OracleResult& oracle, const Tensor& subject, ThreadPool* pool) {
  return judge_ranges(subject, pool, [&](int64_t begin, int64_t end, OracleVerdict& verdict) {
    judge_range(oracle.value.data() + begin, oracle.radius.data() + begin, subject, begin, end,
                verdict);
  });
}

OracleVerdict replay(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     const Tensor& subject, ThreadPool* pool, unsigned unrounded) {
  if (!pointwise(op.kind)) return judge(eval_op(declared, op, inputs, pool), subject, pool);
  return judge_ranges(subject, pool, [&](int64_t begin, int64_t end, OracleVerdict& verdict) {
    in_blocks(declared, op, inputs, pool, unrounded, begin, end,
              [&](const OracleResult& block, int64_t from, int64_t to) {
                judge_range(block.value.data(), block.radius.data(), subject, from, to, verdict);
              });
  });
}

}  // namespace twinrun
