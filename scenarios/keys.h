// The one table of scenario keys: reading, checking, suggestions, --set, the resolved dump and
// docs/scenario-keys.md all go over it, so a key is declared once (keys.cc).
//
//   for (const Key<TrainSpec>& key : keys<TrainSpec>()) ...    // "batch", &TrainSpec::batch, at
//   least 1, ... key_table_markdown();                                      //
//   docs/scenario-keys.md
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "scenarios/scenario.h"

namespace twinrun {

// Values a key takes: a range for numbers, names for strings; nothing: everything.
struct Allowed {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false, below_high = false;  // the bound itself is out
  std::string_view names = {};                 // "mean|sum"
  bool or_count = false;                       // beside the names: an integer of at least 1

  bool has(double value) const;
  bool has(std::string_view name) const;
  std::string text() const;  // "at least 1", "1 to 512", "mean, sum"; "" for everything
};

namespace allowed {                      // how tables of keys say it
inline constexpr double kMost = 9.3e18;  // beyond every int64
constexpr Allowed any() { return {}; }
constexpr Allowed at_least(double low) { return {.low = low, .high = kMost}; }
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
  // Only with these values of the selector ("dense|conv2d"); empty: always.
  std::string_view only = {};
  bool required = false;
  std::string_view shown_default =
      {};  // in the docs, where the member's initial value says too little
  std::string_view selector = "kind";  // the key that `only` speaks of
};

template <typename Owner>
std::span<const Key<Owner>> keys();  // Scenario (the top level) and each of its parts

// "a|b|c" -> {"a", "b", "c"}; {} for "".
std::vector<std::string_view> split_names(std::string_view names);
bool contains_name(std::string_view names, std::string_view name);

// Applies f(section, part) to every [section] of the scenario, in file order; stops when f returns
// false.
template <typename S, typename F>
bool each_section(S& s, F f) {
  return f("data", s.data) && f("model", s.model) && f("loss", s.loss) &&
         f("optimizer", s.optimizer) && f("train", s.train) && f("tpu", s.tpu) &&
         f("diagnose", s.diagnose);
}

// A value as TOML: strings quoted and escaped, numbers shortest round-trip.
template <typename Owner>
std::string toml_value(const Owner& owner, const Key<Owner>& key);
std::string toml_string(std::string_view text);
std::string toml_number(double value);
// The value of the string key `name` (a selector).
template <typename Owner>
std::string_view string_value(const Owner& owner, std::string_view name);
// False when `only` excludes the key, given the owner's selector.
template <typename Owner>
bool applies(const Owner& owner, const Key<Owner>& key) {
  return key.only.empty() || contains_name(key.only, string_value(owner, key.selector));
}

std::string key_table_markdown();

}  // namespace twinrun
