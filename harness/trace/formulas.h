// The published formulas of optimizers, in binary64: what one parameter and its state become. They are
// written from the algorithms in the documentation of torch.optim, not from its code.
//
//   const Formula* f = formula_of("torch.optim.NAdam");
//   f->apply(settings, Departure::kNone, slot);    // slot.weight, slot.state: the new ones
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// The settings of a group of parameters; a tuple has a number for each of its items.
class Settings {
 public:
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::string> texts;

  bool has(const std::string& name) const { return numbers.contains(name); }
  // Undefined (backends/aten/definitions.h) where there is none.
  double number(const std::string& name, size_t item = 0) const;
  double number_or(const std::string& name, double otherwise, size_t item = 0) const;
  bool flag(const std::string& name) const { return number_or(name, 0) != 0; }
};

// How an optimizer may depart from its formula; a formula that has no such part ignores it.
enum class Departure : uint8_t {
  kNone,
  kNoDecay,
  kOtherDecay,
  kStepBehind,
  kStepAhead,
  kNoCorrection,
  kEpsilonInside,
  kProductTwice,
  kMaximumNotKept,
  kCount
};
// "without its weight decay"
std::string_view words_of(Departure departure);

struct Slot {
  Dims dims;
  std::vector<double> weight, gradient;
  std::map<std::string, std::vector<double>> state;  // those of one number have one element
};

struct Formula {
  std::string_view optimizer;
  void (*apply)(const Settings&, Departure, Slot&);
  // The optimizer reads norms of its tensors into Python, rounded to their type.
  bool reads_norms = false;
};
std::span<const Formula> formulas();
const Formula* formula_of(std::string_view optimizer);  // nullptr: none is known

}  // namespace twinrun
