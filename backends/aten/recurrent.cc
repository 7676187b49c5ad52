// Long short-term memory: oneDNN's layer, and the fused cell of CUDA, with their gradients.
#include <algorithm>
#include <array>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// Gates in the order of PyTorch: input, forget, cell (tanh), output.
struct Gates {
  std::array<Array, 4> of;
};
Gates activated(const Arithmetic& m, const Array& sums) {
  const int64_t hidden = sums.dims.back() / 4;
  Gates g;
  for (size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<int64_t>(i) * hidden;
    g.of[i] = map(
        m, [&](Estimate x) { return i == 2 ? m.tanh(x) : m.sigmoid(x); },
        sliced(sums, -1, at, at + hidden));
  }
  return g;
}
Array next_cell(const Arithmetic& m, const Gates& g, const Array& cell) {
  return map(
      m,
      [&](Estimate i, Estimate f, Estimate c, Estimate before) {
        return m.add(m.mul(f, before), m.mul(i, c));
      },
      g.of[0], g.of[1], g.of[2], cell);
}
Array next_hidden(const Arithmetic& m, const Gates& g, const Array& cell) {
  return map(
      m, [&](Estimate o, Estimate c) { return m.mul(o, m.tanh(c)); }, g.of[3], cell);
}

// The gradients of the gates' sums, joined, and of the cell before.
struct Slopes {
  Array sums, cell;
};
Slopes slopes_of(const Arithmetic& m, const Gates& g, const Array& before, const Array& after,
                 const Array& grad_hidden, const Array& grad_cell) {
  // 1 - y^2, or (1 - y)(1 + y).
  const auto of_tanh = [&](Estimate y) {
    const double v = 1 - y.value * y.value;
    return Estimate{v, 2 * std::fabs(y.value) * y.radius + y.radius * y.radius + 4 * m.unit};
  };
  const auto of_sigmoid = [&](Estimate y) {
    const double v = y.value * (1 - y.value);
    return Estimate{v, std::fabs(1 - 2 * y.value) * y.radius + y.radius * y.radius +
                           4 * m.unit * std::fabs(y.value)};
  };
  const auto times = [&](const Array& x, const Array& y) {
    return map(
        m, [&](Estimate p, Estimate q) { return m.mul(p, q); }, x, y);
  };
  const Array bent = map(
      m, [&](Estimate c) { return m.tanh(c); }, after);
  const Array total = map(
      m,
      [&](Estimate dh, Estimate o, Estimate t, Estimate dc) {
        return m.add(m.mul(m.mul(dh, o), of_tanh(t)), dc);
      },
      grad_hidden, g.of[3], bent, grad_cell);
  const auto sloped = [&](const Array& d, const Array& y, bool by_tanh) {
    return map(
        m, [&](Estimate e, Estimate v) { return m.mul(e, by_tanh ? of_tanh(v) : of_sigmoid(v)); },
        d, y);
  };
  Slopes out;
  out.sums = concatenated(
      {sloped(times(total, g.of[2]), g.of[0], false), sloped(times(total, before), g.of[1], false),
       sloped(times(total, g.of[0]), g.of[2], true),
       sloped(times(grad_hidden, bent), g.of[3], false)},
      -1);
  out.cell = times(total, g.of[1]);
  return out;
}

Array turned(const Array& x) { return permuted(x, {1, 0}); }
Array plus(const Arithmetic& m, const Array& x, const Array& y) {
  return map(
      m, [&](Estimate p, Estimate q) { return m.add(p, q); }, x, y);
}
// Row t of [time, batch, n].
Array at_time(const Array& x, int64_t t) {
  return reshaped(sliced(x, 0, t, t + 1), {x.dims[1], x.dims[2]});
}

