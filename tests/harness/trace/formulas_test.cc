// Tests the formulas of optimizers on numbers that were worked out by hand.
#include "harness/trace/formulas.h"

#include <gtest/gtest.h>

#include "backends/aten/definitions.h"

namespace twinrun {
namespace {

struct ByHand {
  const char* optimizer;
  std::map<std::string, std::vector<double>> settings;
  double weight, gradient;
  std::map<std::string, double> state;
  double after;                           // the weight
  std::map<std::string, double> changed;  // states
};

const std::vector<ByHand>& by_hand() {
  static const std::vector<ByHand> rows = {
      {"SGD", {{"lr", {0.5}}}, 1, 4, {}, -1, {}},
      // The first momentum is the gradient; with Nesterov's form g + m b.
      {"SGD",
       {{"lr", {0.5}}, {"momentum", {0.5}}, {"nesterov", {1}}, {"weight_decay", {0.5}}},
       2,
       3,
       {},
       -1,
       {{"momentum_buffer", 4}}},
      {"SGD",
       {{"lr", {1}}, {"momentum", {0.5}}, {"dampening", {0.25}}},
       10,
       4,
       {{"momentum_buffer", 2}},
       6,
       {{"momentum_buffer", 4}}},
      // m / c1 = g and v / c2 = g^2 after the first step.
      {"Adam",
       {{"lr", {0.25}}, {"betas", {0.5, 0.75}}, {"eps", {0}}},
       1,
       -8,
       {},
       1.25,
       {{"exp_avg", -4}, {"exp_avg_sq", 16}, {"step", 1}}},
      {"AdamW",
       {{"lr", {0.5}}, {"betas", {0.5, 0.75}}, {"eps", {0}}, {"weight_decay", {0.5}}},
       4,
       8,
       {},
       2.5,
       {}},
      // u = max(0.5 * 4, 1) = 2, m = 1, c1 = 0.75 at the second step: 1 / 0.75 / 2.
      {"Adamax",
       {{"lr", {0.75}}, {"betas", {0.5, 0.5}}, {"eps", {0}}},
       1,
       1,
       {{"exp_avg", 1}, {"exp_inf", 4}, {"step", 1}},
       0.5,
       {{"exp_inf", 2}}},
      {"Adagrad", {{"lr", {1}}, {"eps", {0}}}, 1, 4, {{"sum", 9}}, 0.2, {{"sum", 25}}},
      {"RMSprop",
       {{"lr", {1}}, {"alpha", {0.75}}, {"eps", {1}}},
       1,
       4,
       {},
       1 - 4.0 / 3,
       {{"square_avg", 4}}},
      // The signs agree: the step grows from 0.5 to 0.6.
      {"Rprop",
       {{"lr", {0.5}}, {"etas", {0.5, 1.2}}, {"step_sizes", {1e-6, 50}}},
       1,
       3,
       {{"prev", 2}, {"step_size", 0.5}},
       0.4,
       {{"step_size", 0.6}, {"prev", 3}}},
      // They do not: half of it, and no step.
      {"Rprop",
       {{"lr", {0.5}}, {"etas", {0.5, 1.2}}, {"step_sizes", {1e-6, 50}}},
       1,
       -3,
       {{"prev", 2}, {"step_size", 0.5}},
       1,
       {{"step_size", 0.25}, {"prev", 0}}},
      // Fewer than 5 steps' worth: no rectification.
      {"RAdam", {{"lr", {0.5}}, {"betas", {0.5, 0.75}}, {"eps", {0}}}, 1, 4, {}, -1, {}},
      {"ASGD",
       {{"lr", {0.5}}, {"lambd", {0.5}}, {"alpha", {1}}, {"t0", {0}}},
       2,
       2,
       {},
       0.5,
       {{"ax", 0.5}, {"eta", 0.4}, {"mu", 1}}},
      // sqrt(0 + 1) / sqrt(0.5 * 16 + 1) * 4
      {"Adadelta",
       {{"lr", {0.75}}, {"rho", {0.5}}, {"eps", {1}}},
       1,
       4,
       {},
       0,
       {{"square_avg", 8}, {"acc_delta", 8.0 / 9}}},
  };
  return rows;
}

TEST(UpdateFormulas, GiveWhatIsWorkedOutByHand) {
  for (const ByHand& row : by_hand()) {
    SCOPED_TRACE(row.optimizer);
    const Formula* formula = formula_of(std::string("torch.optim.") + row.optimizer);
    ASSERT_NE(formula, nullptr);
    Settings settings;
    settings.numbers = row.settings;
    Slot slot{{1}, {row.weight}, {row.gradient}, {}};
    for (const auto& [name, value] : row.state) slot.state[name] = {value};
    formula->apply(settings, Departure::kNone, slot);
    EXPECT_NEAR(slot.weight[0], row.after, 1e-12);
    for (const auto& [name, value] : row.changed) {
      ASSERT_EQ(slot.state.count(name), 1U) << name;
      EXPECT_NEAR(slot.state[name][0], value, 1e-12) << name;
    }
  }
}

TEST(UpdateFormulas, RefuseWhatTheyCannotUse) {
  Slot slot{{1}, {1}, {1}, {}};
  EXPECT_THROW(formula_of("torch.optim.Adam")->apply({}, Departure::kNone, slot), aten::Undefined);
  Settings s;
  s.numbers = {{"lr", {1}}, {"betas", {0.5, 0.5}}, {"eps", {0}}};
  slot.state["exp_avg"] = {1, 2};
  EXPECT_THROW(formula_of("torch.optim.Adam")->apply(s, Departure::kNone, slot), aten::Undefined);
  EXPECT_EQ(formula_of("torch.optim.LBFGS"), nullptr);
}

}  // namespace
}  // namespace twinrun
