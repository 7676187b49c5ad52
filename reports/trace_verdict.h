// What `twinrun judge` tells about a trace, as plain structs, and its text and JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace twinrun {

// A call with a result outside its bound, or with another problem.
struct CallFinding {
  int64_t call = 0;  // its number in the trace
  int32_t step = 0;
  std::string op, place, module, node, phase;  // phase: "forward", "backward", "optimizer"
  int64_t forward = -1;                        // of a backward call: the forward call
  bool composed = false;                       // a function made of several calls
  std::string problem;                         // instead of what follows: a sentence
  std::string result, type;                    // "result 2 of 3", "float32[64, 10]"
  int64_t elements = 0, outside = 0;
  std::string pattern, worst_index, signature;
  double got = 0, expected = 0, bound = 0;  // at the worst element
};

// A result within its bound of which no digit is right: the largest error of its elements exceeds
// half of the largest value expected, because the terms that it is computed from cancel.
struct IllConditioned {
  int64_t call = 0;
  int32_t step = 0;
  std::string op, place, module, node, phase;  // as in CallFinding
  std::string result, type;
  double error = 0, expected = 0, bound = 0;  // each the largest of all elements
};

struct TraceOp {
  int64_t calls = 0, judged = 0, outside = 0;
  double worst = 0;  // the largest |result - expected| / bound
};

struct TraceVerdict {
  std::string trace, framework, script;
  int64_t steps = 0, calls = 0, judged = 0, outside_calls = 0;
  int64_t elements = 0, untestable = 0;
  std::vector<CallFinding> findings;            // in the order of the calls, at most 200
  std::vector<IllConditioned> ill_conditioned;  // likewise
  int64_t ill_conditioned_results = 0;
  std::map<std::string, TraceOp> ops;
  std::map<std::pair<std::string, std::string>, int64_t> unjudged;  // {op, why}: calls
  std::vector<std::string> notes;

  // "ENGINE_BUG", "NOISE", or "INCONCLUSIVE" where nothing was judged.
  std::string word() const;
};

std::string trace_text(const TraceVerdict& verdict, bool all_ops);
std::string trace_json(const TraceVerdict& verdict);

}  // namespace twinrun
