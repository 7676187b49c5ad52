// The screen of ops that only move or generate bits: every byte must be right.
#include "backends/oracle/screen_internal.h"
#include "backends/oracle/stretches.h"
#include "program/base/philox.h"

namespace twinrun::screen {
namespace {

// A strided read of the operand: the result's element at index (i0, i1, ...) is the operand's
// element sum of i * stride. Adjacent dimensions with matching strides are merged.
struct Walk {
  Dims sizes, strides;

  void push(int64_t size, int64_t stride) {
    if (size == 1) return;
    if (!sizes.empty() && strides.back() == size * stride) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
  Walk(const Op& op, const Dims& from) {
    Dims stride(from.size(), 1), of_result(op.type.dims.size(), 0);
    for (size_t d = from.size(); d-- > 1;) stride[d - 1] = stride[d] * from[d];
    for (size_t d = 0; d < from.size(); ++d) {
      if (op.kind == OpKind::kBroadcastInDim && from[d] != 1)
        of_result[static_cast<size_t>(op.attrs.dims[d])] = stride[d];
    }
    for (size_t d = 0; d < of_result.size(); ++d) {
      if (op.kind == OpKind::kTranspose)
        of_result[d] = stride[static_cast<size_t>(op.attrs.dims[d])];
      push(op.type.dims[d], of_result[d]);
    }
    if (sizes.empty()) push(2, 0), sizes[0] = 1;
  }
  int64_t at(int64_t i, size_t dimensions) const {
    int64_t offset = 0;
    for (size_t d = dimensions; d-- > 0;) {
      offset += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return offset;
  }
};

template <typename T>
bool row_equal(const T* x, int64_t stride, const T* y, int64_t n) {
  if (stride == 1 && n >= 64) return same_bytes(x, y, static_cast<size_t>(n) * sizeof(T));
  T differ = 0;
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) differ |= static_cast<T>(x[i] ^ y[i]);
  } else if (stride == 0) {
    const T same = *x;
    for (int64_t i = 0; i < n; ++i) differ |= static_cast<T>(same ^ y[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) differ |= static_cast<T>(x[i * stride] ^ y[i]);
  }
  return differ == 0;
}

template <typename T>
bool walked(const Call& call) {
  const Walk walk(call.op, call.inputs[0].dims());
  const auto* x = reinterpret_cast<const T*>(call.inputs[0].raw());
  const auto* y = reinterpret_cast<const T*>(call.output.raw());
  const size_t outer = walk.sizes.size() - 1;
  const int64_t length = walk.sizes[outer], stride = walk.strides[outer];
  if (outer == 0) {
    return all_ranges(call.pool, length, kRange, [&](int64_t begin, int64_t end) {
      return row_equal(x + begin * stride, stride, y + begin, end - begin);
    });
  }
  // Rows run along the innermost dimension; the next outer one is stepped through without division.
  const int64_t rows = walk.sizes[outer - 1], step = walk.strides[outer - 1];
  const int64_t slabs = call.output.elements() / (length * rows);
  const int64_t cut = std::max<int64_t>(1, kRange / length);  // rows of a piece
  const int64_t cuts = (rows + cut - 1) / cut;
  return all_pieces(call.pool, slabs * cuts, [&](int64_t piece) {
    const int64_t slab = piece / cuts, begin = piece % cuts * cut,
                  end = std::min(rows, begin + cut);
    const T* from = x + walk.at(slab, outer - 1);
    const T* to = y + slab * rows * length;
    // A transposed plane: compare in tiles, so that all of each cache line is used.
    if (step == 1 && stride > 1) {
      for (int64_t j = 0; j < length; j += 64) {
        const int64_t n = std::min<int64_t>(64, length - j);
        for (int64_t r = begin; r < end; ++r) {
          if (!row_equal(from + r + j * stride, stride, to + r * length + j, n)) return false;
        }
      }
      return true;
    }
    for (int64_t r = begin; r < end; ++r) {
      if (!row_equal(from + r * step, stride, to + r * length, length)) return false;
    }
    return true;
  });
}

template <typename T>
bool selected(const Call& call) {
  const uint8_t* p = call.inputs[0].as<uint8_t>().data();
  const auto* a = reinterpret_cast<const T*>(call.inputs[1].raw());
  const auto* b = reinterpret_cast<const T*>(call.inputs[2].raw());
  const auto* y = reinterpret_cast<const T*>(call.output.raw());
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    T differ = 0;
    for (int64_t i = begin; i < end; ++i) {
      const T mask = p[i] != 0 ? static_cast<T>(~T{0}) : T{0};
      differ |= static_cast<T>(((a[i] ^ b[i]) & mask) ^ b[i] ^ y[i]);
    }
    return differ == 0;
  });
}

// concatenate, slice, pad, gather
bool stretches(const Call& call) {
  const size_t size = size_of(call.output.dtype());
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    bool good = true;
    oracle::for_each_stretch(
        call.op, call.inputs, begin, end, [&](int64_t i, int which, int64_t at, int64_t count) {
          const std::byte* y = call.output.raw() + static_cast<size_t>(i) * size;
          const size_t bytes = static_cast<size_t>(count) * size;
          good = good && (which < 0 ? std::all_of(y, y + bytes,
                                                  [](std::byte b) { return b == std::byte{}; })
                                    : same_bytes(y,
                                                 call.inputs[static_cast<size_t>(which)].raw() +
                                                     static_cast<size_t>(at) * size,
                                                 bytes));
        });
    return good;
  });
}

