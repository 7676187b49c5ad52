// Batch normalisation and its gradients.
#include <algorithm>
#include <utility>

#include "backends/aten/normalizing.h"

namespace twinrun::aten {
namespace {

using namespace normalizing;  // NOLINT(google-build-using-namespace)

// ---- Batch normalisation -----------------------------------------------------------------------

struct Batch {
  Array input;
  std::optional<Array> weight, bias, running_mean, running_var;
  bool training = false, one_pass = false;
  double momentum = 0.1, eps = 1e-5;
};
// Output, mean, invstd, running mean and running variance.
Expected batch(const Arguments& a, const Batch& b, Element saved) {
  const Arithmetic& m = a.m;
  const Layout layout = channels_of(b.input.dims);
  const int64_t c = layout.groups, n = layout.size();
  const Factors weight = factors(b.weight, 1, layout), bias = factors(b.bias, 0, layout);
  Expected e;
  e.results.resize(5);
  if (b.input.size() == 0) {
    e.results[0] = filled(b.input.dims, 0);
    return e;
  }
  for (const auto* running : {&b.running_mean, &b.running_var}) {
    if (*running && (*running)->size() != c) throw Undefined("running statistics of another size");
  }
  Statistics s(c);
  if (!b.training) {
    if (!b.running_mean || !b.running_var) throw Undefined("no running statistics");
    for (int64_t i = 0; i < c; ++i) {
      s.mean[static_cast<size_t>(i)] = b.running_mean->at(i);
      s.inv[static_cast<size_t>(i)] = inverse(m, b.running_var->at(i), b.eps);
    }
    e.results[0] = apply(m, b.input, layout, s, weight, bias);
    e.results[3] = b.running_mean;  // evaluation leaves them as they are
    e.results[4] = b.running_var;
    return e;
  }
  // The CPU's kernels keep mean, sum of squares and invstd in the type of the parameters, and read
  // them from there: where that is bfloat16 or binary16, each is rounded before its use.
  const bool half = saved == Element::kBF16 || saved == Element::kF16;
  const auto count_of = static_cast<double>(n);
  Statistics running(c);
  each(m, c, [&](int64_t g) {
    const auto u = static_cast<size_t>(g);
    Moments of = moments(
        m, n, [&](int64_t k) { return b.input.value[static_cast<size_t>(layout.at(g, k))]; },
        b.one_pass);
    if (half && finite(of.mean.value) && of.var.radius < kInfinity) {
      of.mean = stored(of.mean, saved);
      of.var.radius += of.mean.radius * of.mean.radius;
      const Estimate squares = stored({of.var.value * count_of, of.var.radius * count_of}, saved);
      of.var.radius = squares.radius / count_of;
    }
    s.mean[u] = of.mean;
    s.inv[u] = inverse(m, of.var, b.eps);
    // A channel without variance and eps = 0: its invstd is 0.
    if (of.var.value == 0 && b.eps == 0) s.inv[u] = {0, of.var.radius > 0 ? kInfinity : 0};
    if (half) s.inv[u] = stored(stored(s.inv[u], saved), saved);
    Estimate share = exactly(b.momentum), rest = m.sub(exactly(1), share);
    if (half) share = stored(share, saved), rest = stored(rest, saved);
    const auto moved = [&](Estimate to, Estimate from) {
      to = m.mul(share, to), from = m.mul(rest, from);
      return half ? m.add(stored(to, saved), stored(from, saved)) : m.add(to, from);
    };
    if (b.running_mean) running.mean[u] = moved(of.mean, b.running_mean->at(g));
    if (b.running_var && n > 1) {
      Estimate unbiased = Arithmetic::product(of.var, exactly(count_of / (count_of - 1)));
      unbiased = m.more(unbiased, 4 * m.unit);
      if (half) unbiased = stored(unbiased, saved);
      running.inv[u] = moved(unbiased, b.running_var->at(g));
    }
  });
  e.results[0] = apply(m, b.input, layout, s, weight, bias);
  e.results[1] = array_from(s.mean, {c});
  e.results[2] = array_from(s.inv, {c});
  if (b.running_mean) e.results[3] = array_from(running.mean, {c});
  // Of a single number there is no unbiased variance: kernels write NaN or leave 0.
  if (b.running_var && n > 1) e.results[4] = array_from(running.inv, {c});
  return e;
}
Element saved_type(const Arguments& a) {
  return a.has_result(1) ? a.result(1).element : Element::kF32;
}
Batch batch_of(const Arguments& a) {
  Batch b;
  b.input = a.array(0, "input");
  b.weight = a.maybe(1, "weight");
  b.bias = a.maybe(2, "bias");
  return b;
}
Batch batch_with_running(const Arguments& a) {
  Batch b = batch_of(a);
  b.running_mean = a.maybe(3, "running_mean");
  b.running_var = a.maybe(4, "running_var");
  return b;
}
Expected batch_norm(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "momentum", 0.1);
  b.eps = a.number(7, "eps", 1e-5);
  return batch(a, b, saved_type(a));
}
Expected batch_norm_no_stats(const Arguments& a) {
  Batch b = batch_of(a);
  // Without running statistics the batch's are used in evaluation too.
  b.training = a.flag(3, "training", true);
  b.eps = a.number(5, "eps", 1e-5);
  if (!b.training) throw Undefined("evaluation without running statistics");
  Expected e = batch(a, b, saved_type(a));
  e.results.resize(3);
  return e;
}
// A workspace, not defined, comes between what is computed and the running statistics.
Expected with_reserve(Expected e) {
  e.results.insert(e.results.begin() + 3, std::nullopt);
  return e;
}
// cuDNN does not say how it sums: the bounds allow one pass.
Expected batch_norm_with_update(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = true;
  b.momentum = a.number(5, "momentum", 0.1);
  b.eps = a.number(6, "eps", 1e-5);
  b.one_pass = a.has_result(3) && a.result(3).elements() > 0;
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected batch_norm_no_update(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.eps = a.number(6, "eps", 1e-5);
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected cudnn_batch_norm(const Arguments& a) {
  Batch b = batch_with_running(a);
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "exponential_average_factor", 0.1);
  b.eps = a.number(7, "epsilon", 1e-5);
  b.one_pass = true;
  return with_reserve(batch(a, b, saved_type(a)));
}
Expected functional_batch_norm(const Arguments& a) {
  Batch b;
  b.input = a.array(0, "input");
  b.running_mean = a.maybe(1, "running_mean");
  b.running_var = a.maybe(2, "running_var");
  b.weight = a.maybe(3, "weight");
  b.bias = a.maybe(4, "bias");
  b.training = a.flag(5, "training", false);
  b.momentum = a.number(6, "momentum", 0.1);
  b.eps = a.number(7, "eps", 1e-5);
  b.one_pass = true;  // it may be cuDNN's
  const Element type = a.view(0, "input").element;
  const bool mixed =
      a.has(3, "weight") && a.view(3, "weight").element != a.view(0, "input").element;
  Expected e = batch(a, b, mixed ? Element::kF32 : type);
  e.results.resize(1);
  return e;
}

Expected batch_backward(const Arguments& a, Backward b, bool train, double eps,
                        std::string_view saved_second, const Checked<bool>& wanted) {
  b.weight = a.maybe(2, "weight");
  b.groups = b.weights = channels_of(b.x.dims);
  b.project = train;
  if (train) {
    b.mean = estimates_of(a.array(5, "save_mean"));
    b.rstd = estimates_of(a.array(6, saved_second));
  } else {
    b.mean = estimates_of(a.array(3, "running_mean"));
    for (const Estimate var : estimates_of(a.array(4, "running_var")))
      b.rstd.push_back(inverse(a.m, var, eps));
  }
  return gradients(a.m, b, wanted);
}
Expected native_batch_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  b.apart = b.weight_apart = false;
  // CUDA's kernel was seen to add in binary16 where the weight is of binary16, with errors of a tenth
  // of one rounding of the sum of magnitudes (PyTorch 2.11, H100): a rounding for each level of a tree.
  const Element type = a.has(2, "weight") ? a.view(2, "weight").element : Element::kF32;
  if (a.m.gpu) b.tree = half_unit(type);
  return batch_backward(a, std::move(b), a.flag(7, "train", true), a.number(8, "eps", 1e-5),
                        "save_invstd", mask_of(a, 9, 3));
}
Expected batch_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  // A workspace means cuDNN, whose sums are not known.
  b.apart = b.weight_apart = a.has(10, "reserve") && a.view(10, "reserve").elements() > 0;
  return batch_backward(a, std::move(b), a.flag(7, "update", true), a.number(8, "eps", 1e-5),
                        "save_var", mask_of(a, 9, 3));
}
Expected cudnn_batch_norm_backward(const Arguments& a) {
  Backward b;
  b.x = a.array(0, "input"), b.dy = a.array(1, "grad_output");
  return batch_backward(a, std::move(b), true, a.number(7, "epsilon", 1e-5), "save_var",
                        {true, true, true});
}

constexpr Definition kNormalizationDefinitions[] = {
    {"aten.native_batch_norm", batch_norm},
    {"aten._native_batch_norm_legit", batch_norm},
    {"aten._native_batch_norm_legit.no_stats", batch_norm_no_stats},
    {"aten._native_batch_norm_legit_functional", batch_norm},
    {"aten._batch_norm_with_update", batch_norm_with_update},
    {"aten._batch_norm_with_update_functional", batch_norm_with_update},
    {"aten._batch_norm_no_update", batch_norm_no_update},
    {"aten.cudnn_batch_norm", cudnn_batch_norm},
    {"aten.native_batch_norm_backward", native_batch_norm_backward},
    {"aten.batch_norm_backward", batch_norm_backward},
    {"aten.cudnn_batch_norm_backward", cudnn_batch_norm_backward},
    {"torch.nn.functional.batch_norm", functional_batch_norm},
};

}  // namespace

std::span<const Definition> normalization_definitions() { return kNormalizationDefinitions; }

}  // namespace twinrun::aten
