// The catalogue of kinds, and the text form of a fault.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "backends/faults/kind.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

constexpr std::string_view kUsage =
    "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M][,rate=P]";

Error bad(std::string_view text, std::string what, std::string fix = std::string(kUsage)) {
  return Error{std::move(what), "--fault " + std::string(text), std::move(fix)};
}

template <typename T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status set_magnitude(FaultSpec& spec, double m, std::string_view value, std::string_view text) {
  using Unit = FaultMagnitude::Unit;
  const FaultMagnitude& magnitude = spec.kind->magnitude;
  if (magnitude.unit == Unit::kNone)
    return bad(text, std::string(spec.kind->name) + " has no magnitude", "leave it out");
  if (magnitude.unit == Unit::kCount && (m < 0 || m > 1e9 || m != std::floor(m))) {
    return bad(text, "magnitude '" + std::string(value) +
                         "' is not a whole number from 0 to 1e9; its meaning: " +
                         std::string(magnitude.means));
  }
  spec.magnitude = m;
  return Ok{};
}

Status set_key(FaultSpec& spec, std::string_view key, std::string_view value,
               std::string_view text) {
  const std::vector<std::string> known = {"core", "step", "from", "every", "magnitude", "rate"};
  if (std::ranges::find(known, key) == known.end()) {
    return bad(text, "unknown key '" + std::string(key) + "' (allowed: " + join(known, ", ") + ")",
               did_you_mean(key, known));
  }
  const std::string said = std::string(key) + " '" + std::string(value) + "'";
  if (key == "magnitude" || key == "rate") {
    double m = 0;
    if (!parse_number(value, m) || !std::isfinite(m))
      return bad(text, said + " is not a finite number");
    if (key == "magnitude") return set_magnitude(spec, m, value, text);
    if (m <= 0 || m > 1) return bad(text, said + " is not a probability above 0");
    spec.rate = m;
    return Ok{};
  }
  int64_t n = 0;
  if (!parse_number(value, n) || n < 0 ||
      n > (key == "core" ? int64_t{1} << 20 : int64_t{1} << 60) || (key == "every" && n == 0)) {
    return bad(text, said + " is not a count");
  }
  if (key == "core") {
    spec.core = static_cast<int>(n);
    return Ok{};
  }
  if (spec.step || spec.from || spec.every)
    return bad(text, "only one of step, from and every can be given");
  (key == "step" ? spec.step : key == "from" ? spec.from : spec.every) = n;
  return Ok{};
}

const std::vector<FaultKind>& catalogue() {
  static const std::vector<FaultKind> kinds = [] {
    std::vector<FaultKind> all;
    const auto add = [&](FaultGroup group, const std::vector<FaultKind>& rows) {
      for (const FaultKind& kind : rows) all.emplace_back(kind).group = group;
    };
    add(FaultGroup::kArithmetic, arithmetic_faults());
    add(FaultGroup::kIndexing, indexing_faults());
    add(FaultGroup::kIndexing, row_faults());
    add(FaultGroup::kState, state_faults());
    add(FaultGroup::kCollectives, collective_faults());
    add(FaultGroup::kRandom, random_faults());
    add(FaultGroup::kHardware, hardware_faults());
    return all;
  }();
  return kinds;
}

// Wraps `text` into lines of at most `width` columns; all but the first begin with `indent` blanks.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column > indent && column + 1 + end - begin > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string_view to_string(FaultGroup group) {
  switch (group) {
    case FaultGroup::kArithmetic:
      return "arithmetic";
    case FaultGroup::kIndexing:
      return "indexing";
    case FaultGroup::kState:
      return "state";
    case FaultGroup::kCollectives:
      return "collectives";
    case FaultGroup::kRandom:
      return "random";
    case FaultGroup::kHardware:
      return "hardware";
  }
  return "";
}

std::span<const FaultKind> fault_catalogue() { return catalogue(); }

const FaultKind* find_fault_kind(std::string_view name) {
  const auto it = std::ranges::find(catalogue(), name, &FaultKind::name);
  return it == catalogue().end() ? nullptr : &*it;
}

std::vector<std::string> fault_kinds() {
  std::vector<std::string> names;
  for (const FaultKind& kind : catalogue()) names.emplace_back(kind.name);
  return names;
}

bool applies(const FaultKind& kind, const Program& program, ValueId id) {
  return op_at(program, id).kind != OpKind::kParameter && kind.fits(program, id);
}

std::string fault_table(size_t width) {
  constexpr size_t kColumn = 24;
  std::string out;
  const FaultGroup* group = nullptr;
  for (const FaultKind& kind : catalogue()) {
    if (group == nullptr || *group != kind.group)
      out += (group == nullptr ? "" : "\n") + std::string(to_string(kind.group)) + "\n";
    group = &kind.group;
    std::string line = std::string(kind.acts_on) + ": " + std::string(kind.does);
    if (!kind.magnitude.means.empty()) line += "; magnitude: " + std::string(kind.magnitude.means);
    const std::string name = "  " + std::string(kind.name);
    out += name + std::string(name.size() < kColumn ? kColumn - name.size() : 1, ' ') +
           wrapped(line, kColumn, width) + "\n";
  }
  return out;
}

bool FaultSpec::active_at(int64_t s) const {
  if (step) return s == *step;
  if (from) return s >= *from;
  if (every) return s % *every == 0;
  return !kind->once || rate || s == 0;
}

Result<FaultSpec> parse_fault(std::string_view text) {
  FaultSpec spec;
  spec.text = text;
  const size_t at = text.find('@');
  const std::string name(text.substr(0, at));
  spec.kind = find_fault_kind(name);
  if (at == std::string_view::npos)
    return bad(text, "the '@' between the kind and the op is missing");
  if (spec.kind == nullptr) {
    return bad(text,
               "unknown kind '" + name + "' (--fault help lists all " +
                   std::to_string(catalogue().size()) + ")",
               did_you_mean(name, fault_kinds()));
  }
  std::string_view rest = text.substr(at + 1);
  spec.glob = rest.substr(0, rest.find(','));
  if (spec.glob.empty()) return bad(text, "the op pattern after '@' is missing");
  while (rest.find(',') != std::string_view::npos) {
    rest = rest.substr(rest.find(',') + 1);
    const std::string_view item = rest.substr(0, rest.find(','));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return bad(text, "'" + std::string(item) + "' is not KEY=VALUE");
    TWINRUN_RETURN_IF_ERROR(set_key(spec, item.substr(0, equals), item.substr(equals + 1), text));
  }
  return spec;
}

}  // namespace twinrun
