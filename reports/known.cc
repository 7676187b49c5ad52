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

std::string shown_place(const KnownVerdict::Where& w) {
  std::string out = fmt::format("step {}, call {}: {}", w.step, w.call, w.op);
  if (!w.module.empty()) out += fmt::format(", module {}", w.module);
  if (!w.place.empty()) out += fmt::format(", {}", w.place.substr(0, w.place.find('\n')));
  out += fmt::format("\n    {}, {}", w.type, text::plural(w.elements, "element"));
  if (!w.judged) return out + ", not judged\n";
  if (w.outside > 0) return out + fmt::format(", {} outside their bound\n", text::count(w.outside));
  return out +
         fmt::format(", within its bound (largest error / bound {})\n", text::number(w.worst));
}

Json known_where(const std::optional<KnownVerdict::Where>& w) {
  if (!w) return nullptr;
  return {{"call", w->call},
          {"step", w->step},
          {"op", w->op},
          {"module", w->module},
          {"place", w->place},
          {"type", w->type},
          {"elements", w->elements},
          {"judged", w->judged},
          {"outside", w->outside},
          {"worst_ratio", std::isfinite(w->worst) ? Json(w->worst) : Json("inf")}};
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

std::string to_text(const KnownVerdict& v) {
  std::string out = fmt::format("{}  {}\n", to_string(v.verdict), v.headline);
  if (v.wrong) out += "  outside: " + shown_place(*v.wrong);
  if (v.first) out += "  first that differs: " + shown_place(*v.first);
  for (const auto& c : v.changed)
    out += fmt::format("  {}: {} when it was recorded, {} now\n", c.name, c.then, c.now);
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string to_json(const KnownVerdict& v) {
  Json j = {{"schema", 1},
            {"kind", "known_verdict"},
            {"verdict", std::string(to_string(v.verdict))},
            {"exit_code", exit_code(v.verdict)},
            {"headline", v.headline},
            {"calls", v.calls},
            {"differing", v.differing},
            {"calls_outside", v.outside_calls},
            {"first_difference", known_where(v.first)},
            {"first_outside", known_where(v.wrong)}};
  j["changed"] = Json::array();
  for (const auto& c : v.changed)
    j["changed"].push_back({{"name", c.name}, {"then", c.then}, {"now", c.now}});
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
