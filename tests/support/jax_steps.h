// Training steps that JAX exported. Small ones are in git; tests/program/import/fixtures/made.py
// makes the others beside the test programs, before the tests that have FromJax in their names.
//
//   TWINRUN_NEEDS_JAX_STEP("forms_loops.hlo");
//   const auto e = import_experiment({.program = jax_step("forms_loops.hlo")});
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace twinrun {

inline std::string jax_step(const std::string& file) {
  const std::string kept = TWINRUN_SOURCE_DIR "/tests/program/import/fixtures/" + file;
  if (std::filesystem::exists(kept)) return kept;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "steps" / file;
}

}  // namespace twinrun

// Skips a test, or in SetUp each test of a suite, where no JAX has made the step.
#define TWINRUN_NEEDS_JAX_STEP(file)                       \
  if (!std::filesystem::exists(::twinrun::jax_step(file))) \
  GTEST_SKIP() << ::twinrun::jax_step(file) << " is missing: ctest -R steps.from_jax makes it"
