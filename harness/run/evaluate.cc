// Runs the inference program over all held-out samples in pieces, and scores the outputs.
#include "harness/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backends/registry.h"
namespace twinrun {
namespace {

struct Score {
  int64_t correct = 0, total = 0;
  double share() const {
    return total > 0 ? static_cast<double>(correct) / static_cast<double>(total) : 0;
  }
};

// Counts argmax of logits [..., classes] against labels [...], without labels of padding (weight
// 0).
void score(const Tensor& logits, const Samples& samples, Score& all) {
  const auto labels = samples.labels.as<const int32_t>();
  const bool weighted = samples.weights.valid() && samples.weights.dims() == samples.labels.dims();
  const auto classes = static_cast<size_t>(logits.dims().back());
  for (size_t i = 0; i < labels.size(); ++i) {
    if (weighted && samples.weights.as<const float>()[i] == 0.0f) continue;
    const auto row = logits.as<const float>().subspan(i * classes, classes);
    all.correct += std::ranges::max_element(row) - row.begin() == labels[i];
    ++all.total;
  }
}

// Rows of numbers, appended piece by piece.
struct Rows {
  std::vector<float> values;
  size_t width = 0;
  void append(const Tensor& t, int64_t most) {
    const auto rows = static_cast<size_t>(std::min(t.dims()[0], most - count()));
    width = static_cast<size_t>(t.elements() / t.dims()[0]);
    const auto from = t.as<const float>();
    values.insert(values.end(), from.begin(),
                  from.begin() + static_cast<std::ptrdiff_t>(rows * width));
  }
  int64_t count() const { return width == 0 ? 0 : static_cast<int64_t>(values.size() / width); }
  const float* row(int64_t i) const { return values.data() + static_cast<size_t>(i) * width; }
};

double distance(const Rows& a, int64_t i, const Rows& b, int64_t j) {
  double sum = 0;
  for (size_t k = 0; k < a.width; ++k) {
    const double d = static_cast<double>(a.row(i)[k]) - static_cast<double>(b.row(j)[k]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

// Counts samples whose nearest other sample (the first of equally near ones) has the same label.
Score retrieval(const Rows& embeddings, std::span<const int32_t> labels) {
  Score out;
  for (int64_t i = 0; i < embeddings.count(); ++i) {
    int64_t best = -1;
    double least = 0;
    for (int64_t j = 0; j < embeddings.count(); ++j) {
      if (j == i) continue;
      const double d = distance(embeddings, i, embeddings, j);
      if (best < 0 || d < least) best = j, least = d;
    }
    if (best < 0) continue;
    out.correct += labels[static_cast<size_t>(i)] == labels[static_cast<size_t>(best)];
    ++out.total;
  }
  return out;
}

// 2 E|x - y| - E|x - x'| - E|y - y'| of two sets of equal size (Szekely and Rizzo 2013): zero where
// their distributions are equal.
double energy_distance(const Rows& x, const Rows& y) {
  double between = 0, within = 0;
  const int64_t n = std::min(x.count(), y.count());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      between += distance(x, i, y, j);
      if (j > i) within += distance(x, i, x, j) + distance(y, i, y, j);
    }
  }
  const auto count = static_cast<double>(n);
  return 2 * between / (count * count) - 2 * within / (count * (count - 1));
}

constexpr int64_t kMaxCompared = 512;  // samples of a GAN; the work grows with their square

// Sample ids by position among the held-out samples, so that random ops of the model (a GAN's
// noise) differ from sample to sample.
Tensor positions(int64_t begin, int64_t end) {
  Tensor t = Tensor::empty({DType::kI32, {end - begin}});
  std::iota(t.as<int32_t>().begin(), t.as<int32_t>().end(), static_cast<int32_t>(begin));
  return t;
}

// The step without its update, and of its results only the loss.
Program loss_alone(Program step) {
  for (StateVar& var : step.state) var.next = kNoValue;
  std::erase_if(step.outputs, [](const Output& output) { return output.name != "loss"; });
  return prune(step);
}

// A state variable of the trained program as the evaluated one has it. cpu:f64 keeps its state in
// binary64.
Tensor as_type(const Tensor& value, const TensorType& type) {
  if (value.dtype() != DType::kF64 || type.dtype != DType::kF32) return value;
  Tensor f32 = Tensor::empty(type);
  std::ranges::transform(value.as<double>(), f32.as<float>().begin(),
                         [](double d) { return static_cast<float>(d); });
  return f32;
}

}  // namespace

Evaluator::Evaluator(const Experiment& experiment, int threads)
    : imported_(experiment.imported),
      data_(experiment.data),
      mean_loss_(experiment.scenario.loss.reduction == LossReduction::kMean),
      weighted_(experiment.scenario.loss.weights == "tokens"),
      averaged_(experiment.scenario.optimizer.ema_eval) {
  BackendOptions options;
  options.threads = threads;
  backend_ = *make_backend("cpu", options);
  if (imported_) {
    engines_.push_back(*backend_->prepare(loss_alone(imported_->step)));
    return;
  }
  const int64_t total = data_->eval.count();
  const int64_t batch = experiment.inference.batch;
  engines_.push_back(*backend_->prepare(prune(experiment.inference)));
  for (int64_t at = 0; at < total; at += batch) {
    const int64_t end = std::min(at + batch, total);
    if (end - at < batch)
      engines_.push_back(*backend_->prepare(prune(rebatch(experiment.inference, end - at))));
    pieces_.push_back({at, end, engines_.back().get()});
  }
}

Result<Evaluation> Evaluator::evaluate_imported(const Program& trained, const States& states,
                                                int64_t steps_done) {
  Engine& engine = *engines_.front();
  Evaluation result;
  result.step = steps_done;
  result.accuracy = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<Tensor>& batch : imported_->held_out) {
    States mine(states.size());
    for (const StateVar& var : engine.program().state) {
      const int i = trained.state_index(var.name);
      if (i < 0)
        return Error{"the trained program has no state '" + var.name + "'", "evaluation", ""};
      for (size_t core = 0; core < states.size(); ++core)
        mine[core].vars.push_back(as_type(states[core].vars[static_cast<size_t>(i)], var.type));
    }
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(
        engine.step(0, mine, inputs_of_cores(*imported_, engine.program(), batch), outputs));
    result.loss += as_doubles(outputs[0][0])[0];
  }
  result.loss /= static_cast<double>(imported_->held_out.size());
  return result;
}

Result<Evaluation> Evaluator::evaluate(const Program& trained, const States& states,
                                       int64_t steps_done) {
  if (imported_) return evaluate_imported(trained, states, steps_done);
  Evaluation result;
  result.step = steps_done;
  double total = 0;
  Score all;
  Rows embeddings, generated, real;
  for (const Piece& piece : pieces_) {
    const Program& program = piece.engine->program();
    States mine(1);
    for (const StateVar& var : program.state) {
      const int average = averaged_ ? trained.state_index(var.name + ".ema") : -1;
      const int i = average >= 0 ? average : trained.state_index(var.name);
      if (i < 0)
        return Error{"the trained program has no state '" + var.name + "'", "evaluation", ""};
      mine[0].vars.push_back(as_type(states[0].vars[static_cast<size_t>(i)], var.type));
    }
    StepInputs inputs(1);
    const Samples samples = data_->eval.rows(piece.begin, piece.end);
    for (const Input& input : program.inputs) {
      if (input.name == "weights" && !samples.weights.valid()) {
        return Error{"nothing feeds the input 'weights'", "evaluation", ""};
      }
      const bool features = input.name == "images" || input.name == "tokens";
      inputs[0].push_back(features                        ? samples.features
                          : input.name == "labels"        ? samples.labels
                          : input.name == "weights"       ? samples.weights
                          : input.name == "sample_ids"    ? positions(piece.begin, piece.end)
                          : input.name == "learning_rate" ? Tensor::scalar(0)
                                                          : Tensor::scalar_i32(0));
    }
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(piece.engine->step(0, mine, inputs, outputs));
    double n = static_cast<double>(piece.end - piece.begin);
    if (weighted_) {
      n = 0;
      for (float w : samples.weights.as<const float>()) n += static_cast<double>(w);
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const Tensor& out = outputs[0][i];
      if (program.outputs[i].name == "loss") {
        const double loss = out.as<const float>()[0];
        result.loss += mean_loss_ ? loss * n : loss;
      } else if (program.outputs[i].name == "logits") {
        score(out, samples, all);
      } else if (program.outputs[i].name == "embeddings") {
        embeddings.append(out, data_->eval.count());
      } else if (program.outputs[i].name == "samples") {
        generated.append(out, kMaxCompared);
        real.append(samples.features, kMaxCompared);
      } else if (program.outputs[i].name == "judged" || program.outputs[i].name == "deceived") {
        const bool is_real = program.outputs[i].name == "judged";
        for (float logit : out.as<const float>()) all.correct += (logit > 0) == is_real;
        all.total += out.elements();
      }
    }
    total += n;
  }
  result.loss /= total;
  if (embeddings.count() > 0) all = retrieval(embeddings, data_->eval.labels.as<const int32_t>());
  if (generated.count() > 0) result.loss = energy_distance(generated, real);
  result.accuracy = all.share();
  return result;
}

}  // namespace twinrun
