// Reads the reports of two diagnoses, and shows them side by side.
#include "reports/two_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program/base/input_file.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/json_number.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

// The gravest first.
constexpr std::array kGravity = {VerdictClass::kEngineBug,    VerdictClass::kNondeterministic,
                                 VerdictClass::kSharding,     VerdictClass::kProgram,
                                 VerdictClass::kInconclusive, VerdictClass::kNoise,
                                 VerdictClass::kIdentical};

auto gravity(VerdictClass v) { return std::ranges::find(kGravity, v) - kGravity.begin(); }

Json json_of(const SideReport& r) {
  return {{"name", r.name},
          {"verdict", std::string(to_string(r.verdict))},
          {"headline", r.headline},
          {"cause", r.cause},
          {"sentence", r.sentence}};
}

// The verdict is that of the values: graver than both sides'.
bool values_decide(const TwoReports& both) {
  return both.values && gravity(both.values->verdict) < gravity(both.a.verdict) &&
         gravity(both.values->verdict) < gravity(both.b.verdict);
}

Json json_of(const ValuesApart& v) {
  Json results = Json::array();
  for (const ResultApart& r : v.results)
    results.push_back({{"name", r.name},
                       {"side", r.side},
                       {"step", r.step},
                       {"elements", r.elements},
                       {"outside", r.outside},
                       {"likely", r.likely},
                       {"on_path", r.on_path},
                       {"relative", json::number(r.relative)},
                       {"ratio", json::number(r.ratio)},
                       {"factor", json::number(r.factor)}});
  return {{"verdict", std::string(to_string(v.verdict))},
          {"headline", v.headline},
          {"steps", v.steps},
          {"update_relative", json::number(v.update)},
          {"undecided", json::number(v.undecided)},
          {"other_inputs", v.inputs},
          {"results", results},
          {"notes", v.notes}};
}

std::string headline(const TwoReports& both) {
  if (values_decide(both)) return both.values->headline;
  if (both.a.verdict == both.b.verdict)
    return fmt::format("both sides are {}", to_string(both.a.verdict));
  return fmt::format("side A is {}, side B is {}", to_string(both.a.verdict),
                     to_string(both.b.verdict));
}

// The files of a step, in the folder of its report. Errors: not what a diagnosis writes.
Result<StepFiles> step_files(const nlohmann::json& j, const std::string& report) {
  const std::filesystem::path folder = std::filesystem::path(report).parent_path();
  StepFiles out;
  try {
    const auto file = [&](const nlohmann::json& name) {
      const auto text = name.get<std::string>();
      // A report names files of its own folder and no others.
      if (text.empty() || text.find('/') != std::string::npos || text.starts_with("."))
        throw std::invalid_argument("'" + text + "' is no file of the report's folder");
      return (folder / text).string();
    };
    out.module = file(j.at("module"));
    for (const auto& name : j.at("values")) out.values.push_back(file(name));
    out.arguments = j.at("arguments").get<std::vector<std::string>>();
    out.results = j.at("results").get<std::vector<std::string>>();
    for (const auto& index : j.at("next")) out.next.push_back(json_integer<int64_t>(index));
    out.loss = json_integer<int64_t>(j.at("loss"));
    out.precision = j.at("precision").get<std::string>();
  } catch (const std::exception& e) {
    return Error{fmt::format("its \"step\" is not what a diagnosis writes: {}", e.what()), report,
                 "diagnose again"};
  }
  const auto count = static_cast<int64_t>(out.results.size());
  if (out.loss >= count || out.next.size() > out.arguments.size() ||
      std::ranges::any_of(out.next, [&](int64_t i) { return i < -1 || i >= count; }))
    return Error{"its \"step\" names results that it does not have", report, "diagnose again"};
  return out;
}

}  // namespace

std::string ResultApart::sentence() const {
  std::string out = fmt::format(
      "{} of {} elements of {} of step {} on side {} are not what the program of the other side "
      "gives from the same arguments, whatever is rounded: {} apart by {} of the norm",
      outside, elements, name, step, side,
      name.starts_with("new ") ? "the updates are" : "they are", text::number(relative));
  if (std::isfinite(ratio))
    out += fmt::format(", an element by {} {}", text::number(ratio),
                       likely ? "radii of likely values" : "bounds");
  if (std::isfinite(factor)) out += fmt::format("; side B's is {:.4g} times side A's", factor);
  return out;
}

