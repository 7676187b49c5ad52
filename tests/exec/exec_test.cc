// Tests engines behind the engine protocol: hello, prepare, steps, how engines end and how long
// they take, and the errors for engines that break the protocol.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "backends/exec/child.h"
#include "backends/exec/watcher.h"
#include "tests/exec/script.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

using exec_tests::expect_says;
using exec_tests::kHello;
using exec_tests::milliseconds;
using exec_tests::Script;

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

TEST_F(Script, DeclaresItsMixedPrecision) {
  auto backend = make_exec_backend(
      engine(
          say(R"({"hello":{"protocol":1,"name":"script","precision":"autocast","gradients":"bf16",)"
              R"("stochastic":true}})"),
          "", ""),
      1);
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  const Capabilities c = (*backend)->capabilities();
  EXPECT_EQ(declared_precision(c), Precision::kAutocast);
  EXPECT_EQ(declared_word(c), "autocast");
  EXPECT_EQ(c.reduced_bits, kBf16Bits);
  EXPECT_TRUE(c.stochastic);
}

TEST_F(Script, ThatHasOnlySaidHelloServesTheNextBackend) {
  const std::string hello = say(R"({"hello":{"protocol":1,"name":"script"}})");
  ExecOptions o =
      engine_of("echo started >> ../../starts; while read -r line; do " + hello + "; done");
  const auto starts = [&] {
    std::ifstream in(sessions() + "/../starts");
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  };
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  EXPECT_EQ(starts(), 2);
  o.reuse_idle = true;
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  EXPECT_EQ(starts(), 3);
  // This engine answers every request with a hello, so the step fails; an engine that got a request
  // after hello is not reused.
  EXPECT_NE(step_error(o), "");
  EXPECT_EQ(starts(), 3);
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  EXPECT_EQ(starts(), 4);
  // Another command ends the idle engine.
  ExecOptions other = o;
  other.command.replace(0, 2, "sh -u");
  ASSERT_TRUE(make_exec_backend(other, 1).ok());
  EXPECT_EQ(starts(), 5);
  // An idle engine that has ended in the meantime is not reused.
  o = engine_of("echo started >> ../../starts; read -r line; " + hello);
  o.reuse_idle = true;
  ASSERT_TRUE(make_exec_backend(o, 1).ok());
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_NE(step_error(o), "");
  EXPECT_EQ(starts(), 7);
}

// The kind of an error says whether the engine refuses, has failed, or is not to blame.
TEST_F(Script, KindOfAnError) {
  using Kind = Error::Kind;
  const std::string refusal = say(R"({"error":"no such layer"})");
  const std::string wrong = say(R"({"stepped":0,"result":"/etc/passwd"})");
  EXPECT_EQ(run(engine(say(kHello), refusal, "")).kind, Kind::kRefusal);
  EXPECT_EQ(run(engine(say(kHello), prepared(), refusal)).kind, Kind::kForeignEngine);
  EXPECT_EQ(run(engine(say(kHello), "exit 3", "")).kind, Kind::kForeignEngine);
  EXPECT_EQ(run(engine(say("{}"), "", "")).kind, Kind::kForeignEngine);
  EXPECT_EQ(run(engine(say(kHello), prepared(), wrong)).kind, Kind::kForeignEngine);
  ExecOptions none = engine(say(kHello), "", "");
  none.command = "/no/such/engine";
  EXPECT_EQ(run(none).kind, Kind::kForeignEngine);
  ::setenv("TMPDIR", "/no/such/folder", 1);
  EXPECT_EQ(run(none).kind, Kind::kUnavailable);
  ::setenv("TMPDIR", sessions().c_str(), 1);
}

TEST_F(Script, HelloOfAnotherKind) {
  const auto hello = [&](const std::string& text) {
    return step_error(engine(say(text), prepared(), ""));
  };
  expect_says(hello(R"({"hello":{"protocol":2,"name":"script"}})"),
              {"'protocol' is 2", "expected 1"});
  expect_says(hello(R"({"hello":{"protocol":1}})"), {"'name' is missing"});
  expect_says(hello(R"({"hello":3})"), {"hello is not an object"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","max_cores":0}})"), {"'max_cores' is 0"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","flush":"no"}})"),
              {"'flush' is \"no\"", "true or false"});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","precision":"f16"}})"),
              {"f16", "\"default\"", "\"autocast\""});
  expect_says(hello(R"({"hello":{"protocol":1,"name":"s","gradients":"int8"}})"),
              {"'gradients' is \"int8\"", "\"bf16\""});
  expect_says(hello("Loading model..."), {"not a message", "Loading model..."});
  expect_says(hello("[]"), {"not a message"});
  expect_says(hello(R"({"prepared":1})"), {"expected the answer 'hello'"});
  expect_says(hello(R"({"error":"no device"})"), {"the engine says: no device"});
}

