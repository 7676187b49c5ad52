// Softmax and attention, with their gradients.
#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

double unit_of(Element e) { return format_of(e).unit(); }

// One more rounding, to the precision of `element`.
Estimate narrowed(const Arithmetic& m, Estimate e, Element element) {
  e = m.more(e, unit_of(element));
  // Small numbers of binary16 are rounded to multiples of 2^-24.
  if (element == Element::kF16 && std::fabs(e.value) < 0x1p-14 && e.value != 0) e.radius += 0x1p-25;
  return e;
}
// An argument as the call's result type takes it: `dtype` converts before the computation.
Array converted(const Arguments& a, size_t position, std::string_view name) {
  Array x = a.array(position, name);
  const Element from = a.view(position, name).element, to = a.result(0).element;
  if (is_integer(from) || unit_of(to) <= unit_of(from)) return x;
  return map(
      a.m, [&](Estimate e) { return e.value == 0 ? e : narrowed(a.m, e, to); }, x);
}

// exp(x - max) and its sum over an axis. The difference from the largest is what kernels take the
// exponential of; which number near the largest they subtract cancels.
struct Exponentials {
  Array distance, power, total;
};
Exponentials exponentials(const Arithmetic& m, const Array& x, int64_t axis) {
  Array top = largest(m, x, {axis}, true);
  top.radius.clear();
  Exponentials out;
  out.distance = map(
      m,
      [&](Estimate v, Estimate t) {
        return m.rounded({v.value - t.value, v.radius});
      },
      x, top);
  out.power = map(
      m, [&](Estimate d) { return m.quick_exp(d); }, out.distance);
  out.total = sum(m, out.power, {axis}, true);
  return out;
}
// CPU kernels for half precision store exponentials and sums in it where the axis is not the last.
Array softmax_of(const Arithmetic& m, const Array& x, int64_t axis, Element element) {
  const Exponentials e = exponentials(m, x, axis);
  const bool last = axis + 1 == static_cast<int64_t>(x.dims.size());
  const double extra = is_half(element) && !last ? 4 * unit_of(element) : 0;
  return map(
      m,
      [&](Estimate p, Estimate t) {
        Estimate q = m.more(m.div(p, t), extra);
        // An exponential below the normal numbers of binary16.
        if (extra > 0 && element == Element::kF16 && q.value != 0) q.radius += 0x1p-24;
        return q;
      },
      e.power, e.total);
}
// CPU kernels for half precision store the sum and its logarithm in it.
Array log_softmax_of(const Arithmetic& m, const Array& x, int64_t axis, Element element) {
  const Exponentials e = exponentials(m, x, axis);
  const double extra = is_half(element) ? unit_of(element) : 0;
  return map(
      m,
      [&](Estimate d, Estimate t) {
        const double l = std::log(t.value), v = d.value - l;
        const double stored =
            extra == 0 || !finite(v) ? 0 : extra * (2 + std::fabs(l) + std::fabs(d.value));
        return m.rounded({v, d.radius + m.log(t).radius + stored});
      },
      e.distance, e.total);
}
// Calls f with x and an axis; a scalar counts as one element.
template <typename F>
Expected along(Array x, int64_t dim, F f) {
  if (!x.dims.empty()) return f(x, axis_of(dim, static_cast<int64_t>(x.dims.size())));
  return reshaped(f(reshaped(std::move(x), {1}), 0), {});
}
// The dimension that functional.softmax takes when none is given.
int64_t implied(int64_t rank) { return rank == 0 || rank == 1 || rank == 3 ? 0 : 1; }