// negate and abs: the result is (x & keep) ^ turn. For a NaN, any NaN is accepted.
template <typename T>
bool signs(const Call& call, T keep, T turn, T infinity) {
  const auto* x = reinterpret_cast<const T*>(call.inputs[0].raw());
  const auto* y = reinterpret_cast<const T*>(call.output.raw());
  const T magnitude = static_cast<T>(~T{0}) >> 1;
  return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
    T differ = 0;
    for (int64_t i = begin; i < end; ++i) differ |= static_cast<T>(((x[i] & keep) ^ turn) ^ y[i]);
    if (differ == 0) return true;
    for (int64_t i = begin; i < end; ++i) {
      const bool both = (x[i] & magnitude) > infinity && (y[i] & magnitude) > infinity;
      if (((x[i] & keep) ^ turn) != y[i] && !both) return false;
    }
    return true;
  });
}

bool sign_op(const Call& call) {
  const bool abs = call.op.kind == OpKind::kAbs;
  switch (call.output.dtype()) {
    case DType::kF32:
      return signs<uint32_t>(call, abs ? 0x7FFFFFFFu : ~0u, abs ? 0 : 0x80000000u, 0x7F800000u);
    case DType::kBF16:
      return signs<uint16_t>(call, abs ? 0x7FFF : 0xFFFF, abs ? 0 : 0x8000, 0x7F80);
    case DType::kI32: {
      const int32_t* x = call.inputs[0].as<int32_t>().data();
      const int32_t* y = call.output.as<int32_t>().data();
      return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
        uint32_t differ = 0;
        for (int64_t i = begin; i < end; ++i) {
          const auto u = static_cast<uint32_t>(x[i]);
          differ |= (!abs || x[i] < 0 ? 0u - u : u) ^ static_cast<uint32_t>(y[i]);
        }
        return differ == 0;
      });
    }
    default:
      return true;
  }
}

// Calls f<T>(call), where T is the unsigned integer of the element's size.
#define BY_SIZE(f, call)                    \
  switch (size_of((call).output.dtype())) { \
    case 1:                                 \
      return f<uint8_t>(call);              \
    case 2:                                 \
      return f<uint16_t>(call);             \
    case 4:                                 \
      return f<uint32_t>(call);             \
    default:                                \
      return f<uint64_t>(call);             \
  }
bool walk_of(const Call& call) { BY_SIZE(walked, call) }
bool select_of(const Call& call) { BY_SIZE(selected, call) }
#undef BY_SIZE

// ---- sources

// The bits of a constant or an index, stored as dtype.
uint32_t bits_of(double x, DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return x != 0;
    case DType::kI32:
      return static_cast<uint32_t>(
          x != x ? 0 : static_cast<int32_t>(std::clamp(x, -0x1p31, 0x1p31 - 1)));
    case DType::kBF16:
      return bf16_round(static_cast<float>(x));
    default:
      return to_bits(static_cast<float>(x));
  }
}
template <typename T>
bool splat(const T* y, uint32_t bits, int64_t n) {
  const T want = static_cast<T>(bits);
  return row_equal(&want, 0, y, n);
}
bool run_of(const Call& call, int64_t begin, int64_t n, double value) {
  if (value != value) return true;
  const uint32_t bits = bits_of(value, call.output.dtype());
  switch (size_of(call.output.dtype())) {
    case 1:
      return splat(call.output.as<uint8_t>().data() + begin, bits, n);
    case 2:
      return splat(call.output.as<uint16_t>().data() + begin, bits, n);
    default:
      return splat(call.output.as<uint32_t>().data() + begin, bits, n);
  }
}

