#include "harness/evaluate.h"

#include <algorithm>

namespace twinrun {
namespace {

struct Score {
  int64_t correct = 0, total = 0;
};

// Argmax of logits [..., classes] against labels [...]; labels of padding (weight 0) do not count.
Score score(const Tensor& logits, const Samples& samples) {
  const auto labels = samples.labels.as<const int32_t>();
  const bool weighted = samples.weights.valid() && samples.weights.dims() == samples.labels.dims();
  const auto classes = static_cast<size_t>(logits.dims().back());
  Score out;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (weighted && samples.weights.as<const float>()[i] == 0.0f) continue;
    const auto row = logits.as<const float>().subspan(i * classes, classes);
    out.correct += std::ranges::max_element(row) - row.begin() == labels[i];
    ++out.total;
  }
  return out;
}

}  // namespace

Evaluator::Evaluator(const Experiment& experiment, int threads)
    : data_(experiment.data),
      mean_loss_(experiment.scenario.loss.reduction == LossReduction::kMean) {
  BackendOptions options;
  options.threads = threads;
  backend_ = *make_backend("cpu", options);
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

Result<Evaluation> Evaluator::evaluate(const Program& trained, const States& states,
                                       int64_t steps_done) {
  Evaluation result;
  result.step = steps_done;
  int64_t total = 0;
  Score all;
  for (const Piece& piece : pieces_) {
    const Program& program = piece.engine->program();
    States mine(1);
    for (const StateVar& var : program.state) {
      const int i = trained.state_index(var.name);
      if (i < 0)
        return Error{"the trained program has no state '" + var.name + "'", "evaluation", ""};
      Tensor value = states[0].vars[static_cast<size_t>(i)];
      if (value.dtype() == DType::kF64) {  // cpu:f64 keeps its state in binary64
        Tensor f32 = Tensor::empty(var.type);
        std::ranges::transform(value.as<double>(), f32.as<float>().begin(),
                               [](double d) { return static_cast<float>(d); });
        value = f32;
      }
      mine[0].vars.push_back(value);
    }
    StepInputs inputs(1);
    const Samples samples = data_->eval.rows(piece.begin, piece.end);
    for (const Input& input : program.inputs) {
      if (input.name == "weights" && !samples.weights.valid()) {
        return Error{"nothing feeds the input 'weights'", "evaluation", ""};
      }
      const bool features = input.name == "images" || input.name == "tokens";
      inputs[0].push_back(features                     ? samples.features
                          : input.name == "labels"     ? samples.labels
                          : input.name == "weights"    ? samples.weights
                          : input.name == "sample_ids" ? Tensor::zeros(program.graph.type(input.id))
                          : input.name == "learning_rate" ? Tensor::scalar(0)
                                                          : Tensor::scalar_i32(0));
    }
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(piece.engine->step(0, mine, inputs, outputs));
    const int64_t n = piece.end - piece.begin;
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const Tensor& out = outputs[0][i];
      if (program.outputs[i].name == "loss") {
        const double loss = out.as<const float>()[0];
        result.loss += mean_loss_ ? loss * static_cast<double>(n) : loss;
      } else if (program.outputs[i].name == "logits") {
        const Score piece_score = score(out, samples);
        all.correct += piece_score.correct;
        all.total += piece_score.total;
      }
    }
    total += n;
  }
  result.loss /= static_cast<double>(total);
  result.accuracy = static_cast<double>(all.correct) / static_cast<double>(all.total);
  return result;
}

}  // namespace twinrun