Expected softmax(const Arguments& a) {
  return along(converted(a, 0, "self"), a.integer(1, "dim", -1), [&](const Array& x, int64_t axis) {
    return softmax_of(a.m, x, axis, a.result(0).element);
  });
}
Expected log_softmax(const Arguments& a) {
  return along(converted(a, 0, "self"), a.integer(1, "dim", -1), [&](const Array& x, int64_t axis) {
    return log_softmax_of(a.m, x, axis, a.result(0).element);
  });
}
// Zero, rather than NaN, where everything is -infinity.
Expected safe_softmax(const Arguments& a) {
  return along(converted(a, 0, "self"), a.integer(1, "dim", -1), [&](const Array& x, int64_t axis) {
    return map(
        a.m, [](Estimate p, Estimate t) { return t.value == -kInfinity ? exactly(0) : p; },
        softmax_of(a.m, x, axis, a.result(0).element), largest(a.m, x, {axis}, true));
  });
}
Expected functional_softmax(const Arguments& a) {
  Array x = converted(a, 0, "input");
  const int64_t dim = a.integer(1, "dim", implied(static_cast<int64_t>(x.dims.size())));
  return along(std::move(x), dim, [&](const Array& v, int64_t axis) {
    return softmax_of(a.m, v, axis, a.result(0).element);
  });
}
Expected functional_log_softmax(const Arguments& a) {
  Array x = converted(a, 0, "input");
  const int64_t dim = a.integer(1, "dim", implied(static_cast<int64_t>(x.dims.size())));
  return along(std::move(x), dim, [&](const Array& v, int64_t axis) {
    return log_softmax_of(a.m, v, axis, a.result(0).element);
  });
}

// y (dy - sum(y dy)), or y dy - y sum(y dy), which cancels more.
Expected softmax_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  Array y = a.array(1, "output");
  if (y.dims.empty()) y = reshaped(std::move(y), {1});
  const Array dy = reshaped(a.array(0, "grad_output"), y.dims);
  const int64_t axis = axis_of(a.integer(2, "dim", -1), static_cast<int64_t>(y.dims.size()));
  // CUDA's kernel begins with y dy as a tensor of its own.
  const Element type = a.view(0, "grad_output").element;
  const bool keeps = m.gpu && is_half(type);
  const Array products = map(
      m,
      [&](Estimate d, Estimate p) {
        const Estimate e = m.mul(d, p);
        return keeps ? stored(e, type) : e;
      },
      dy, y);
  Array out = map(
      m,
      [&](Estimate d, Estimate p, Estimate yd, Estimate s) {
        Estimate e = Arithmetic::product(p, {d.value - s.value, s.radius});
        if (keeps) e.radius += yd.radius;
        e.radius += 3 * m.unit * std::fabs(p.value) * (std::fabs(d.value) + std::fabs(s.value));
        return m.rounded(e);
      },
      dy, y, products, sum(m, products, {axis}, true));
  return reshaped(std::move(out), a.view(1, "output").dims);
}
Expected log_softmax_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  Array y = a.array(1, "output");
  if (y.dims.empty()) y = reshaped(std::move(y), {1});
  const Array dy = reshaped(a.array(0, "grad_output"), y.dims);
  const int64_t axis = axis_of(a.integer(2, "dim", -1), static_cast<int64_t>(y.dims.size()));
  Array out = map(
      m,
      [&](Estimate d, Estimate l, Estimate s) {
        const Estimate p = Arithmetic::product(m.quick_exp(l), s);
        return m.rounded({d.value - p.value, p.radius + m.unit * std::fabs(p.value)});
      },
      dy, y, sum(m, dy, {axis}, true));
  return reshaped(std::move(out), a.view(1, "output").dims);
}

