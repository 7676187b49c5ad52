// Rows of the catalogue (formula_rows.h) -> changes of one scenario; and numbers that a subject shows.
#include "harness/formulas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "harness/formula_rows.h"
#include "scenarios/conventions.h"
#include "scenarios/keys.h"
#include "scenarios/schedule.h"

namespace twinrun {
namespace {

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

// f(Key, Owner) for the named key of every part of the scenario that the section names: a section, or a kind of layer.
template <typename S, typename F>
void each_key(S& s, std::string_view path, F f) {
  const size_t dot = path.find('.');
  const std::string_view section = path.substr(0, dot), name = path.substr(dot + 1);
  const auto in = [&](auto& owner) {
    using Owner = std::remove_cvref_t<decltype(owner)>;
    for (const Key<Owner>& key : keys<Owner>()) {
      if (key.name == name) f(key, owner);
    }
  };
  bool found = false;
  each_section(s, [&](std::string_view title, auto& part) {
    if (title != section || section == "model") return true;
    found = true;
    in(part);
    return false;
  });
  if (found) return;
  for (auto& layer : s.model.layers) {
    if (layer.kind == section) in(layer);
  }
}

// "" where there is no such key here.
std::string value_of(const Experiment& e, std::string_view path) {
  std::string out;
  each_key(e.scenario, path, [&](const auto& key, const auto& owner) {
    if (out.empty() && applies(owner, key)) out = toml_value(owner, key);
  });
  return out;
}

double number_of(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Without the quotes of a TOML string.
std::string plain(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"') text = text.substr(1, text.size() - 2);
  return std::string(text);
}

// Puts a TOML value into the member; false: not a value of this key.
template <typename Owner>
struct Put {
  Owner& owner;
  const Key<Owner>& key;
  std::string_view text;
  bool name_fits(std::string_view name) const {
    return key.allowed.has(name) ||
           (key.allowed.or_count && name.find_first_not_of("0123456789") == name.npos);
  }
  bool operator()(bool Owner::*m) const {
    if (text != "true" && text != "false") return false;
    owner.*m = text == "true";
    return true;
  }
  bool number(auto& value) const {
    if (!key.allowed.has(number_of(text))) return false;
    value = static_cast<std::remove_reference_t<decltype(value)>>(number_of(text));
    return true;
  }
  bool operator()(int Owner::*m) const { return number(owner.*m); }
  bool operator()(int64_t Owner::*m) const { return number(owner.*m); }
  bool operator()(uint64_t Owner::*m) const { return number(owner.*m); }
  bool operator()(double Owner::*m) const { return number(owner.*m); }
  bool operator()(std::string Owner::*m) const {
    if (!name_fits(plain(text))) return false;
    owner.*m = plain(text);
    return true;
  }
  bool operator()(std::vector<std::string> Owner::*m) const {
    owner.*m = {plain(text)};
    return true;
  }
  bool operator()(Dims Owner::*) const { return false; }
  bool operator()(LossReduction Owner::*m) const {
    if (!key.allowed.has(plain(text))) return false;
    owner.*m = plain(text) == "sum" ? LossReduction::kSum : LossReduction::kMean;
    return true;
  }
  bool operator()(std::vector<double> Owner::*) const { return false; }
};

template <typename Owner>
bool assign(Owner& owner, const Key<Owner>& key, std::string_view text) {
  return applies(owner, key) && std::visit(Put<Owner>{owner, key, text}, key.member);
}

// Sets a key in all its places; "cells" means another number in each. False: nowhere to set it.
bool set(Scenario& s, const std::string& path, const std::string& value) {
  bool any = false, all = true;
  each_key(s, path, [&]<typename Owner>(const Key<Owner>& key, Owner& owner) {
    std::string text = value;
    if constexpr (std::is_same_v<Owner, LayerSpec>) {
      if (value == "cells") {
        const int64_t size = owner.kind.ends_with("_pool") ? owner.window : owner.kernel;
        text = size > 1 ? fmt::format("{}", (size - 1) / 2) : owner.padding;
        if (text == "0") text = "valid";
      }
    }
    const bool done = assign(owner, key, text);
    any = any || done;
    all = all && done;
  });
  return any && all;
}

// The layers that have parameters, as names of the program say.
std::vector<std::string> layers_with_parameters(const Experiment& e) {
  std::vector<std::string> names;
  for (const StateVar& var : e.forward.state) {
    if (var.role != StateRole::kParameter) continue;
    const std::string layer = var.name.substr(0, var.name.find('/'));
    if (std::ranges::find(names, layer) == names.end()) names.push_back(layer);
  }
  return names;
}

// "KEY = VALUE; KEY = VALUE" -> its parts.
std::vector<std::string> parts_of(std::string_view text) {
  constexpr std::string_view by = "; ";
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + by.size();
  }
  return out;
}

// What a value of a row stands for in this experiment; "": nothing.
std::string resolved(const Experiment& e, const std::string& key, std::string value) {
  const std::string now = value_of(e, key);
  if (now.empty()) return "";
  if (value == "others") {
    const auto classes = static_cast<double>(e.data ? e.data->classes : 0);
    const double spread = number_of(now) * classes / (classes - 1);
    return classes > 1 && spread > 0 && spread < 1 ? toml_number(spread) : "";
  }
  if (value == "1-") return toml_number(1 - number_of(now));
  if (value.starts_with("*")) return toml_number(number_of(now) * number_of(value.substr(1)));
  if (value.starts_with("@")) return value_of(e, value.substr(1));
  return value;
}

// An "auto" is what the conventions make of it.
std::string effective(const Experiment& e, const std::string& key) {
  const std::string now = value_of(e, key);
  if (now != "\"auto\"") return now;
  return in_quotes(by_conventions(e.scenario, std::string_view(key).substr(key.find('.') + 1)));
}

bool belongs(const Experiment& e, const FormulaRow& row) {
  if (row.kinds.empty()) return true;
  const bool loss = row.change.starts_with("loss.");
  return contains_name(row.kinds, loss ? e.scenario.loss.kind : e.scenario.optimizer.kind);
}

// Rows that mean nothing where the scenario has none of it: half of no weight decay.
bool is_idle(const Experiment& e, const std::string& key, const std::string& value) {
  const std::string now = value_of(e, key);
  if (value.starts_with("*") && number_of(now) == 0) return true;
  const OptimizerConfig& o = e.scenario.optimizer;
  if (key == "optimizer.decay_form" || key == "optimizer.decay_of") return o.weight_decay == 0;
  if (key == "optimizer.clip") return o.clip == "none" && value != "none";
  if (key.starts_with("optimizer.clip_")) return o.clip == "none";
  if (key == "optimizer.l2" || key == "optimizer.l2_of") return o.l2 == 0;
  if (key == "optimizer.schedule_offset") return o.schedule == "constant" && o.warmup_steps == 0;
  if (key == "train.accumulate_reduction") return e.scenario.train.accumulate == 1;
  return false;
}

}  // namespace

std::vector<FormulaChange> formula_changes(const Experiment& e) {
  std::vector<FormulaChange> out;
  if (e.imported) return out;
  const std::string asked = resolved_toml(e.scenario);
  for (const FormulaRow& row : kFormulaRows) {
    if (!belongs(e, row)) continue;
    const bool layers = row.change.ends_with("= layer");
    std::vector<std::string> values;
    if (layers) values = layers_with_parameters(e);
    for (const std::string_view value : split_names(row.values)) values.emplace_back(value);
    if (values.empty()) values = {""};
    for (const std::string& each : values) {
      FormulaChange c;
      c.update_only = row.update_only;
      c.frameworks = row.frameworks;
      Scenario changed = e.scenario;
      bool possible = true;
      std::string first_new, first_old;
      for (const std::string& part : parts_of(row.change)) {
        const size_t equals = part.find(" = ");
        const std::string key = part.substr(0, equals);
        std::string value = part.substr(equals + 3);
        if (const size_t at = value.find('#'); at != std::string::npos) value.replace(at, 1, each);
        if (value == "layer") value = each;
        if (c.values.empty() && is_idle(e, key, value)) possible = false;
        value = resolved(e, key, value);
        possible = possible && !value.empty() && set(changed, key, value);
        if (!possible) break;
        const std::string now = effective(e, key);
        // The first key must change; the others say how.
        if (c.values.empty()) {
          first_old = plain(now);
          first_new = plain(value);
          const bool number = now.find_first_not_of("0123456789.eE+-") == std::string::npos;
          const bool same =
              number ? number_of(now) == number_of(value) : plain(now) == plain(value);
          if (same && row.change.find("; ") == std::string_view::npos) possible = false;
        }
        const bool word = value.find_first_not_of("0123456789.eE+-") != std::string::npos &&
                          value != "true" && value != "false" && value.front() != '"';
        c.values.emplace_back(key, word ? in_quotes(value) : value);
      }
      if (!possible || resolved_toml(changed) == asked) continue;
      for (const auto& [key, value] : c.values) {
        const size_t dot = key.find('.');
        const std::string name = key.substr(dot + 1);
        const bool of_layers = std::ranges::find(e.scenario.model.layers, key.substr(0, dot),
                                                 &LayerSpec::kind) != e.scenario.model.layers.end();
        c.setting += c.setting.empty() ? "" : ", ";
        c.setting +=
            of_layers ? fmt::format("{} = {} in layers of kind {}", name, value, key.substr(0, dot))
            : layers  ? fmt::format("{} = [{}]", key, value)
                      : fmt::format("{} = {}", key, value);
      }
      c.meaning = fmt::format(fmt::runtime(row.meaning), first_new, first_old);
      c.cure = fmt::format("give the script the scenario's formula ({} = {})",
                           c.values.front().first, effective(e, c.values.front().first));
      if (std::ranges::find(out, c.values, &FormulaChange::values) == out.end())
        out.push_back(std::move(c));
    }
  }
  return out;
}

namespace {

// The shortest number that is within a hundred thousandth: 0.1 for 0.10000003, one over an integer where it is one.
std::string short_number(double value) {
  const double over = std::round(1 / value);
  if (value < 1 && over > 1 && std::fabs(value * over - 1) < 1e-5) value = 1 / over;
  for (int digits = 1; digits < 9; ++digits) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    if (std::fabs(number_of(text) - value) <= 1e-5 * std::fabs(value) && digits > 2) return text;
    if (number_of(text) == value) return text;
  }
  return fmt::format("{:.9g}", value);
}

}  // namespace

