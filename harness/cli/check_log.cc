// twinrun check --log: prints what an error or a log says, as text or JSON.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "harness/check/log.h"
#include "harness/cli/check.h"
#include "harness/cli/cli.h"
#include "program/base/input_file.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

using Json = nlohmann::ordered_json;

// What `check --fit` proposes that saves as much as the log says is missing.
std::vector<std::string> advice_of(const LogFinding& f, const std::optional<MemoryReport>& memory) {
  if (!f.memory || !memory) return {};
  return memory_advice(*f.memory, *memory);
}

std::string doc_of(std::string_view id) { return fmt::format("docs/guides/check.md#{}", id); }

Json json_of(const LoggedMemory& m) {
  Json largest = Json::array();
  for (const LoggedAllocation& a : m.largest)
    largest.push_back({{"size", a.size},
                       {"bytes", a.bytes},
                       {"unpadded", a.unpadded},
                       {"expansion", a.expansion},
                       {"op", a.op},
                       {"shape", a.shape},
                       {"label", a.label},
                       {"type", a.type}});
  return {{"used", m.used}, {"limit", m.limit}, {"exceeded", m.exceeded}, {"largest", largest}};
}

Json json_of(const LogFinding& f, const std::optional<MemoryReport>& memory) {
  Json arguments = Json::object();
  for (const LogArgument& a : f.arguments) arguments[a.name] = a.value;
  return {{"id", f.message->id},
          {"kind", to_string(f.message->kind)},
          {"line", f.line},
          {"count", f.count},
          {"text", f.text},
          {"others", f.others},
          {"part_of", f.part_of.empty() ? Json() : Json(f.part_of)},
          {"arguments", arguments},
          {"meaning", meaning_of(*f.message)},
          {"fix", f.message->fix},
          {"rules", rules_of(*f.message)},
          {"agreeing", f.agreeing},
          {"places", f.places},
          {"memory", f.memory ? json_of(*f.memory) : Json()},
          {"advice", advice_of(f, memory)},
          {"source", sources_of(*f.message)},
          {"doc", doc_of("log-" + std::string(f.message->id))}};
}

Json json_of(const LogReading& r, const std::optional<MemoryReport>& memory) {
  Json findings = Json::array();
  for (const LogFinding& f : r.findings) findings.push_back(json_of(f, memory));
  return {{"schema", 1},
          {"kind", "check-log"},
          {"name", r.name},
          {"lines", r.lines},
          {"cut", r.cut},
          {"causes", r.count(MessageKind::kCause)},
          {"consequences", r.count(MessageKind::kConsequence)},
          {"remarks", r.count(MessageKind::kRemark)},
          {"findings", findings}};
}

void show(const LoggedMemory& m) {
  for (size_t i = 0; i < std::min<size_t>(m.largest.size(), 5); ++i) {
    const LoggedAllocation& a = m.largest[i];
    const std::string name = a.op.empty() ? a.label : a.op;
    const bool padded = !a.expansion.empty() && a.expansion != "1.0";
    print_line(i == 0 ? "largest" : "",
               fmt::format("{} {} {}{}", a.size, a.shape, name,
                           padded ? fmt::format(" ({} times its {} without padding: see `padding`)",
                                                a.expansion, a.unpadded)
                                  : ""));
  }
}

void show(const LogFinding& f, const Checked* checked, const std::optional<MemoryReport>& memory) {
  print("\n{} {}  line {}{}\n", to_string(f.message->kind), f.message->id, f.line,
        f.count > 1 ? fmt::format(", and {} more", f.count - 1) : "");
  print_line("says", f.text);
  for (const std::string& other : f.others) print_line("", other);
  if (!f.part_of.empty()) print_line("part of", std::string(f.part_of));
  print_line("meaning", std::string(meaning_of(*f.message)));
  if (f.memory) show(*f.memory);
  for (const std::string& place : f.places)
    print_line(&place == &f.places[0] ? "where" : "", place);
  print_line("fix", std::string(f.message->fix));
  const std::vector<std::string> advice = advice_of(f, memory);
  for (const std::string& line : advice) print_line(&line == &advice[0] ? "saves it" : "", line);
  if (f.memory && memory && advice.empty() && f.memory->exceeded > 0)
    print_line("saves it", "no single change that `check --fit` tries saves as much as is missing");
  for (const std::string_view id : rules_of(*f.message)) {
    const bool agrees = std::ranges::find(f.agreeing, id) != f.agreeing.end();
    if (!agrees || checked == nullptr) {
      print_line("rule",
                 fmt::format("{}: {}{}", id, rule(id).meaning,
                             checked != nullptr ? " (not found in " + checked->name + ")" : ""));
      continue;
    }
    const auto found = std::ranges::find(checked->findings, id, &RuleFinding::id);
    print_line("rule", fmt::format("{}, which check finds, too: {}: {}; fix: {}", id, found->where,
                                   found->found, found->fix));
  }
}

void show(const LogReading& r, const Checked* checked, const std::optional<MemoryReport>& memory) {
  const auto counted = [](size_t n, const char* what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  print("{}: {}{}\n", text::clean(r.name), counted(r.lines, "line"),
        r.cut ? fmt::format(" (only the first {} MiB are read)", kMaxLogBytes >> 20) : "");
  if (r.findings.empty()) {
    print(
        "nothing known in {}. Paste from the first error on, with the lines before the last "
        "traceback; on several hosts, from the log of the host that failed first. All known "
        "messages: docs/guides/check.md#messages\n",
        counted(r.lines, "line"));
    return;
  }
  for (const LogFinding& f : r.findings) show(f, checked, memory);
  print("\n{}, {}, {}\n", counted(r.count(MessageKind::kCause), "cause"),
        counted(r.count(MessageKind::kConsequence), "consequence"),
        counted(r.count(MessageKind::kRemark), "remark"));
  if (r.count(MessageKind::kCause) == 0 && r.count(MessageKind::kConsequence) > 0)
    print("no cause is known in this log: read the first error before these lines\n");
}

}  // namespace

Result<int> print_log(const std::string& file, const std::optional<Checked>& checked,
                      const tpu::Generation& generation, bool json) {
  std::ifstream opened;
  if (file != "-") {
    TWINRUN_RETURN_IF_ERROR(check_input(file));
    opened.open(file, std::ios::binary);
    if (!opened.is_open())
      return Error{fmt::format("cannot read: {}", strerror(errno)), file,
                   "name a log file, or - for standard input"};
  }
  LogReading reading = file == "-" ? read_log(std::cin, "standard input") : read_log(opened, file);
  if (checked) find_places(*checked, reading);
  const bool full = std::ranges::any_of(
      reading.findings, [](const LogFinding& f) { return f.memory && f.memory->exceeded > 0; });
  const std::optional<MemoryReport> memory =
      full && checked ? memory_of(*checked, generation, /*fit=*/true) : std::nullopt;
  if (json) {
    print_document(json_of(reading, memory).dump(2, ' ', false, Json::error_handler_t::replace) +
                   "\n");
  } else {
    show(reading, checked ? &*checked : nullptr, memory);
  }
  return reading.count(MessageKind::kCause) + reading.count(MessageKind::kConsequence) > 0
             ? kExitFailed
             : 0;
}

}  // namespace twinrun::cli