void need_finite(const Array& x, std::string_view what) {
  if (!std::ranges::all_of(x.value, [](double v) { return finite(v); }))
    throw Undefined("attention of infinite numbers or NaN in " + std::string(what));
}
Array transposed(const Array& x) {
  Dims order;
  const auto rank = static_cast<int64_t>(x.dims.size());
  if (rank < 2) throw Undefined("attention of fewer than two dimensions");
  for (int64_t i = 0; i < rank; ++i) order.push_back(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return permuted(x, order);
}

struct Attention {
  Array query, key, value;
  std::optional<Array> mask;
  bool mask_is_bool = false, causal = false;
  double scale = 1;
  Element element = Element::kF32;
  // Whether the scores and probabilities are tensors of the inputs' type.
  bool stores = false;
};
// A composed function is recorded with the arguments that it was given. It takes one type of query,
// key and value: where its result has another, autocast has rounded them first.
Array cast(const Arguments& a, size_t position, std::string_view name) {
  Array x = a.array(position, name);
  const Element from = a.view(position, name).element, to = a.result(0).element;
  if (!a.call().op.starts_with("torch.") || !is_half(to) || !is_float(from) || from == to) return x;
  for (double& v : x.value) v = nearest(v, to);
  return x;
}
// A mask of another type may be rounded by autocast, or added as it is.
Array cast_mask(const Arguments& a, size_t position) {
  Array x = a.array(position, "attn_mask");
  const Array rounded = cast(a, position, "attn_mask");
  return map(
      a.m,
      [](Estimate v, Estimate r) {
        return Estimate{v.value, r.value == v.value ? 0 : std::fabs(r.value - v.value)};
      },
      x, rounded);
}
Attention attention(const Arguments& a, size_t first, size_t mask, size_t causal, size_t dropout,
                    size_t scale) {
  Attention t;
  if (a.number(dropout, "dropout_p", 0) > 0) throw Undefined("attention with dropout");
  const bool composed = a.call().op.starts_with("torch.");
  t.query = cast(a, first, "query"), t.key = cast(a, first + 1, "key");
  t.value = cast(a, first + 2, "value");
  need_finite(t.query, "query"), need_finite(t.key, "key"), need_finite(t.value, "value");
  if (t.query.dims.size() < 2 || t.key.dims.size() < 2 || t.value.dims.size() < 2)
    throw Undefined("attention of fewer than two dimensions");
  t.element = composed ? a.result(0).element : a.view(first, "query").element;
  if (a.has(mask, "attn_mask")) {
    t.mask = cast_mask(a, mask);
    t.mask_is_bool = a.view(mask, "attn_mask").element == Element::kBool;
    // The two additions of -infinity and +infinity are not told apart.
    if (std::ranges::any_of(t.mask->value, [](double v) { return !(v < kInfinity); }))
      throw Undefined("an attention mask with infinity or NaN");
  }
  t.causal = a.flag(causal, "is_causal", false);
  t.scale = a.number(scale, "scale", 1 / std::sqrt(static_cast<double>(t.query.dims.back())));
  // The CPU kernel scales -infinity too, which gives +infinity.
  if (t.scale < 0 && t.causal) throw Undefined("causal attention with a negative scale");
  return t;
}

// query key^T scale + mask. The scale may be applied to both operands, as its square root.
Array scores_of(const Arithmetic& m, const Attention& t) {
  const double each = t.stores ? 2 * unit_of(t.element) + 4 * m.unit : 6 * m.unit;
  const Array query = map(
      m,
      [&](Estimate q) {
        const double v = q.value * t.scale;
        return Estimate{v, each * std::fabs(v) + q.radius * std::fabs(t.scale) * (1 + each)};
      },
      t.query);
  Array s = matmul(m, query, transposed(t.key));
  const auto keep = [&](Estimate e) { return t.stores ? narrowed(m, e, t.element) : e; };
  s = map(
      m, [&](Estimate e) { return keep(m.rounded(e)); }, s);
  if (t.mask) {
    s = map(
        m,
        [&](Estimate e, Estimate b) {
          if (t.mask_is_bool) return b.value != 0 ? e : exactly(-kInfinity);
          if (b.value == -kInfinity) return exactly(-kInfinity);
          // Kernels may multiply by the scale and add in one rounding.
          return keep(m.rounded({e.value + b.value, e.radius + b.radius}));
        },
        s, *t.mask);
  }
  if (t.causal) {
    const int64_t rows = s.dims[s.dims.size() - 2], columns = s.dims.back();
    in_ranges(m, s.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i % columns > i / columns % rows) s.set(i, exactly(-kInfinity));
      }
    });
  }
  return s;
}

