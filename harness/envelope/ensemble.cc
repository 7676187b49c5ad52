// Runs the subject and the ensemble of conforming engines for a few steps, and ranks the subject.
#include "harness/envelope/ensemble.h"

#include <algorithm>
#include <cmath>

#include "backends/variants/variant.h"
#include "harness/run/one_step.h"
#include "harness/tensors/distance.h"
#include "program/base/distributions.h"
#include "program/base/philox.h"

namespace twinrun {
namespace {

constexpr double kFalseAlarm = 1e-4;

// Moves each parameter by one ulp up, by one ulp down, or not at all; the same on all replicas.
void move_by_an_ulp(const Program& program, States& states, uint64_t seed, uint32_t member) {
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != StateRole::kParameter) continue;
    Tensor moved = states[0].vars[i].clone();
    uint64_t element = 0;
    for (float& w : moved.as<float>()) {
      const uint32_t way =
          bounded(draw({seed, kStreamEnsemble}, member, static_cast<uint32_t>(i), element++), 3);
      if (way != 1) w = std::nextafterf(w, way == 0 ? -INFINITY : INFINITY);
    }
    for (ReplicaState& replica : states) replica.vars[i] = moved;
  }
}

struct Curves {
  std::vector<double> losses, weights;
};

Result<Curves> first_steps(const Experiment& e, const Program& program, Backend& backend,
                           const EnsembleOptions& o, uint32_t member) {
  TWINRUN_ASSIGN(const auto engine, backend.prepare(program));
  States states = initial_states(e, program);
  move_by_an_ulp(program, states, o.seed, member);
  Curves curves;
  const auto keep_loss = [&](const StepOutputs& outputs) {
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      if (program.outputs[i].name != "loss") continue;
      double sum = 0;
      for (const auto& replica : outputs) sum += as_doubles(replica[i])[0];
      curves.losses.push_back(sum / static_cast<double>(outputs.size()));
    }
  };
  TWINRUN_ASSIGN(states, run_steps(e, *engine, std::move(states), o.steps, keep_loss));
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != StateRole::kParameter) continue;
    const std::vector<double> values = as_doubles(states[0].vars[i]);
    curves.weights.insert(curves.weights.end(), values.begin(), values.end());
  }
  return curves;
}

// Root mean square of the difference; infinite where it is not a number.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  const double d = std::sqrt(squared_distance(a, b) / static_cast<double>(a.size()));
  return std::isnan(d) ? HUGE_VAL : d;
}

// The smallest difference that the binary32 numbers of a curve can show: one ulp of their size.
double resolution(const std::vector<double>& curve) {
  return 0x1p-23 * apart(curve, std::vector<double>(curve.size()));
}

}  // namespace

EnsembleRow rank_of_first(const std::vector<std::vector<double>>& curves) {
  const size_t n = curves.size();
  // Each curve is judged by its median distance, so that one outlier does not make the others look
  // far.
  std::vector<double> distance;
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> to;
    for (size_t j = 0; j < n; ++j) {
      if (j != i) to.push_back(apart(curves[i], curves[j]));
    }
    std::ranges::nth_element(to, to.begin() + static_cast<std::ptrdiff_t>((n - 2) / 2));
    distance.push_back(to[(n - 2) / 2]);
  }
  EnsembleRow row;
  row.members = static_cast<int>(n) - 1;
  row.subject = distance[0];
  row.low = *std::min_element(distance.begin() + 1, distance.end());
  row.high = *std::max_element(distance.begin() + 1, distance.end());
  const auto as_far = [&](double d) { return d >= row.subject; };
  row.p = static_cast<double>(std::ranges::count_if(distance, as_far)) / static_cast<double>(n);
  row.outcome = EnsembleOutcome::kInside;
  if (row.subject <= row.high) return row;
  // The subject is farther away than every member. Compare it with Student's prediction interval
  // for one more logarithm of a distance. Distances are known only up to the resolution.
  const double unknown = resolution(curves[1]);
  for (double& d : distance) d = std::max(d, unknown);
  double mean = 0, squares = 0;
  for (size_t i = 1; i < n; ++i) mean += std::log(distance[i]) / static_cast<double>(n - 1);
  for (size_t i = 1; i < n; ++i) squares += std::pow(std::log(distance[i]) - mean, 2);
  const auto members = static_cast<double>(n - 1);
  const double error = std::sqrt(squares / (members - 1) * (1 + 1 / members));
  const double limit = mean + student_upper(members - 1, kFalseAlarm) * error;
  if (!(row.subject - unknown <= 0 || std::log(row.subject - unknown) <= limit))
    row.outcome = EnsembleOutcome::kOutside;
  return row;
}

Result<std::vector<EnsembleRow>> compare_ensemble(const Experiment& e, const Program& program,
                                                  Backend& subject, const EnsembleOptions& o) {
  std::vector<std::vector<double>> losses, weights;
  for (int member = 0; member <= o.members; ++member) {
    std::unique_ptr<Backend> conforming;
    if (member > 0) {
      const uint64_t number = o.seed + static_cast<uint64_t>(member);
      BackendOptions options;
      options.threads = o.threads;
      conforming =
          o.as ? member_of(*o.as, number, subject.capabilities(), options)
               : make_variant_backend(variant_within(number, subject.capabilities()), options);
    }
    TWINRUN_ASSIGN(Curves curves, first_steps(e, program, conforming ? *conforming : subject, o,
                                              static_cast<uint32_t>(member)));
    losses.push_back(std::move(curves.losses));
    weights.push_back(std::move(curves.weights));
  }
  std::vector<EnsembleRow> rows{rank_of_first(losses), rank_of_first(weights)};
  rows[0].metric = "loss curve";
  rows[1].metric = "weights";
  for (EnsembleRow& row : rows) {
    row.run = "T";
    row.steps = o.steps;
  }
  return rows;
}

}  // namespace twinrun
