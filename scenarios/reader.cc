// Checks the names and reads the values of a TOML tree by the tables of keys.
#include "scenarios/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "scenarios/keys.h"
#include "scenarios/suggest.h"

namespace twinrun {
namespace {

using Names = std::vector<std::string_view>;

// Names that other tools use for our keys, for suggestions.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"learning_rate", "lr"},
    {"batch_size", "batch"},
    {"train_batch_size", "batch"},
    {"train_steps", "steps"},
    {"max_steps", "steps"},
    {"iterations", "iterations_per_loop"},
    {"steps_per_execution", "iterations_per_loop"},
    {"steps_per_run", "iterations_per_loop"},
    {"num_parallel_calls", "parallel_calls"},
    {"num_parallel_reads", "cycle_length"},
    {"interleave", "cycle_length"},
    {"buffer_size", "prefetch"},
    {"type", "kind"},
    {"num_cores", "cores"},
    {"num_shards", "cores"},
    {"replicas", "cores"},
    {"kernel_size", "kernel"},
    {"pool_size", "window"},
    {"strides", "stride"},
    {"use_bias", "bias"},
    {"num_classes", "classes"},
    {"decay", "decay_rate"},
    {"cross_replica_reduction", "reduction"},
    {"path", "dir"},
    {"gradient_accumulation_steps", "accumulate"},
    {"accumulation_steps", "accumulate"},
    {"clipnorm", "clip"},
    {"clipvalue", "clip"},
    {"global_clipnorm", "clip"},
    {"eeta", "trust_coefficient"},
    {"ema_decay", "ema"},
    {"use_ema", "ema"},
    {"initial_learning_rate", "lr"},
    {"end_learning_rate", "end_lr"},
    {"warmup", "warmup_steps"},
    {"vocab_size", "vocabulary"},
    {"seq_len", "window"},
    {"sequence_length", "window"},
};

template <typename Owner>
Names names_of() {
  Names names;
  for (const Key<Owner>& key : keys<Owner>()) names.push_back(key.name);
  if constexpr (std::is_same_v<Owner, ModelSpec>) names.push_back("layers");
  if constexpr (std::is_same_v<Owner, Scenario>) {
    Scenario sections;
    each_section(sections, [&](std::string_view section, auto&) {
      names.push_back(section);
      return true;
    });
  }
  return names;
}

bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string suggest_key(std::string_view word, const Names& names) {
  for (const auto& [alias, name] : kAliases) {
    if (alias == word && contains(names, name)) return fmt::format("did you mean \"{}\"?", name);
  }
  return suggested(word, names);
}

std::string below(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// The section that has this key, for a key found in the wrong one: "train" for "steps".
std::string other_section(std::string_view key) {
  Scenario sections;
  std::string found;
  each_section(sections, [&](std::string_view section, auto& part) {
    if (contains(names_of<std::decay_t<decltype(part)>>(), key)) found = section;
    return found.empty();
  });
  return found.empty() ? "" : fmt::format("\"{}\" belongs in [{}]", key, found);
}

Status check_table(const Source& source, const Node& table, const std::string& path,
                   std::string_view title, const Names& names) {
  for (const auto& [key, node] : table.members) {
    if (contains(names, key)) continue;
    std::string fix = suggest_key(key, names);
    if (fix.empty()) fix = other_section(key);
    return Error{
        fmt::format("unknown key \"{}\" {}; allowed: {}", key, title, fmt::join(names, ", ")),
        source.where(node, below(path, key)), fix};
  }
  return Ok{};
}

// The values that a key accepts, in words.
template <typename Owner>
std::string expected(const Key<Owner>& key) {
  struct Type {
    std::string operator()(bool Owner::*) const { return "true, false"; }
    std::string operator()(int Owner::*) const { return "an integer"; }
    std::string operator()(int64_t Owner::*) const { return "an integer"; }
    std::string operator()(uint64_t Owner::*) const { return "an integer"; }
    std::string operator()(double Owner::*) const { return "a number"; }
    std::string operator()(std::string Owner::*) const { return "a string"; }
    std::string operator()(std::vector<std::string> Owner::*) const {
      return "an array of strings";
    }
    std::string operator()(Dims Owner::*) const { return "an array of integers"; }
    std::string operator()(LossReduction Owner::*) const { return ""; }
    std::string operator()(std::vector<double> Owner::*) const { return "an array of numbers"; }
  };
  const std::string range = key.allowed.text();
  if (!key.allowed.names.empty()) return range;
  const std::string type = std::visit(Type{}, key.member);
  return range.empty() ? type : type + ", " + range;
}

// Assigns the node's value to the member. Returns false if the type is wrong or the value not
// allowed.
template <typename Owner>
class Assign {
 public:
  Assign(const Node& node, const Allowed& allowed, Owner& owner)
      : node_(node), allowed_(allowed), owner_(owner) {}

  bool operator()(bool Owner::*member) const {
    if (node_.kind != Node::Kind::kBool) return false;
    owner_.*member = node_.boolean;
    return true;
  }
  bool operator()(double Owner::*member) const {
    const bool number = node_.kind == Node::Kind::kReal || node_.kind == Node::Kind::kInteger;
    if (!number || !allowed_.has(node_.real)) return false;
    owner_.*member = node_.real;
    return true;
  }
  bool operator()(int Owner::*member) const { return integer(member); }
  bool operator()(int64_t Owner::*member) const { return integer(member); }
  bool operator()(uint64_t Owner::*member) const { return integer(member); }
  bool operator()(std::string Owner::*member) const {
    if (allowed_.or_count && is_count()) {
      owner_.*member = node_.text;
      return true;
    }
    if (!is_text() || !allowed_.has(std::string_view(node_.text))) return false;
    owner_.*member = node_.text;
    return true;
  }
  bool operator()(std::vector<std::string> Owner::*member) const {
    if (node_.kind != Node::Kind::kArray) return false;
    std::vector<std::string> out;
    for (const Node& item : node_.items) {
      if (item.kind != Node::Kind::kString) return false;
      out.push_back(item.text);
    }
    owner_.*member = std::move(out);
    return true;
  }
  bool operator()(Dims Owner::*member) const {
    if (node_.kind != Node::Kind::kArray) return false;
    Dims out;
    for (const Node& item : node_.items) {
      if (item.kind != Node::Kind::kInteger || !allowed_.has(item.real)) return false;
      out.push_back(item.integer);
    }
    owner_.*member = std::move(out);
    return true;
  }
  bool operator()(std::vector<double> Owner::*member) const {
    if (node_.kind != Node::Kind::kArray) return false;
    std::vector<double> out;
    for (const Node& item : node_.items) {
      const bool number = item.kind == Node::Kind::kReal || item.kind == Node::Kind::kInteger;
      if (!number || !allowed_.has(item.real)) return false;
      out.push_back(item.real);
    }
    owner_.*member = std::move(out);
    return true;
  }
  bool operator()(LossReduction Owner::*member) const {
    if (node_.kind != Node::Kind::kString || !allowed_.has(std::string_view(node_.text)))
      return false;
    owner_.*member = node_.text == "sum" ? LossReduction::kSum : LossReduction::kMean;
    return true;
  }

 private:
  template <typename T>
  bool integer(T Owner::*member) const {
    if (node_.kind != Node::Kind::kInteger || !allowed_.has(node_.real)) return false;
    owner_.*member = static_cast<T>(node_.integer);
    return true;
  }
  // --set name=2024 counts as a string where a string is expected.
  bool is_text() const {
    const bool scalar = node_.kind != Node::Kind::kTable && node_.kind != Node::Kind::kArray;
    return node_.kind == Node::Kind::kString || (node_.overridden() && scalar);
  }
  bool is_count() const {
    if (node_.kind == Node::Kind::kInteger) return node_.integer >= 1;
    const std::string& text = node_.text;
    return node_.kind == Node::Kind::kString && !text.empty() && text.size() <= 9 &&
           text[0] != '0' && text.find_first_not_of("0123456789") == std::string::npos;
  }

  const Node& node_;
  const Allowed& allowed_;
  Owner& owner_;
};

template <typename Owner>
Error bad_value(const std::string& where, const Node& node, const Key<Owner>& key) {
  std::string fix;
  const Names names = split_names(key.allowed.names);
  if (node.kind == Node::Kind::kString && !names.empty()) {
    fix = suggested(node.text, names);
  } else if (node.kind == Node::Kind::kString &&
             !std::holds_alternative<std::string Owner::*>(key.member)) {
    const bool plain = !node.text.empty() &&
                       std::string_view("0123456789-").find(node.text[0]) != std::string_view::npos;
    const bool number = node.text.find_first_not_of("0123456789-_") == std::string::npos;
    if (plain && number && node.text.size() > 18) {
      fix = "write a smaller number";
    } else if (plain || node.text == "true" || node.text == "false") {
      fix = "write it without quotes";
    }
  }
  return {fmt::format("{} is {}; allowed: {}", key.name, describe(node), expected(key)), where,
          fix};
}

// The keys of the owner's kind, for the error about a key that the kind does not have.
template <typename Owner>
Names keys_of_kind(const Owner& owner) {
  Names names;
  for (const Key<Owner>& key : keys<Owner>()) {
    if (applies(owner, key)) names.push_back(key.name);
  }
  return names;
}

template <typename Owner>
Status read_table(const Source& source, const Node& table, const std::string& path, Owner& owner) {
  for (const Key<Owner>& key : keys<Owner>()) {
    const Node* node = table.find(key.name);
    if (node == nullptr) continue;
    if (!std::visit(Assign<Owner>(*node, key.allowed, owner), key.member)) {
      return bad_value(source.where(*node, below(path, key.name)), *node, key);
    }
  }
  for (const Key<Owner>& key : keys<Owner>()) {
    const Node* node = table.find(key.name);
    if (node != nullptr && !applies(owner, key)) {
      const Node* selector = table.find(key.selector);
      if (selector != nullptr && selector->overridden() && !node->overridden()) {
        // --set changed the kind: ignore keys in the file that only the old kind has.
        static const Owner initial;
        std::visit([&](auto member) { owner.*member = initial.*member; }, key.member);
        continue;
      }
      return Error{fmt::format("{} \"{}\" has no key \"{}\"; it has: {}", key.selector,
                               string_value(owner, key.selector), key.name,
                               fmt::join(keys_of_kind(owner), ", ")),
                   source.where(*node, below(path, key.name)),
                   fmt::format("remove it, or set {} to {}", key.selector,
                               fmt::join(split_names(key.only), " or "))};
    }
    if constexpr (std::is_same_v<Owner, OptimizerConfig>) {
      // --set changed the kind: ignore the file's decay, which was meant for the old kind, unless
      // weight decay is part of the new kind's own rule.
      const Node* kind = table.find("kind");
      if (key.name == "weight_decay" && node != nullptr && !node->overridden() && kind != nullptr &&
          kind->overridden() && !contains_name("adamw|lars|lamb", owner.kind))
        owner.weight_decay = OptimizerConfig{}.weight_decay;
    }
    if (node == nullptr && key.required && applies(owner, key)) {
      const std::string where =
          table.overridden() ? fmt::format("{}: {}", source.file, path) : source.where(table, path);
      const Error missing{fmt::format("\"{}\" is missing; allowed: {}", key.name, expected(key)),
                          where, fmt::format("add {} = ...   # {}", key.name, key.meaning)};
      if (path != "train") return missing;
      const Refusal kind = key.name == "steps" ? Refusal::kNoSteps : Refusal::kNoBatch;
      TWINRUN_RETURN_IF_ERROR(source.refuse(kind, missing));
    }
  }
  return Ok{};
}

Status read_layers(const Source& source, std::vector<LayerSpec>& out) {
  const Node* layers = find_layers(source.root);
  if (layers == nullptr) return Ok{};
  const std::vector<std::string> names = layer_names(*layers);
  for (size_t i = 0; i < names.size(); ++i) {
    LayerSpec layer;
    TWINRUN_RETURN_IF_ERROR(
        read_table(source, layers->items[i], "model.layers." + names[i], layer));
    layer.name = names[i];
    layer.line = layers->items[i].line;
    out.push_back(std::move(layer));
  }
  return Ok{};
}

Status check_layers(const Source& source) {
  const Node* model = source.root.find("model");
  const Node* layers = model != nullptr ? model->find("layers") : nullptr;
  if (layers == nullptr) return Ok{};
  const auto wrong = [&](const Node& node, const Node& found) {
    return Error{fmt::format("layers is {}; allowed: an array of tables", describe(found)),
                 source.where(node, "model.layers"), "write each layer as [[model.layers]]"};
  };
  if (layers->kind != Node::Kind::kArray) return wrong(*layers, *layers);
  const std::vector<std::string> names = layer_names(*layers);
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& layer = layers->items[i];
    if (layer.kind != Node::Kind::kTable) return wrong(layer, layer);
    TWINRUN_RETURN_IF_ERROR(check_table(source, layer, "model.layers." + names[i],
                                        "in [[model.layers]]", names_of<LayerSpec>()));
  }
  return Ok{};
}

}  // namespace

