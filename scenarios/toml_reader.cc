// Converts the TOML library's tree into nodes.
#include "scenarios/toml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "program/base/toml_text.h"

namespace twinrun {
namespace {

int line_of(const toml::source_region& region) { return static_cast<int>(region.begin.line); }

std::string as_text(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& n) {
    if constexpr (!toml::is_table<decltype(n)> && !toml::is_array<decltype(n)>) out << n;
  });
  return out.str();
}

Node convert(const toml::node& from, int line) {
  Node to;
  to.line = line;
  if (const toml::table* table = from.as_table()) {
    to.kind = Node::Kind::kTable;
    for (const auto& [key, value] : *table) {
      to.members.push_back({std::string(key.str()), convert(value, line_of(key.source()))});
    }
    std::stable_sort(to.members.begin(), to.members.end(),
                     [](const auto& a, const auto& b) { return a.node.line < b.node.line; });
    return to;
  }
  if (const toml::array* array = from.as_array()) {
    to.kind = Node::Kind::kArray;
    for (const toml::node& item : *array) to.items.push_back(convert(item, line_of(item.source())));
    return to;
  }
  if (const auto* text = from.as_string()) {
    to.kind = Node::Kind::kString;
    to.text = text->get();
    return to;
  }
  to.text = as_text(from);
  if (const auto* integer = from.as_integer()) {
    to.kind = Node::Kind::kInteger;
    to.integer = integer->get();
    to.real = static_cast<double>(to.integer);
  } else if (const auto* real = from.as_floating_point()) {
    to.kind = Node::Kind::kReal;
    to.real = real->get();
    to.text = fmt::format("{}", to.real);
  } else if (const auto* boolean = from.as_boolean()) {
    to.kind = Node::Kind::kBool;
    to.boolean = boolean->get();
  } else {
    to.kind = Node::Kind::kDate;
  }
  return to;
}

void clear_lines(Node& node) {
  node.line = 0;
  for (Node& item : node.items) clear_lines(item);
  for (auto& [key, member] : node.members) clear_lines(member);
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, member] : members) {
    if (name == key) return &member;
  }
  return nullptr;
}

Node* Node::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

std::string_view kind_name(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::kTable:
      return "a table";
    case Node::Kind::kArray:
      return "an array";
    case Node::Kind::kString:
      return "a string";
    case Node::Kind::kInteger:
      return "an integer";
    case Node::Kind::kReal:
      return "a number";
    case Node::Kind::kBool:
      return "a boolean";
    case Node::Kind::kDate:
      return "a date or time";
  }
  return "";
}

std::string describe(const Node& node) {
  if (node.kind == Node::Kind::kTable || node.kind == Node::Kind::kArray) {
    return std::string(kind_name(node.kind));
  }
  std::string text = node.text.substr(0, 60);
  if (node.text.size() > 60) text += "...";
  return node.kind == Node::Kind::kString ? fmt::format("\"{}\"", text) : text;
}

Result<Node> parse_toml(std::string_view text, std::string_view file) {
  TWINRUN_ASSIGN(const toml::table table, parse_toml_text(text, file));
  return convert(table, 1);
}

Node parse_override(std::string_view value) {
  const Result<toml::table> parsed = parse_toml_text(fmt::format("v = {}", value), "");
  Node node;
  if (parsed && parsed->size() == 1) {
    node = convert(*parsed->get("v"), 0);
    clear_lines(node);
    // Keep the raw text, so that --set name=2024 works for a key that accepts strings.
    const bool scalar = node.kind != Node::Kind::kTable && node.kind != Node::Kind::kArray;
    if (scalar && node.kind != Node::Kind::kString) node.text = value;
    return node;
  }
  node.kind = Node::Kind::kString;
  node.text = value;
  return node;
}

}  // namespace twinrun
