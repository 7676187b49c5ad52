// The catalogue of formulas: ways in which a training script computes another function than the scenario says, though every
// engine involved is right. Frameworks differ in them, and people who port a model meet them. Each row is a setting of the
// scenario, so what explains a subject can also be declared.
//
//   for (const FormulaChange& c : formula_changes(experiment)) {          // those that this experiment could have
//     Experiment other = *with_formula(experiment, c);                    // the reference, changed so
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
  std::string setting;     // the same as a line to put into the scenario
  std::string meaning;     // what the subject does: "adds epsilon after the bias correction"
  std::string frameworks;  // who does so, with the source; "": nobody by default
  std::string cure;        // what to change in the script, if the scenario is to stand
  std::map<int64_t, double> rates = {};  // learning rates that the subject took at single steps
  bool update_only = false;              // neither the loss nor a gradient depends on it
  bool operator==(const FormulaChange&) const = default;
};

// Changes from the scenario's own formulas to others, in a fixed order.
std::vector<FormulaChange> formula_changes(const Experiment& experiment);

// The same in some layers alone: of each kind in those that are named here, together and each by itself; none of a kind all of whose
// layers are named, or many.
std::vector<FormulaChange> formula_changes_in(const Experiment& experiment,
                                              const std::set<std::string>& layers);

// Of numbers that no list has, taken from the subject: a factor of the loss ("loss.scale"), of the gradients
// ("optimizer.gradient_scale"), a rate ("optimizer.lr"); or the rates of single steps.
FormulaChange fitted_number(const Experiment& experiment, const std::string& key, double value);
FormulaChange fitted_rates(const Experiment& experiment, const std::map<int64_t, double>& rates);
// Of a scenario that does not clip: a value of optimizer.clip, and what it clips at.
FormulaChange fitted_clip(const Experiment& experiment, const std::string& kind, double at);

// Parameters that do not learn: `key` is optimizer.frozen, optimizer.stopped (of which `frozen` are not updated, either) or unused.
FormulaChange of_parameters(const Experiment& experiment, const std::string& key,
                            const std::set<std::string>& parameters,
                            const std::set<std::string>& frozen);

// A number of the catalogue's formulas that a subject may have otherwise, and how it is solved for.
struct NumberKey {
  enum class Scale : uint8_t {
    kLinear,
    kLogarithm,  // of what lies over decades
    kComplement  // ... of 1 - x: decays
  } scale = Scale::kLinear;
  std::string key;
  double start = 0;
  bool update_only = false;
  bool takes(double value) const;  // it has a place on the scale
};
std::vector<NumberKey> number_keys(const Experiment& experiment);
double number_in(std::string_view toml);
// The number of one or two digits, or one less such a number, that lies within a thousandth: what somebody may have set.
std::optional<double> plain_number(double value);

// The experiment whose scenario has the change's values.
Result<Experiment> with_formula(const Experiment& experiment, const FormulaChange& change);

// Do both set one key?
bool exclusive(const FormulaChange& a, const FormulaChange& b);

// The table of docs/formulas.md.
std::string formula_table_markdown();

}  // namespace twinrun
