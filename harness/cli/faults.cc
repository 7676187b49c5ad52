// The option --fault, which several verbs share.
#include <fmt/format.h>

#include <algorithm>

#include "harness/cli/options.h"

namespace twinrun::cli {

void add_fault_option(Options& options, const std::string& name, const std::string& what) {
  options.list(
      name + " FAULT",
      fmt::format("make the {} wrong on purpose (repeatable): KIND@OP-GLOB[,core=C][,step=S|from=S|"
                  "every=N][,magnitude=M][,rate=P]; 'help' lists the kinds",
                  what));
  Values values{.names = {"help"}};
  for (const FaultKind& kind : fault_catalogue())
    values.names.push_back(std::string(kind.name) + "@");
  options.takes(name, std::move(values));
}

bool fault_help(const Args& args) {
  bool asked = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("--")) continue;
    asked |= args[i].ends_with("fault=help");
    asked |= args[i].ends_with("fault") && i + 1 < args.size() && args[i + 1] == "help";
  }
  if (!asked) return false;
  const int width = std::clamp(terminal_width(), 60, 120);
  print_text(fault_table(static_cast<size_t>(width)));
  return true;
}

Result<std::vector<FaultSpec>> faults_of(const Parsed& parsed, const std::string& option) {
  std::vector<FaultSpec> faults;
  if (!parsed.has(option)) return faults;
  for (const auto& text : parsed.get<std::vector<std::string>>(option)) {
    TWINRUN_ASSIGN(FaultSpec fault, parse_fault(text));
    faults.push_back(std::move(fault));
  }
  return faults;
}

Status check_faults_begin(const std::vector<FaultSpec>& faults, int64_t steps) {
  for (const FaultSpec& fault : faults) {
    const int64_t first = fault.step.value_or(fault.from.value_or(0));
    if (first < steps) continue;
    return Error{
        fmt::format("begins at step {}, and the run has the steps 0 to {}", first, steps - 1),
        "--fault " + fault.text, "an earlier step, or raise train.steps"};
  }
  return Ok{};
}

}  // namespace twinrun::cli
