// Held-out loss and accuracy, always by the cpu reference and always from replica 0, whoever trained the weights.
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
  // Loss is the mean over samples (by their weights where the loss has weights); accuracy counts argmax (the first index of
  // ties) over all held-out labels, without those of padding. Losses over pairs: accuracy is the share of samples whose
  // nearest other one has their label. A GAN: loss is the energy distance between generated and held-out samples (at most
  // 512 of each), accuracy the share of both that the discriminator tells apart.
  Result<Evaluation> evaluate(const Program& trained, const States& states, int64_t steps_done);

 private:
  struct Piece {
    int64_t begin, end;
    Engine* engine;
  };
  std::shared_ptr<const Dataset> data_;
  bool mean_loss_;
  bool weighted_;  // loss.weights = "tokens"
  bool averaged_;  // optimizer.ema_eval: "<parameter>.ema" instead of the parameter
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Piece> pieces_;
};

}  // namespace twinrun
