// What a recorded profile (XProf, JAX, TensorBoard) shows of a training: its steps, and its ops
// beside what the model of twinrun predicts for them. Made by harness/xplane.
//
//   TWINRUN_ASSIGN(Capture capture, read_xplane("host.xplane.pb"));
//   compare_with(capture, profile);           // optional
//   to_capture_text(capture, 80);  to_capture_json(capture);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twinrun {

struct CaptureStep {
  int64_t step = 0;
  double seconds = 0;
};

// An op of a compiled program, or a kernel that belongs to none.
struct CaptureOp {
  std::string name;      // "fusion.12"
  std::string program;   // "jit_step"; "" where the capture does not tell
  std::string category;  // as the capture has it, or the opcode of HLO
  // Places in the user's source of the op and of the ops fused into it: "dense1/dot_general".
  std::vector<std::string> paths;
  int64_t count = 0;            // of its events, on all devices
  double seconds = 0;           // of a step on one device, without ops nested in it
  double share = 0;             // of the wall clock
  double flops = 0, bytes = 0;  // of one execution; 0: not in the capture
};

// Ops that the capture and the model have in common: one to one, or where they fuse differently,
// the smallest sets that do the same.
struct CaptureMatch {
  std::vector<std::string> ops;        // of the capture, the slowest first
  std::vector<std::string> units;      // of the model
  double measured = 0, predicted = 0;  // seconds of a step
};

struct CaptureComparison {
  std::string model;  // "digits_cnn on a modelled TPU v2-8"
  // Seconds of a step and shares of it that the model predicts.
  double step_seconds = 0, input_share = 0, idle_share = 0;
  // How far a prediction may be off: between itself divided by this and times this.
  double uncertainty = 1;
  // The capture is of a TPU, as the model is. If not, only shares can be compared.
  bool same_kind = false;
  std::vector<CaptureMatch> matches;   // those slower than expected first, by time lost
  double measured = 0, predicted = 0;  // seconds of a step in matches
  // Seconds of a step that have no counterpart on the other side.
  double only_measured = 0, only_predicted = 0;

  // How many times the expected time a match takes: the predicted time, or on another kind of
  // device the same share of what is matched.
  double against_expected(const CaptureMatch& match) const {
    const double expected = same_kind       ? match.predicted
                            : predicted > 0 ? match.predicted * measured / predicted
                                            : 0;
    return expected > 0 ? match.measured / expected : 0;
  }
  bool slower(const CaptureMatch& match) const { return against_expected(match) > uncertainty; }
};

struct Capture {
  std::string file, host;
  std::string device;  // "TPU v4", "GPU", "CPU"
  int devices = 0;
  std::string steps_from;  // what the steps were found by; "" without steps
  std::vector<CaptureStep> steps;
  double step_seconds = 0, deviation = 0, shortest = 0, longest = 0;  // of the steps
  // From the first step to the end of the last step or op; everything without steps.
  double wall_seconds = 0;
  // Parts of wall_seconds, averaged over the devices; they add up to 1.
  double busy_share = 0, input_share = 0, idle_share = 0;
  bool input_known = false;                   // the capture has events of input
  std::vector<CaptureOp> ops;                 // the slowest first
  std::vector<CaptureComparison> comparison;  // one or none
  std::vector<std::string> notes;
};

std::string to_capture_text(const Capture& capture, int width);
std::string to_capture_json(const Capture& capture);

}  // namespace twinrun
