// The catalogue of formulas: ways in which a training script computes another function than the
// scenario says although every engine involved is right. Frameworks differ in them, and they occur
// when a model is ported. Each row is a setting of the scenario, so whatever explains a subject can
// also be declared.
//
//   for (const FormulaChange& c : formula_changes(experiment)) {  // those that may occur here
//     Experiment other = *with_formula(experiment, c);            // the reference with that change
//     c.setting;       // optimizer.epsilon_form = "torch"
//   }
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct FormulaChange {
  std::vector<std::pair<std::string, std::string>> values;  // key of the scenario, value as TOML
  std::string setting;  // the same as a line to put into the scenario
  std::string meaning;  // what the subject does: "adds epsilon after the bias correction"
  // Frameworks and scripts that do so, with the source; "": none by default.
  std::string frameworks;
  std::string cure;  // what to change in the script, if the scenario is to stay
  // Learning rates that the subject used at single steps.
  std::map<int64_t, double> rates = {};
  bool update_only = false;  // neither the loss nor a gradient depends on it
  bool operator==(const FormulaChange&) const = default;
};

// Changes from the scenario's own formulas to others, in a fixed order.
std::vector<FormulaChange> formula_changes(const Experiment& experiment);

// Changes by numbers that were fitted to the subject instead of taken from a list. fitted_number: a
// factor of the loss ("loss.scale") or of the gradients ("optimizer.gradient_scale"), or a learning
// rate ("optimizer.lr"). fitted_rates: the learning rates of single steps.
FormulaChange fitted_number(const Experiment& experiment, const std::string& key, double value);
FormulaChange fitted_rates(const Experiment& experiment, const std::map<int64_t, double>& rates);
// For a scenario that does not clip: a value of optimizer.clip, and the limit.
FormulaChange fitted_clip(const Experiment& experiment, const std::string& kind, double at);

// Parameters that do not learn. `key` is optimizer.frozen, optimizer.stopped (of which `frozen` are
// not updated, either) or unused.
FormulaChange of_parameters(const Experiment& experiment, const std::string& key,
                            const std::set<std::string>& parameters,
                            const std::set<std::string>& frozen);

// A number in the catalogue's formulas that a subject may have otherwise, and how to solve for it.
struct NumberKey {
  enum class Scale : uint8_t {
    kLinear,
    kLogarithm,  // for numbers that span decades
    kComplement  // the logarithm of 1 - x, for decays
  } scale = Scale::kLinear;
  std::string key;
  double start = 0;
  bool update_only = false;
  bool takes(double value) const;  // whether the value lies on the scale
};
std::vector<NumberKey> number_keys(const Experiment& experiment);
double number_in(std::string_view toml);
// The number of one or two significant digits within a thousandth of `value`, or one minus such a
// number for decays above 0.5: what a person may have set. nullopt: there is none.
std::optional<double> plain_number(double value);

// The experiment with the change's values in its scenario.
Result<Experiment> with_formula(const Experiment& experiment, const FormulaChange& change);

// Whether both set the same key.
bool exclusive(const FormulaChange& a, const FormulaChange& b);

// The catalogue in docs/reference/formulas.md: the rows that name who computes so.
std::string formula_table_markdown();

}  // namespace twinrun
