// Whether everything that the new weights depend on was examined. The judge says of each call what
// it found; what is missing at the end are the open questions of the verdict.
//
//   Coverage coverage(trace);
//   coverage.judged(call); coverage.unjudged(call, "the operation has no definition here");
//   coverage.finish(verdict);
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "harness/trace/flow.h"
#include "reports/trace_verdict.h"

namespace twinrun {

class Coverage {
 public:
  explicit Coverage(const TraceFile& trace);

  bool on_path(const aten::Call& call) const { return path_.on[static_cast<size_t>(call.index)]; }
  // Each call is passed to one of these, in the order of the trace.
  void judged(const aten::Call& call);
  void unjudged(const aten::Call& call, const std::string& why);
  // Before that: `result` was compared with values and bounds of these Euclidean norms; most of its
  // elements have no finite bound if `unbounded`.
  void compared(const aten::Call& call, const aten::TensorView& result, double value, double bound,
                bool unbounded);
  // Results of a region that its graph does not give, for the reason.
  void left_open(const aten::Call& region, const std::string& why);

  void finish(TraceVerdict& verdict);

 private:
  void open(std::string what, std::string how, const std::string& place, int64_t times = 1,
            bool of_program = false);
  void pass(const aten::Call& call, bool judged);
  void follow_uncertain(const aten::Call& call);
  void note_weights(TraceVerdict& verdict);

  const TraceFile& trace_;
  UpdatePath path_;
  std::map<std::pair<std::string, std::string>, UnjudgedCalls> unjudged_;
  std::vector<OpenQuestion> open_;
  std::unordered_map<std::string, size_t> at_;  // where a question stands in open_
  NotFinite not_finite_;
  int64_t by_parts_ = 0;
  int64_t of_evaluation_ = 0;   // calls on the path that read what an evaluation computed
  std::vector<uint64_t> wide_;  // storages of the call's results that have no correct digit
  std::unordered_set<uint64_t> uncertain_;
  std::set<std::pair<uint64_t, int32_t>> uncertain_updates_;  // a parameter's storage and the step
};

}  // namespace twinrun
