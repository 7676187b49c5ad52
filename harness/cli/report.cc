// twinrun report: renders a finished diagnosis in other formats.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "harness/cli/diagnose_what.h"
#include "harness/foreign/tensorboard.h"
#include "program/base/names.h"
#include "reports/csv.h"

namespace twinrun::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTerminal = "terminal";
constexpr uint64_t kMaxBytes = uint64_t{256} << 20;  // largest accepted report.json

// Formats of several files, each in a folder of its own.
struct FolderFormat {
  std::string_view name;
  Result<std::vector<ReportFile>> (*render)(const Report& report, const std::string& folder);
};
constexpr std::array kFolderFormats = {
    FolderFormat{"csv",
                 [](const Report& report, const std::string&) {
                   return Result<std::vector<ReportFile>>(to_csv(report));
                 }},
    FolderFormat{"tensorboard", tensorboard_files},
};

std::vector<std::string> known_formats() {
  std::vector<std::string> names = {std::string(kTerminal)};
  for (const ReportFormat& format : report_formats()) names.emplace_back(format.name);
  for (const FolderFormat& format : kFolderFormats) names.emplace_back(format.name);
  return names;
}

// The names separated by commas, without duplicates.
std::vector<std::string> formats_of(const std::string& text) {
  std::vector<std::string> names;
  for (std::string& name : split_commas(text)) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

Result<Report> read_report(const fs::path& file) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(file.string(), kMaxBytes + 1));
  if (bytes.size() > kMaxBytes)
    return Error{fmt::format("larger than {} MiB: no report of a diagnosis", kMaxBytes >> 20),
                 file.string(), ""};
  return report_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                          file.string());
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

Status make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!is_folder(folder))
    return Error{fmt::format("cannot make this folder: {}",
                             error ? error.message() : "a file is in its place"),
                 folder.string(), "write elsewhere with -o"};
  return Ok{};
}

Status write(const fs::path& file, const std::string& content) {
  TWINRUN_RETURN_IF_ERROR(make_folder(file.has_parent_path() ? file.parent_path() : "."));
  return write_file_atomically(file.string(), content);
}

// Writes one format. `folder`: the results folder; `given`: the path of -o, if there is one;
// `alone`: it is the only format.
Status tell(const std::string& name, const Report& report, const fs::path& folder,
            const std::optional<fs::path>& given, bool alone, bool verbose) {
  if (name == kTerminal) {
    print_report(report, verbose);
    return Ok{};
  }
  const fs::path out = given.value_or(folder);
  for (const FolderFormat& format : kFolderFormats) {
    if (format.name != name) continue;
    TWINRUN_ASSIGN(const std::vector<ReportFile> files, format.render(report, folder.string()));
    for (const ReportFile& file : files)
      TWINRUN_RETURN_IF_ERROR(write(out / name / file.name, file.content));
    print("{}\n", (out / name).string());
    return Ok{};
  }
  const ReportFormat& format =
      *std::ranges::find(report_formats(), std::string_view(name), &ReportFormat::name);
  const std::string text = format.render(report);
  if (out == "-") {
    print_document(text);
    return Ok{};
  }
  const bool is_file = given && alone && !is_folder(out) && out.has_extension();
  const fs::path file = is_file ? out : out / format.file;
  TWINRUN_RETURN_IF_ERROR(write(file, text));
  print("{}\n", file.string());
  return Ok{};
}

}  // namespace

Result<int> show_report(const std::string& path, const Parsed& parsed) {
  TWINRUN_ASSIGN(const Report report,
                 read_report(is_folder(path) ? fs::path(path) / "report.json" : fs::path(path)));
  return answer(report, parsed, true);
}

Result<int> report_verb(const Args& args) {
  Options options;
  options.some_of("format", "formats", known_formats(), std::string(kTerminal));
  options.text("out,o PATH",
               "the folder for the files (default DIR); for one format "
               "of one file that file (with an ending), or - for "
               "standard output");
  options.flag("verbose,v", "on the terminal: everything");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun report DIR [--format NAME[,NAME..]] [-o PATH] [-v]",
                       "twinrun report twinrun-results/digits_cnn-fdd1c987 --format markdown",
                       options, {"DIR"}));
  if (parsed.help) return 0;
  const auto names = formats_of(parsed.get<std::string>("format"));
  const fs::path given = parsed.get<std::string>("DIR");
  const bool whole = is_folder(given);
  TWINRUN_ASSIGN(const auto report, read_report(whole ? given / "report.json" : given));

  std::optional<fs::path> out;
  if (parsed.has("out")) out = parsed.get<std::string>("out");
  if (out == "-" && (names.size() != 1 ||
                     std::ranges::count(kFolderFormats, names.front(), &FolderFormat::name) > 0))
    return Error{"standard output takes one format of one file", "-o", "name a folder"};
  for (const std::string& name : names) {
    TWINRUN_RETURN_IF_ERROR(tell(name, report, whole ? given : given.parent_path(), out,
                                 names.size() == 1, parsed.get<bool>("verbose")));
  }
  return 0;
}

}  // namespace twinrun::cli
