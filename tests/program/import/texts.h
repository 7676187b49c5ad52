// Helpers for the tests of program/import: fixtures, what an import returns, and texts with random
// damage.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "program/import/import.h"
#include "tests/support/jax_steps.h"

namespace twinrun::import_tests {

inline std::string fixture(const std::string& name) {
  std::ifstream in(jax_step(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline Result<ImportedStep> import_text(const std::string& text) {
  TWINRUN_ASSIGN(const HloModule module, parse_program(text, "step"));
  TWINRUN_ASSIGN(const StepBinding binding, default_binding(module));
  return import_step(module, binding);
}

inline std::string error_of(const std::string& text) {
  const auto step = import_text(text);
  return step ? "" : step.error().message();
}

inline std::vector<std::string> names_of(const Program& p) {
  std::vector<std::string> out;
  for (const Op& op : p.graph.ops()) out.push_back(op.name);
  return out;
}
inline bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Damages a good text at random, `times` times: characters, words and lines are changed, removed or
// repeated, or the end is cut off. Each import must return a program or an error that says where.
// TWINRUN_FUZZ=N makes N times as many.
inline void break_text(const std::string& good, const std::vector<std::string>& words, int times) {
  if (const char* factor = std::getenv("TWINRUN_FUZZ")) times *= std::max(1, std::atoi(factor));
  std::mt19937_64 random(7);
  int taken = 0;
  ASSERT_GT(good.size(), 1000u);
  for (int i = 0; i < times; ++i) {
    std::string bad = good;
    for (int change = 0; change < 1 + i % 3; ++change) {
      const size_t at = random() % bad.size(), length = random() % 24;
      const std::string& word = words[random() % words.size()];
      switch (random() % 5) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.erase(at, length);
          break;
        case 2:
          bad.insert(at, word);
          break;
        case 3:
          bad.replace(at, std::min(length, bad.size() - at), word);
          break;
        default:
          bad.insert(at, bad.substr(random() % bad.size(), length));
          break;
      }
    }
    if (i % 10 == 0) bad.resize(random() % bad.size());
    const auto step = import_text(bad);
    taken += step ? 1 : 0;
    if (step) continue;
    EXPECT_TRUE(step.error().message().starts_with("step")) << step.error().message();
  }
  EXPECT_GT(taken, 0) << "names and places may change without harm";
  EXPECT_LT(taken, times);
}

}  // namespace twinrun::import_tests
