// twinrun diff: shows where two runs, checkpoints or curves differ.
#include "harness/diff/diff.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness/cli/options.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

nlohmann::ordered_json json_of(const Diff& d) {
  nlohmann::ordered_json j;
  j["schema"] = 1;
  j["kind"] = d.kind;
  j["same"] = d.same;
  if (d.kind == "run")
    j["same_start"] = d.same_start ? nlohmann::ordered_json(*d.same_start) : nullptr;
  j["first_step"] = d.first_step ? nlohmann::ordered_json(*d.first_step) : nullptr;
  j["first_loss"] = d.first_loss ? nlohmann::ordered_json(*d.first_loss) : nullptr;
  j["max_loss_gap"] = d.max_loss_gap;
  if (d.kind == "curve") {
    j["columns"] = {d.column_a, d.column_b};
    j["steps"] = {d.steps_a, d.steps_b};
    j["steps_compared"] = d.steps_compared;
    j["max_relative_gap"] = d.max_relative_gap;
    j["first_values"] = d.first_values;
  }
  j["tensors_compared"] = d.tensors_compared;
  j["tensors_unread"] = d.tensors_unread;
  j["tensors"] = nlohmann::ordered_json::array();
  for (const auto& t : d.tensors) {
    j["tensors"].push_back({{"name", t.name},
                            {"types", t.types},
                            {"elements", t.elements},
                            {"different", t.different},
                            {"max_ulps", t.paired ? nlohmann::ordered_json(t.max_ulps) : nullptr},
                            {"max_abs", t.paired ? nlohmann::ordered_json(t.max_abs) : nullptr},
                            {"relative", t.relative},
                            {"first", t.first}});
  }
  j["notes"] = d.notes;
  return j;
}

// Names come from untrusted files.
std::string shown(const std::string& text) { return text::clean(text); }

void print_curve(const Diff& d) {
  print("{} of {} against {} of {}: {} in common\n", shown(d.column_a),
        text::plural(d.steps_a, "step"), shown(d.column_b), text::plural(d.steps_b, "step"),
        text::count(d.steps_compared));
  if (d.first_loss) {
    print("values diverge at step {} ({}), largest gap {:.6g}, relative {:.3g}\n", *d.first_loss,
          d.first_values, d.max_loss_gap, d.max_relative_gap);
  } else {
    print("the same{}\n", d.same ? "" : ", where both have a value");
  }
}

void show(const Diff& d, const std::string& a, const std::string& b) {
  print("A = {}\nB = {}\n", a, b);
  for (const auto& note : d.notes) print("note: {}\n", shown(note));
  if (d.kind == "curve") return print_curve(d);
  if (d.kind == "run") {
    if (d.first_step) print("states diverge after step {}\n", *d.first_step);
    if (d.first_loss)
      print("losses diverge at step {}, largest gap {:.6g}\n", *d.first_loss, d.max_loss_gap);
    if (d.eval_loss_a) {
      print("held-out loss {:.6f} against {:.6f}", *d.eval_loss_a, *d.eval_loss_b);
      if (!std::isnan(*d.eval_accuracy_a))
        print(", accuracy {:.2f} % against {:.2f} %", 100 * *d.eval_accuracy_a,
              100 * *d.eval_accuracy_b);
      print("\n");
    }
  }
  if (d.same) {
    print("the same: {} tensors, bit for bit{}\n", d.tensors_compared,
          d.tensors_unread > 0 ? " by their digests (--verify reads them too)" : "");
    return;
  }
  if (!d.tensors.empty()) {
    print("{} of {} tensors differ\n  {:<32} {:>16} {:>9} {:>10} {:>10}  {}\n", d.tensors.size(),
          d.tensors_compared, "tensor", "elements", "relative", "max |a-b|", "max ulps", "first");
    for (const auto& t : d.tensors) {
      const auto of_pairs = [&](const std::string& text) { return t.paired ? text : "-"; };
      print("  {:<32} {:>16} {:>9} {:>10} {:>10}  {}\n", shown(t.name),
            fmt::format("{}/{}", t.different, t.elements),
            of_pairs(fmt::format("{:.2e}", t.relative)), of_pairs(fmt::format("{:.2e}", t.max_abs)),
            of_pairs(fmt::format("{}", t.max_ulps)), t.first.empty() ? t.types : t.first);
    }
  }
}

bool is_diagnosis(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.filename() == "report.json" || std::filesystem::exists(path / "report.json", ignored);
}

}  // namespace

Result<int> diff_verb(const Args& args) {
  Options options;
  options.flag("json", "one JSON document on stdout");
  options.flag("verify", "also read and check tensors whose digests are equal");
  options.text("column NAME", "column, key or tag of curves (default: the loss)");
  options.text("column-b NAME", "the column of B, if it has another name there");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun diff A B [OPTIONS]",
                       "twinrun diff runs/R.h5 runs/T.h5\n  twinrun diff theirs.csv run.h5 "
                       "--column train_loss --column-b loss",
                       options, {"A", "B"}));
  if (parsed.help) return 0;
  const auto a = parsed.get<std::string>("A"), b = parsed.get<std::string>("B");
  if (is_diagnosis(a) && is_diagnosis(b))
    return Error{"both are finished diagnoses", fmt::format("{}, {}", a, b),
                 fmt::format("twinrun diagnose {} --against {}", a, b)};
  Columns columns;
  if (parsed.has("column")) columns.a = columns.b = parsed.get<std::string>("column");
  if (parsed.has("column-b")) columns.b = parsed.get<std::string>("column-b");
  TWINRUN_ASSIGN(const auto d, diff_files(a, b, parsed.get<bool>("verify"), columns));
  if (parsed.get<bool>("json")) {
    print_document(json_of(d).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    show(d, a, b);
  }
  return d.same ? 0 : 1;
}

}  // namespace twinrun::cli
