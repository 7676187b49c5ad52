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
#include "reports/text.h"

namespace twinrun {
namespace {

// The gravest first.
constexpr std::array kGravity = {VerdictClass::kEngineBug,    VerdictClass::kNondeterministic,
                                 VerdictClass::kSharding,     VerdictClass::kProgram,
                                 VerdictClass::kInconclusive, VerdictClass::kNoise,
                                 VerdictClass::kIdentical};

auto gravity(VerdictClass v) { return std::ranges::find(kGravity, v) - kGravity.begin(); }

// The verdict is that of the values: graver than both sides'.
bool values_decide(const TwoReports& both) {
  return both.values && gravity(both.values->verdict) < gravity(both.a.verdict) &&
         gravity(both.values->verdict) < gravity(both.b.verdict);
}

std::string headline(const TwoReports& both) {
  if (values_decide(both)) return both.values->headline;
  if (both.a.verdict == both.b.verdict)
    return fmt::format("both sides are {}", to_string(both.a.verdict));
  return fmt::format("side A is {}, side B is {}", to_string(both.a.verdict),
                     to_string(both.b.verdict));
}

std::optional<Answer::Outcome> outcome_from(const std::string& word) {
  using enum Answer::Outcome;
  for (const Answer::Outcome o : {kYes, kNo, kOpen, kPartly, kNotAsked, kNotApplicable})
    if (to_string(o) == word) return o;
  return std::nullopt;
}

// What both sides answered by themselves.
Answer of_both(const TwoReports& both, const std::string& question, const std::string& otherwise) {
  using enum Answer::Outcome;
  const auto a = both.a.answers.find(question), b = both.b.answers.find(question);
  if (a == both.a.answers.end() || b == both.b.answers.end()) return {kNotAsked, otherwise};
  const auto is = [&](Answer::Outcome o) {
    return a->second.outcome == o || b->second.outcome == o;
  };
  const Answer::Outcome outcome = a->second.outcome == b->second.outcome ? a->second.outcome
                                  : is(kNo)                              ? kNo
                                  : is(kOpen)                            ? kOpen
                                                                         : kPartly;
  return {outcome, a->second.what == b->second.what
                       ? a->second.what
                       : fmt::format("A: {}; B: {}", a->second.what, b->second.what)};
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

std::string MeantApart::sentence() const {
  return fmt::format(
      "evaluated without rounding on the same arguments, the two programs' {} of the first step "
      "are "
      "{} of the norm apart{}",
      name.starts_with("new ") ? "updates of " + name.substr(4) : name, text::number(relative),
      std::isfinite(factor) && std::fabs(factor - 1) > 1e-3
          ? fmt::format(": side B's is {:.4g} times side A's", factor)
          : "");
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
  if (j.contains("scenario")) out.scenario = text_of(j["scenario"], "toml");
  if (j.contains("answers") && j["answers"].is_object()) {
    for (const auto& [question, a] : j["answers"].items()) {
      if (const auto outcome = outcome_from(text_of(a, "outcome")))
        out.answers[question] = {*outcome, text_of(a, "what")};
    }
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

Report report_of(const TwoReports& both) {
  using Outcome = Answer::Outcome;
  Report r;
  r.kind = "two sides";
  r.scenario_name = both.a.name;
  r.subject = fmt::format("A: {}; B: {}", both.a.name, both.b.name);
  r.verdict = both.verdict();
  r.side = both.side();
  r.headline = headline(both);
  const std::string sides = fmt::format("each side's own diagnosis: A {}, B {}",
                                        to_string(both.a.verdict), to_string(both.b.verdict));
  const auto graver = [&](const char* question, VerdictClass no) {
    Answer out = of_both(both, question, sides);
    if (r.verdict == no) out.outcome = Answer::Outcome::kNo;
    return out;
  };
  r.answers.repeats = graver("repeats", VerdictClass::kNondeterministic);
  r.answers.operations = graver("operations", VerdictClass::kEngineBug);
  r.answers.program = {Outcome::kNotAsked,
                       "a side left no values, so those of the two sides were not compared"};
  if (both.values)
    r.answers.program = {both.values->verdict == VerdictClass::kProgram        ? Outcome::kNo
                         : both.values->verdict == VerdictClass::kInconclusive ? Outcome::kOpen
                                                                               : Outcome::kYes,
                         both.values->headline};
  r.answers.sharding = graver("sharding", VerdictClass::kSharding);
  r.answers.effect = of_both(both, "effect", "a few steps do not say what the model learns");
  r.remarks = both.other_keys;
  DetailTable each{"sides",
                   "Each side by itself",
                   "",
                   {{"side", "side"},
                    {"name", "command or report"},
                    {"verdict", "verdict"},
                    {"headline", "headline"},
                    {"cause", "cause"},
                    {"sentence", "first finding"}},
                   {}};
  for (const auto& [side, one] : {std::pair{"A", &both.a}, std::pair{"B", &both.b}}) {
    each.rows.push_back({std::string(side), one->name, std::string(to_string(one->verdict)),
                         one->headline, one->cause, one->sentence});
    if (!one->has_checksum)
      r.notes.push_back(fmt::format("the report of {} {}", side, kNoChecksum));
    if (one->cause.empty() || one->verdict != r.verdict) continue;
    Finding f;
    f.verdict = one->verdict;
    f.cause = one->cause;
    f.sentence = fmt::format("Side {}: {}", side, one->sentence);
    f.level = ' ';
    r.findings.push_back(std::move(f));
  }
  r.details.push_back(std::move(each));
  if (!both.values) return r;
  const ValuesApart& v = *both.values;
  DetailTable values{"values",
                     "What the other side's program does not give",
                     v.headline,
                     {{"name", "result"},
                      {"side", "side"},
                      {"step", "step"},
                      {"outside", "elements outside"},
                      {"elements", "of"},
                      {"relative", "of the norm"},
                      {"ratio", "in bounds"},
                      {"factor", "side B's over side A's"}},
                     {}};
  for (const ResultApart& apart : v.results) {
    values.rows.push_back({apart.name, apart.side, apart.step, apart.outside, apart.elements,
                           apart.relative, apart.ratio, apart.factor});
    if (v.verdict != r.verdict || r.verdict != VerdictClass::kProgram) continue;
    Finding f;
    f.verdict = VerdictClass::kProgram;
    f.cause = "other_values";
    f.sentence = apart.sentence();
    f.step = apart.step;
    f.level = ' ';
    r.findings.push_back(std::move(f));
  }
  if (v.meant) {
    r.numbers["meant"] = v.meant->relative;
    if (v.verdict == VerdictClass::kNoise)
      r.answers.program.what +=
          fmt::format("; without rounding they are {} apart", text::number(v.meant->relative));
  }
  if (v.verdict == VerdictClass::kInconclusive && v.verdict == r.verdict)
    r.next_steps.push_back(
        v.meant
            ? "look for a constant, a setting or a formula that differs: a learning rate, a decay, "
              "an epsilon; where the two scripts should mean the same, leave out halves of what "
              "differs between them until nothing is left"
            : "let both sides compute in float64 (JAX_ENABLE_X64=1, with state and batch in "
              "float64): what rounding can explain is then 10^8 times smaller");
  for (const std::string& line : v.inputs) r.notes.push_back("Not the same: " + line);
  r.notes.insert(r.notes.end(), v.notes.begin(), v.notes.end());
  r.counts["steps"] = v.steps;
  r.numbers["update"] = v.update, r.numbers["undecided"] = v.undecided;
  r.confidence = fmt::format("the updates differ by {} of their norm; the bounds leave {} open",
                             text::number(v.update), text::number(v.undecided));
  if (!values.rows.empty()) r.details.push_back(std::move(values));
  return r;
}

}  // namespace twinrun
