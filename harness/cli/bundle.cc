// twinrun bundle: packs a diagnosis into one .zip, reduced to the smallest that fails alike.
#include "harness/bundle/bundle.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

void print(const Bundle& made, const std::string& path) {
  if (made.reduced) {
    const Reduced& r = *made.reduced;
    fmt::print("reduced, {} diagnoses, the same finding after each:\n", r.tried);
    for (const std::string& change : r.log) fmt::print("  {}\n", change);
    fmt::print("{}\n", r.report.headline);
  }
  for (const std::string& note : made.notes) fmt::print("{}\n", text::clean(note));
  fmt::print("{}: {} files, {} bytes\n", path, made.members.size(),
             text::count(static_cast<int64_t>(made.bytes)));
  fmt::print("prove it elsewhere: twinrun replay {}\n", path);
}

}  // namespace

int bundle_verb(const Args& args) {
  po::options_description options("options");
  options.add_options()("out,o", po::value<std::string>(), "the file, default DIR.zip")(
      "anonymise", po::bool_switch(),
      "noise in the place of the data, and nothing of the original diagnosis")(
      "no-reduction", po::bool_switch(),
      "the scenario as it is, not the smallest that fails alike")(
      "reduction", po::bool_switch(),
      "reduce an exec: or xla engine's, too: each try starts it anew")(
      "tries", po::value<int>()->default_value(200), "diagnoses that the reduction may take");
  add_common_options(options);
  const Parsed parsed =
      parse(args, "twinrun bundle DIR [OPTIONS]",
            "twinrun bundle twinrun-results/digits_mlp-0a1b2c3d -o fault.zip", options, {"DIR"});
  if (parsed.exit) return *parsed.exit;
  auto dir = parsed.get<std::string>("DIR");
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  const std::string path =
      parsed.has("out") ? parsed.get<std::string>("out") : fmt::format("{}.zip", dir);
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  BundleOptions how;
  how.threads = *threads;
  how.anonymise = parsed.get<bool>("anonymise");
  using Reduction = BundleOptions::Reduction;
  const bool always = parsed.get<bool>("reduction"), never = parsed.get<bool>("no-reduction");
  if (always && never) return fail({"both --reduction and --no-reduction", "", "give one of them"});
  how.reduction = always ? Reduction::kAlways : never ? Reduction::kNever : Reduction::kOfOurs;
  how.max_tried = parsed.get<int>("tries");
  if (how.max_tried < 1)
    return fail({fmt::format("{} is below 1", how.max_tried), "--tries", "allowed: 1 or more"});
  if (const Status writable = check_output(path); !writable) return fail(writable.error());

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  const auto made = bundle(dir, path, how, &printer, &stop);
  if (!made) return fail(made.error());
  if (made->interrupted)
    return fail({"interrupted; nothing was written", "", "the same command begins again"},
                kExitInterrupted);
  if (parsed.get<bool>("json")) {
    nlohmann::ordered_json j = {
        {"schema", 1},
        {"file", path},
        {"bytes", made->bytes},
        {"members", made->members},
        {"notes", made->notes},
        {"tried", made->reduced ? made->reduced->tried : 0},
        {"reduction", made->reduced ? made->reduced->log : std::vector<std::string>()}};
    fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print(*made, path);
  }
  return 0;
}

}  // namespace twinrun::cli
