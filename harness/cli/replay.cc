// twinrun replay: checks whether a bundle gives the same result on this machine.
#include "harness/bundle/replay.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoints/container/temporary.h"
#include "harness/cli/options.h"
#include "harness/cli/progress_printer.h"
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

void show(const Replay& again) {
  for (const ReplayRow& row : again.rows) {
    if (row.same) {
      print("  same       {}: {}\n", text::clean(row.what), text::clean(row.found));
    } else {
      print("  {}  {}\n             expected  {}\n             found     {}\n",
            row.must ? "DIFFERENT" : "another  ", text::clean(row.what), text::clean(row.expected),
            text::clean(row.found));
    }
  }
  for (const std::string& note : again.notes) print("  note: {}\n", text::clean(note));
  print("{}\n", again.reproduced() ? "reproduced: " + text::clean(again.manifest.headline)
                                   : std::string("not reproduced"));
}

}  // namespace

Result<int> replay_verb(const Args& args) {
  Options options;
  options.flag("allow-exec", "run an exec: engine that the bundle names: third-party code");
  options.text("data FOLDER", "folder of the data, for a bundle without data", "");
  options.text(
      "out,o FOLDER",
      "keep the bundle's data and the new results in this folder, which must not exist yet");
  add_common_options(options);
  TWINRUN_ASSIGN(const Parsed parsed, parse(args, "twinrun replay BUNDLE.zip [OPTIONS]",
                                            "twinrun replay fault.zip", options, {"BUNDLE"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto scratch, TemporaryFolder::make("replay"));
  ReplayOptions how;
  how.folder = scratch.path();
  if (parsed.has("out")) {
    how.folder = parsed.get<std::string>("out");
    TWINRUN_RETURN_IF_ERROR(new_folder(how.folder));
  }
  how.data_dir = parsed.get<std::string>("data");
  how.allow_exec = parsed.get<bool>("allow-exec");
  TWINRUN_ASSIGN(how.threads, threads_of(parsed));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  TWINRUN_ASSIGN(const auto again,
                 replay(parsed.get<std::string>("BUNDLE"), how, &printer, &install_stop_flag()));
  if (again.interrupted)
    return Error{"interrupted", "", "run the same command to start again",
                 Error::Kind::kInterrupted};
  if (parsed.get<bool>("json")) {
    print_document(json_of(again).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                   "\n");
  } else {
    show(again);
  }
  return again.reproduced() ? 0 : 1;
}

}  // namespace twinrun::cli
