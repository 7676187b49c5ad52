// What `twinrun judge` tells about a trace, as plain structs, and its text, JSON and page.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace twinrun {

// An argument of a call, as far as it explains one element of a result.
struct CallOperand {
  std::string name, type;  // "argument 2", "alpha"; "float32[64, 10]", "" of what is no tensor
  std::string values;      // "0.25 at [3,7]; all from -1.5 to 2"
};

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
  std::vector<CallOperand> operands;        // at the worst element
  double ratio() const;                     // |got - expected| / bound
};

// Results within their bounds of which no digit is right: the largest error of the elements exceeds
// half of the largest value expected, because the terms that they are computed from cancel. Those of
// one operation at one place are one entry.
struct IllConditioned {
  int64_t call = 0;
  int32_t step = 0;
  std::string op, place, module, node, phase;  // as in CallFinding
  std::string result, type;
  int64_t times = 1;
  double error = 0, expected = 0, bound = 0;  // each the largest of all elements and times
};

struct TraceOp {
  int64_t calls = 0, judged = 0, outside = 0, elements = 0;
  double worst = 0;  // the largest |result - expected| / bound
  // The largest of each call with elements that were compared.
  std::vector<double> ratios;
  double median() const;  // of `ratios`; NaN without any
};

struct TraceVerdict {
  std::string trace, framework, script;
  int64_t steps = 0, calls = 0, judged = 0, outside_calls = 0;
  int64_t elements = 0, untestable = 0;
  std::vector<CallFinding> findings;            // in the order of the calls, at most 200
  std::vector<IllConditioned> ill_conditioned;  // at most 200
  int64_t ill_conditioned_results = 0;          // all of them
  std::map<std::string, TraceOp> ops;
  std::map<std::pair<std::string, std::string>, int64_t> unjudged;  // {op, why}: calls
  int64_t unrecorded = 0;  // calls that the recorder could not record
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> settings;  // of the framework
  std::string observer;  // whether recording changed what the script computes; "" if not examined

  // "ENGINE_BUG", "NOISE", or "INCONCLUSIVE" where nothing was judged.
  std::string word() const;
  std::string headline() const;  // a sentence without a full stop
};

std::string trace_text(const TraceVerdict& verdict, bool all_ops);
std::string trace_json(const TraceVerdict& verdict);
std::string trace_html(const TraceVerdict& verdict);  // trace_page.cc

}  // namespace twinrun
