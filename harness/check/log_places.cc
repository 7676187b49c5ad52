// Looks up what a log names in a checked scenario, program or graph: ops, layers, instructions,
// nodes.
#include <algorithm>
#include <map>
#include <set>

#include "harness/check/log.h"
#include "harness/check/rules.h"

namespace twinrun {
namespace check {
namespace {

constexpr size_t kMaxPlaces = 8;  // of a finding

bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

bool is_of_path(char c) { return is_of_name(c) || c == '/'; }

// Names in a text, with and without what stands before a slash: "jit(f)/conv1/dot" gives "jit",
// "f/conv1/dot", "f", "conv1", "dot".
std::vector<std::string_view> names_in(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto part : {is_of_path, is_of_name}) {
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t from = i;
      while (i < text.size() && part(text[i])) ++i;
      if (i > from) names.push_back(text.substr(from, i - from));
    }
  }
  return names;
}

using Places = std::map<std::string, std::string, std::less<>>;  // name -> where

// The names of a program: layers of a scenario; instructions of a text, and layers in their
// metadata; nodes of a graph. A name such as "add" or "main" would be found in any text, so only
// names with a digit or of a layer count.
Places places_of(const Checked& checked) {
  Places places;
  if (checked.text) {
    for (const HloComputation& c : checked.text->computations) {
      for (const HloInstruction& in : c.instructions) {
        const std::string where =
            std::string(checked.text->file) + ":" + std::to_string(in.line) + ": " + in.name;
        if (in.name.find_first_of("0123456789") != std::string::npos)
          places.try_emplace(in.name, where);
        if (!in.op_name.empty()) places.try_emplace(in.op_name, where);
      }
    }
    return places;
  }
  if (checked.graph) {
    for (const TfBody& body : checked.tf_step.bodies) {
      for (const TfNode& n : body.nodes) {
        if (n.name.find_first_of("0123456789/") != std::string_view::npos)
          places.try_emplace(std::string(n.name), checked.graph->file + ": " + tf_node_id(body, n));
      }
    }
    return places;
  }
  for (const auto& [layer, where] : checked.layer_places) places.try_emplace(layer, where);
  return places;
}

}  // namespace
}  // namespace check

void find_places(const Checked& checked, LogReading& reading) {
  const check::Places places = check::places_of(checked);
  for (LogFinding& f : reading.findings) {
    std::set<std::string> known;
    const auto look_up = [&](std::string_view name) {
      const auto found = places.find(name);
      if (found == places.end() || f.places.size() == check::kMaxPlaces) return;
      if (known.insert(found->second).second) f.places.push_back(found->second);
    };
    const auto look_into = [&](std::string_view text) {
      look_up(text);
      for (const std::string_view name : check::names_in(text)) look_up(name);
    };
    for (const LogArgument& a : f.arguments) look_into(a.value);
    for (const std::string& text : f.others) look_into(text);
    if (f.memory) {
      for (const LoggedAllocation& a : f.memory->largest) {
        look_into(a.op);
        look_into(a.label);
      }
    }
    for (const std::string_view id : rules_of(*f.message)) {
      const auto agrees = std::ranges::find(checked.findings, id, &RuleFinding::id);
      if (agrees == checked.findings.end()) continue;
      f.agreeing.push_back(id);
    }
  }
}

}  // namespace twinrun