FormulaChange fitted_number(const Experiment& e, const std::string& key, double value) {
  FormulaChange c;
  const std::string text = short_number(value), now = value_of(e, key);
  c.values = {{key, text}};
  c.setting = fmt::format("{} = {}", key, text);
  c.update_only = key == "optimizer.lr";
  if (key == "loss.scale") {
    c.meaning = fmt::format("has a loss that is {} times the scenario's", text);
    c.frameworks =
        "a mean over something else: over classes, tokens or the whole batch; 0.5: half of a "
        "squared error";
  } else if (key == "optimizer.gradient_scale") {
    c.meaning = fmt::format("takes gradients that are {} times those of its loss", text);
    c.frameworks =
        "a loss scale that is left in, gradients that were added up or divided once more";
  } else {
    c.meaning = fmt::format("has {} as the learning rate where the scenario has {}", text, now);
  }
  c.cure = fmt::format("give the script the scenario's number ({} = {})", key, now);
  return c;
}

FormulaChange fitted_rates(const Experiment& e, const std::map<int64_t, double>& rates) {
  FormulaChange c;
  c.rates = rates;
  c.update_only = true;
  std::string steps;
  int told = 0;
  for (const auto& [step, rate] : rates) {
    const double due = static_cast<double>(learning_rate(e.scenario.optimizer, step));
    if (std::fabs(rate - due) <= 1e-5 * due || told++ >= 3) continue;
    steps += fmt::format("{}{:.4g} at step {} (the scenario: {:.4g})", steps.empty() ? "" : ", ",
                         rate, step, due);
  }
  c.values = {{"optimizer.schedule", ""}};
  c.setting = "the script's schedule of the learning rate (optimizer.schedule, optimizer.lr)";
  c.meaning = fmt::format("takes other learning rates than the scenario's schedule: {}", steps);
  c.frameworks = "a schedule that is stepped elsewhere, counts otherwise, or is another one";
  c.cure = "give the script the scenario's schedule";
  return c;
}

