// Writes every table of a report as a CSV file (RFC 4180). Columns are the keys of report.json, so
// docs/reference/report-schema.md describes both.
#include "reports/csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/json_keys.h"

namespace twinrun {

std::string csv_field(std::string_view text) {
  std::string safe(text);
  if (!safe.empty() && std::string_view("=+-@\t\r").find(safe.front()) != std::string_view::npos)
    safe.insert(safe.begin(), '\'');
  if (safe.find_first_of(",\"\r\n") == std::string::npos) return safe;
  std::string out = "\"";
  for (char c : safe) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

namespace {

void add_line(std::string& out, const std::vector<std::string>& cells) {
  out += fmt::format("{}\r\n", fmt::join(cells, ","));
}

std::string cell(std::string_view text) { return csv_field(text); }
std::string cell(const std::string& text) { return csv_field(text); }
std::string cell(bool value) { return value ? "true" : "false"; }
std::string cell(char value) { return csv_field(std::string(1, value)); }
std::string cell(const RunEnd& value) { return csv_field(to_string(value)); }
template <typename T>
requires std::is_enum_v<T> std::string cell(T value) { return std::string(to_string(value)); }
// The shortest decimal that reads back as the same binary64 or binary32.
std::string cell(double value) { return fmt::format("{}", value); }
std::string cell(float value) { return fmt::format("{}", value); }
std::string cell(int64_t value) { return fmt::format("{}", value); }
std::string cell(int value) { return fmt::format("{}", value); }
template <typename T>
requires requires(const T& one) { cell(one); }
std::string cell(const std::optional<T>& value) { return value ? cell(*value) : ""; }
std::string cell(const std::vector<std::string>& items) {
  return csv_field(fmt::format("{}", fmt::join(items, "; ")));
}

// The keys of one struct, and its fields as cells. Lists of numbers and of structs are skipped;
// they have tables of their own.
class Row {
 public:
  static constexpr bool kReads = false;
  std::vector<std::string> titles, cells;

  template <typename T>
  void operator()(const char* key, const T& value) {
    if constexpr (requires { cell(value); }) {
      titles.emplace_back(key);
      cells.push_back(cell(value));
    }
  }
  void measured(const char* key, double x) { present(key, x >= 0, x); }
  template <typename T>
  void present(const char* key, bool there, const T& value) {
    titles.emplace_back(key);
    cells.push_back(there ? cell(value) : "");
  }
  template <typename T>
  void derived(const char* key, const T& value, bool there = true) {
    present(key, there, value);
  }
  template <typename F>
  void group(const char*, F&& fill) {
    fill(*this);
  }
};

class Table {
 public:
  // An optional first column holds `name`, the run or pair that the row belongs to.
  template <typename T>
  void add(const T& item, const char* leading = nullptr, std::string_view name = "") {
    Row row;
    if (leading != nullptr) row(leading, name);
    json::keys(row, item);
    if (text_.empty()) add_line(text_, row.titles);
    add_line(text_, row.cells);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <typename T>
std::string table_of(const std::vector<T>& items) {
  Table table;
  for (const T& item : items) table.add(item);
  return table.text();
}

std::string losses(const Report& report) {
  std::vector<std::string> titles = {"step"};
  size_t steps = 0;
  for (const RunSummary& run : report.runs) {
    titles.push_back(cell(run.name));
    steps = std::max(steps, run.losses.size());
  }
  if (steps == 0) return "";
  std::string out;
  add_line(out, titles);
  for (size_t step = 0; step < steps; ++step) {
    out += fmt::format("{}", step);
    for (const RunSummary& run : report.runs)
      out += "," + (step < run.losses.size() ? cell(run.losses[step]) : "");
    out += "\r\n";
  }
  return out;
}

std::string rows_of(const DetailTable& table) {
  std::vector<std::string> titles;
  for (const DetailTable::Column& c : table.columns) titles.push_back(cell(c.key));
  std::string out;
  add_line(out, titles);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const DetailValue& value : row)
      cells.push_back(std::visit([](const auto& one) { return cell(one); }, value));
    add_line(out, cells);
  }
  return out;
}

std::string seeds(const Report& report) {
  std::string out;
  for (const TrajectoryRow& row : report.trajectories) {
    for (size_t i = 0; i < row.differences.size(); ++i) {
      if (out.empty()) add_line(out, {"pair", "metric", "seed", "difference"});
      add_line(out,
               {cell(row.pair), cell(row.metric), fmt::format("{}", i), cell(row.differences[i])});
    }
  }
  return out;
}

}  // namespace

std::vector<ReportFile> to_csv(const Report& report) {
  Table ops;
  for (const EngineProbe& probe : report.probes) {
    for (const ProbeRow& row : probe.rows) ops.add(row, "pair", probe.pair);
  }
  std::vector<ReportFile> files = {{"runs.csv", table_of(report.runs)},
                                   {"losses.csv", losses(report)},
                                   {"findings.csv", table_of(report.findings)},
                                   {"probes.csv", table_of(report.probes)},
                                   {"probe_rows.csv", ops.text()},
                                   {"switches.csv", table_of(report.ablations)},
                                   {"trajectories.csv", table_of(report.trajectories)},
                                   {"differences.csv", seeds(report)},
                                   {"ensembles.csv", table_of(report.ensembles)},
                                   {"controls.csv", table_of(report.controls)}};
  for (const DetailTable& table : report.details)
    files.push_back({table.id + ".csv", rows_of(table)});
  std::erase_if(files, [](const ReportFile& file) { return file.content.empty(); });
  return files;
}

}  // namespace twinrun
