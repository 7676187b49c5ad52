// Compares the updates of parameters.
#include "harness/trace/updates.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

struct Moved {
  const TensorView* before = nullptr;  // as the step first reads it
  const TensorView* after = nullptr;   // as it was last written
};
// For each parameter, in the order of first use: what each step did to it.
struct Parameter {
  uint64_t storage = 0;
  std::map<int32_t, Moved> steps;
};

std::vector<Parameter> parameters_of(const TraceFile& trace) {
  std::vector<Parameter> out;
  std::map<uint64_t, size_t> known;
  for (const Call& call : trace.calls) {
    std::vector<const TensorView*> read;
    for (const Value& v : call.args) aten::collect(v, read);
    for (const TensorView* t : read) {
      // What initialises a parameter reads memory without a meaning.
      const bool initialised =
          call.optimizer || std::ranges::none_of(call.written, [&](const auto& w) {
            return w.storage == t->storage;
          });
      if (!initialised || !t->parameter || t->data == nullptr || !aten::is_float(t->element))
        continue;
      const auto [at, fresh] = known.try_emplace(t->storage, out.size());
      if (fresh) out.push_back({t->storage, {}});
      Moved& moved = out[at->second].steps[call.step];
      if (moved.before == nullptr) moved.before = t;
    }
    for (const TensorView& w : call.written) {
      const auto at = known.find(w.storage);
      if (at == known.end() || w.data == nullptr) continue;
      const auto moved = out[at->second].steps.find(call.step);
      if (moved != out[at->second].steps.end()) moved->second.after = &w;
    }
  }
  return out;
}

struct Norms {
  double a = 0, b = 0, difference = 0;
  int64_t parameters = 0;
  void add(const Moved& x, const Moved& y) {
    if (x.after == nullptr || y.after == nullptr || x.before->dims != y.before->dims ||
        x.after->dims != x.before->dims || y.after->dims != y.before->dims)
      return;
    ++parameters;
    for (int64_t i = 0; i < x.before->elements(); ++i) {
      const double da = x.after->at(i) - x.before->at(i), db = y.after->at(i) - y.before->at(i);
      a += da * da;
      b += db * db;
      difference += (da - db) * (da - db);
    }
  }
};

}  // namespace

std::vector<UpdateDifference> compare_updates(const TraceFile& a, const TraceFile& b) {
  const auto ours = parameters_of(a), theirs = parameters_of(b);
  std::multimap<Digest, const Parameter*> by_value;
  const auto first = [](const Parameter& p) { return digest_of(*p.steps.begin()->second.before); };
  for (const Parameter& p : theirs) by_value.emplace(first(p), &p);
  std::map<int32_t, Norms> norms;
  for (const Parameter& p : ours) {
    const auto at = by_value.find(first(p));
    if (at == by_value.end()) continue;
    for (const auto& [step, moved] : p.steps) {
      const auto other = at->second->steps.find(step);
      if (other != at->second->steps.end()) norms[step].add(moved, other->second);
    }
    by_value.erase(at);
  }
  std::vector<UpdateDifference> out;
  for (const auto& [step, n] : norms) {
    const double larger = std::fmax(n.a, n.b);
    out.push_back({step, n.parameters, larger > 0 ? std::sqrt(n.difference / larger) : 0});
  }
  return out;
}

}  // namespace twinrun