Status check_names(const Source& source) {
  TWINRUN_RETURN_IF_ERROR(
      check_table(source, source.root, "", "at the top level", names_of<Scenario>()));
  Scenario sections;
  Status status = Ok{};
  each_section(sections, [&](std::string_view section, auto& part) {
    const Node* table = source.root.find(section);
    if (table == nullptr) return true;
    if (table->kind != Node::Kind::kTable) {
      status = Error{fmt::format("{} is {}; allowed: a table", section, describe(*table)),
                     source.where(*table, section),
                     fmt::format("write [{}] on a line of its own", section)};
      return false;
    }
    status = check_table(source, *table, std::string(section), fmt::format("in [{}]", section),
                         names_of<std::decay_t<decltype(part)>>());
    return status.ok();
  });
  TWINRUN_RETURN_IF_ERROR(std::move(status));
  return check_layers(source);
}

Status read_values(const Source& source, Scenario& scenario) {
  TWINRUN_RETURN_IF_ERROR(read_table(source, source.root, "", scenario));
  Status status = Ok{};
  each_section(scenario, [&](std::string_view section, auto& part) {
    using Owner = std::decay_t<decltype(part)>;
    static const Node absent;
    const Node* table = source.root.find(section);
    if constexpr (std::is_same_v<Owner, ModelSpec>) {
      status = read_layers(source, part.layers);
    } else {
      status = read_table(source, table != nullptr ? *table : absent, std::string(section), part);
    }
    return status.ok();
  });
  return status;
}

}  // namespace twinrun
