// Turns rows of the catalogue (formula_rows.h), and numbers that a subject shows, into changes of
// one scenario.
#include "harness/identify/formulas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "harness/identify/formula_rows.h"
#include "scenarios/conventions.h"
#include "scenarios/keys.h"
#include "scenarios/schedule.h"

namespace twinrun {
namespace {

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

constexpr std::string_view kOneLayer = "model.layers.";

// Calls f(Key, Owner) for the named key of every part of the scenario that the section names: a
// section, a kind of layer, or model.layers.NAME.
template <typename S, typename F>
void each_key(S& s, std::string_view path, F f) {
  const bool one = path.starts_with(kOneLayer);
  if (one) path.remove_prefix(kOneLayer.size());
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
    if (one || title != section || section == "model") return true;
    found = true;
    in(part);
    return false;
  });
  if (found) return;
  for (auto& layer : s.model.layers) {
    if ((one ? layer.name : layer.kind) == section) in(layer);
  }
}

// The value of a key as TOML; "" where the scenario has no such key.
std::string value_of(const Scenario& s, std::string_view path) {
  std::string out;
  each_key(s, path, [&](const auto& key, const auto& owner) {
    if (out.empty() && applies(owner, key)) out = toml_value(owner, key);
  });
  return out;
}

// Removes the quotes of a TOML string.
std::string plain(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"') text = text.substr(1, text.size() - 2);
  return std::string(text);
}

// Puts a TOML value into the member; false: the key does not accept it.
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
    if (!key.allowed.has(number_in(text))) return false;
    value = static_cast<std::remove_reference_t<decltype(value)>>(number_in(text));
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
    const std::string names = plain(text);
    (owner.*m).clear();
    for (const std::string_view name : split_names(names)) (owner.*m).emplace_back(name);
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

// The number of channels that a layer's norm scales.
int64_t channels_of(const Experiment& e, const LayerSpec& layer) {
  const StateVar* gamma = e.forward.find_state(layer.name + "/gamma");
  return gamma != nullptr ? gamma->type.elements() : 0;
}

// Values that stand for a different number in each layer.
constexpr std::string_view kByLayer = "cells|size|root";

// Sets a key wherever it occurs. False: it occurs nowhere, or does not accept the value.
bool set(const Experiment& e, Scenario& s, const std::string& path, const std::string& value) {
  bool any = false, all = true;
  each_key(s, path, [&]<typename Owner>(const Key<Owner>& key, Owner& owner) {
    std::string text = value;
    if constexpr (std::is_same_v<Owner, LayerSpec>) {
      if (value == "cells") {
        const int64_t size = owner.kind.ends_with("_pool") ? owner.window : owner.kernel;
        text = size > 1 ? fmt::format("{}", (size - 1) / 2) : owner.padding;
        if (text == "0") text = "valid";
      }
      if (value == "size") text = fmt::format("{}", channels_of(e, owner) / owner.groups);
      if (value == "root") text = toml_number(std::sqrt(static_cast<double>(owner.units)));
    }
    const bool done = assign(owner, key, text);
    any = any || done;
    all = all && done;
  });
  return any && all;
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

// The value that a row's value stands for in this scenario; "": there is none.
std::string resolved(const Experiment& e, const Scenario& s, const std::string& key,
                     std::string value) {
  const std::string now = value_of(s, key);
  if (now.empty()) return "";
  if (value == "others") {
    const auto classes = static_cast<double>(e.data ? e.data->classes : 0);
    const double spread = number_in(now) * classes / (classes - 1);
    return classes > 1 && spread > 0 && spread < 1 ? toml_number(spread) : "";
  }
  if (value == "1-") return toml_number(1 - number_in(now));
  if (value.starts_with("*")) return toml_number(number_in(now) * number_in(value.substr(1)));
  if (value.starts_with("@")) return value_of(e.scenario, value.substr(1));
  return value;
}

// The scenario's value of a key, with "auto" replaced by what the conventions make of it.
std::string effective(const Experiment& e, const std::string& key) {
  const std::string now = value_of(e.scenario, key);
  if (now != "\"auto\"") return now;
  return in_quotes(by_conventions(e.scenario, std::string_view(key).substr(key.find('.') + 1)));
}

bool belongs(const Experiment& e, const FormulaRow& row) {
  if (row.kinds.empty()) return true;
  const bool loss = row.change.starts_with("loss.");
  return contains_name(row.kinds, loss ? e.scenario.loss.kind : e.scenario.optimizer.kind);
}

// True for rows without effect in this scenario, such as half of no weight decay.
bool is_idle(const Experiment& e, const std::string& key, const std::string& value) {
  const std::string now = value_of(e.scenario, key);
  if (value.starts_with("*") && number_in(now) == 0) return true;
  const OptimizerConfig& o = e.scenario.optimizer;
  if (key == "optimizer.decay_form" || key == "optimizer.decay_of") return o.weight_decay == 0;
  if (key == "optimizer.clip") return o.clip == "none" && value != "none";
  if (key.starts_with("optimizer.clip_")) return o.clip == "none";
  if (key == "optimizer.l2_of" || (key == "optimizer.l2" && value == "0")) return o.l2 == 0;
  if (key == "optimizer.schedule_offset") return o.schedule == "constant" && o.warmup_steps == 0;
  if (key.starts_with("train.accumulate")) return e.scenario.train.accumulate == 1;
  if (key.starts_with("optimizer.ema")) return o.ema == 0;
  return false;
}

// The change as lines to put into the scenario.
std::string setting_of(const Experiment& e,
                       const std::vector<std::pair<std::string, std::string>>& values) {
  std::string out;
  for (const auto& [key, value] : values) {
    const size_t dot = key.find('.');
    const std::string kind = key.substr(0, dot);
    const bool of_layers = std::ranges::find(e.scenario.model.layers, kind, &LayerSpec::kind) !=
                           e.scenario.model.layers.end();
    out += out.empty() ? "" : ", ";
    out += of_layers ? fmt::format("{} = {} in layers of kind {}", key.substr(dot + 1), value, kind)
                     : fmt::format("{} = {}", key, value);
  }
  return out;
}

}  // namespace

