// Reads the reports of two diagnoses, and shows them side by side.
#include "reports/two_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "reports/html_page.h"
#include "reports/html_text.h"
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

std::string headline(const TwoReports& both) {
  if (both.a.verdict == both.b.verdict)
    return fmt::format("both sides are {}", to_string(both.a.verdict));
  return fmt::format("side A is {}, side B is {}", to_string(both.a.verdict),
                     to_string(both.b.verdict));
}

}  // namespace

Result<SideReport> read_side_report(const std::string& path, std::string name) {
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
  return out;
}

VerdictClass TwoReports::verdict() const {
  return gravity(a.verdict) <= gravity(b.verdict) ? a.verdict : b.verdict;
}
std::string TwoReports::side() const {
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
  out += "note: the sides are two diagnoses; their values were not compared with each other\n";
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string two_reports_json(const TwoReports& both) {
  const Json j = {{"schema", 1},
                  {"kind", "two_reports"},
                  {"verdict", std::string(to_string(both.verdict()))},
                  {"exit_code", exit_code(both.verdict())},
                  {"side", both.side()},
                  {"headline", headline(both)},
                  {"a", json_of(both.a)},
                  {"b", json_of(both.b)}};
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
  return html::page({.title = word,
                     .styles = {"page.css"},
                     .body = fmt::format("<header>\n<p class=\"about\">twinrun diagnose</p>\n<h1>"
                                         "<span class=\"badge v-{}\">{}</span> {}</h1>\n</header>\n"
                                         "<main>\n{}</main>\n",
                                         word, word, html::text(headline(both)), t.str())});
}

}  // namespace twinrun