// Output and log of the sum. `fused`: tile by tile, where each tile rescales what came before.
struct Attended {
  Array output, log_sum;
};
Attended attend(const Arithmetic& m, const Attention& t, bool fused) {
  const Array s = scores_of(m, t);
  const int64_t axis = static_cast<int64_t>(s.dims.size()) - 1, keys = s.dims.back();
  Array top = largest(m, s, {axis}, true);
  const Exponentials e = exponentials(m, s, axis);
  // Tiles of 512 keys on CPUs: each rescales by one more exponential. The tiles of CUDA are
  // smaller, but its exponential is better by more than that.
  const double tiles = fused ? static_cast<double>((keys + 511) / 512 - 1) : 0;
  const double rescaled = 2 * tiles * (m.fast_exp + 2) * m.unit;
  Array p = map(
      m,
      [&](Estimate x, Estimate sum) {
        // Replaced below: rows without any key.
        if (sum.value != sum.value) return exactly(0);
        Estimate q = m.more(m.div(x, sum), rescaled);
        if (x.value == 0 && x.radius == 0) return exactly(0);
        // The second product takes the operands' type. The vector exponential of bfloat16 kernels
        // is good to 2^-13.
        if (is_half(t.element)) {
          q = narrowed(m, m.more(q, 0x1p-12), t.element);
          // The exponentials are rounded before their division, the smallest to zero.
          if (t.element == Element::kF16) q.radius += 0x1p-24;
        }
        return q;
      },
      e.power, e.total);
  Attended out;
  // A row without any key gave NaN before PyTorch 2.5, and zeros since.
  out.output = map(
      m,
      [&](Estimate o, Estimate highest) {
        if (highest.value == -kInfinity) return Estimate{0, kInfinity};
        return m.more(o, 3 * m.unit);
      },
      matmul(m, p, t.value), top);
  out.log_sum = map(
      m,
      [&](Estimate highest, Estimate sum) {
        if (highest.value == -kInfinity) return Estimate{0, kInfinity};
        // The same fast exponentials, good to 2^-13 in half precision, are summed.
        const double off = is_half(t.element) ? 0x1p-12 : rescaled / 2;
        const Estimate l = m.log(m.more(sum, off));
        return m.rounded({highest.value + l.value, l.radius + m.unit * std::fabs(highest.value)});
      },
      top, e.total);
  out.log_sum = reshaped(std::move(out.log_sum), reduced_dims(s.dims, {axis}, false));
  return out;
}