double number_in(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::vector<FormulaChange> formula_changes(const Experiment& e) {
  std::vector<FormulaChange> out;
  if (e.imported) return out;
  const std::string asked = resolved_toml(e.scenario);
  for (const FormulaRow& row : kFormulaRows) {
    if (!belongs(e, row)) continue;
    std::vector<std::string> values;
    for (const std::string_view value : split_names(row.values)) values.emplace_back(value);
    if (values.empty()) values = {""};
    for (const std::string& each : values) {
      FormulaChange c;
      c.update_only = row.update_only;
      c.frameworks = row.frameworks;
      Scenario changed = e.scenario;
      bool possible = true;
      std::string first_new, first_old;
      std::vector<std::pair<std::string, std::string>> shown;  // as a user would write it
      for (const std::string& part : parts_of(row.change)) {
        const size_t equals = part.find(" = ");
        const std::string key = part.substr(0, equals);
        std::string value = part.substr(equals + 3);
        if (const size_t at = value.find('#'); at != std::string::npos) value.replace(at, 1, each);
        if (c.values.empty() && is_idle(e, key, value)) possible = false;
        value = resolved(e, changed, key, value);
        possible = possible && !value.empty() && set(e, changed, key, value);
        if (!possible) break;
        const std::string now = effective(e, key);
        // The first key must change; the others complete it.
        if (c.values.empty()) {
          first_old = plain(now);
          first_new = plain(contains_name(kByLayer, value) ? value_of(changed, key) : value);
          const bool number = now.find_first_not_of("0123456789.eE+-") == std::string::npos;
          const bool same =
              number ? number_in(now) == number_in(value) : plain(now) == plain(value);
          if (same && row.change.find("; ") == std::string_view::npos) possible = false;
        }
        const bool word = value.find_first_not_of("0123456789.eE+-") != std::string::npos &&
                          value != "true" && value != "false" && value.front() != '"';
        c.values.emplace_back(key, word ? in_quotes(value) : value);
        shown.push_back(c.values.back());
        if (contains_name(kByLayer, value)) shown.back().second = value_of(changed, key);
        if (now.starts_with("[")) shown.back().second = "[" + shown.back().second + "]";
      }
      if (!possible || resolved_toml(changed) == asked) continue;
      c.setting = setting_of(e, shown);
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

// The shortest number within a hundred thousandth, tried from three significant digits on unless
// fewer are exact. A value below 1 that is one over an integer, to that precision, counts as that:
// 0.1 for 0.10000003.
std::string short_number(double value) {
  const double over = std::round(1 / value);
  if (value < 1 && over > 1 && std::fabs(value * over - 1) < 1e-5) value = 1 / over;
  for (int digits = 1; digits < 9; ++digits) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    if (std::fabs(number_in(text) - value) <= 1e-5 * std::fabs(value) && digits > 2) return text;
    if (number_in(text) == value) return text;
  }
  return fmt::format("{:.9g}", value);
}

}  // namespace

FormulaChange fitted_number(const Experiment& e, const std::string& key, double value) {
  FormulaChange c;
  const std::string text = short_number(value), now = value_of(e.scenario, key);
  c.values = {{key, text}};
  c.setting = setting_of(e, c.values);
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
  } else if (key == "optimizer.lr") {
    c.meaning = fmt::format("has {} as the learning rate where the scenario has {}", text, now);
  } else {
    for (const FormulaRow& row : kFormulaRows) {
      if (!row.change.starts_with(key + " = ") || !belongs(e, row) || !c.meaning.empty()) continue;
      c.meaning = fmt::format(fmt::runtime(row.meaning), text, now);
      c.frameworks = row.frameworks;
      c.update_only = row.update_only;
    }
  }
  c.cure = fmt::format("give the script the scenario's number ({} = {})", key, now);
  return c;
}

FormulaChange fitted_clip(const Experiment& e, const std::string& kind, double at) {
  FormulaChange c;
  c.values = {{"optimizer.clip", in_quotes(kind)}, {"optimizer.clip_at", short_number(at)}};
  c.setting = setting_of(e, c.values);
  const std::string what = kind == "value"  ? "each value of the gradients"
                           : kind == "norm" ? "the norm of each variable's gradient"
                                            : "the norm of all gradients";
  c.meaning =
      fmt::format("clips {} at {} where the scenario does not clip", what, short_number(at));
  const auto* row = std::ranges::find(kFormulaRows, "optimizer.clip = #", &FormulaRow::change);
  c.frameworks = row->frameworks;
  c.cure = "take the clipping out of the script";
  return c;
}

FormulaChange fitted_rates(const Experiment& e, const std::map<int64_t, double>& rates) {
  FormulaChange c;
  c.rates = rates;
  c.update_only = true;
  std::string steps;
  int counted = 0;
  for (const auto& [step, rate] : rates) {
    const double expected = static_cast<double>(learning_rate(e.scenario.optimizer, step));
    if (std::fabs(rate - expected) <= 1e-5 * expected || counted++ >= 3) continue;
    steps += fmt::format("{}{:.4g} at step {} (the scenario: {:.4g})", steps.empty() ? "" : ", ",
                         rate, step, expected);
  }
  c.values = {{"optimizer.schedule", ""}};
  c.setting = "the script's schedule of the learning rate (optimizer.schedule, optimizer.lr)";
  c.meaning = fmt::format("takes other learning rates than the scenario's schedule: {}", steps);
  c.frameworks = "a schedule that is stepped elsewhere, counts differently, or is another one";
  c.cure = "give the script the scenario's schedule";
  return c;
}

namespace {

// "conv1" where all of a layer's parameters are in the set, else "conv1/bias".
std::vector<std::string> by_layer(const Experiment& e, const std::set<std::string>& parameters) {
  const auto layer_of = [](const std::string& name) { return name.substr(0, name.find('/')); };
  std::vector<std::string> out;
  for (const std::string& name : parameters) {
    const std::string layer = layer_of(name);
    const bool whole = std::ranges::all_of(e.forward.state, [&](const StateVar& var) {
      return var.role != StateRole::kParameter || layer_of(var.name) != layer ||
             parameters.contains(var.name);
    });
    const std::string& found = whole ? layer : name;
    if (std::ranges::find(out, found) == out.end()) out.push_back(found);
  }
  return out;
}

// "conv1, the bias of dense3"
std::string in_words(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    const size_t slash = name.find('/');
    out += out.empty() ? "" : ", ";
    out += slash == std::string::npos
               ? name
               : fmt::format("the {} of {}", name.substr(slash + 1), name.substr(0, slash));
  }
  return out;
}

std::string as_list(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + in_quotes(name);
  return "[" + out + "]";
}

}  // namespace