Result<Experiment> with_formula(const Experiment& e, const FormulaChange& change) {
  if (!change.rates.empty()) {
    Experiment out = e;
    out.rates = change.rates;
    return out;
  }
  Scenario s = e.scenario;
  for (const auto& [key, value] : change.values) {
    if (!set(s, key, plain(value))) return Error{"no such setting here", key, ""};
  }
  return with_scenario(e, s);
}

bool exclusive(const FormulaChange& a, const FormulaChange& b) {
  return std::ranges::any_of(a.values, [&](const auto& x) {
    return std::ranges::any_of(b.values, [&](const auto& y) { return x.first == y.first; });
  });
}

std::string formula_table_markdown() {
  std::string out =
      "| setting | values tried | only with | the subject … | who does so "
      "|\n|---|---|---|---|---|\n";
  for (const FormulaRow& row : kFormulaRows) {
    out += fmt::format(
        "| `{}` | {} | {} | {} | {} |\n", row.change,
        row.values.empty() ? "" : fmt::format("`{}`", fmt::join(split_names(row.values), "`, `")),
        row.kinds.empty() ? "" : fmt::format("{}", fmt::join(split_names(row.kinds), ", ")),
        row.meaning, row.frameworks);
  }
  return out;
}

}  // namespace twinrun
