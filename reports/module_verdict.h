// What is found of the results of a compiled module: plain structs, and the Report that they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"

namespace twinrun {

struct ModuleResult {
  struct Worst {
    std::vector<int64_t> index;
    double found = 0, expected = 0, radius = 0;
  };
  int64_t index = 0;
  std::string type;  // "f32[64,10]"
  int64_t elements = 0, outside = 0;
  int64_t unknown = 0;  // elements without a finite radius
  std::string why;      // the op where the bound was lost; "" if all have one
  std::optional<Worst> worst;
  double largest_ratio = 0;           // |found - expected| / radius
  double median_relative_radius = 0;  // of the radii, over the largest value
  std::string pattern;                // which elements are outside, in words
  // Held against likely values, because the proven radii are too wide to decide anything.
  bool likely = false;
  // The argument that the result is the new value of; -1: none is known.
  int64_t replaces = -1;
  // Of its change, or without an argument of its value: how many elements are not 0, and which part
  // of the norm the radii leave undecided (FoundVerdict::undecided).
  int64_t moved = 0;
  double undecided = 0;
  // Less is decided than is not: of the squared norm, half.
  bool is_open() const { return undecided * undecided >= 0.5; }
};

struct ModuleVerdict {
  std::string module;
  std::vector<ModuleResult> results;
  std::string refused;                // why the module cannot be imported
  std::vector<std::string> left_out;  // results that were not given: "result/1"
  std::vector<std::string> notes;

  int64_t outside() const;   // elements, of proven radii
  int64_t unlikely() const;  // elements outside of likely values, which proves nothing
  int64_t elements() const;  // of all results
  int64_t judged() const;    // elements
  // The part of the step that is undecided: of the squared changes of the results that replace
  // arguments, each in units of its result's norm and weighted by its elements that move.
  double undecided() const;
  // kEngineBug, kNoise, or kInconclusive where nothing was judged, results are only unlikely, or
  // more of the step is undecided than decided.
  VerdictClass verdict() const;
};

Report report_of(const ModuleVerdict& verdict);

}  // namespace twinrun
