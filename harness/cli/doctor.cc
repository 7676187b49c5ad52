// twinrun doctor: checks the machine, the build and an engine.
#include "harness/doctor/doctor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/options.h"
#include "harness/cli/progress_printer.h"
#include "harness/host/environment.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

void print_row(const DoctorRow& row) {
  // The text may come from an engine, so clean it.
  const std::vector<std::string> lines = text::clean_lines(row.detail);
  print("  {:<6} {:<40} {}\n", row.passed ? "ok" : "FAILED", row.name,
        lines.empty() ? "" : lines[0]);
  for (size_t i = 1; i < lines.size(); ++i) print("  {:<47} {}\n", "", lines[i]);
}

std::string memory_of(const DeviceFacts& device) {
  const auto size = [](int64_t bytes) {
    return bytes < 1 << 30 ? fmt::format("{:.3g} MiB", static_cast<double>(bytes) / (1 << 20))
                           : fmt::format("{:.3g} GiB", static_cast<double>(bytes) / (1 << 30));
  };
  if (device.used && device.memory)
    return fmt::format(", {} of {} in use", size(*device.used), size(*device.memory));
  if (device.memory) return ", " + size(*device.memory);
  return device.used ? fmt::format(", {} in use", size(*device.used)) : "";
}

// One line for each device, up to as many as a large host has.
void print_devices(const std::vector<DeviceFacts>& devices) {
  constexpr size_t kShown = 64;
  for (size_t i = 0; i < std::min(devices.size(), kShown); ++i) {
    const DeviceFacts& d = devices[i];
    print_row({fmt::format("device {}", i), d.trouble.empty(),
               fmt::format("{}{}{}{}", d.name, d.kind.empty() ? "" : fmt::format(" ({})", d.kind),
                           memory_of(d), d.trouble.empty() ? "" : ": " + d.trouble)});
  }
  if (devices.size() > kShown) print("  and {} more devices\n", devices.size() - kShown);
}

nlohmann::ordered_json devices_json(const std::vector<DeviceFacts>& devices) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const auto bytes = [](const std::optional<int64_t>& n) {
    return n ? nlohmann::ordered_json(*n) : nlohmann::ordered_json();
  };
  for (const DeviceFacts& d : devices)
    all.push_back({{"name", d.name},
                   {"kind", d.kind},
                   {"memory", bytes(d.memory)},
                   {"used", bytes(d.used)},
                   {"usable", d.trouble.empty()},
                   {"trouble", d.trouble}});
  return all;
}

void print_json(const std::string& engine, const Doctor& d) {
  nlohmann::ordered_json machine = nlohmann::ordered_json::object(),
                         checks = nlohmann::ordered_json::array();
  for (const DoctorRow& row : d.machine) machine[row.name] = row.detail;
  for (const DoctorRow& row : d.checks)
    checks.push_back({{"name", row.name}, {"passed", row.passed}, {"detail", row.detail}});
  const nlohmann::ordered_json all = {{"schema", 1},
                                      {"engine", engine},
                                      {"passed", d.good()},
                                      {"answer", d.answer},
                                      {"devices", devices_json(d.devices)},
                                      {"checks", checks},
                                      {"machine", machine}};
  print_document(all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

Result<int> doctor_verb(const Args& args) {
  Options options;
  add_engine_option(options, "engine,e", "engine to examine", Engines::kWithForeign, "tpu");
  options.flag("json", "one JSON document on stdout, nothing else there");
  options.flag("quiet,q", "no progress");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun doctor [--engine ENGINE] [--json]",
                       "twinrun doctor --engine 'exec:python3 engine.py'", options, {}));
  if (parsed.help) return 0;
  const std::string engine = parsed.get<std::string>("engine");
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  TWINRUN_ASSIGN(const Doctor d, doctor(engine, &printer));
  if (parsed.get<bool>("json")) {
    print_json(engine, d);
  } else {
    print("{}\n", version_text());
    for (const auto* rows : {&d.machine, &d.checks}) {
      for (const DoctorRow& row : *rows) print_row(row);
      if (rows == &d.machine) print_devices(d.devices);
    }
    print("\n{}\n", d.answer);
  }
  return d.good() ? 0 : 1;
}

}  // namespace twinrun::cli