Result<SideReport> read_side_report(const std::string& path, std::string name) {
  TWINRUN_RETURN_IF_ERROR(check_input(path));
  std::ifstream file(path);
  if (!file)
    return Error{"cannot read the report of a diagnosis", path,
                 "give the folder that twinrun.diagnose wrote, or a trace"};
  std::stringstream text;
  text << file.rdbuf();
  const auto parsed = parse_json_text(text.str());
  const nlohmann::json j = parsed ? *parsed : nullptr;
  if (!j.is_object() || !j.contains("verdict") || !j["verdict"].is_object() ||
      !j["verdict"].contains("class") || !j["verdict"]["class"].is_string())
    return Error{"this is not the report of a diagnosis", path, ""};
  SideReport out;
  out.name = std::move(name);
  TWINRUN_ASSIGN(out.has_checksum, check_checksum(text.str(), path));
  const auto word = j["verdict"]["class"].get<std::string>();
  const auto at =
      std::ranges::find_if(kGravity, [&](VerdictClass v) { return to_string(v) == word; });
  if (at == kGravity.end())
    return Error{"a verdict of unknown class " + word.substr(0, 40), path, ""};
  out.verdict = *at;
  const auto text_of = [](const nlohmann::json& from, const char* key) {
    return from.is_object() && from.contains(key) && from[key].is_string()
               ? from[key].get<std::string>()
               : std::string();
  };
  out.headline = text_of(j["verdict"], "headline");
  if (j.contains("findings") && j["findings"].is_array() && !j["findings"].empty()) {
    out.cause = text_of(j["findings"][0], "cause");
    out.sentence = text_of(j["findings"][0], "sentence");
  }
  if (j.contains("step") && j["step"].is_object()) {
    TWINRUN_ASSIGN(out.step, step_files(j["step"], path));
  }
  return out;
}

VerdictClass TwoReports::verdict() const {
  if (values_decide(*this)) return values->verdict;
  return gravity(a.verdict) <= gravity(b.verdict) ? a.verdict : b.verdict;
}
std::string TwoReports::side() const {
  if (values_decide(*this)) return "";
  if (a.verdict == b.verdict) return "A and B";
  return verdict() == a.verdict ? "A" : "B";
}

std::string two_reports_text(const TwoReports& both) {
  std::string out = fmt::format("{}  {}\n\n", to_string(both.verdict()), headline(both));
  for (const auto& [side, r] : {std::pair{"A", &both.a}, std::pair{"B", &both.b}}) {
    out +=
        fmt::format("  {}  {}: {}\n     {}\n", side, to_string(r->verdict), r->headline, r->name);
    if (!r->cause.empty()) out += fmt::format("     {}: {}\n", r->cause, r->sentence);
  }
  for (const auto& [side, r] : {std::pair{"A", &both.a}, std::pair{"B", &both.b}}) {
    if (!r->has_checksum) out += fmt::format("note: the report of {} {}\n", side, kNoChecksum);
  }
  if (!both.values) {
    out += "note: a side left no values, so those of the two sides were not compared\n";
  } else {
    const ValuesApart& v = *both.values;
    if (!values_decide(both)) out += fmt::format("values: {}\n", v.headline);
    for (const std::string& line : v.inputs) out += fmt::format("Not the same: {}\n", line);
    for (const ResultApart& r : v.results) out += fmt::format("  - {}\n", r.sentence());
    for (const std::string& note : v.notes) out += fmt::format("note: {}\n", note);
  }
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string two_reports_json(const TwoReports& both) {
  Json j = {{"schema", 1},
            {"kind", "two_reports"},
            {"verdict", std::string(to_string(both.verdict()))},
            {"exit_code", exit_code(both.verdict())},
            {"side", both.side()},
            {"headline", headline(both)},
            {"a", json_of(both.a)},
            {"b", json_of(both.b)}};
  j["values"] = both.values ? json_of(*both.values) : Json(nullptr);
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string two_reports_html(const TwoReports& both) {
  const std::string word(to_string(both.verdict()));
  html::Table t("Both diagnoses",
                {{"side"}, {"verdict"}, {"headline"}, {"first finding"}, {"command or report"}});
  for (const auto& [side, r] : {std::pair{"A", &both.a}, std::pair{"B", &both.b}})
    t.add({side, std::string(to_string(r->verdict)), html::text(r->headline),
           html::text(r->cause.empty() ? "" : r->cause + ": " + r->sentence),
           html::code(r->name, 300)});
  html::Table values("Values of both sides", {{"what differs"}});
  if (both.values) {
    for (const std::string& line : both.values->inputs) values.add({html::text(line)});
    for (const ResultApart& r : both.values->results) values.add({html::text(r.sentence())});
    if (both.values->inputs.empty() && both.values->results.empty())
      values.add({html::text(both.values->headline)});
  }
  return html::page({.title = word,
                     .styles = {"page.css"},
                     .body = fmt::format("<header>\n<p class=\"about\">twinrun diagnose</p>\n<h1>"
                                         "<span class=\"badge v-{}\">{}</span> {}</h1>\n</header>\n"
                                         "<main>\n{}</main>\n",
                                         word, word, html::text(headline(both)),
                                         t.str() + (both.values ? values.str() : ""))});
}

}  // namespace twinrun
