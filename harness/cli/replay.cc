// twinrun replay: checks whether a bundle gives the same result on this machine.
#include "harness/bundle/replay.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/host/scratch.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

nlohmann::ordered_json json_of(const Replay& again) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ReplayRow& row : again.rows)
    rows.push_back({{"what", row.what},
                    {"expected", row.expected},
                    {"found", row.found},
                    {"same", row.same},
                    {"judged", row.must}});
  return {{"schema", 1},
          {"reproduced", again.reproduced()},
          {"made_by", again.manifest.twinrun},
          {"rows", rows},
          {"notes", again.notes}};
}

void print(const Replay& again) {
  for (const ReplayRow& row : again.rows) {
    if (row.same) {
      fmt::print("  same       {}: {}\n", text::clean(row.what), text::clean(row.found));
    } else {
      fmt::print("  {}  {}\n             due    {}\n             found  {}\n",
                 row.must ? "DIFFERENT" : "another  ", text::clean(row.what),
                 text::clean(row.expected), text::clean(row.found));
    }
  }
  for (const std::string& note : again.notes) fmt::print("  note: {}\n", text::clean(note));
  fmt::print("{}\n", again.reproduced() ? "reproduced: " + text::clean(again.manifest.headline)
                                        : std::string("not reproduced"));
}

}  // namespace

int replay_verb(const Args& args) {
  po::options_description options("options");
  options.add_options()("allow-exec", po::bool_switch(),
                        "run an exec: or xla: engine that the bundle names: code of others")(
      "data", po::value<std::string>()->default_value(""),
      "folder of the data, of a bundle that has none inside")(
      "out,o", po::value<std::string>(),
      "keep the bundle's data and the new results in this folder, which must not be there yet");
  add_common_options(options);
  const Parsed parsed = parse(args, "twinrun replay BUNDLE.zip [OPTIONS]",
                              "twinrun replay fault.zip", options, {"BUNDLE"});
  if (parsed.exit) return *parsed.exit;
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  const auto scratch = Scratch::make("twinrun-replay");
  if (!scratch) return fail(scratch.error());
  ReplayOptions how;
  how.folder = scratch->path();
  if (parsed.has("out")) {
    how.folder = parsed.get<std::string>("out");
    if (const Status made = new_folder(how.folder); !made) return fail(made.error());
  }
  how.data_dir = parsed.get<std::string>("data");
  how.allow_exec = parsed.get<bool>("allow-exec");
  how.threads = *threads;
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const auto again = replay(parsed.get<std::string>("BUNDLE"), how, &printer, &install_stop_flag());
  if (!again) return fail_engine(again.error(), again.error().where);
  if (again->interrupted)
    return fail({"interrupted", "", "the same command begins again"}, kExitInterrupted);
  if (parsed.get<bool>("json")) {
    fmt::print("{}\n",
               json_of(*again).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print(*again);
  }
  return again->reproduced() ? 0 : 1;
}

}  // namespace twinrun::cli