FormulaChange of_parameters(const Experiment& e, const std::string& key,
                            const std::set<std::string>& parameters,
                            const std::set<std::string>& frozen) {
  FormulaChange c;
  const std::vector<std::string> names = by_layer(e, parameters), still = by_layer(e, frozen);
  const auto value = [](const std::vector<std::string>& of) {
    return in_quotes(fmt::format("{}", fmt::join(of, "|")));
  };
  c.setting = fmt::format("{} = {}", key, as_list(names));
  if (key == "unused") {
    std::map<std::string, std::vector<std::string>> parts;  // by layer
    for (const std::string& name : parameters)
      parts[name.substr(0, name.find('/'))].push_back(name.substr(name.find('/') + 1));
    c.setting.clear();
    for (const auto& [layer, of] : parts) {
      const std::string path = fmt::format("{}{}.unused", kOneLayer, layer);
      c.values.emplace_back(path, value(of));
      c.setting += fmt::format("{}{} = {}", c.setting.empty() ? "" : ", ", path, as_list(of));
    }
    c.meaning = fmt::format("does not use {}, and reads zeros in the place",
                            in_words({parameters.begin(), parameters.end()}));
    c.frameworks = "a layer without its bias, or that is not applied";
    c.cure = "use them in the script";
    return c;
  }
  c.values = {{key, value(names)}};
  c.update_only = key == "optimizer.frozen";
  c.cure = "let the script train what the scenario trains";
  if (c.update_only) {
    c.meaning = "does not update " + in_words(names);
    c.frameworks =
        "a parameter group left out, optax.masked, trainable = False (an engine that does not "
        "write this update would look the same: "
        "the list of executed ops would decide)";
    return c;
  }
  c.meaning =
      fmt::format("has no gradient for {}: frozen, or the gradient is stopped", in_words(names));
  c.frameworks =
      "requires_grad = False, detach(), jax.lax.stop_gradient, trainable = False (an engine that "
      "does not compute this gradient would look "
      "the same: the list of executed ops would decide)";
  if (!still.empty()) {
    c.values.emplace_back("optimizer.frozen", value(still));
    c.setting += fmt::format(", optimizer.frozen = {}", as_list(still));
  }
  return c;
}

