#include "harness/evaluate.h"

#include <algorithm>

namespace twinrun {

Evaluator::Evaluator(const Experiment& experiment, int threads)
    : data_(experiment.data),
      mean_loss_(experiment.scenario.loss.reduction == LossReduction::kMean),
      averaged_(experiment.scenario.optimizer.ema_eval) {
  BackendOptions options;
  options.threads = threads;
  backend_ = *make_backend("cpu", options);
  const int64_t total = data_->eval.labels.elements();
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
  int64_t correct = 0, total = 0;
  for (const Piece& piece : pieces_) {
    const Program& program = piece.engine->program();
    States mine(1);
    for (const StateVar& var : program.state) {
      const int average = averaged_ ? trained.state_index(var.name + ".ema") : -1;
      const int i = average >= 0 ? average : trained.state_index(var.name);
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
    const Tensor images = data_->eval.images.rows(piece.begin, piece.end);
    const Tensor labels = data_->eval.labels.rows(piece.begin, piece.end);
    for (const Input& input : program.inputs) {
      inputs[0].push_back(input.name == "images"       ? images
                          : input.name == "labels"     ? labels
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
        const int64_t classes = out.dims()[1];
        for (int64_t s = 0; s < n; ++s) {
          const auto row = out.as<const float>().subspan(static_cast<size_t>(s * classes),
                                                         static_cast<size_t>(classes));
          const auto best = std::ranges::max_element(row) - row.begin();
          correct += best == labels.as<const int32_t>()[static_cast<size_t>(s)];
        }
      }
    }
    total += n;
  }
  result.loss /= static_cast<double>(total);
  result.accuracy = static_cast<double>(correct) / static_cast<double>(total);
  return result;
}

}  // namespace twinrun
