// Where a step's time goes, whatever says so: a model of a machine, or a clock. Made by harness/profile, told by a file per format:
// profile_json.cc, profile_text.cc, profile_html.cc; the trace is a ChromeTrace of its own.
//
//   const Profile p = modelled_profile(scenario, {...});
//   to_profile_json(p);  to_profile_text(p, {...});  to_profile_html(p);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reports/chrome_trace.h"

namespace twinrun {

// A fusion unit of the program, or an op that runs by itself. Times are of one core and one step.
struct ProfileOp {
  std::string category;           // "convolution", "fusion", "all-reduce", ...
  std::string layer;              // the framework's op: the first part of its name
  std::string phase;              // forward, gradient, collective, update
  std::string name, kind;         // of the op that stands for it
  std::string expression;         // "f32[128,112,112,64] = convolution(x, w)"; a fusion's, op by op
  std::string layout;             // of the result: "f32[8,128]{1,0:T(8,128)}"
  double seconds = 0, share = 0;  // of the step's device time
  double flops = 0, bytes = 0;    // bytes with padding
  double padding = 1;             // bytes with padding over bytes without
  double utilisation = 0;         // rate over peak of what limits it, at most 1
  double matrix_utilisation = 0;  // of the matrix unit's peak
  std::string limit;              // "matrix unit", "HBM", ...; empty where a clock cannot tell
  int ops = 1;                    // of the program, in a fusion
};

// Where one step goes, in seconds of wall clock: the four parts lie one after the other.
struct ProfileStep {
  int64_t step = 0;
  double compute = 0, all_reduce = 0, input = 0, host = 0;
  double seconds() const { return compute + all_reduce + input + host; }
};

// XProf's classes: input below 5 % of the step, below 20 %, or more.
enum class InputBound : uint8_t { kNot, kModerately, kHighly };
InputBound input_bound(double share);
std::string_view to_string(InputBound bound);

// One op of the input pipeline, in the order of the data; for one batch.
struct InputStage {
  std::string name, what;  // "preprocess", what it does
  double seconds = 0;      // self time, without the ops before it; summed over its threads
  double bytes = 0;        // of what it gave on
  // Only of what was measured, else 0.
  int64_t elements = 0;  // samples, over the whole run; of batch, read ahead and enqueue: batches
  double waiting = 0;    // its threads had nothing to do, or no room for what they had done
};

struct InputAnalysis {
  InputBound bound = InputBound::kNot;
  double share = 0;          // of the step that the device waits for input
  double low = 0, high = 0;  // the same over the cores
  double host = 0;           // seconds that the host needs for a batch
  bool overlapped = false;   // prefetched: the host works on while the device computes
  std::vector<InputStage> stages;
};

// Advice with its price: what the same model says after the setting.
struct Recommendation {
  std::string rule;              // of `twinrun check`, "" without one
  std::string text;              // one sentence with the number that it rests on
  std::string setting;           // KEY=VALUE for --set; several are separated by blanks
  double before = 0, after = 0;  // samples a second
  double gain() const { return before > 0 ? after / before : 0; }
};

struct PublishedFigure {
  std::string what, source;
  double samples_per_second = 0;
};

struct Profile {
  std::string scenario, source;  // "modelled", "measured"
  std::string machine;           // "TPU v2-8", "engine cpu, 2 threads"
  int cores = 1;
  int64_t batch = 0, iterations_per_loop = 0;
  double peak_flops = 0, peak_bandwidth = 0;  // of one core, or of the machine that was measured
  double step_seconds = 0;                    // on average, the loop's ends spread over its steps
  ProfileStep average;
  double flops = 0, matrix_flops = 0, bytes = 0,
         unpadded_bytes = 0;  // of a step of one core; measured: of all
  double memory_used = 0,
         memory_limit = 0;  // bytes of a core's memory at its peak, and what it has; 0: not known
  double matrix_utilisation = 0, memory_utilisation = 0, idle_device = 0, idle_host = 0;
  std::vector<ProfileOp> ops;      // in the order in which they run
  std::vector<ProfileStep> steps;  // some, one after the other
  InputAnalysis input;
  std::vector<Recommendation> recommendations;
  std::vector<PublishedFigure> published;
  std::vector<std::string> notes;  // assumptions, what is left out
  std::map<std::string, std::string> environment;

  double samples_per_second() const {
    return step_seconds > 0 ? static_cast<double>(batch) / step_seconds : 0;
  }
  bool fits() const { return memory_used <= memory_limit; }
  double flops_per_second() const { return step_seconds > 0 ? flops / step_seconds : 0; }
};

// Ops of one category, the slowest first.
struct ProfileCategory {
  std::string name;
  double seconds = 0, share = 0, flops = 0;
  int count = 0;
};
std::vector<ProfileCategory> categories(const Profile& profile);
// The same by any word of an op: &ProfileOp::layer.
std::vector<ProfileCategory> grouped(const Profile& profile, std::string ProfileOp::*word);
inline constexpr size_t kTopOps = 10;  // on an overview
std::vector<const ProfileOp*> top_ops(const Profile& profile, size_t most);

std::string to_profile_json(const Profile& profile);
std::string to_profile_text(const Profile& profile, int width);
// Of a model: a section for each core with tracks for its steps, the framework's ops and the program's, and one for the host.
ChromeTrace to_profile_trace(const Profile& profile);
// One file that loads nothing. `trace`: the name of the trace beside it, "" without one.
std::string to_profile_html(const Profile& profile, const std::string& trace);

}  // namespace twinrun
