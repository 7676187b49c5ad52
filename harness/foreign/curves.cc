// Reads curves from run files, event files, CSV and JSON lines.
#include "harness/foreign/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoints/interchange/weights.h"
#include "harness/foreign/event_file.h"
#include "program/base/json_text.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
constexpr std::array<std::string_view, 6> kSteps = {"step",      "steps", "global_step",
                                                    "iteration", "iter",  "epoch"};
constexpr std::array<std::string_view, 7> kLosses = {
    "loss", "train_loss", "training_loss", "train/loss", "loss/train", "epoch_loss", "value"};

std::string shown(std::string_view text) {
  return fmt::format("'{}'", text::clip(text::clean(text.substr(0, 200)), 40));
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

template <size_t N>
std::optional<size_t> first_known(const std::vector<std::string>& names,
                                  const std::array<std::string_view, N>& known) {
  for (std::string_view word : known) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (lower_case(names[i]) == word) return i;
    }
  }
  return std::nullopt;
}

// The index of the column to read. `step`, the column of steps, is never chosen.
Result<size_t> choose(const std::vector<std::string>& names, std::optional<size_t> step,
                      const std::string& column, const std::string& path) {
  std::vector<std::string> others;
  std::vector<size_t> places;
  for (size_t i = 0; i < names.size(); ++i) {
    if (step && i == *step) continue;
    others.push_back(names[i]);
    places.push_back(i);
  }
  std::vector<std::string> listed(others.begin(),
                                  others.begin() + std::min<ptrdiff_t>(std::ssize(others), 12));
  for (std::string& name : listed) name = shown(name);
  const std::string known = join(listed, ", ") + (others.size() > listed.size() ? ", .." : "");
  if (!column.empty()) {
    const auto at = std::ranges::find(others, column);
    if (at != others.end()) return places[static_cast<size_t>(at - others.begin())];
    return Error{
        fmt::format("no column {} (known: {})", shown(column), known), path,
        others.empty()
            ? ""
            : fmt::format(
                  "did you mean {}?",
                  shown(nearest(column.substr(0, 100),
                                {others.begin(),
                                 others.begin() + std::min<ptrdiff_t>(std::ssize(others), 500)})))};
  }
  if (const auto at = first_known(others, kLosses)) return places[*at];
  if (others.size() == 1) return places[0];
  if (others.empty()) return Error{"holds no scalar values", path, ""};
  return Error{fmt::format("it has several columns of values: {}", known), path,
               "name one with --column"};
}

// Collects values one by one, in any order of steps.
class Points {
 public:
  Points(std::string path, bool counted) : path_(std::move(path)), counted_(counted) {}

  void add(int64_t step, double value) {
    if (!points_.empty() && step < last_) ++backwards_;
    last_ = step;
    if (!points_.insert_or_assign(step, value).second) ++replaced_;
  }
  void add_counted(double value) { add(static_cast<int64_t>(points_.size()), value); }

  Result<CurveFile> take(std::string name) {
    if (points_.empty())
      return Error{fmt::format("column {} holds no value", shown(name)), path_, ""};
    CurveFile out;
    out.curve.name = std::move(name);
    for (const auto& [step, value] : points_) {
      out.curve.steps.push_back(step);
      out.curve.values.push_back(value);
    }
    if (counted_) out.notes.push_back(path_ + ": no column of steps; rows are counted from 0");
    if (replaced_ > 0)
      out.notes.push_back(
          fmt::format("{}: {} written more than once; the last value of a step is used", path_,
                      text::plural(replaced_, "value")));
    if (backwards_ > replaced_)
      out.notes.push_back(fmt::format("{}: steps are not in order; they are sorted", path_));
    return out;
  }

 private:
  std::string path_;
  bool counted_;
  std::map<int64_t, double> points_;
  int64_t last_ = 0, replaced_ = 0, backwards_ = 0;
};

Result<double> number_of(std::string_view text, const std::string& where) {
  text = trimmed(text);
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range && end == digits.data() + digits.size())
    return Error{fmt::format("found {}; allowed: numbers of binary64", shown(text)), where, ""};
  if (error != std::errc() || end != digits.data() + digits.size())
    return Error{fmt::format("found {}; allowed: a number, nan, inf, or nothing", shown(text)),
                 where, ""};
  return value;
}

