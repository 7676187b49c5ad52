// Groups the ops of a profile, and writes it as JSON.
#include "reports/profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

// Limits of XProf, op_stats_to_input_pipeline_analysis.cc.
constexpr double kModerate = 0.05, kHigh = 0.20;

Json json_of(const ProfileStep& s) {
  return {{"step", s.step},       {"seconds", s.seconds()},
          {"compute", s.compute}, {"all_reduce", s.all_reduce},
          {"input", s.input},     {"host", s.host}};
}

Json json_of(const ProfileCore& c) {
  return {{"core", c.core},
          {"compute", c.compute},
          {"waiting", c.waiting},
          {"all_reduce", c.all_reduce}};
}

Json json_of(const ProfileOp& op) {
  return {{"category", op.category},
          {"layer", op.layer},
          {"phase", op.phase},
          {"name", op.name},
          {"kind", op.kind},
          {"seconds", op.seconds},
          {"share", op.share},
          {"flops", op.flops},
          {"bytes", op.bytes},
          {"padding", op.padding},
          {"utilisation", op.utilisation},
          {"matrix_utilisation", op.matrix_utilisation},
          {"limit", op.limit},
          {"fit", op.fit},
          {"fill", op.fill},
          {"ops", op.ops},
          {"layout", op.layout},
          {"expression", op.expression}};
}

}  // namespace

InputBound input_bound(double share) {
  if (share < kModerate) return InputBound::kNot;
  return share < kHigh ? InputBound::kModerately : InputBound::kHighly;
}

void set_input_shares(Profile& p) {
  const auto share = [](const ProfileStep& s) {
    return s.seconds() > 0 ? s.input / s.seconds() : 0;
  };
  p.input.share = p.input.low = p.input.high = share(p.average);
  for (const ProfileStep& step : p.steps) {
    p.input.low = std::min(p.input.low, share(step));
    p.input.high = std::max(p.input.high, share(step));
  }
  p.input.bound = input_bound(p.input.share);
}

std::string_view to_string(InputBound bound) {
  switch (bound) {
    case InputBound::kNot:
      return "not input-bound";
    case InputBound::kModerately:
      return "moderately input-bound";
    case InputBound::kHighly:
      return "highly input-bound";
  }
  return "";
}

std::vector<ProfileCategory> categories(const Profile& profile) {
  std::map<std::string, ProfileCategory> by_name;
  for (const ProfileOp& op : profile.ops) {
    ProfileCategory& c = by_name[op.category];
    c.name = op.category;
    c.seconds += op.seconds;
    c.share += op.share;
    c.flops += op.flops;
    ++c.count;
  }
  std::vector<ProfileCategory> all;
  for (auto& [name, category] : by_name) all.push_back(std::move(category));
  std::ranges::stable_sort(all, std::greater{}, &ProfileCategory::seconds);
  return all;
}

