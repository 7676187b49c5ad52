// twinrun bundle: packs a diagnosis into one .zip, reduced to the smallest that fails alike.
#include "harness/bundle/bundle.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

void show(const Bundle& made, const std::string& path) {
  if (made.reduced) {
    const Reduced& r = *made.reduced;
    print("reduced, {} diagnoses, the same finding after each:\n", r.tried);
    for (const std::string& change : r.log) print("  {}\n", change);
    print("{}\n", r.report.headline);
  }
  for (const std::string& note : made.notes) print("{}\n", text::clean(note));
  print("{}: {} files, {} bytes\n", path, made.members.size(),
        text::count(static_cast<int64_t>(made.bytes)));
  print("prove it elsewhere: twinrun replay {}{}\n", path, made.is_foreign ? " --allow-exec" : "");
}

}  // namespace

Result<int> bundle_verb(const Args& args) {
  Options options;
  options.text("out,o", "file to write (default DIR.zip)");
  options.flag("anonymise", "noise instead of the data, and nothing of the original diagnosis");
  options.flag("with-paths",
               "keep the paths of your files; by default only their names, and neither user nor "
               "host, are packed");
  options.flag("no-reduction",
               "keep the scenario as it is; do not search the smallest that fails in the same way");
  options.flag("reduction", "reduce also with an exec: engine, which each try starts again");
  add_program_of_run(options);
  options.number<int>("tries", "most diagnoses of the reduction", 200);
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun bundle DIR [OPTIONS]",
            "twinrun bundle twinrun-results/digits_mlp-0a1b2c3d -o fault.zip", options, {"DIR"}));
  if (parsed.help) return 0;
  auto dir = parsed.get<std::string>("DIR");
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  const std::string path =
      parsed.has("out") ? parsed.get<std::string>("out") : fmt::format("{}.zip", dir);
  BundleOptions how;
  TWINRUN_ASSIGN(how.threads, threads_of(parsed));
  TWINRUN_ASSIGN(how.program, program_files_of(parsed));
  how.anonymise = parsed.get<bool>("anonymise");
  how.with_paths = parsed.get<bool>("with-paths");
  using Reduction = BundleOptions::Reduction;
  const bool always = parsed.get<bool>("reduction"), never = parsed.get<bool>("no-reduction");
  if (always && never) return Error{"both --reduction and --no-reduction", "", "give one of them"};
  how.reduction = always ? Reduction::kAlways : never ? Reduction::kNever : Reduction::kOfOurs;
  how.max_tried = parsed.get<int>("tries");
  if (how.max_tried < 1)
    return Error{fmt::format("{} is below 1", how.max_tried), "--tries", "allowed: 1 or more"};
  TWINRUN_RETURN_IF_ERROR(check_output(path));

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const auto made, bundle(dir, path, how, &printer, &stop));
  if (made.interrupted)
    return Error{"interrupted; nothing was written", "", "run the same command to start again",
                 Error::Kind::kInterrupted};
  if (parsed.get<bool>("json")) {
    nlohmann::ordered_json j = {
        {"schema", 1},
        {"file", path},
        {"bytes", made.bytes},
        {"members", made.members},
        {"notes", made.notes},
        {"tried", made.reduced ? made.reduced->tried : 0},
        {"reduction", made.reduced ? made.reduced->log : std::vector<std::string>()}};
    print_document(j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    show(made, path);
  }
  return 0;
}

}  // namespace twinrun::cli