Result<int64_t> step_of(double value, std::string_view text, const std::string& where) {
  constexpr double kMax = 9007199254740992;  // 2^53; larger doubles do not identify a single step
  if (!(std::abs(value) <= kMax) || value != std::trunc(value))
    return Error{fmt::format("found {}; allowed: a whole number up to 2^53", shown(text)), where,
                 ""};
  return static_cast<int64_t>(value);
}

// The cells of the row that starts at `at` (RFC 4180: a quoted cell may contain line ends).
Result<std::vector<std::string>> next_row(std::string_view text, size_t& at, char separator,
                                          int64_t& line, const std::string& path) {
  std::vector<std::string> cells(1);
  const int64_t begin = line;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cells.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        cells.back() += text[++at];
      } else {
        quoted = false;
      }
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else if (c == separator) {
      cells.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  if (quoted)
    return Error{"a quoted cell is not closed", fmt::format("{}: line {}", path, begin), ""};
  return cells;
}

Result<CurveFile> from_csv(std::string_view text, const std::string& column,
                           const std::string& path) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::string_view head = text.substr(0, text.find('\n'));
  char separator = ',';
  for (char c : {',', ';', '\t'}) {
    if (head.find(c) != head.npos) {
      separator = c;
      break;
    }
  }
  size_t at = 0;
  int64_t line = 1;
  TWINRUN_ASSIGN(std::vector<std::string> titles, next_row(text, at, separator, line, path));
  for (std::string& title : titles) title = trimmed(title);
  const std::optional<size_t> step = first_known(titles, kSteps);
  TWINRUN_ASSIGN(const size_t value_column, choose(titles, step, column, path));
  Points points(path, !step);
  while (at < text.size()) {
    const int64_t number = line;
    const auto where = [&](size_t i) {
      return fmt::format("{}: line {}: {}", path, number, shown(titles[i]));
    };
    TWINRUN_ASSIGN(const std::vector<std::string> cells, next_row(text, at, separator, line, path));
    if (cells.size() == 1 && trimmed(cells[0]).empty()) continue;
    if (cells.size() > titles.size())
      return Error{fmt::format("{} cells under {} column titles", cells.size(), titles.size()),
                   fmt::format("{}: line {}", path, number), ""};
    if (value_column >= cells.size() || trimmed(cells[value_column]).empty()) continue;
    TWINRUN_ASSIGN(const double value, number_of(cells[value_column], where(value_column)));
    if (!step) {
      points.add_counted(value);
      continue;
    }
    const std::string& said = *step < cells.size() ? cells[*step] : titles[*step];
    TWINRUN_ASSIGN(const double place, number_of(said, where(*step)));
    TWINRUN_ASSIGN(const int64_t s, step_of(place, said, where(*step)));
    points.add(s, value);
  }
  return points.take(titles[value_column]);
}

// Python's json writes NaN, Infinity and -Infinity, which JSON does not have: quote them.
std::string with_quoted_specials(std::string_view line) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (inside && c == '\\' && i + 1 < line.size()) {
      out += c;
      out += line[++i];
      continue;
    }
    if (c == '"') inside = !inside;
    bool special = false;
    for (std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (inside || !line.substr(i).starts_with(word)) continue;
      out += fmt::format("\"{}\"", word);
      i += word.size() - 1;
      special = true;
      break;
    }
    if (!special) out += c;
  }
  return out;
}

Result<std::optional<double>> value_of(const nlohmann::json& found, const std::string& where) {
  if (found.is_null()) return std::optional<double>();
  if (found.is_number()) return std::optional(found.get<double>());
  if (!found.is_string())
    return Error{fmt::format("found {}; allowed: a number, or null",
                             found.is_boolean() ? shown(found.dump()) : "an array or object"),
                 where, ""};
  const auto text = found.get<std::string>();
  TWINRUN_ASSIGN(const double value, number_of(text, where));
  return std::optional(value);
}

// Calls `take` with the number and the object of each line. The objects are not kept, because all
// of a file together take many times its size.
template <typename F>
Status each_row(std::string_view text, const std::string& path, const F& take) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(text.substr(at, end - at));
    at = end + 1;
    ++number;
    if (line.empty() || line == "\r") continue;
    const auto row = parse_json_text(with_quoted_specials(line));
    if (!row || !row->is_object())
      return Error{fmt::format("found {}; allowed: one JSON object per line", shown(line)),
                   fmt::format("{}: line {}", path, number), ""};
    TWINRUN_RETURN_IF_ERROR(take(number, *row));
  }
  return Ok{};
}

