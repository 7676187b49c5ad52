// Scores the record of a case; writes it as a line of JSON and reads it back.
#include "harness/drill/record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "program/base/json_checksum.h"
#include "program/base/json_text.h"

namespace twinrun::drill {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 9> kKindNames = {
    "clean",           "inert",         "engine outside",
    "engine biased",   "engine inside", "sharding outside",
    "sharding inside", "sharding open", "both"};

VerdictClass class_of_text(const std::string& text) {
  for (const auto v :
       {VerdictClass::kIdentical, VerdictClass::kNoise, VerdictClass::kSharding,
        VerdictClass::kProgram, VerdictClass::kEngineBug, VerdictClass::kNondeterministic}) {
    if (to_string(v) == text) return v;
  }
  return VerdictClass::kInconclusive;
}

Kind kind_of(const CaseRecord& r) {
  const bool differs = r.truth.meaning > kSameMeaning;
  if (r.injected.fault.empty() && r.injected.cause.empty()) return Kind::kClean;
  // Level C shows tensors only: a fault that they hide counts as inside.
  const bool shown = r.truth.tensors.value_or(2) > 1, outside = r.truth.outside && shown;
  if (outside && differs) return Kind::kBoth;
  if (outside) return Kind::kEngineOutside;
  if (r.truth.biased && r.injected.level == 'A') return Kind::kEngineBiased;
  if (differs) {
    return r.truth.matters == "harmful" || r.truth.matters == "beneficial" ? Kind::kShardingOutside
           : r.truth.matters == "inside"                                   ? Kind::kShardingInside
                                                                           : Kind::kShardingOpen;
  }
  return r.truth.activated ? Kind::kEngineInside : Kind::kInert;
}

// The classes that a correct diagnosis may answer.
bool allowed(Kind kind, VerdictClass v) {
  const bool noise = v == VerdictClass::kNoise || v == VerdictClass::kIdentical;
  switch (kind) {
    case Kind::kClean:
    case Kind::kInert:
      return noise;
    // Named as SHARDING where the seeds show it; the effect then says that it is within the margin.
    case Kind::kShardingInside:
      return noise || v == VerdictClass::kSharding;
    case Kind::kEngineOutside:
    case Kind::kEngineBiased:
    case Kind::kBoth:
      return v == VerdictClass::kEngineBug;
    case Kind::kShardingOutside:
      return v == VerdictClass::kSharding;
    case Kind::kEngineInside:  // the power curve shows how often it is found
      return noise || v == VerdictClass::kEngineBug || v == VerdictClass::kInconclusive;
    case Kind::kShardingOpen:
      return noise || v == VerdictClass::kSharding || v == VerdictClass::kInconclusive;
  }
  return false;
}

// A fault that strikes now and then also strikes when a run is repeated or resumed. Whoever sees that
// it breaks a promise of the engine's is right, wherever it struck in the run itself.
bool broke_a_promise(const CaseRecord& r) {
  const auto is_of_resuming = [](const SaidFinding& f) { return f.cause == "hidden_state"; };
  return r.verdict == VerdictClass::kNondeterministic ||
         (r.verdict == VerdictClass::kProgram && std::ranges::any_of(r.findings, is_of_resuming));
}

// A finding names one cause, or several that the evidence cannot separate:
// "reduction|learning_rate".
bool names(const std::string& found, const std::string& cause) {
  for (size_t at = 0; at <= found.size();) {
    const size_t end = std::min(found.find('|', at), found.size());
    if (found.substr(at, end - at) == cause) return true;
    at = end + 1;
  }
  return false;
}

// For a cause without a fault only: with an engine fault the effect is not judged, and without a
// cause none is known.
std::optional<bool> effect_is_right(Kind kind, const CaseRecord& r) {
  const bool acquits = r.effect < Effect::kHarmful;
  if (kind == Kind::kShardingInside) return acquits;
  if (kind != Kind::kShardingOutside) return std::nullopt;
  return r.not_learnt || to_string(r.effect) == r.truth.matters;
}

}  // namespace

