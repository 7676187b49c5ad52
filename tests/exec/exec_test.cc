// Engines of others, most of them bad: scripts that crash, hang, lie, flood and lead out of their folder. None may hurt.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "backends/exec/child.h"
#include "backends/exec/exec_backend.h"
#include "program/graph/program.h"

namespace twinrun {
namespace {

using std::chrono::milliseconds;

// w' = w * x on each core; loss = sum of w.
Program small(int cores = 1) {
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

constexpr const char* kHello =
    R"({"hello":{"protocol":1,"name":"script","version":"7","max_cores":8,"precision":"f32"}})";

class Script : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "twinrun-script-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A shell script that answers hello, then prepare, then steps; $1 is the session folder.
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

  // The message of the error that one step ends in; "" if it does not.
  static std::string step_error(const ExecOptions& o, int cores = 1) {
    auto backend = make_exec_backend(o, 1);
    if (!backend) return backend.error().message();
    auto ready = (*backend)->prepare(small(cores));
    if (!ready) return ready.error().message();
    States states(static_cast<size_t>(cores));
    StepInputs inputs(static_cast<size_t>(cores));
    for (size_t r = 0; r < states.size(); ++r) {
      states[r].vars.push_back(Tensor::zeros({DType::kF32, {3}}));
      inputs[r].push_back(Tensor::zeros({DType::kF32, {3}}));
    }
    StepOutputs outputs;
    const Status done = (*ready)->step(0, states, inputs, outputs);
    return done ? "" : done.error().message();
  }
  std::string folder_;
};

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST_F(Script, DeclaresWhatItsHelloSays) {
  auto backend = make_exec_backend(
      engine(
          say(R"({"hello":{"protocol":1,"name":"script","version":"7","settings":"threads=1","max_cores":4,)"
              R"("precision":"high","elementary_ulps":2,"flush":true,"contracts":false,"deterministic":true,"more":1}})"),
          prepared(), ""),
      1);
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  const Capabilities c = (*backend)->capabilities();
  EXPECT_EQ(c.name, "script");
  EXPECT_EQ(c.settings, "7 threads=1");
  EXPECT_EQ(c.max_cores, 4);
  EXPECT_EQ(c.precision, DotPrecision::kBf16x3);
  EXPECT_EQ(c.elementary_ulps, 2);
  EXPECT_TRUE(c.flush);
  EXPECT_FALSE(c.contracts);
  EXPECT_TRUE(c.deterministic);
  EXPECT_FALSE(c.op_trace);
  EXPECT_FALSE(c.ours);
  EXPECT_TRUE(c.declares_arithmetic);
}

TEST_F(Script, WhatIsNotDeclaredIsNotHeldAgainstIt) {
  auto backend =
      make_exec_backend(engine(say(R"({"hello":{"protocol":1,"name":"script"}})"), "", ""), 1);
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  EXPECT_FALSE((*backend)->capabilities().declares_arithmetic);
  EXPECT_FALSE((*backend)->capabilities().deterministic);
  EXPECT_TRUE((*backend)->capabilities().contracts);
}

TEST_F(Script, HelloOfAnotherKind) {
  const auto hello = [&](const std::string& text) {
    return step_error(engine(say(text), prepared(), ""));
  };
  expect_says(hello(R"({"hello":{"protocol":2,"name":"script"}})"),
              {"'protocol' is 2", "due is 1"});
  expect_says(hello(R"({"hello":{"protocol":1}})"), {"'name' is missing"});
  expect_says(hello(R"({"hello":3})"), {"hello is no object"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","max_cores":0}})"), {"'max_cores' is 0"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","flush":"no"}})"),
              {"'flush' is \"no\"", "true or false"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","precision":"f16"}})"),
              {"f16", "\"default\""});
  expect_says(hello("Loading model..."), {"no message", "Loading model..."});
  expect_says(hello("[]"), {"no message"});
  expect_says(hello(R"({"prepared":1})"), {"expected the answer 'hello'"});
  expect_says(hello(R"({"error":"no device"})"), {"the engine says: no device"});
}

TEST_F(Script, NoSuchProgram) {
  ExecOptions o;
  o.command = "/no/such/engine --fast";
  expect_says(step_error(o), {"/no/such/engine", "cannot be started"});
  o.command = "  ";
  expect_says(step_error(o), {"no command"});
}

TEST_F(Script, EndsWithAStatusAndItsLastWords) {
  expect_says(step_error(engine(say(kHello), "echo 'no memory left' >&2; exit 3", "")),
              {"exit status 3", "no memory left"});
  expect_says(step_error(engine(say(kHello), prepared(), "kill -SEGV $$")), {"signal 11"});
  expect_says(step_error(engine_of("exit 0")), {"exit status 0"});
}

TEST_F(Script, AProcessThatItStartedDoesNotHoldUs) {
  const auto begin = std::chrono::steady_clock::now();
  expect_says(step_error(engine(say(kHello), "sleep 1000 & exit 4", "")), {"exit status 4"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_F(Script, HangsAndIsEnded) {
  ExecOptions o = engine(say(kHello), "echo compiling >&2; sleep 1000", "");
  o.slow = milliseconds(700);
  const auto begin = std::chrono::steady_clock::now();
  expect_says(step_error(o), {"has not answered within", "compiling"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_F(Script, IsAliveForLongerThanTheLimit) {
  ExecOptions o = engine(
      say(kHello),
      "for i in 1 2 3 4 5; do echo '{\"alive\":\"compiling\"}'; sleep 0.3; done; " + prepared(),
      say(R"({"error":"that was all"})"));
  o.slow = milliseconds(1000);
  expect_says(step_error(o), {"that was all"});
}

TEST_F(Script, FloodsItsErrorsAndItsOutput) {
  expect_says(
      step_error(engine(say(kHello), "yes error | head -c 30000000 >&2; " + prepared(), "exit 5")),
      {"exit status 5"});
  expect_says(
      step_error(engine(say(kHello), "yes | tr -d '\\n' | head -c 30000000; sleep 100", "")),
      {"more than 1 MiB"});
}

TEST_F(Script, MoreCoresThanItHas) {
  expect_says(step_error(engine(say(kHello), prepared(), ""), 9), {"has 8 cores", "asks for 9"});
}

// What a step's answer may name.
TEST_F(Script, ResultsThatAreNotThere) {
  const auto result = [&](const std::string& name, const std::string& before = ":") {
    return step_error(engine(say(kHello), prepared(),
                             before + "; " + say(R"({"stepped":0,"result":")" + name + "\"}")));
  };
  expect_says(result("result-0.safetensors"), {"no such file"});
  expect_says(result("../engine.sh"), {"no file of the session folder"});
  expect_says(result("/etc/passwd"), {"no file of the session folder"});
  expect_says(result(""), {"no file of the session folder"});
  expect_says(result(".."), {"no file of the session folder"});
  expect_says(result("r.safetensors", "ln -s /etc/passwd r.safetensors"), {"not a plain file"});
  expect_says(result("r.safetensors", "mkdir r.safetensors"), {"not a plain file"});
  expect_says(result("r.safetensors", "mkfifo r.safetensors"), {"not a plain file"});
  expect_says(result("r.pt", "echo x > r.pt"), {"no known format"});
  expect_says(result("r.safetensors", "head -c 3000000 /dev/zero > r.safetensors"), {"at most"});
  expect_says(result("r.safetensors", "echo short > r.safetensors"), {"r.safetensors"});
  expect_says(
      step_error(engine(say(kHello), prepared(), say(R"({"stepped":1,"result":"r.safetensors"})"))),
      {"expected the answer 'stepped' 0"});
}

// Inputs are written anew: a link that the engine put in their place is not followed.
TEST_F(Script, ALinkInPlaceOfOurFileIsNotFollowed) {
  const std::string victim = folder_ + "/victim";
  std::ofstream(victim) << "precious";
  step_error(
      engine(say(kHello), "ln -s '" + victim + "' inputs-0.safetensors; " + prepared(), "exit 1"));
  std::string text;
  std::getline(std::ifstream(victim) >> std::ws, text);
  EXPECT_EQ(text, "precious");
}

TEST_F(Script, LeavesNothingBehind) {
  const auto sessions = [] {
    size_t n = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::temp_directory_path()))
      n += entry.path().filename().string().starts_with("twinrun-engine-") ? 1 : 0;
    return n;
  };
  const size_t before = sessions();
  step_error(engine(say(kHello), "head -c 100000 /dev/zero > left; " + prepared(), "exit 1"));
  EXPECT_LE(sessions(), before);
}

TEST(Child, LinesBothWays) {
  auto child = Child::start({"cat"});
  ASSERT_TRUE(child.ok());
  for (const std::string text : {"one", "", "three \xff\x01"}) {
    ASSERT_TRUE((*child)->send(text).ok());
    const auto line = (*child)->receive(std::chrono::seconds(20));
    ASSERT_TRUE(line.ok()) << line.error().message();
    EXPECT_EQ(*line, text);
  }
  (*child)->end(std::chrono::seconds(5));
}

TEST(Child, DoesNotReadWhatItIsSent) {
  auto child = Child::start({"sleep", "1000"});
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE((*child)->send("short").ok());
  EXPECT_FALSE((*child)->receive(milliseconds(300)).ok());
}

}  // namespace
}  // namespace twinrun