// One layer in one direction.
struct Layer {
  Array input, of_input, of_hidden, bias, hidden, cell;  // bias: the sum of both
  int64_t steps = 0, batch = 0, size = 0;
  bool reverse = false;
  Dims state;  // the dimensions of hidden and cell in the call
  // The time of step s.
  int64_t time(int64_t s) const { return reverse ? steps - 1 - s : s; }
};
Layer layer_of(const Arguments& a, size_t reverse, size_t sizes, size_t mode, size_t biases) {
  if (a.integer(mode, "mode", 2) != 2) throw Undefined("a recurrent layer other than an LSTM");
  if (!a.integers(sizes, "batch_sizes", {}).empty())
    throw Undefined("a recurrent layer of packed sequences");
  if (a.view(0, "input").element != Element::kF32)
    throw Undefined("a recurrent layer of half precision");
  Layer l;
  l.input = a.array(0, "input");
  if (l.input.dims.size() != 3) throw Undefined("a recurrent layer without a batch");
  if (l.input.size() == 0) throw Undefined("a recurrent layer of no steps");
  take_steps(0x1p12 * static_cast<double>(l.input.dims[0]));  // each step makes a hundred arrays
  l.of_input = a.array(1), l.of_hidden = a.array(2);
  l.hidden = a.array(5, "hx_"), l.cell = a.array(6);
  l.state = l.hidden.dims;
  l.steps = l.input.dims[0], l.batch = l.input.dims[1], l.size = l.of_hidden.dims.back();
  if (l.of_input.dims != Dims{4 * l.size, l.input.dims[2]} ||
      l.of_hidden.dims != Dims{4 * l.size, l.size} || l.hidden.size() != l.batch * l.size ||
      l.cell.size() != l.batch * l.size) {
    throw Undefined("a recurrent layer of shapes that do not fit");
  }
  l.hidden = reshaped(std::move(l.hidden), {l.batch, l.size});
  l.cell = reshaped(std::move(l.cell), {l.batch, l.size});
  // Without biases, other tensors are passed in their place.
  l.bias = a.flag(biases, "has_biases", true) ? plus(a.m, a.array(3), a.array(4))
                                              : filled({4 * l.size}, 0);
  l.reverse = a.flag(reverse, "reverse", false);
  return l;
}
// The sums of the gates: both products may be one sum, with the bias among its terms.
Array gate_sums(const Arithmetic& m, const Layer& l, const Array& input, const Array& hidden) {
  const Array joined = concatenated({input, hidden}, -1);
  return plus(m, matmul(m, joined, turned(concatenated({l.of_input, l.of_hidden}, -1))), l.bias);
}

Expected layer(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Layer l = layer_of(a, 7, 8, 9, 12);
  Array hidden = l.hidden, cell = l.cell;
  Checked<Array> rows(static_cast<size_t>(l.steps));
  // Each step is taken from the hidden state that the call returned for the step before: bounds of
  // the whole recurrence would grow with its steps until they say nothing. Where no result is known
  // (harness/trace/again.h), the recurrence is followed.
  if (a.result(0).dims != Dims{l.steps, l.batch, l.size})
    throw Undefined("a recurrent layer of shapes that do not fit");
  const bool returned = a.result(0).data != nullptr;
  const Array output = returned ? a.result_array(0) : Array{};
  for (int64_t s = 0; s < l.steps; ++s) {
    const int64_t t = l.time(s);
    if (s > 0 && returned) hidden = at_time(output, l.time(s - 1));
    const Gates g = activated(m, gate_sums(m, l, at_time(l.input, t), hidden));
    cell = next_cell(m, g, cell);
    hidden = next_hidden(m, g, cell);
    rows[static_cast<size_t>(t)] = reshaped(hidden, {1, l.batch, l.size});
  }
  if (rows.empty()) throw Undefined("a recurrent layer of no steps");
  Expected out(concatenated(rows, 0));
  out.results.emplace_back(reshaped(std::move(hidden), l.state));
  out.results.emplace_back(reshaped(std::move(cell), l.state));
  out.results.emplace_back(std::nullopt);  // the workspace
  return out;
}