std::string_view to_string(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

Score score(const CaseRecord& r) {
  Score s;
  // An intermittent fault begins at a different step in every run.
  const bool intermittent = r.injected.fault.find(",rate=") != std::string::npos;
  s.kind = kind_of(r);
  s.right = r.error.empty() && (allowed(s.kind, r.verdict) ||
                                (intermittent && !r.sealed.empty() && broke_a_promise(r) &&
                                 (s.kind == Kind::kInert || s.kind == Kind::kEngineInside)));
  s.effect = effect_is_right(s.kind, r);
  s.flagged = r.error.empty() && r.verdict == VerdictClass::kEngineBug;
  const auto first = std::ranges::find(r.findings, VerdictClass::kEngineBug, &SaidFinding::verdict);
  if (s.flagged && first != r.findings.end()) {
    // The fault may not be visible yet on the first step on which bits changed, so both steps
    // count.
    s.step = first->step == r.truth.first_activated || first->step == r.truth.first_outside ||
             (intermittent && std::ranges::find(r.sealed, first->step) != r.sealed.end());
    s.op = first->op == r.injected.op;
    const auto cores = std::ranges::find(r.injected.overrides,
                                         std::pair<std::string, std::string>("tpu.cores", "1"));
    s.core = r.truth.replica < 0 || first->core == r.truth.replica ||
             cores != r.injected.overrides.end();
  }
  s.cause = !r.injected.cause.empty() && std::ranges::any_of(r.findings, [&](const SaidFinding& f) {
    return names(f.cause, r.injected.cause);
  });
  return s;
}

std::string to_line(const CaseRecord& r) {
  const DrillCase& c = r.injected;
  json overrides = json::object();
  for (const auto& [key, value] : c.overrides) overrides[key] = value;
  json said = json::array();
  for (const SaidFinding& f : r.findings) {
    said.push_back({{"class", to_string(f.verdict)},
                    {"cause", f.cause},
                    {"op", f.op},
                    {"step", f.step},
                    {"core", f.core}});
  }
  const json line = {
      {"id", c.id},
      {"setting", r.setting},
      {"injected",
       {{"level", std::string(1, c.level)},
        {"overrides", overrides},
        {"variant", c.variant},
        {"kind", c.kind},
        {"fault", c.fault},
        {"op", c.op},
        {"cause", c.cause},
        {"magnitude", c.magnitude ? json(*c.magnitude) : json(nullptr)}}},
      {"truth",
       {{"activated", r.truth.activated},
        {"first_activated", r.truth.first_activated},
        {"replica", r.truth.replica},
        {"outside", r.truth.outside},
        {"first_outside", r.truth.first_outside},
        // JSON has no infinity.
        {"distance", std::min(r.truth.distance, 1e300)},
        {"biased", r.truth.biased},
        {"tensors", r.truth.tensors ? json(std::min(*r.truth.tensors, 1e300)) : json(nullptr)},
        {"meaning", std::min(r.truth.meaning, 1e300)},
        {"matters", r.truth.matters}}},
      {"error", r.error},
      {"verdict", to_string(r.verdict)},
      {"effect", to_string(r.effect)},
      {"not_learnt", r.not_learnt},
      {"headline", r.headline},
      {"findings", said},
      {"notes", r.notes},
      {"executions", r.executions},
      {"run_lengths", r.run_lengths},
      {"sealed", r.sealed},
      {"truth_seconds", r.truth_seconds},
      {"seconds", r.seconds}};
  return with_checksum(line.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<CaseRecord> from_line(const std::string& text) {
  const Error bad{"not a line of a drill: " + text.substr(0, 60), "cases.jsonl",
                  "begin again in another folder (--out)"};
  const auto parsed = parse_json_text(text);
  if (!parsed || !parsed->is_object()) return bad;
  const json& line = *parsed;
  TWINRUN_ASSIGN(const bool has_checksum, check_checksum(text, bad.where));
  try {
    CaseRecord r;
    r.has_checksum = has_checksum;
    const json& in = line.at("injected");
    const json& truth = line.at("truth");
    // The record repeats what the id determines, so that counting needs no case to be drawn again.
    DrillCase& c = r.injected;
    c.id = line.at("id");
    r.setting = line.at("setting");
    TWINRUN_ASSIGN(const CaseName name, parse_id(c.id));
    c.stratum = name.stratum;
    c.scenario = name.scenario;
    const auto level = in.at("level").get<std::string>();
    if (level.size() != 1) return bad;
    c.level = level[0];
    for (const auto& [key, value] : in.at("overrides").items())
      c.overrides.emplace_back(key, value.get<std::string>());
    c.variant = in.at("variant");
    c.kind = in.at("kind");
    c.fault = in.at("fault");
    c.op = in.at("op");
    c.cause = in.at("cause");
    if (!in.at("magnitude").is_null()) c.magnitude = in.at("magnitude").get<double>();
    r.truth.activated = truth.at("activated");
    r.truth.first_activated = json_integer<int64_t>(truth.at("first_activated"));
    r.truth.replica = json_integer<int>(truth.at("replica"));
    r.truth.outside = truth.at("outside");
    r.truth.first_outside = json_integer<int64_t>(truth.at("first_outside"));
    r.truth.distance = truth.at("distance");
    r.truth.biased = truth.at("biased");
    if (!truth.at("tensors").is_null()) r.truth.tensors = truth.at("tensors").get<double>();
    r.truth.meaning = truth.at("meaning");
    r.truth.matters = truth.at("matters");
    r.error = line.at("error");
    r.verdict = class_of_text(line.at("verdict"));
    for (const Effect effect : {Effect::kNoneDetected, Effect::kSeedNoise, Effect::kWithinMargin,
                                Effect::kHarmful, Effect::kBeneficial, Effect::kUndecided}) {
      if (line.at("effect") == std::string(to_string(effect))) r.effect = effect;
    }
    r.not_learnt = line.at("not_learnt");
    r.headline = line.at("headline");
    for (const json& f : line.at("findings")) {
      r.findings.push_back({class_of_text(f.at("class")), f.at("cause"), f.at("op"),
                            json_integer<int64_t>(f.at("step")), json_integer<int>(f.at("core"))});
    }
    r.notes = line.at("notes").get<std::vector<std::string>>();
    r.executions = json_integer<int>(line.at("executions"));
    r.run_lengths = line.at("run_lengths");
    for (const json& step : line.at("sealed")) r.sealed.push_back(json_integer<int64_t>(step));
    r.truth_seconds = line.at("truth_seconds");
    r.seconds = line.at("seconds");
    return r;
  } catch (const json::exception&) {
    return bad;
  }
}

}  // namespace twinrun::drill