Result<CurveFile> from_json_lines(std::string_view text, const std::string& column,
                                  const std::string& path) {
  using nlohmann::json;
  std::vector<std::string> names;
  std::set<std::string> known;
  TWINRUN_RETURN_IF_ERROR(each_row(text, path, [&](int64_t, const json& row) -> Status {
    for (const auto& [key, value] : row.items()) {
      if (names.size() < 1000 && known.insert(key).second) names.push_back(key);
    }
    return Ok{};
  }));
  const std::optional<size_t> step = first_known(names, kSteps);
  TWINRUN_ASSIGN(const size_t value_column, choose(names, step, column, path));
  Points points(path, !step);
  TWINRUN_RETURN_IF_ERROR(each_row(text, path, [&](int64_t line, const json& row) -> Status {
    const auto where = [&](size_t i) {
      return fmt::format("{}: line {}: {}", path, line, shown(names[i]));
    };
    if (!row.contains(names[value_column])) return Ok{};
    TWINRUN_ASSIGN(const std::optional<double> value,
                   value_of(row[names[value_column]], where(value_column)));
    if (!value) return Ok{};
    if (!step) {
      points.add_counted(*value);
      return Ok{};
    }
    const json place = row.value(names[*step], json());
    TWINRUN_ASSIGN(const std::optional<double> said, value_of(place, where(*step)));
    TWINRUN_ASSIGN(const int64_t s, step_of(said.value_or(NAN), place.dump(), where(*step)));
    points.add(s, *value);
    return Ok{};
  }));
  return points.take(names[value_column]);
}

// Chooses one of several curves by name.
Result<Curve> chosen(std::vector<Curve> curves, const std::string& column,
                     const std::string& path) {
  std::vector<std::string> names;
  for (const Curve& curve : curves) names.push_back(curve.name);
  TWINRUN_ASSIGN(const size_t at, choose(names, std::nullopt, column, path));
  return std::move(curves[at]);
}

bool named_json(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}
bool named_csv(const std::string& name) { return name.ends_with(".csv") || name.ends_with(".tsv"); }

}  // namespace

std::vector<Curve> curves_of(const RunFile& run) {
  const auto per_step = [&](const char* name, float StepScalars::*field) {
    Curve curve{.name = name, .binary32 = true};
    for (size_t i = 0; i < run.steps.size(); ++i) {
      curve.steps.push_back(run.first_step + static_cast<int64_t>(i));
      curve.values.push_back(static_cast<double>(run.steps[i].*field));
    }
    return curve;
  };
  const auto held_out = [&](const char* name, double Evaluation::*field) {
    Curve curve{.name = name};
    for (const Evaluation& e : run.evaluations) {
      curve.steps.push_back(e.step);
      curve.values.push_back(e.*field);
    }
    return curve;
  };
  std::vector<Curve> all = {per_step("loss", &StepScalars::loss),
                            per_step("loss_replica0", &StepScalars::loss_replica0),
                            per_step("learning_rate", &StepScalars::learning_rate),
                            per_step("gradient_norm", &StepScalars::gradient_norm),
                            held_out("held_out/loss", &Evaluation::loss),
                            held_out("held_out/accuracy", &Evaluation::accuracy)};
  std::erase_if(all, [](const Curve& curve) { return curve.steps.empty(); });
  return all;
}

bool is_curve_path(const std::string& path) {
  const std::string name = lower_case(path);
  return named_csv(name) || named_json(name) || is_event_path(path);
}

Result<CurveFile> read_curve(const std::string& path, const std::string& column) {
  if (is_event_path(path)) {
    TWINRUN_ASSIGN(EventCurves events, read_events(path));
    CurveFile out;
    TWINRUN_ASSIGN(out.curve, chosen(std::move(events.curves), column, path));
    if (events.replaced > 0)
      out.notes.push_back(
          fmt::format("{}: {} written more than once; the last value of a step is used", path,
                      text::plural(events.replaced, "value")));
    return out;
  }
  const std::string name = lower_case(path);
  if (named_csv(name) || named_json(name)) {
    TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path, kMaxBytes + 1));
    if (bytes.size() > kMaxBytes)
      return Error{fmt::format("larger than {} MiB", kMaxBytes >> 20), path,
                   "write fewer points of the curve"};
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return named_csv(name) ? from_csv(text, column, path) : from_json_lines(text, column, path);
  }
  TWINRUN_ASSIGN(const RunFile run, read_run(path));
  CurveFile out;
  TWINRUN_ASSIGN(out.curve, chosen(curves_of(run), column, path));
  return out;
}

}  // namespace twinrun