TEST_F(Script, NoSuchProgram) {
  ExecOptions o;
  o.command = "/no/such/engine --fast";
  expect_says(step_error(o), {"/no/such/engine", "cannot be started"});
  o.command = "  ";
  expect_says(step_error(o), {"the command is missing"});
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
  expect_says(step_error(engine(say(kHello), prepared(), ""), 9), {"has 8 cores", "needs 9"});
}

// A step's answer may name only the expected result file, in the session folder.
TEST_F(Script, ResultsThatAreNotThere) {
  const auto result = [&](const std::string& name, const std::string& before = ":") {
    return step_error(engine(say(kHello), prepared(),
                             before + "; " + say(R"({"stepped":0,"result":")" + name + "\"}")));
  };
  const std::string r = "result-0.safetensors";
  expect_says(result(r), {"exec:sh", r.c_str(), "no such file"});
  for (const char* name :
       {"../engine.sh", "/etc/passwd", "", "..", ".", "r.pt", "result-1.safetensors"})
    expect_says(result(name), {"returned the result", "expected 'result-0.safetensors'"});
  expect_says(result(r, "ln -s /etc/passwd " + r), {"is a link"});
  expect_says(result(r, "mkdir " + r), {"not a plain file"});
  expect_says(result(r, "mkfifo " + r), {"not a plain file"});
  expect_says(result(r, "head -c 3000000 /dev/zero > " + r), {"at most"});
  expect_says(result(r, "truncate -s 100G " + r), {"has 107374182400 bytes", "at most"});
  expect_says(result(r, "echo short > " + r), {r.c_str(), "too short"});
  expect_says(result("result-0.h5", "echo short > result-0.h5"), {"cannot read HDF5 results"});
  expect_says(step_error(engine(say(kHello), prepared(),
                                say(R"({"stepped":1,"result":"result-0.safetensors"})"))),
              {"expected the answer 'stepped' 0"});
}

// Input files are created anew, so a link that the engine put in their place is not followed.
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
  step_error(engine(say(kHello), "head -c 100000 /dev/zero > left; " + prepared(), "exit 1"));
  EXPECT_TRUE(std::filesystem::is_empty(sessions()));
}

TEST(Child, LinesBothWays) {
  auto child = Child::start({"cat"}, "/none", "cat");
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
  auto child = Child::start({"sleep", "1000"}, "/none", "sleep");
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE((*child)->send("short").ok());
  EXPECT_FALSE((*child)->receive(milliseconds(300)).ok());
}

TEST(Child, WhatItStillSaysDoesNotKeepIt) {
  const Folder folder;
  const std::string done = folder / "said-all";
  auto child = Child::start(
      {"sh", "-c",
       "cat; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; : > '" + done + "'"},
      "/none", "sh");
  ASSERT_TRUE(child.ok());
  (*child)->end(std::chrono::seconds(60));
  EXPECT_TRUE(std::filesystem::exists(done));
}

// twinrun is killed after it has started an engine, but before the watcher knows the process group:
// the watcher must find the engine by the mark in its environment.
TEST(Watcher, WhatHasStartedUnguardedGoesToo) {
  namespace fs = std::filesystem;
  const Folder outer;
  const std::string folder = outer / "watched";
  fs::create_directory(folder);
  const std::string mark = "TWINRUN_SESSION=" + folder;
  const std::string number = folder + ".pid";
  const pid_t ours = ::fork();
  if (ours == 0) {
    const Watcher watcher(folder, mark);
    if (::fork() == 0) {
      ::setpgid(0, 0);
      const std::string script = "echo $$ > '" + number + ".new'; mv '" + number + ".new' '" +
                                 number + "'; exec sleep 1000";
      ::execl("/usr/bin/env", "env", mark.c_str(), "sh", "-c", script.c_str(), nullptr);
      ::_exit(127);
    }
    while (!fs::exists(number)) std::this_thread::sleep_for(milliseconds(2));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(ours, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (int i = 0; i < 3000 && fs::exists(folder); ++i)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(fs::exists(folder));
  std::string pid, state = "gone";
  std::ifstream(number) >> pid;
  std::ifstream("/proc/" + pid + "/stat") >> pid >> pid >> state;
  EXPECT_TRUE(state == "gone" || state == "Z") << state;
}

}  // namespace
}  // namespace twinrun
