// Matches the ops of a capture with the units of a modelled step.
#include "harness/xplane/compare.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "harness/xplane/hlo_names.h"
#include "harness/xplane/schema.h"

namespace twinrun {
namespace {

// The names that a unit may have in a capture: its own, and the place in the source that it was
// named after, without its number, iteration, line and part ("dense1/dot_general.pad[3]@a.py:31").
std::set<std::string> names_of(const std::string& unit) {
  std::set<std::string> names = {unit, hlo_name(unit)};
  std::string place = unit.substr(0, unit.find('@'));
  if (const size_t number = place.find_last_of(":[");
      number != place.npos && number > place.rfind('/') + 1)
    place.resize(number);
  names.insert(place);
  const size_t last = place.rfind('/') == place.npos ? 0 : place.rfind('/');
  if (const size_t part = place.find('.', last); part != place.npos) {
    const bool gradient = place.find(".grad", last) != place.npos;
    names.insert(place.substr(0, part) + (gradient ? ".grad" : ""));
  }
  return names;
}

// Sets that grow together.
class Sets {
 public:
  explicit Sets(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t of(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(size_t a, size_t b) { parent_[of(b)] = of(a); }

 private:
  std::vector<size_t> parent_;
};

// The names of the ops in a unit: "name = type op(...)" on each line of its expression.
std::vector<std::string> members_of(const ProfileOp& op) {
  std::vector<std::string> names = {op.name};
  for (size_t at = 0; at < op.expression.size();) {
    const size_t end = std::min(op.expression.find('\n', at), op.expression.size());
    const size_t equals = op.expression.find(" = ", at);
    if (equals < end) names.push_back(op.expression.substr(at, equals - at));
    at = end + 1;
  }
  return names;
}

}  // namespace

void compare_with(Capture& capture, const Profile& profile) {
  CaptureComparison out;
  out.model = profile.scenario + " on a modelled " + profile.machine;
  out.step_seconds = profile.step_seconds;
  out.input_share = profile.input.share;
  out.idle_share = profile.step_seconds > 0 ? profile.average.host / profile.step_seconds : 0;
  out.uncertainty = profile.uncertainty;
  out.same_kind = capture.device.starts_with("TPU");

  const size_t ops = capture.ops.size();
  Sets sets(ops + profile.ops.size());
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < ops; ++i) {
    const CaptureOp& op = capture.ops[i];
    if (op.category == xplane::kInfeed) continue;
    const auto add = [&](const std::string& name) {
      const auto [at, fresh] = by_name.try_emplace(name, i);
      if (!fresh) sets.join(at->second, i);
    };
    add(op.name);
    for (const std::string& path : op.paths) add(path);
  }
  for (size_t u = 0; u < profile.ops.size(); ++u) {
    for (const std::string& member : members_of(profile.ops[u])) {
      for (const std::string& name : names_of(member)) {
        if (const auto found = by_name.find(name); found != by_name.end())
          sets.join(found->second, ops + u);
      }
    }
  }
  std::map<size_t, CaptureMatch> groups;
  for (size_t i = 0; i < ops; ++i) {
    if (capture.ops[i].category == xplane::kInfeed) continue;
    CaptureMatch& group = groups[sets.of(i)];
    group.ops.push_back(capture.ops[i].name);
    group.measured += capture.ops[i].seconds;
  }
  for (size_t u = 0; u < profile.ops.size(); ++u) {
    CaptureMatch& group = groups[sets.of(ops + u)];
    group.units.push_back(profile.ops[u].name);
    group.predicted += profile.ops[u].seconds;
  }
  for (auto& [root, group] : groups) {
    if (group.units.empty()) {
      out.only_measured += group.measured;
    } else if (group.ops.empty()) {
      out.only_predicted += group.predicted;
    } else {
      out.measured += group.measured;
      out.predicted += group.predicted;
      out.matches.push_back(std::move(group));
    }
  }
  // The time lost: what was measured less what was expected.
  const auto lost = [&](const CaptureMatch& match) {
    const double times = out.against_expected(match);
    return times > 0 ? match.measured - match.measured / times : 0;
  };
  std::ranges::stable_sort(out.matches, [&](const CaptureMatch& a, const CaptureMatch& b) {
    if (out.slower(a) != out.slower(b)) return out.slower(a);
    return out.slower(a) ? lost(a) > lost(b) : a.measured > b.measured;
  });
  capture.comparison = {std::move(out)};
}

}  // namespace twinrun
