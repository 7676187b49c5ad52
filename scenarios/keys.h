// The table of all scenario keys. Reading, checking, suggestions, --set, the resolved dump and
// docs/reference/scenarios.md all use it, so each key is declared once (keys.cc, layer_keys.cc,
// optimizer_keys.cc).
//
//   for (const Key<TrainSpec>& key : keys<TrainSpec>()) ...    // "batch", &TrainSpec::batch, ...
//   key_table_markdown();                                      // docs/reference/scenarios.md
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "scenarios/scenario.h"

namespace twinrun {

// The values that a key accepts: a range for numbers, names for strings. By default everything.
struct Allowed {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false, below_high = false;  // the bound itself is excluded
  std::string_view names = {};                 // "mean|sum"
  bool or_count = false;                       // also accepts an integer of at least 1

  bool has(double value) const;
  bool has(std::string_view name) const;
  std::string text() const;  // "at least 1", "1 to 512", "mean, sum"; "" for everything
};

namespace allowed {                     // shorthands for the tables of keys
inline constexpr double kMax = 9.3e18;  // greater than every int64
constexpr Allowed any() { return {}; }
constexpr Allowed at_least(double low) { return {.low = low, .high = kMax}; }
constexpr Allowed between(double low, double high) { return {.low = low, .high = high}; }
constexpr Allowed above(double low) { return {.low = low, .above_low = true}; }
constexpr Allowed below(double low, double high) {
  return {.low = low, .high = high, .below_high = true};
}
constexpr Allowed one_of(std::string_view names) { return {.names = names}; }
}  // namespace allowed

template <typename Owner>
struct Key {
  std::string_view name;
  std::variant<bool Owner::*, int Owner::*, int64_t Owner::*, uint64_t Owner::*, double Owner::*,
               std::string Owner::*, std::vector<std::string> Owner::*, Dims Owner::*,
               LossReduction Owner::*, std::vector<double> Owner::*>
      member;
  Allowed allowed;
  std::string_view meaning;
  // The key exists only with these values of the selector ("dense|conv2d"); empty: always.
  std::string_view only = {};
  bool required = false;
  // The default to show in the docs, where the member's initial value is not informative.
  std::string_view shown_default = {};
  std::string_view selector = "kind";  // the key whose values `only` lists
};

template <typename Owner>
std::span<const Key<Owner>> keys();  // Owner: Scenario (the top level keys) or one of its parts
template <>
std::span<const Key<Scenario>> keys();
template <>
std::span<const Key<DataSpec>> keys();
template <>
std::span<const Key<ModelSpec>> keys();
template <>
std::span<const Key<LayerSpec>> keys();
template <>
std::span<const Key<LossSpec>> keys();
template <>
std::span<const Key<OptimizerConfig>> keys();
template <>
std::span<const Key<TrainSpec>> keys();
template <>
std::span<const Key<TpuSpec>> keys();
template <>
std::span<const Key<DiagnoseSpec>> keys();

// "a|b|c" -> {"a", "b", "c"}; {} for "".
std::vector<std::string_view> split_names(std::string_view names);
bool contains_name(std::string_view names, std::string_view name);

// Calls f(section, part) for every [section] of the scenario, in file order, until f returns false.
// Returns whether all calls returned true.
template <typename S, typename F>
bool each_section(S& s, F f) {
  return f("data", s.data) && f("model", s.model) && f("loss", s.loss) &&
         f("optimizer", s.optimizer) && f("train", s.train) && f("tpu", s.tpu) &&
         f("diagnose", s.diagnose);
}

// A value as TOML: strings quoted and escaped, numbers in the shortest form that reads back equal.
template <typename Owner>
std::string toml_value(const Owner& owner, const Key<Owner>& key);
std::string toml_string(std::string_view text);
std::string toml_number(double value);
// The value of the string key `name`; used for selectors.
template <typename Owner>
std::string_view string_value(const Owner& owner, std::string_view name);
// Whether the key exists, given the value of the owner's selector.
template <typename Owner>
bool applies(const Owner& owner, const Key<Owner>& key) {
  return key.only.empty() || contains_name(key.only, string_value(owner, key.selector));
}

// The keys in docs/reference/scenarios.md.
std::string key_table_markdown();

}  // namespace twinrun
