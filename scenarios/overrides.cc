// Applies --set KEY=VALUE to the tree; layer names, and locations in a scenario for messages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "scenarios/data/windows.h"
#include "scenarios/reader.h"
#include "scenarios/suggest.h"

namespace twinrun {
namespace {

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> out(1);
  for (const char c : path) {
    if (c == '.') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 7 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The entry of model.layers whose name, or number from 0, is `name`.
Result<Node*> find_layer(Node& layers, const std::string& name, const std::string& where) {
  const std::vector<std::string> names = layer_names(layers);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return &layers.items[i];
  }
  if (is_number(name)) {
    const size_t index = std::stoul(name);
    if (index < layers.items.size()) return &layers.items[index];
  }
  return Error{fmt::format("no layer is called \"{}\"; allowed: {}", name, fmt::join(names, ", ")),
               where, suggested(name, {names.begin(), names.end()})};
}

Status apply(Node& root, const std::string& key, const std::string& value) {
  const std::string where = "--set " + key;
  const std::vector<std::string> path = split_path(key);
  Node* node = &root;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i].empty()) {
      return Error{fmt::format("\"{}\" is not a key", key), where,
                   "write --set SECTION.KEY=VALUE, as in --set train.steps=20"};
    }
    if (node->kind == Node::Kind::kArray) {
      if (i != 2 || path[0] != "model" || path[1] != "layers") {
        return Error{fmt::format("{} is an array and has no keys", path[i - 1]), where,
                     fmt::format("set the whole array: --set {}=[...]", path[i - 1])};
      }
      TWINRUN_ASSIGN(node, find_layer(*node, path[i], where));
      continue;
    }
    if (node->kind != Node::Kind::kTable) {
      return Error{fmt::format("{} is {} and has no keys", path[i - 1], kind_name(node->kind)),
                   where, ""};
    }
    Node* next = node->find(path[i]);
    if (next == nullptr) next = &node->members.emplace_back(Member{path[i], {}}).node;
    node = next;
  }
  if (const auto characters = data::code_points(value); !characters)
    return Error{"the value is no text: " + characters.error().what, where, "write it in UTF-8"};
  *node = parse_override(value);
  return Ok{};
}

}  // namespace

const Node* find_layers(const Node& root) {
  const Node* model = root.find("model");
  const Node* layers = model != nullptr ? model->find("layers") : nullptr;
  return layers != nullptr && layers->kind == Node::Kind::kArray ? layers : nullptr;
}

std::vector<std::string> layer_names(const Node& layers) {
  std::map<std::string, int> counts;
  std::vector<std::string> names;
  for (const Node& layer : layers.items) {
    const Node* kind = layer.find("kind");
    std::string stem = kind != nullptr && kind->kind == Node::Kind::kString ? kind->text : "layer";
    if (stem.ends_with("2d")) stem.resize(stem.size() - 2);
    const int count = ++counts[stem];
    const Node* name = layer.find("name");
    const bool given = name != nullptr && !name->text.empty();
    names.push_back(given ? name->text : fmt::format("{}{}", stem, count));
  }
  return names;
}

Status Source::refuse(Refusal kind, Error error) const {
  if (refused == nullptr) return error;
  refused->push_back({kind, std::move(error)});
  return Ok{};
}

std::string Source::where(const Node& node, std::string_view path) const {
  if (node.overridden()) return fmt::format("--set {}", path);
  return fmt::format("{}:{}: {}", file, node.line, path);
}

std::string Source::where(std::string_view section, std::string_view key) const {
  const Node* table = section.empty() ? &root : root.find(section);
  const Node* node = table != nullptr ? table->find(key) : nullptr;
  const std::string path = section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
  if (node != nullptr) return where(*node, path);
  if (table != nullptr && !section.empty() && !table->overridden()) {
    return fmt::format("{}:{}: {}", file, table->line, path);
  }
  return fmt::format("{}: {}", file, path);
}

std::string Source::where_layer(size_t index, const LayerSpec& layer, std::string_view key) const {
  const std::string path = fmt::format("model.layers.{}.{}", layer.name, key);
  const Node* layers = find_layers(root);
  if (layers == nullptr || index >= layers->items.size()) return fmt::format("{}: {}", file, path);
  const Node& table = layers->items[index];
  const Node* node = table.find(key);
  return where(node != nullptr ? *node : table, path);
}

Status apply_overrides(Source& source, const Overrides& overrides) {
  for (const auto& [key, value] : overrides) {
    TWINRUN_RETURN_IF_ERROR(apply(source.root, key, value));
  }
  return Ok{};
}

}  // namespace twinrun
