// What a log says about memory: sizes, the list of largest allocations, and which changes help.
// The format of the list: openxla/xla's messages, as in DifferentiableUniverseInitiative/flowpm#27.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "harness/check/log.h"

namespace twinrun {
namespace check {
namespace {

// Lines that do not belong to the list before it counts as over; operators may be printed over
// several.
constexpr size_t kMaxLinesBetween = 40;

std::string_view after(std::string_view line, std::string_view key) {
  if (!line.starts_with(key)) return {};
  line.remove_prefix(key.size());
  return line.substr(std::min(line.find_first_not_of(' '), line.size()));
}

std::string first_word(std::string_view s) { return std::string(s.substr(0, s.find(' '))); }

// The value of op_name="..." in an operator.
std::string op_name(std::string_view text) {
  constexpr std::string_view kKey = "op_name=\"";
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + kKey.size());
  constexpr size_t kMaxName = 200;
  return std::string(text.substr(0, std::min(text.find_first_of("\"["), kMaxName)));
}

}  // namespace

bool AllocationReader::read(std::string_view line) {
  const size_t dot = line.find(". Size: ");
  const bool number =
      dot != std::string_view::npos && dot > 0 && line.find_first_not_of("0123456789") == dot;
  if (number) {
    if (read_.size() == kMaxLoggedAllocations) return false;
    LoggedAllocation& a = read_.emplace_back();
    a.size = first_word(after(line.substr(dot), ". Size:"));
    a.bytes = logged_bytes(a.size);
    lines_since_ = 0;
    return true;
  }
  if (++lines_since_ > kMaxLinesBetween) return false;
  if (read_.empty()) return true;
  LoggedAllocation& a = read_.back();
  if (const auto v = after(line, "Operator:"); !v.empty()) {
    a.op = op_name(v);
  } else if (const auto s = after(line, "Shape:"); !s.empty()) {
    a.shape = first_word(s);
  } else if (const auto u = after(line, "Unpadded size:"); !u.empty()) {
    a.unpadded = first_word(u);
  } else if (const auto p = after(line, "Extra memory due to padding:"); !p.empty()) {
    const size_t open = p.find('('), x = p.find("x expansion");
    if (open != std::string_view::npos && x != std::string_view::npos && open < x)
      a.expansion = p.substr(open + 1, x - open - 1);
  } else if (const auto l = after(line, "XLA label:"); !l.empty()) {
    a.label = first_word(l.starts_with('%') ? l.substr(1) : l);
    if (a.op.empty()) a.op = op_name(l);
  } else if (const auto t = after(line, "Allocation type:"); !t.empty()) {
    a.type = t;
  } else {
    return true;
  }
  lines_since_ = 0;
  return true;
}

std::vector<LoggedAllocation> AllocationReader::take() { return std::move(read_); }

}  // namespace check

int64_t logged_bytes(std::string_view size) {
  double value = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), value);
  if (error != std::errc() || value < 0) return 0;
  const char unit = end == size.data() + size.size() ? 'B' : *end;
  const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : unit == 'T' ? 40 : 0;
  const double bytes = std::ldexp(value, shift);
  return bytes < std::ldexp(1.0, 60) ? static_cast<int64_t>(bytes) : 0;
}

std::vector<std::string> memory_advice(const LoggedMemory& logged, const MemoryReport& report) {
  std::vector<std::string> out;
  if (logged.exceeded <= 0) return out;
  const auto saves = [&](int64_t used) { return report.used() - used; };
  const auto line = [&](const std::string& what, const std::string& set, int64_t used) {
    out.push_back(fmt::format("{}: saves {:.2f}G of the model's {:.2f}G{}", what,
                              std::ldexp(static_cast<double>(saves(used)), -30),
                              std::ldexp(static_cast<double>(report.used()), -30),
                              set.empty() ? "" : " (" + set + ")"));
  };
  for (const MemoryChange& c : report.changes) {
    if (saves(c.used) >= logged.exceeded) line(c.change, c.set, c.used);
  }
  for (const MemoryFit& f : report.fit) {
    if (f.batch > 0 && saves(f.used) >= logged.exceeded)
      line(fmt::format("the largest batch that fits{}, {}", f.with.empty() ? "" : " with " + f.with,
                       f.batch),
           fmt::format("--set train.batch={}", f.batch), f.used);
  }
  return out;
}

}  // namespace twinrun
