// report.json: everything a Report holds. Keys, types and units: docs/report-schema.md.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "program/base/bits.h"
#include "reports/report.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity: those are strings.
Json number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  return x;
}

// The shortest decimal that reads back as the same binary32.
Json number(float x) {
  if (!std::isfinite(x)) return number(static_cast<double>(x));
  const double shortest = std::strtod(fmt::format("{}", x).c_str(), nullptr);
  return to_bits(static_cast<float>(shortest)) == to_bits(x) ? shortest : static_cast<double>(x);
}

template <typename T>
Json numbers(const std::vector<T>& values) {
  Json out = Json::array();
  for (T x : values) out.push_back(number(x));
  return out;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Statistics that were not taken are negative in a Report and null here.
Json measured(double x) { return x < 0 ? Json(nullptr) : number(x); }

std::string hex64(double x) { return fmt::format("0x{:016x}", std::bit_cast<uint64_t>(x)); }

template <typename T, typename F>
Json list(const std::vector<T>& items, F&& one) {
  Json out = Json::array();
  for (const T& item : items) out.push_back(one(item));
  return out;
}

Json of(const TensorPicture& p) {
  return {{"dims", Json(p.dims)}, {"across", p.across}, {"cells", Json(p.cells)}};
}

Json of(const StateParting& p) {
  return {{"pair", p.pair}, {"steps", p.steps}, {"first_step", or_null(p.first_step)}};
}

Json of(const WeightDrift& w) {
  Json rows = list(w.rows, [](const WeightDrift::Row& row) -> Json {
    return {{"variable", row.variable}, {"distance", numbers(row.distance)}};
  });
  return {{"pair", w.pair}, {"steps", Json(w.steps)}, {"rows", std::move(rows)}};
}

Json of(const LossBand& band) {
  return {{"source", band.source}, {"low", numbers(band.low)}, {"high", numbers(band.high)}};
}

Json of(const Finding& f) {
  return {{"class", to_string(f.verdict)},
          {"cause", f.cause},
          {"sentence", f.sentence},
          {"step", or_null(f.step)},
          {"phase", f.phase},
          {"op", f.op},
          {"op_kind", f.op_kind},
          {"core", or_null(f.core)},
          {"elements", f.elements},
          {"fingerprint", f.fingerprint},
          {"share", f.share ? number(*f.share) : Json(nullptr)},
          {"level", std::string(1, f.level)},
          {"number", number(f.number)},
          {"bound", number(f.bound)},
          {"number_text", f.number_text},
          {"bound_source", f.bound_source},
          {"hex", f.hex},
          {"evidence", Json(f.evidence)},
          {"reproduce", f.reproduce},
          {"picture", f.picture ? of(*f.picture) : Json(nullptr)}};
}

Json of(const RunSummary& r) {
  // The loss of a step is binary32; a run without its curve has only the number in the summary.
  const float last = r.losses.empty() ? static_cast<float>(r.train_loss) : r.losses.back();
  return {{"name", r.name},
          {"engine", r.engine},
          {"settings", r.settings},
          {"meaning", r.meaning},
          {"root_digest", r.root_digest},
          {"steps", r.steps},
          {"train_loss", number(r.train_loss)},
          {"train_loss_hex", fmt::format("0x{:08x}", to_bits(last))},
          {"eval_loss", r.evaluated ? number(r.eval_loss) : Json(nullptr)},
          {"eval_loss_hex", r.evaluated ? Json(hex64(r.eval_loss)) : Json(nullptr)},
          {"eval_accuracy", r.evaluated ? number(r.eval_accuracy) : Json(nullptr)},
          {"seconds", number(r.seconds)},
          {"kept", r.kept},
          {"ended", r.ended},
          {"losses", numbers(r.losses)},
          {"core_digests", Json(r.core_digests)}};
}

Json of(const Control& c) {
  return {{"name", c.name},
          {"run", c.run},
          {"passed", c.passed},
          {"detail", c.detail},
          {"failure", c.failure}};
}

Json of(const ProbeRow& row) {
  return {{"op", row.op},
          {"kind", row.kind},
          {"phase", row.phase},
          {"worst_ratio", number(row.worst_ratio)},
          {"elements", row.elements},
          {"outside", row.outside},
          {"untestable", row.untestable},
          {"operand_residual", measured(row.operand_residual)}};
}

Json of(const EngineProbe& p) {
  return {{"pair", p.pair},
          {"engine", p.engine},
          {"policy", p.policy},
          {"steps_probed", p.steps_probed},
          {"steps", p.steps},
          {"ops", p.ops},
          {"elements", p.elements},
          {"untestable", p.untestable},
          {"dot_residual", measured(p.dot_residual)},
          {"dot_residual_text", p.dot_residual_text},
          {"rows", list(p.rows, [](const ProbeRow& row) { return of(row); })}};
}

Json of(const SwitchRow& s) {
  return {{"cause", s.cause},
          {"direction", s.direction},
          {"drift_before", number(s.drift_before)},
          {"drift_after", number(s.drift_after)},
          {"envelope", number(s.envelope)},
          {"explains", s.explains},
          {"share", number(s.share)},
          {"note", s.note}};
}

Json of(const TrajectoryRow& t) {
  return {{"pair", t.pair},
          {"meaning", t.meaning},
          {"metric", t.metric},
          {"differences", numbers(t.differences)},
          {"mean", number(t.mean)},
          {"low", number(t.low)},
          {"high", number(t.high)},
          {"tost_low", number(t.tost_low)},
          {"tost_high", number(t.tost_high)},
          {"detectable", number(t.detectable)},
          {"margin", number(t.margin)},
          {"margin_source", t.margin_source},
          {"outcome", t.outcome}};
}

Json of(const EnsembleRow& f) {
  return {{"run", f.run},
          {"metric", f.metric},
          {"steps", f.steps},
          {"members", f.members},
          {"subject", number(f.subject)},
          {"low", number(f.low)},
          {"high", number(f.high)},
          {"p", number(f.p)},
          {"outcome", f.outcome}};
}

}  // namespace

std::string to_json(const Report& r) {
  const auto each = [](const auto& item) { return of(item); };
  Json environment = Json::object();
  for (const auto& [key, value] : r.environment) environment[key] = value;
  const Json out = {{"schema", kReportSchema},
                    {"verdict",
                     {{"class", to_string(r.verdict)},
                      {"subject", r.subject},
                      {"confidence", r.confidence},
                      {"exit_code", exit_code(r.verdict)},
                      {"headline", r.headline}}},
                    {"scenario",
                     {{"name", r.scenario_name},
                      {"description", r.scenario_description},
                      {"digest", r.scenario_digest},
                      {"toml", r.scenario_toml}}},
                    {"command", r.command},
                    {"injected", r.injected},
                    {"findings", list(r.findings, each)},
                    {"runs", list(r.runs, each)},
                    {"loss_band", of(r.loss_band)},
                    {"state_partings", list(r.state_partings, each)},
                    {"weight_drift", of(r.weight_drift)},
                    {"controls", list(r.controls, each)},
                    {"probes", list(r.probes, each)},
                    {"switches", list(r.switches, each)},
                    {"trajectories", list(r.trajectories, each)},
                    {"ensembles", list(r.ensembles, each)},
                    {"unexplained", number(r.unexplained)},
                    {"smallest_effect", r.smallest_effect},
                    {"ruled_out", Json(r.ruled_out)},
                    {"next_steps", Json(r.next_steps)},
                    {"notes", Json(r.notes)},
                    {"program", r.program_excerpt},
                    {"environment", environment},
                    {"directory", r.directory}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