std::vector<const ProfileOp*> top_ops(const Profile& profile, size_t most) {
  std::vector<const ProfileOp*> all;
  for (const ProfileOp& op : profile.ops) all.push_back(&op);
  std::ranges::stable_sort(all,
                           [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  if (all.size() > most) all.resize(most);
  return all;
}

double share_of_limit(const Profile& p, std::string_view limit) {
  double mine = 0, all = 0;
  for (const ProfileOp& op : p.ops) {
    all += op.seconds;
    if (op.limit == limit) mine += op.seconds;
  }
  return all > 0 ? mine / all : 0;
}

double step_deviation(const Profile& p) {
  const auto n = static_cast<double>(p.steps.size());
  if (p.steps.size() < 2) return 0;
  double sum = 0, squares = 0;
  for (const ProfileStep& s : p.steps) sum += s.seconds();
  for (const ProfileStep& s : p.steps) squares += (s.seconds() - sum / n) * (s.seconds() - sum / n);
  return std::sqrt(squares / (n - 1));
}

size_t ops_of_most_time(const Profile& p) {
  constexpr double kMost = 0.9;
  double all = 0, sum = 0;
  for (const ProfileOp& op : p.ops) all += op.seconds;
  const std::vector<const ProfileOp*> ops = top_ops(p, p.ops.size());
  size_t count = 0;
  while (count < ops.size() && sum < kMost * all) sum += ops[count++]->seconds;
  return count;
}

std::string_view host_category(const InputStage& stage) {
  const std::string& n = stage.name;
  if (n == "enqueue") return "Enqueue";
  if (n.starts_with("read") || n == "cache") return "Read";
  return n == "preprocess" || n == "shuffle" || n == "batch" ? "Preprocessing" : "Other";
}

HostTime host_time(const Profile& p) {
  HostTime t;
  for (const InputStage& s : p.input.stages) {
    if (s.once) continue;
    const std::string_view category = host_category(s);
    (category == "Enqueue"         ? t.enqueuing
     : category == "Read"          ? t.reading
     : category == "Preprocessing" ? t.preprocessing
                                   : t.other) += s.seconds;
  }
  return t;
}

std::string to_profile_json(const Profile& p) {
  Json j = {{"schema", 1},
            {"scenario", p.scenario},
            {"source", p.source},
            {"machine", p.machine},
            {"cores", p.cores},
            {"batch", p.batch},
            {"iterations_per_loop", p.iterations_per_loop},
            {"peak_flops", p.peak_flops},
            {"peak_bandwidth", p.peak_bandwidth},
            {"step_seconds", p.step_seconds},
            {"uncertainty", p.uncertainty},
            {"average", json_of(p.average)},
            {"samples_per_second", p.samples_per_second()},
            {"flops", p.flops},
            {"matrix_flops", p.matrix_flops},
            {"flops_per_second", p.flops_per_second()},
            {"bytes", p.bytes},
            {"unpadded_bytes", p.unpadded_bytes},
            {"memory_used", p.memory_used},
            {"memory_limit", p.memory_limit},
            {"matrix_utilisation", p.matrix_utilisation},
            {"memory_utilisation", p.memory_utilisation},
            {"idle_device", p.idle_device},
            {"idle_host", p.idle_host},
            {"step_deviation", step_deviation(p)},
            {"ops_of_most_time", ops_of_most_time(p)}};
  j["slow_core"] = p.slow_core < 0 ? Json() : Json(p.slow_core);
  j["slow_core_factor"] = p.slow_core_factor;
  j["link_factor"] = p.link_factor;
  j["even_step_seconds"] = p.even_step_seconds;
  j["cores_of_step"] = Json::array();
  for (const ProfileCore& c : p.core_times) j["cores_of_step"].push_back(json_of(c));
  j["steps"] = Json::array();
  for (const ProfileStep& s : p.steps) j["steps"].push_back(json_of(s));
  Json stages = Json::array();
  double total = 0;
  for (const InputStage& s : p.input.stages) {
    if (!s.once) total += s.seconds;
    stages.push_back({{"name", s.name},
                      {"what", s.what},
                      {"once", s.once},
                      {"seconds", s.seconds},
                      {"total_seconds", total},
                      {"waiting_seconds", s.waiting},
                      {"elements", s.elements},
                      {"bytes", s.bytes}});
  }
  j["input"] = {{"bound", to_string(p.input.bound)},
                {"share", p.input.share},
                {"lowest_step", p.input.low},
                {"highest_step", p.input.high},
                {"host_seconds", p.input.host},
                {"enqueuing_seconds", host_time(p).enqueuing},
                {"reading_seconds", host_time(p).reading},
                {"preprocessing_seconds", host_time(p).preprocessing},
                {"other_seconds", host_time(p).other},
                {"overlapped", p.input.overlapped},
                {"stages", stages}};
  j["categories"] = Json::array();
  for (const ProfileCategory& c : categories(p))
    j["categories"].push_back({{"name", c.name},
                               {"seconds", c.seconds},
                               {"share", c.share},
                               {"flops", c.flops},
                               {"count", c.count}});
  j["recommendations"] = Json::array();
  for (const Recommendation& r : p.recommendations)
    j["recommendations"].push_back({{"rule", r.rule},
                                    {"text", r.text},
                                    {"set", r.setting},
                                    {"samples_per_second_before", r.before},
                                    {"samples_per_second_after", r.after},
                                    {"flops_per_second_before", r.flops_before},
                                    {"flops_per_second_after", r.flops_after},
                                    {"gain", r.gain()}});
  j["published"] = Json::array();
  for (const PublishedFigure& f : p.published)
    j["published"].push_back(
        {{"what", f.what},
         {"source", f.source},
         {"samples_per_second", f.samples_per_second},
         {"ratio", f.samples_per_second > 0 ? p.samples_per_second() / f.samples_per_second : 0}});
  j["notes"] = p.notes;
  j["environment"] = p.environment;
  j["ops"] = Json::array();
  for (const ProfileOp& op : p.ops) j["ops"].push_back(json_of(op));
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
