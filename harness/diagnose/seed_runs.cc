// Writes the runs of a seed as a line of JSON, and reads it back.
#include "harness/diagnose/seed_runs.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "program/base/json_checksum.h"
#include "program/base/json_text.h"

namespace twinrun {
namespace {

using nlohmann::json;

// JSON has no NaN and no infinity.
template <typename T>
json finite_or_text(T x) {
  if (std::isnan(x)) return nullptr;
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  return static_cast<double>(x);
}
template <typename T>
T from_finite_or_text(const json& x) {
  if (x.is_null()) return std::numeric_limits<T>::quiet_NaN();
  if (x == "inf" || x == "-inf") return (x == "inf" ? 1 : -1) * std::numeric_limits<T>::infinity();
  return static_cast<T>(x.get<double>());
}

json of_evaluation(const Evaluation& e) {
  return {
      {"step", e.step}, {"loss", finite_or_text(e.loss)}, {"accuracy", finite_or_text(e.accuracy)}};
}
Evaluation evaluation_from(const json& e) {
  return {json_integer<int64_t>(e.at("step")), from_finite_or_text<double>(e.at("loss")),
          from_finite_or_text<double>(e.at("accuracy"))};
}

}  // namespace

std::string to_line(const std::string& id, const SeedRuns& runs) {
  json losses = json::array();
  for (const float loss : runs.losses) losses.push_back(finite_or_text(loss));
  const json line = {{"id", id},
                     {"r", of_evaluation(runs.r)},
                     {"s", of_evaluation(runs.s)},
                     {"t", of_evaluation(runs.t)},
                     {"losses", losses}};
  return with_checksum(line.dump());
}

Result<SeedRuns> seed_runs_from(const std::string& line) {
  const Error bad{"not the runs of a seed: " + line.substr(0, 60), "seeds.jsonl",
                  "train its shard again in an empty folder"};
  const auto parsed = parse_json_text(line);
  if (!parsed || !parsed->is_object()) return bad;
  TWINRUN_RETURN_IF_ERROR(check_checksum(line, bad.where));
  try {
    SeedRuns runs{evaluation_from(parsed->at("r")), evaluation_from(parsed->at("s")),
                  evaluation_from(parsed->at("t"))};
    for (const json& loss : parsed->at("losses"))
      runs.losses.push_back(from_finite_or_text<float>(loss));
    return runs;
  } catch (const json::exception&) {
    return bad;
  }
}

}  // namespace twinrun
