// Writes and reads the digests of a step, and renders what they say of another machine.
#include "reports/known.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program/base/input_file.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kKnownSchema = 1;

Finding finding_of(const KnownVerdict::Where& w, VerdictClass verdict) {
  Finding f;
  f.verdict = verdict;
  f.cause = verdict == VerdictClass::kEngineBug ? "engine:" + w.op : "other_bits";
  f.step = w.step;
  f.call = w.call;
  f.op = w.op;
  f.module = w.module;
  f.place = w.place;
  if (w.judged) f.outside = w.outside;
  f.level = ' ';
  f.elements = fmt::format("{}, {}", w.type, text::plural(w.elements, "element"));
  const std::string bounds =
      !w.judged ? "not judged"
      : w.outside > 0
          ? fmt::format("{} outside their bound", text::count(w.outside))
          : fmt::format("within its bound (largest error / bound {})", text::number(w.worst));
  f.sentence = fmt::format("{}{}: {}, {}", w.op,
                           w.place.empty() ? "" : " at " + w.place.substr(0, w.place.find('\n')),
                           f.elements, bounds);
  return f;
}

}  // namespace

Digest KnownStep::root() const {
  DigestBuilder all;
  for (const KnownCall& c : calls) {
    all.add(c.op);
    for (const auto& [type, digest] : c.results) {
      all.add(type);
      if (c.steady) all.add(digest);
    }
  }
  return all.finish();
}

std::string to_json(const KnownStep& known) {
  Json j = {{"schema", kKnownSchema},
            {"kind", "known_step"},
            {"root_digest", known.root().hex()},
            {"framework", known.framework},
            {"script", known.script},
            {"steps", known.steps},
            {"accelerator", known.accelerator},
            {"repeated", known.repeated}};
  j["settings"] = Json::object();
  for (const auto& [name, value] : known.settings) j["settings"][name] = value;
  j["calls"] = Json::array();
  for (const KnownCall& c : known.calls) {
    Json one = {{"step", c.step}, {"op", c.op}, {"module", c.module}, {"place", c.place}};
    if (c.draw) one["draw"] = true;
    if (!c.steady) one["steady"] = false;
    one["reads"] = c.reads.hex();
    if (c.given) one["given"] = c.given->hex();
    if (c.numbers) one["numbers"] = c.numbers->hex();
    one["results"] = Json::array();
    for (const auto& [type, digest] : c.results) one["results"].push_back({type, digest.hex()});
    j["calls"].push_back(std::move(one));
  }
  return with_checksum(j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<KnownStep> read_known(const std::string& path) {
  TWINRUN_RETURN_IF_ERROR(check_input(path));
  std::ifstream file(path);
  if (!file) return Error{"cannot open", path, "python -m twinrun record -o known.json SCRIPT"};
  std::stringstream text;
  text << file.rdbuf();
  const Error wrong{"this is not the record of a step, or it is damaged", path,
                    "python -m twinrun record -o known.json SCRIPT"};
  try {
    const auto parsed = parse_json_text(text.str());
    if (!parsed) return wrong;
    const nlohmann::json& j = *parsed;
    if (j.at("kind") != "known_step" || j.at("schema") != kKnownSchema) return wrong;
    KnownStep out;
    TWINRUN_ASSIGN(out.has_checksum, check_checksum(text.str(), path));
    out.framework = j.at("framework").get<std::string>();
    out.script = j.at("script").get<std::string>();
    out.steps = json_integer<int64_t>(j.at("steps"));
    out.accelerator = j.at("accelerator").get<bool>();
    out.repeated = j.at("repeated").get<bool>();
    for (const auto& [name, value] : j.at("settings").items())
      out.settings.emplace_back(name, value.get<std::string>());
    const auto digest = [](const nlohmann::json& hex) {
      const auto d = Digest::parse(hex.get<std::string>());
      return d ? *d : throw std::invalid_argument("no digest");
    };
    for (const nlohmann::json& one : j.at("calls")) {
      KnownCall c;
      c.step = json_integer<int32_t>(one.at("step"));
      c.op = one.at("op").get<std::string>();
      c.module = one.at("module").get<std::string>();
      c.place = one.at("place").get<std::string>();
      c.draw = one.value("draw", false);
      c.steady = one.value("steady", true);
      c.reads = digest(one.at("reads"));
      if (one.contains("given")) c.given = digest(one.at("given"));
      if (one.contains("numbers")) c.numbers = digest(one.at("numbers"));
      for (const nlohmann::json& r : one.at("results"))
        c.results.emplace_back(r.at(0).get<std::string>(), digest(r.at(1)));
      out.calls.push_back(std::move(c));
    }
    if (j.at("root_digest") != out.root().hex()) return wrong;
    return out;
  } catch (const std::exception&) {
    return wrong;
  }
}

Report report_of(const KnownVerdict& v) {
  using Outcome = Answer::Outcome;
  Report r;
  r.kind = "known step";
  r.verdict = v.verdict;
  r.headline = v.headline;
  const auto answer = [&](VerdictClass no) {
    return v.verdict == no                            ? Outcome::kNo
           : v.verdict == VerdictClass::kInconclusive ? Outcome::kOpen
                                                      : Outcome::kYes;
  };
  r.answers.repeats = {v.verdict == VerdictClass::kIdentical ? Outcome::kYes : Outcome::kNotAsked,
                       "held against the recorded step"};
  r.answers.operations = {answer(VerdictClass::kEngineBug), v.headline};
  r.answers.program = {v.verdict == VerdictClass::kProgram ? Outcome::kNo : Outcome::kYes,
                       "the calls are those of the recorded step, and read the same inputs"};
  if (v.verdict == VerdictClass::kProgram) r.answers.program.what = v.headline;
  r.answers.sharding = {Outcome::kNotAsked, "one process"};
  r.answers.effect = {Outcome::kNotAsked, "a few steps do not say what the model learns"};
  if (v.wrong) r.findings.push_back(finding_of(*v.wrong, VerdictClass::kEngineBug));
  if (v.first) r.findings.push_back(finding_of(*v.first, v.verdict));
  r.counts = {{"calls", v.calls}, {"differing", v.differing}, {"calls_outside", v.outside_calls}};
  DetailTable t{"changed",
                "Settings that changed",
                "",
                {{"name", "setting"}, {"then", "when it was recorded"}, {"now", "now"}},
                {}};
  for (const auto& c : v.changed) t.rows.push_back({c.name, c.then, c.now});
  if (!t.rows.empty()) r.details.push_back(std::move(t));
  return r;
}

}  // namespace twinrun
