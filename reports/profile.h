// Where the time of a step goes, either modelled or measured. Made by harness/profile and rendered
// by one file per format: profile.cc (JSON) and profile_text.cc; harness/xplane writes it for XProf.
//
//   const Profile p = modelled_profile(scenario, {...});
//   to_profile_json(p);  to_profile_text(p, 80);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// A fusion unit of the program, or an op that runs by itself. Times are for one core and one step.
struct ProfileOp {
  std::string category;    // "convolution", "fusion", "all-reduce", ...
  std::string layer;       // the framework's op: the first part of the name
  std::string phase;       // forward, gradient, collective, update
  std::string name, kind;  // of the op that represents the unit
  std::string expression;  // "f32[128,112,112,64] = convolution(x, w)"; for a fusion, op by op
  std::string layout;      // of the result: "f32[8,128]{1,0:T(8,128)}"
  double seconds = 0, share = 0;  // share of the step's device time
  double flops = 0, bytes = 0;    // bytes include padding
  double padding = 1;             // bytes with padding / bytes without
  double utilisation = 0;         // achieved rate / peak rate of the limiting unit, at most 1
  double matrix_utilisation = 0;  // of the matrix unit's peak
  std::string limit;  // "matrix unit", "HBM", ...; empty where a measurement cannot tell
  // Of a product, modelled: how its dimensions fill the matrix unit, "k 9 padded to 128, n 128 fits
  // exactly", and the share of the unit's cells that are of use.
  std::string fit;
  double fill = 1;
  int ops = 1;  // number of the program's ops in this unit
};

// Wall-clock seconds of one step, in four parts that follow one another.
struct ProfileStep {
  int64_t step = 0;
  double compute = 0, all_reduce = 0, input = 0, host = 0;
  double seconds() const { return compute + all_reduce + input + host; }
};

// XProf's classes: input takes less than 5 % of the step, less than 20 %, or more.
enum class InputBound : uint8_t { kNot, kModerately, kHighly };
InputBound input_bound(double share);
struct Profile;
// Share, range over the steps and class, from the average and the steps of the profile.
void set_input_shares(Profile& profile);
std::string_view to_string(InputBound bound);

// One op of the input pipeline, in the order of the data. Figures are for one batch.
struct InputStage {
  std::string name, what;  // name: "preprocess"
  double seconds = 0;      // self time, without the ops before it; summed over its threads
  double bytes = 0;        // of its output
  // Done once and not for each batch, such as opening the source: seconds and bytes are those of
  // the whole run, and no share has them.
  bool once = false;
  // Measured profiles only; otherwise 0.
  // Samples over the whole run; batches for the stages batch, read ahead and enqueue.
  int64_t elements = 0;
  double waiting = 0;  // seconds in which its threads had no input or no room for their output
};

struct InputAnalysis {
  InputBound bound = InputBound::kNot;
  // average.input / step_seconds: of the whole step, with the host's part between loops.
  double share = 0;
  double low = 0, high = 0;  // least and largest share over the steps
  double host = 0;           // seconds of host work for one batch, without what is done once
  bool overlapped = false;   // prefetched: the host works while the device computes
  std::vector<InputStage> stages;
};

// A suggestion and its effect: what the same model predicts with the setting changed.
struct Recommendation {
  std::string rule;              // of `twinrun check`; "" without one
  std::string text;              // one sentence with the number that supports it
  std::string setting;           // KEY=VALUE for --set; several are separated by blanks
  double before = 0, after = 0;  // samples per second
  // Of a suggestion to do more arithmetic in about the same time: FLOP/s; otherwise 0.
  double flops_before = 0, flops_after = 0;
  double gain() const {
    if (flops_before > 0) return flops_after / flops_before;
    return before > 0 ? after / before : 0;
  }
};

// One core in an average step, in seconds. Input and the host are as in the profile's average.
struct ProfileCore {
  int core = 0;
  double compute = 0;
  double waiting = 0;     // for a slower core, at all-reduces; without any, at the step's end
  double all_reduce = 0;  // without waiting
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
  double peak_flops = 0, peak_bandwidth = 0;  // of one core, or of the measured machine
  // Average wall-clock seconds of a step. In a modelled profile it includes the host time between
  // two loops on the device, divided by iterations_per_loop.
  double step_seconds = 0;
  // Modelled only: a real step takes between step_seconds divided by this and times this.
  double uncertainty = 1;
  // Where a core is slower than the others, `average` and `steps` are of one of the others, which
  // waits for it at all-reduces: all_reduce includes that, as a trace of a TPU shows it.
  ProfileStep average;
  // A core that takes slow_core_factor times as long, -1: none; and links that take link_factor
  // times as long. Modelled only.
  int slow_core = -1;
  double slow_core_factor = 1, link_factor = 1;
  double even_step_seconds = 0;         // a step if no core and no link were slow
  std::vector<ProfileCore> core_times;  // of every core, where one of them or the links are slow
  // Of a step: modelled, of one core; measured, of all.
  double flops = 0, matrix_flops = 0, bytes = 0, unpadded_bytes = 0;
  // Peak use and size of a core's memory in bytes; 0: not known.
  double memory_used = 0, memory_limit = 0;
  double matrix_utilisation = 0, memory_utilisation = 0, idle_device = 0, idle_host = 0;
  std::vector<ProfileOp> ops;      // in execution order
  std::vector<ProfileStep> steps;  // some consecutive steps
  InputAnalysis input;
  std::vector<Recommendation> recommendations;
  std::vector<PublishedFigure> published;
  std::vector<std::string> notes;  // assumptions, and what the profile leaves out
  std::map<std::string, std::string> environment;

  double samples_per_second() const {
    return step_seconds > 0 ? static_cast<double>(batch) / step_seconds : 0;
  }
  bool fits() const { return memory_used <= memory_limit; }
  double flops_per_second() const { return step_seconds > 0 ? flops / step_seconds : 0; }
};

// Ops of one category; categories are sorted by time, slowest first.
struct ProfileCategory {
  std::string name;
  double seconds = 0, share = 0, flops = 0;
  int count = 0;
};
std::vector<ProfileCategory> categories(const Profile& profile);
inline constexpr size_t kTopOps = 10;  // number shown on an overview
std::vector<const ProfileOp*> top_ops(const Profile& profile, size_t most);

// Share of the ops' time in those that this limits: "matrix unit", "HBM", ...
double share_of_limit(const Profile& p, std::string_view limit);
// Standard deviation of the shown steps' times, in seconds; 0 for fewer than two.
double step_deviation(const Profile& p);
// How many of the slowest ops take 90 % of the ops' time.
size_t ops_of_most_time(const Profile& p);
// XProf's category of a stage of the host: "Enqueue", "Read", "Preprocessing", "Other".
std::string_view host_category(const InputStage& stage);
// The host's work for one batch in these categories, in seconds, without what is done once.
struct HostTime {
  double enqueuing = 0, reading = 0, preprocessing = 0, other = 0;
};
HostTime host_time(const Profile& p);

std::string to_profile_json(const Profile& profile);
std::string to_profile_text(const Profile& profile, int width);

}  // namespace twinrun