// Whether a kernel takes truth values as a mask, or adds them, depends on the version: the composed
// call converts them before.
void need_added_mask(const Attention& t) {
  if (t.mask_is_bool) throw Undefined("an attention kernel with a mask of truth values");
}
// Heads of key and value, repeated for groups of heads of the query.
Array repeated(const Array& x, int64_t heads) {
  const size_t rank = x.dims.size();
  if (rank < 3 || x.dims[rank - 3] == heads || x.dims[rank - 3] == 0) return x;
  const int64_t times = heads / x.dims[rank - 3];
  if (times * x.dims[rank - 3] != heads) throw Undefined("groups of heads that do not fit");
  Dims one = x.dims, many = x.dims, result = x.dims;
  const auto at = static_cast<int64_t>(rank) - 2;
  one.put(at, 1);
  many.put(at, times);
  result[rank - 3] = heads;
  return reshaped(broadcast(reshaped(x, one), many), result);
}
// Where kernels have the arguments besides query, key and value, of which `first` is the first. 99:
// by name alone, or none.
struct Places {
  size_t first = 0, mask = 99, dropout = 99, causal = 99, output = 99, log_sum = 99;
};
Attention attention(const Arguments& a, const Places& at) {
  Attention t = attention(a, at.first, at.mask, at.causal, at.dropout, 99);
  need_added_mask(t);
  return t;
}
// A kernel's output; of its other results only the logarithms that the CPU's gives are defined, which
// others keep to another base or with padding.
Expected kernel(const Arguments& a, const Places& at, bool logarithms) {
  Attention t = attention(a, at);
  if (t.query.dims.size() > 2) {
    const int64_t heads = t.query.dims[t.query.dims.size() - 3];
    t.key = repeated(t.key, heads), t.value = repeated(t.value, heads);
  }
  Attended done = attend(a.m, t, true);
  Expected out(std::move(done.output));
  if (logarithms) out.results.emplace_back(std::move(done.log_sum));
  return out;
}
Expected cpu_flash(const Arguments& a) { return kernel(a, {.dropout = 3, .causal = 4}, true); }
Expected flash(const Arguments& a) { return kernel(a, {.dropout = 3, .causal = 4}, false); }
Expected efficient(const Arguments& a) {
  return kernel(a, {.mask = 3, .dropout = 5, .causal = 6}, false);
}
// The sum of the gradients of a head's repetitions, each of which a kernel may have stored.
Array of_groups(const Arithmetic& m, Array x, int64_t heads, Element element) {
  const size_t rank = x.dims.size();
  if (rank < 3 || x.dims[rank - 3] == heads) return x;
  Dims groups = x.dims;
  groups[rank - 3] = heads;
  groups.put(static_cast<int64_t>(rank) - 2, quotient(x.dims[rank - 3], heads));
  x = stored(m, x, element);
  return sum(m, reshaped(std::move(x), groups), {static_cast<int64_t>(rank) - 2});
}
Expected kernel_backward(const Arguments& a, const Places& at) {
  const Arithmetic& m = a.m;
  Attention t = attention(a, at);
  const int64_t kept = t.key.dims.size() > 2 ? t.key.dims[t.key.dims.size() - 3] : 1;
  if (t.query.dims.size() > 2) {
    const int64_t heads = t.query.dims[t.query.dims.size() - 3];
    t.key = repeated(t.key, heads), t.value = repeated(t.value, heads);
  }
  const Array dy = a.array(0, "grad_out"), y = a.array(at.output, "out");
  Array log_sum = at.log_sum == 99 ? attend(m, t, true).log_sum : a.array(at.log_sum, "logsumexp");
  need_finite(dy, "grad_out"), need_finite(y, "out");
  if (at.log_sum != 99) need_finite(log_sum, "logsumexp");
  const Array s = scores_of(m, t);
  Dims column = s.dims;
  column.back() = 1;
  log_sum = reshaped(std::move(log_sum), column);
  // In half precision the two operands P and dS of products are rounded to it.
  const auto operand = [&](Estimate e) {
    return is_half(t.element) && e.value != 0 ? narrowed(m, e, t.element) : e;
  };
  const Array p = map(
      m,
      [&](Estimate e, Estimate l) {
        if (e.value == -kInfinity) return exactly(0);
        return m.quick_exp(
            m.rounded({e.value - l.value, e.radius + l.radius + m.unit * std::fabs(e.value)}));
      },
      s, log_sum);
  // The gradients are tensors of the inputs' type to which each tile is added: in half precision
  // that rounds once a tile.
  const auto tiled = [&](const Array& left, const Array& right, int64_t tiles) {
    Array out = matmul(m, left, right);
    if (!is_half(t.element) || tiles <= 1) return out;
    const auto size = [&](const Array& x) {
      return map(
          m, [](Estimate e) { return exactly(std::fabs(e.value) + e.radius); }, x);
    };
    const double relative = static_cast<double>(tiles - 1) * unit_of(t.element);
    return map(
        m,
        [&](Estimate e, Estimate w) {
          return Estimate{e.value, e.radius + relative * w.value};
        },
        out, matmul(m, size(left), size(right)));
  };
  const int64_t rows = s.dims[s.dims.size() - 2];
  const int64_t height = rows >= 768 ? 256 : rows >= 192 ? 64 : 32;
  const int64_t down = (rows + height - 1) / height, across = (s.dims.back() + 511) / 512;
  const Array dv = tiled(transposed(map(m, operand, p)), dy, down);
  const auto last = static_cast<int64_t>(dy.dims.size()) - 1;
  const Array inner = sum(m,
                          map(
                              m, [&](Estimate g, Estimate o) { return m.mul(g, o); }, dy, y),
                          {last}, true);
  Array ds = map(
      m,
      [&](Estimate probability, Estimate dp, Estimate delta) {
        if (probability.value == 0 && probability.radius == 0) return exactly(0);
        const Estimate d = m.rounded({dp.value - delta.value, dp.radius + delta.radius});
        // P may have been rounded before.
        Estimate e = operand(m.rounded(Arithmetic::product(operand(probability), d)));
        e.value *= t.scale, e.radius *= std::fabs(t.scale);
        e = m.more(e, 3 * m.unit);
        return m.gpu ? operand(e) : e;  // or after it is scaled
      },
      p, matmul(m, dy, transposed(t.value)), inner);
  Expected out(tiled(ds, t.key, across));
  out.results.emplace_back(of_groups(m, tiled(transposed(ds), t.query, down), kept, t.element));
  out.results.emplace_back(of_groups(m, dv, kept, t.element));
  return out;
}
Expected cpu_flash_backward(const Arguments& a) {
  return kernel_backward(a, {.first = 1, .dropout = 6, .causal = 7, .output = 4, .log_sum = 5});
}
Expected flash_backward(const Arguments& a) {
  return kernel_backward(a, {.first = 1, .dropout = 10, .causal = 11, .output = 4});
}
// Without the gradient of the mask.
Expected efficient_backward(const Arguments& a) {
  return kernel_backward(a, {.first = 1, .mask = 4, .dropout = 9, .causal = 11, .output = 5});
}
Expected cudnn_backward(const Arguments& a) {
  return kernel_backward(a, {.first = 1, .mask = 8, .dropout = 13, .causal = 14, .output = 4});
}