bool iota(const Call& call) {
  const auto axis = static_cast<size_t>(call.op.attrs.dims[0]);
  const Dims& dims = call.output.dims();
  int64_t inner = 1;
  for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  const int64_t range = std::max<int64_t>(1, kRange / inner);
  return all_ranges(call.pool, call.output.elements() / inner, range,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        if (!run_of(call, i * inner, inner, static_cast<double>(i % dims[axis])))
                          return false;
                      }
                      return true;
                    });
}

// Philox4x32-10 for eight consecutive counters at once (program/base/philox.cc computes one at a
// time).
constexpr int kLanes = 8;
struct Blocks {
  uint32_t word[4][kLanes];
};
Blocks philox(uint32_t first, uint32_t sample, uint32_t step, uint32_t stream, uint64_t seed) {
  Blocks c;
  for (int l = 0; l < kLanes; ++l) {
    c.word[0][l] = first + static_cast<uint32_t>(l);
    c.word[1][l] = sample, c.word[2][l] = step, c.word[3][l] = stream;
  }
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c.word[0][l],
                     p1 = uint64_t{0xCD9E8D57u} * c.word[2][l];
      const uint32_t c0 = static_cast<uint32_t>(p1 >> 32) ^ c.word[1][l] ^ k0;
      const uint32_t c2 = static_cast<uint32_t>(p0 >> 32) ^ c.word[3][l] ^ k1;
      c.word[1][l] = static_cast<uint32_t>(p1), c.word[3][l] = static_cast<uint32_t>(p0);
      c.word[0][l] = c0, c.word[2][l] = c2;
    }
  }
  return c;
}

bool random(const Call& call) {
  const auto samples = call.inputs[1].as<int32_t>();
  const auto step = static_cast<uint32_t>(call.inputs[0].as<int32_t>()[0]);
  const int64_t each = call.output.elements() / static_cast<int64_t>(samples.size());
  const uint32_t stream = kStreamOps + call.op.attrs.stream;
  const float* y = call.output.as<float>().data();
  return all_pieces(call.pool, static_cast<int64_t>(samples.size()), [&](int64_t s) {
    const auto sample = static_cast<uint32_t>(samples[static_cast<size_t>(s)]);
    uint32_t differ = 0;
    for (int64_t e = 0; e < each; e += 4 * kLanes) {
      const Blocks b =
          philox(static_cast<uint32_t>(e / 4), sample, step, stream, call.op.attrs.seed);
      const float* row = y + s * each + e;
      const int64_t n = std::min<int64_t>(4 * kLanes, each - e);
      for (int64_t i = 0; i < n; ++i)
        differ |= to_bits(row[i]) ^ to_bits(uniform(b.word[i % 4][i / 4]));
    }
    return differ == 0;
  });
}

// Every row of positions must be a permutation that makes the elements ascend, with equal ones in
// order.
bool ordered(const Call& call) {
  const auto x = call.inputs[0].as<const int32_t>(), order = call.output.as<const int32_t>();
  const auto width = static_cast<size_t>(call.op.type.dims.back());
  std::vector<bool> seen(width);
  for (size_t row = 0; row < order.size(); row += width) {
    seen.assign(width, false);
    for (size_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(order[row + i]);
      if (at >= width || seen[at]) return false;
      seen[at] = true;
      if (i == 0) continue;
      const int32_t before = order[row + i - 1], last = x[row + static_cast<size_t>(before)];
      if (last > x[row + at] || (last == x[row + at] && before > order[row + i])) return false;
    }
  }
  return true;
}

}  // namespace

bool source(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kConstant:
      return all_ranges(call.pool, call.output.elements(), kRange, [&](int64_t begin, int64_t end) {
        return run_of(call, begin, end - begin, call.op.attrs.value);
      });
    case OpKind::kIota:
      return iota(call);
    case OpKind::kRngUniform:
      return call.output.dtype() != DType::kF32 || random(call);
    default:
      return true;
  }
}

bool move(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kReshape:
      return call.output.bytes() == call.inputs[0].bytes() &&
             (call.output.raw() == call.inputs[0].raw() ||
              same_bytes(call.output.raw(), call.inputs[0].raw(), call.output.bytes()));
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
      return stretches(call);
    case OpKind::kBroadcastInDim:
    case OpKind::kTranspose:
      return walk_of(call);
    case OpKind::kSelect:
      return select_of(call);
    case OpKind::kSortOrder:
      return ordered(call);
    default:
      return sign_op(call);
  }
}

}  // namespace twinrun::screen
