// Held-out loss and accuracy of trained weights, always computed by the cpu reference from replica
// 0, whatever engine trained them. Of an imported step: the loss of its program on the held-out
// batches, without an update, and no accuracy (NaN). On the data's path: States after a step ->
// Evaluation.
//
//   Evaluator evaluator(experiment, threads);
//   auto e = evaluator.evaluate(program, states, /*steps_done=*/200);
#pragma once

#include <memory>
#include <vector>

#include "checkpoints/run.h"
#include "harness/experiment/experiment.h"

namespace twinrun {

class Evaluator {
 public:
  Evaluator(const Experiment& experiment, int threads);
  // Loss is the mean over samples (by their weights where the loss has weights). Accuracy is the
  // share of held-out labels, without those of padding, that the argmax predicts (the first index
  // of ties). With losses over pairs, accuracy is the share of samples whose nearest other sample
  // has the same label. For a GAN, loss is the energy distance between generated and held-out
  // samples (at most 512 of each), and accuracy the share of both that the discriminator classifies
  // correctly. Errors: `trained` lacks a state variable, an input has no data, or the engine fails.
  Result<Evaluation> evaluate(const Program& trained, const States& states, int64_t steps_done);

 private:
  struct Piece {
    int64_t begin, end;
    Engine* engine;
  };
  Result<Evaluation> evaluate_imported(const Program& trained, const States& states,
                                       int64_t steps_done);

  std::shared_ptr<const ImportedRun> imported_;
  std::shared_ptr<const Dataset> data_;
  bool mean_loss_;
  bool weighted_;  // loss.weights = "tokens"
  bool averaged_;  // optimizer.ema_eval: "<parameter>.ema" instead of the parameter
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Piece> pieces_;
};

}  // namespace twinrun