Expected composed(const Arguments& a, size_t mask, size_t dropout, size_t causal, bool kernel) {
  Attention t = attention(a, 0, mask, causal, dropout, 99);
  if (kernel) need_added_mask(t);
  t.stores = is_half(t.element);  // where it is composed of products and a softmax
  if (a.flag(99, "enable_gqa", false) && t.query.dims.size() > 2) {
    const int64_t heads = t.query.dims[t.query.dims.size() - 3];
    t.key = repeated(t.key, heads);
    t.value = repeated(t.value, heads);
  }
  return attend(a.m, t, true).output;
}
Expected math(const Arguments& a) {
  if (a.has(6, "dropout_mask")) throw Undefined("attention with dropout");
  Expected out = composed(a, 3, 4, 5, true);
  out.results.emplace_back(std::nullopt);  // the probabilities, of whichever precision
  return out;
}
Expected functional_attention(const Arguments& a) { return composed(a, 3, 4, 5, false); }

constexpr Definition kAttentionDefinitions[] = {
    {"aten._softmax", softmax},
    {"aten._log_softmax", log_softmax},
    {"aten._safe_softmax", safe_softmax},
    {"aten.softmax", softmax},
    {"aten.log_softmax", log_softmax},
    {"aten._softmax_backward_data", softmax_backward},
    {"aten._log_softmax_backward_data", log_softmax_backward},
    {"aten._scaled_dot_product_flash_attention_for_cpu", cpu_flash},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward", cpu_flash_backward},
    {"aten._scaled_dot_product_flash_attention", flash},
    {"aten._scaled_dot_product_flash_attention_backward", flash_backward},
    {"aten._scaled_dot_product_efficient_attention", efficient},
    {"aten._scaled_dot_product_efficient_attention_backward", efficient_backward},
    {"aten._scaled_dot_product_cudnn_attention", efficient},
    {"aten._scaled_dot_product_cudnn_attention_backward", cudnn_backward},
    {"aten._scaled_dot_product_attention_math", math},
    {"torch.nn.functional.scaled_dot_product_attention", functional_attention},
    {"torch.nn.functional.softmax", functional_softmax},
    {"torch.nn.functional.log_softmax", functional_log_softmax},
};

}  // namespace

std::span<const Definition> attention_definitions() { return kAttentionDefinitions; }

}  // namespace twinrun::aten
