// Fixture for tests of the engine protocol: engines that are shell scripts, and a small program for
// them to run, w' = w * x on each core with loss = sum of w.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "backends/exec/exec_backend.h"
#include "checkpoints/container/safetensors.h"
#include "program/graph/program.h"
#include "tests/support/folder.h"

namespace twinrun::exec_tests {

using std::chrono::milliseconds;

inline Program small(int cores = 1) {
  Program p;
  GraphBuilder b(p.graph);
  const ValueId w = b.parameter("w", {DType::kF32, {3}}), x = b.parameter("x", {DType::kF32, {3}});
  p.inputs.push_back({"x", x, true});
  StateVar var;
  var.name = "w";
  var.type = {DType::kF32, {3}};
  var.id = w;
  var.next = b.mul(w, x, "next");
  p.state.push_back(var);
  p.outputs.push_back({"loss", b.reduce(w, {0}, Reducer::kSum, "loss")});
  p.sharding.cores = cores;
  p.batch = 1;
  return p;
}

// The same program, which also requests two optional layer outputs: "double" = 2 w and its
// gradient.
inline Program layered(int cores = 1) {
  Program p = small(cores);
  GraphBuilder b(p.graph);
  const ValueId twice = b.add(p.state[0].id, p.state[0].id, "twice");
  p.outputs.push_back({"double", twice, true});
  p.outputs.push_back({"double.grad", twice, true});
  return p;
}

inline constexpr const char* kHello =
    R"({"hello":{"protocol":1,"name":"script","version":"7","max_cores":8,"precision":"f32"}})";

class Script : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(sessions());
    ::setenv("TMPDIR", sessions().c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    EXPECT_TRUE(std::filesystem::is_empty(sessions())) << "a session folder was left behind";
  }
  // Where this test's session folders are made. It is separate because other tests run in parallel.
  std::string sessions() const { return folder_ + "/sessions"; }

  // An engine that runs these shell commands for a hello, a prepare and a step request. It runs in
  // the session folder.
  ExecOptions engine(const std::string& hello, const std::string& prepare,
                     const std::string& step) {
    return engine_of("while read -r line; do case \"$line\" in\n*hello*) " + hello +
                     ";;\n*prepare*) " + prepare + ";;\n*step*) " + step + ";;\nesac; done");
  }
  ExecOptions engine_of(const std::string& body) {
    const std::string path = folder_ + "/engine.sh";
    std::ofstream(path) << "cd \"$1\"\n" << body << "\n";
    ExecOptions o;
    o.command = "sh '" + path + "'";
    o.scenario = "seed = 1\n";
    o.slow = milliseconds(20000);
    o.fast = milliseconds(20000);
    return o;
  }
  static std::string say(const std::string& text) { return "echo '" + text + "'"; }
  static std::string prepared() { return say(R"({"prepared":"program-1.json"})"); }

  // The result of running `steps` steps from zeros; `error` is "" if none fails.
  struct Outcome {
    std::string error;
    States states;
    StepOutputs outputs;
    Error::Kind kind = Error::Kind::kInput;
  };
  static Outcome run(const ExecOptions& o, int cores = 1, int64_t steps = 1) {
    return run(o, small(cores), steps);
  }
  static Outcome run(const ExecOptions& o, const Program& program, int64_t steps = 1) {
    const int cores = program.sharding.cores;
    Outcome outcome;
    auto backend = make_exec_backend(o, 1);
    if (!backend) return {backend.error().message(), {}, {}, backend.error().kind};
    auto ready = (*backend)->prepare(program);
    if (!ready) return {ready.error().message(), {}, {}, ready.error().kind};
    outcome.states.resize(static_cast<size_t>(cores));
    StepInputs inputs(static_cast<size_t>(cores));
    for (size_t r = 0; r < inputs.size(); ++r) {
      outcome.states[r].vars.push_back(Tensor::zeros({DType::kF32, {3}}));
      inputs[r].push_back(Tensor::zeros({DType::kF32, {3}}));
    }
    for (int64_t step = 0; step < steps && outcome.error.empty(); ++step) {
      const Status done = (*ready)->step(step, outcome.states, inputs, outcome.outputs);
      if (done) continue;
      outcome.error = done.error().message();
      outcome.kind = done.error().kind;
    }
    return outcome;
  }
  static std::string step_error(const ExecOptions& o, int cores = 1) { return run(o, cores).error; }

  // Writes a file that the script can copy, and returns its path in quotes.
  std::string keep(const std::string& name, const ArrayFile& file) const {
    const auto bytes = to_safetensors(file, name);
    return keep(name, *bytes);
  }
  std::string keep(const std::string& name, std::span<const std::byte> bytes) const {
    std::filesystem::remove(folder_ + "/" + name);  // overwriting would flush to disk at once
    std::ofstream out(folder_ + "/" + name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    return "'" + folder_ + "/" + name + "'";
  }
  // An engine whose result of step 0 is a copy of that file.
  ExecOptions answers_with(const std::string& quoted, const std::string& result) {
    return engine(
        say(kHello), prepared(),
        "cp " + quoted + " " + result + "; " + say(R"({"stepped":0,"result":")" + result + "\"}"));
  }
  const Folder own_;
  const std::string folder_ = own_.path();
};

inline void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

inline NamedArray f32(const std::string& name, Dims dims, const std::vector<float>& values) {
  NamedArray array{name, ElementType::kF32, std::move(dims), {}};
  const auto bytes = std::as_bytes(std::span(values));
  array.bytes.assign(bytes.begin(), bytes.end());
  return array;
}

// A valid result for small().
inline ArrayFile good_result(std::vector<float> w = {1, 2, 3}) {
  return {{f32("state/w", {3}, std::move(w)), f32("output/loss", {}, {6})}, {}, {}};
}

}  // namespace twinrun::exec_tests
