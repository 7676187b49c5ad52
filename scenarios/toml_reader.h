// TOML text -> a tree of nodes that know their line numbers. It hides the TOML library from the
// rest of scenarios/.
//
//   TWINRUN_ASSIGN(Node root, parse_toml(text, "digits.toml"));
//   const Node* batch = root.find("train")->find("batch");    // batch->integer, batch->line
//   Node value = parse_override("64");                        // line 0: from --set
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

struct Member;

struct Node {
  enum class Kind : uint8_t { kTable, kArray, kString, kInteger, kReal, kBool, kDate };

  Kind kind = Kind::kTable;
  std::string text;  // kString: the value; other scalars: the value as text, for messages
  int64_t integer = 0;
  double real = 0;  // kReal, kInteger
  bool boolean = false;
  std::vector<Node> items;      // kArray
  std::vector<Member> members;  // kTable, in the order of the file
  int line = 0;                 // line of the key; 0: from --set

  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
  bool overridden() const { return line == 0; }
};

struct Member {
  std::string name;
  Node node;
};

std::string_view kind_name(Node::Kind kind);  // "a string", "an integer", ...
std::string describe(const Node& node);       // "\"abc\"", "12", "an array"

// Errors carry file:line.
Result<Node> parse_toml(std::string_view text, std::string_view file);
// Parses the VALUE of --set as TOML; if that fails, it is a bare string. Every node of the result
// has line 0. The text of a scalar is the raw VALUE.
Node parse_override(std::string_view value);

}  // namespace twinrun
