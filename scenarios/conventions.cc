// The table of conventions: which formula an "auto" key has, by framework.
#include "scenarios/conventions.h"

#include "scenarios/keys.h"

namespace twinrun {
namespace {

// One key; its values in the order of kNames.
struct Row {
  std::string_view key;
  std::string_view kinds;  // values of optimizer.kind for which the row holds; "": all
  std::string_view values[5];
};
constexpr std::string_view kNames = "tensorflow|keras2|keras3|pytorch|optax";
constexpr std::string_view kFrameworks[] = {"TensorFlow", "Keras 2", "Keras 3", "PyTorch", "optax"};

// Sources, in their versions of 2026: tensorflow core/kernels/training_ops.cc;
// keras/src/optimizers/*.py (Keras 3; Keras 2.11 and later have the same formulas);
// torch/optim/*.py; optax/_src/transform.py.
constexpr Row kRows[] = {
    {"epsilon_form", "adam|adamw", {"tf", "tf", "tf", "torch", "torch"}},
    {"epsilon_form", "rmsprop", {"tf", "tf", "tf", "torch", "tf"}},
    {"epsilon_form", "adagrad", {"tf", "root", "root", "tf", "root"}},
    {"epsilon_form", "adamax", {"tf", "tf", "tf", "torch", "torch"}},
    {"velocity", "rmsprop", {"steps", "steps", "steps", "gradients", "steps"}},
    {"nesterov_form", "", {"tf", "tf", "tf", "tf", "optax"}},
    {"decay_form", "adamw", {"decoupled", "decoupled", "decoupled", "decoupled", "decoupled"}},
    {"decay_form", "", {"coupled", "decoupled", "decoupled", "coupled", "coupled"}},
    {"clip_form", "", {"tf", "tf", "tf", "torch", "tf"}},
    {"variance", "", {"tf", "tf", "biased", "unbiased", "biased"}},
};

size_t place_of(std::string_view conventions) {
  const auto names = split_names(kNames);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == conventions) return i;
  }
  return 0;  // "auto", and no subject has declared its conventions: TensorFlow's
}

}  // namespace

std::string_view convention_names() { return kNames; }

std::string_view framework_of(std::string_view conventions) {
  return kFrameworks[place_of(conventions)];
}

std::string_view by_conventions(const Scenario& s, std::string_view key) {
  for (const Row& row : kRows) {
    if (row.key != key || (!row.kinds.empty() && !contains_name(row.kinds, s.optimizer.kind)))
      continue;
    return row.values[place_of(s.conventions)];
  }
  return "tf";
}

}  // namespace twinrun