// The gates are in a workspace of oneDNN's own layout: they are computed again, from the hidden
// states that the forward call returned.
Expected layer_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Layer l = layer_of(a, 13, 20, 14, 17);
  const Array output = a.array(7, "output");
  if (l.steps == 0 || output.dims != Dims{l.steps, l.batch, l.size})
    throw Undefined("a recurrent layer of shapes that do not fit");
  const auto n = static_cast<size_t>(l.steps);
  Checked<Gates> gates(n);
  Checked<Array> cells(n + 1), hidden(n);
  cells[0] = l.cell;
  for (size_t s = 0; s < n; ++s) {
    const auto step = static_cast<int64_t>(s);
    hidden[s] = s == 0 ? l.hidden : at_time(output, l.time(step - 1));
    gates[s] = activated(m, gate_sums(m, l, at_time(l.input, l.time(step)), hidden[s]));
    cells[s + 1] = next_cell(m, gates[s], cells[s]);
  }
  const auto state = [&](size_t position, std::string_view name) {
    return a.has(position, name) ? reshaped(a.array(position, name), {l.batch, l.size})
                                 : filled({l.batch, l.size}, 0);
  };
  const std::optional<Array> grad_output = a.maybe(10, "grad_output");
  Array grad_hidden = state(11, "grad_hy"), grad_cell = state(12, "grad_cy");
  Checked<Array> of_input(n), sums(n), inputs(n);
  for (size_t s = n; s-- > 0;) {
    const int64_t t = l.time(static_cast<int64_t>(s));
    if (grad_output) grad_hidden = plus(m, grad_hidden, at_time(*grad_output, t));
    Slopes d = slopes_of(m, gates[s], cells[s], cells[s + 1], grad_hidden, grad_cell);
    grad_cell = std::move(d.cell);
    grad_hidden = matmul(m, d.sums, l.of_hidden);
    of_input[static_cast<size_t>(t)] =
        reshaped(matmul(m, d.sums, l.of_input), {1, l.batch, l.input.dims[2]});
    sums[s] = std::move(d.sums);
    inputs[s] = at_time(l.input, t);
  }
  const Array all = concatenated(sums, 0), all_turned = turned(all);
  const Array bias = sum(m, all, {0});
  Expected out(concatenated(of_input, 0));
  out.results.emplace_back(matmul(m, all_turned, concatenated(inputs, 0)));
  out.results.emplace_back(matmul(m, all_turned, concatenated(hidden, 0)));
  out.results.emplace_back(bias);
  out.results.emplace_back(bias);
  out.results.emplace_back(reshaped(std::move(grad_hidden), l.state));
  out.results.emplace_back(reshaped(std::move(grad_cell), l.state));
  return out;
}

Expected fused_cell(const Arguments& a) {
  const Arithmetic& m = a.m;
  const std::optional<Array> first = a.maybe(3, "input_bias"), second = a.maybe(4, "hidden_bias");
  // Four terms in any order: an error of three roundings, relative to their magnitudes.
  const auto join = [&](const Array& x, const Array& y) {
    return map(
        m,
        [&](Estimate p, Estimate q) {
          const double v = p.value + q.value;
          return Estimate{
              v, p.radius + q.radius + 1.01 * m.unit * (std::fabs(p.value) + std::fabs(q.value))};
        },
        x, y);
  };
  Array sums = join(a.array(0, "input_gates"), a.array(1, "hidden_gates"));
  if (first) sums = join(sums, *first);
  if (second) sums = join(sums, *second);
  const Gates g = activated(m, sums);
  Array cell = next_cell(m, g, a.array(2, "cx"));
  // The kernel takes the tanh of the cell before that is rounded to half precision.
  Array hidden = next_hidden(m, g, cell);
  Expected out(std::move(hidden));
  out.results.emplace_back(std::move(cell));
  // The workspace: the gates, for the gradient.
  out.results.emplace_back(concatenated({g.of[0], g.of[1], g.of[2], g.of[3]}, -1));
  return out;
}
Expected fused_cell_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array before = a.array(2, "cx"), after = a.array(3, "cy");
  const Array space = a.array(4, "workspace");
  const int64_t hidden = space.dims.back() / 4;
  Gates g;
  for (size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<int64_t>(i) * hidden;
    g.of[i] = sliced(space, -1, at, at + hidden);
  }
  const auto or_zero = [&](size_t position, std::string_view name) {
    return a.has(position, name) ? a.array(position, name) : filled(before.dims, 0);
  };
  Slopes d = slopes_of(m, g, before, after, or_zero(0, "grad_hy"), or_zero(1, "grad_cy"));
  std::optional<Array> bias;
  if (a.flag(5, "has_bias", false)) {
    // Of the gradients as they were stored.
    const Element as = a.view(4, "workspace").element;
    const Array kept = map(
        m, [&](Estimate e) { return stored(e, as); }, d.sums);
    bias = sum(m, kept, {0});
  }
  Expected out(std::move(d.sums));
  out.results.emplace_back(std::move(d.cell));
  out.results.emplace_back(std::move(bias));
  return out;
}

constexpr Definition kRecurrentDefinitions[] = {
    {"aten.mkldnn_rnn_layer", layer},
    {"aten.mkldnn_rnn_layer_backward", layer_backward},
    {"aten._thnn_fused_lstm_cell", fused_cell},
    {"aten._thnn_fused_lstm_cell_backward_impl", fused_cell_backward},
};

}  // namespace

std::span<const Definition> recurrent_definitions() { return kRecurrentDefinitions; }

}  // namespace twinrun::aten