bool NumberKey::takes(double value) const {
  return scale == Scale::kLinear ||
         (scale == Scale::kLogarithm ? value > 0 : value > 0 && value < 1);
}

std::vector<NumberKey> number_keys(const Experiment& e) {
  std::vector<NumberKey> out;
  if (e.imported) return out;
  for (const FormulaRow& row : kFormulaRows) {
    const size_t equals = row.change.find(" = ");
    const std::string key(row.change.substr(0, equals));
    const std::string_view to = row.change.substr(equals + 3);
    if ((to != "#" && to != "*#") || !belongs(e, row) || is_idle(e, key, std::string(to))) continue;
    // Real numbers are written with a point or an exponent; counts are not solved for.
    const std::string now = value_of(e.scenario, key);
    const bool number = now.find_first_of(".e") != std::string::npos &&
                        now.find_first_not_of("0123456789.e+-") == std::string::npos;
    if (!number || key == "optimizer.lr" ||
        std::ranges::find(out, key, &NumberKey::key) != out.end())
      continue;
    using Scale = NumberKey::Scale;
    const double own = number_in(now);
    const Scale scale = key.ends_with("epsilon") || key.ends_with("clip_at") ? Scale::kLogarithm
                        : own > 0.5 && own < 1                               ? Scale::kComplement
                                                                             : Scale::kLinear;
    out.push_back({scale, key, own, row.update_only});
  }
  return out;
}

std::optional<double> plain_number(double value) {
  constexpr double kNear = 1e-3;
  const auto plain = [&](double x) -> std::optional<double> {
    for (int digits = 1; digits <= 2; ++digits) {
      const double rounded = number_in(fmt::format("{:.{}g}", x, digits));
      if (std::fabs(rounded - x) <= kNear * std::fabs(x)) return rounded;
    }
    return std::nullopt;
  };
  if (!std::isfinite(value)) return std::nullopt;
  if (value > 0.5 && value < 1) {
    const auto rest = plain(1 - value);
    return rest ? std::optional<double>(1 - *rest) : std::nullopt;
  }
  return plain(value);
}

Result<Experiment> with_formula(const Experiment& e, const FormulaChange& change) {
  if (!change.rates.empty()) {
    Experiment out = e;
    out.rates = change.rates;
    return out;
  }
  Scenario s = e.scenario;
  for (const auto& [key, value] : change.values) {
    if (!set(e, s, key, plain(value))) return Error{"no such setting here", key, ""};
  }
  return with_scenario(e, s);
}

bool exclusive(const FormulaChange& a, const FormulaChange& b) {
  return std::ranges::any_of(a.values, [&](const auto& x) {
    return std::ranges::any_of(b.values, [&](const auto& y) { return x.first == y.first; });
  });
}

std::string formula_table_markdown() {
  std::string out;
  for (const FormulaRow& row : kFormulaRows) {
    if (row.frameworks.empty()) continue;
    std::string change(row.change);
    const bool numbers = row.values.find_first_of("0123456789") <= 1;  // not words
    if (const size_t at = change.find('#'); at != std::string::npos)
      change.replace(at, 1, numbers ? "NUMBER" : row.values);
    out += fmt::format("- `{}`", change);
    if (!row.kinds.empty()) out += fmt::format(" ({})", fmt::join(split_names(row.kinds), ", "));
    out += fmt::format(": {}\n", row.frameworks);
  }
  return out;
}

}  // namespace twinrun
