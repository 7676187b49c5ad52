// Two example profiles for tests: a small one whose results can be checked by hand, and one with
// hostile strings.
#pragma once

#include <string>

#include "reports/profile.h"

namespace twinrun::examples {

inline Profile profile() {
  Profile p;
  p.scenario = "digits-cnn";
  p.source = "modelled";
  p.machine = "TPU v2-8";
  p.cores = 8;
  p.batch = 256;
  p.iterations_per_loop = 2;
  p.peak_flops = 20e12;
  p.peak_bandwidth = 400e9;
  p.average = {0, 0.004, 0.001, 0.002, 0.001};
  p.step_seconds = p.average.seconds();
  p.flops = p.matrix_flops = 40e9;
  p.bytes = 1.2e9;
  p.unpadded_bytes = 0.9e9;
  p.matrix_utilisation = 0.25;
  p.memory_utilisation = 0.375;
  p.idle_device = 0.375;
  p.idle_host = 0.5;
  const auto op = [&](const char* category, const char* name, double seconds, double flops,
                      const char* limit) {
    ProfileOp o;
    o.category = category;
    o.name = name;
    o.layer = o.name.substr(0, o.name.find('/'));
    o.kind = "op";
    o.phase = "forward";
    o.expression = o.name + " = f32[8,4] op(f32[8,2] x)";
    o.layout = "f32[8,4]{1,0:T(8,128)}";
    o.seconds = seconds;
    o.share = seconds / 0.005;
    o.flops = flops;
    o.bytes = 1e6;
    o.padding = 1.25;
    o.utilisation = o.matrix_utilisation = 0.5;
    o.limit = limit;
    p.ops.push_back(o);
  };
  op("convolution", "conv1/convolution", 0.0015, 30e9, "matrix unit");
  op("loop fusion", "relu1/maximum", 0.0005, 1e6, "HBM");
  op("convolution", "conv2/convolution", 0.002, 10e9, "matrix unit");
  op("all-reduce", "conv1/kernel.grad.all_reduce", 0.001, 1e3, "links");
  for (int i = 0; i < 6; ++i) p.steps.push_back({i, 0.004, 0.001, 0.002, i % 2 == 1 ? 0.002 : 0});
  p.input = {InputBound::kHighly,
             0.25,
             0.2,
             0.3,
             0.005,
             false,
             {{"preprocess", "copy", 0.004, 3e6}, {"enqueue", "to each chip", 0.001, 3e6}}};
  p.recommendations = {
      {"padding", "32 samples on a core are no multiple of 128", "train.batch=1024", 32000, 64000}};
  p.published = {{"someone's run", "a table", 50000}};
  p.notes = {"modelled, not measured"};
  p.environment = {{"cpu", "none"}};
  return p;
}

inline Profile hostile_profile() {
  Profile p = profile();
  const std::string bad =
      "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\xff\x1b[31m\u202e";
  p.scenario = p.machine = bad;
  for (ProfileOp& op : p.ops) {
    op.category += bad;
    op.name = op.layer = op.expression = op.layout = op.limit = op.kind = op.phase = bad + op.name;
  }
  p.input.stages[0].name = p.input.stages[0].what = bad;
  p.recommendations[0] = {bad, bad, bad, 0, 0};
  p.published[0].what = p.published[0].source = bad;
  p.notes = {bad, std::string(3000, 'x')};
  p.environment = {{bad, bad}};
  return p;
}

}  // namespace twinrun::examples
