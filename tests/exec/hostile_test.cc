// Tests hostile or badly broken engines: each leads quickly to an error that says what the engine
// did, and leaves no process and no file behind.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "tests/exec/script.h"

namespace twinrun {
namespace {

using exec_tests::expect_says;
using exec_tests::good_result;
using exec_tests::kHello;
using exec_tests::milliseconds;
using exec_tests::Script;
using Clock = std::chrono::steady_clock;

class Hostile : public Script {
 protected:
  // Whether the process whose id the script wrote to that file has ended, or ends within 2 s.
  bool gone(const std::string& file) const {
    pid_t pid = 0;
    std::ifstream(folder_ + "/" + file) >> pid;
    if (pid <= 0) return false;
    for (int i = 0; i < 200; ++i) {
      std::string name, state;
      std::ifstream("/proc/" + std::to_string(pid) + "/stat") >> name >> name >> state;
      if (kill(pid, 0) != 0 || state == "Z") return true;  // a zombie has ended
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  std::string note(const std::string& pid, const std::string& file) const {
    return "echo " + pid + " > '" + folder_ + "/" + file + "'";
  }
};

TEST_F(Hostile, ProcessesThatItStartedAreEnded) {
  expect_says(
      step_error(engine(say(kHello), "sleep 1000 & " + note("$!", "plain") + "; exit 4", "")),
      {"exit status 4"});
  EXPECT_TRUE(gone("plain"));
}

// A daemon has left our session, process group and parents, but keeps the mark in its environment.
TEST_F(Hostile, DaemonsAreEnded) {
  expect_says(step_error(engine(say(kHello),
                                "setsid sh -c 'echo $$ > daemon.pid; exec sleep 1000' & "
                                "while ! test -s daemon.pid; do sleep 0.01; done; cp daemon.pid '" +
                                    folder_ + "/daemon'; exit 4",
                                "")),
              {"exit status 4"});
  EXPECT_TRUE(gone("daemon"));
}

TEST_F(Hostile, ClosesItsOutputAndLives) {
  ExecOptions o = engine(say(kHello), note("$$", "pid") + "; exec 1>&-; sleep 1000", "");
  const auto begin = Clock::now();
  expect_says(step_error(o), {"closed its standard output"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_TRUE(gone("pid"));
}

TEST_F(Hostile, IgnoresThatItIsToEnd) {
  ExecOptions o = engine(
      say(kHello), "trap '' TERM; " + note("$$", "pid") + "; while :; do sleep 0.05; done", "");
  o.slow = milliseconds(500);
  const auto begin = Clock::now();
  expect_says(step_error(o), {"has not answered within"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_TRUE(gone("pid"));
}

TEST_F(Hostile, SaysForEverThatItIsAlive) {
  ExecOptions o =
      engine(say(kHello), "while :; do echo '{\"alive\":\"still compiling\"}'; done", "");
  o.slow = o.longest = milliseconds(3000);
  std::string last;
  o.on_alive = [&](const std::string& text) { last = text; };
  expect_says(step_error(o), {"still compiling", "has not answered within"});
  EXPECT_EQ(last, "still compiling");
}

TEST_F(Hostile, GigabytesOnBothStreams) {
  expect_says(
      step_error(engine(say(kHello), "head -c 1000000000 /dev/zero >&2; " + prepared(), "exit 5")),
      {"exit status 5"});
  expect_says(step_error(engine(say(kHello), "head -c 1000000000 /dev/zero; sleep 100", "")),
              {"more than 1 MiB"});
  expect_says(step_error(engine(say(kHello), "yes '{\"step\":1}'", "")),
              {"expected the answer 'prepared'"});
}

TEST_F(Hostile, ALineOfTwoMebibytes) {
  expect_says(step_error(engine("printf '{\"hello\":{\"protocol\":1,\"name\":\"'; "
                                "head -c 2097152 /dev/zero | tr '\\0' x; echo '\"}}'",
                                "", "")),
              {"more than 1 MiB"});
}

TEST_F(Hostile, BytesThatAreNoText) {
  expect_says(step_error(engine("printf '\\377\\376\\033[2J\\n'", "", "")), {"not a message"});
  expect_says(step_error(engine(R"(printf '{"hello":{"protocol":1,"name":"\377"}}\n')", "", "")),
              {"not a message"});
  expect_says(step_error(engine("printf 'nul\\000nul\\n'", "", "")), {"not a message"});
  expect_says(step_error(engine(say(kHello), "printf 'last \\377 words\\n' >&2; exit 6", "")),
              {"exit status 6", "words"});
}

TEST_F(Hostile, SaysMoreThanItIsAsked) {
  const auto twice = [](const std::string& line) {
    return "printf '" + line + "\\n" + line + "\\n'";
  };
  const std::string program = R"({"prepared":"program-1.json"})",
                    step = R"({"stepped":0,"result":"result-0.safetensors"})";
  expect_says(step_error(engine(twice(kHello), prepared(), "")),
              {"that was not requested", "hello"});
  expect_says(step_error(engine(say(kHello), twice(program), "")),
              {"that was not requested", "prepared"});
  expect_says(step_error(engine(say(kHello), "printf '" + program + "\\n" + step + "\\n'", "")),
              {"that was not requested", "stepped"});
  // A late answer to an earlier step is recognised, because a result is named after its request.
  const std::string good = keep("good", good_result());
  expect_says(
      run(engine(say(kHello), prepared(),
                 "cp " + good + " result-0.safetensors; printf '" + step + "\\n" + step + "\\n'"),
          1, 2)
          .error,
      {"that was not requested"});
  expect_says(
      run(engine(say(kHello), prepared(),
                 "cp " + good +
                     " result-0.safetensors; n=$(cat n 2>/dev/null || echo 0); "
                     "echo 1 > n; echo '{\"stepped\":'$n',\"result\":\"result-0.safetensors\"}'"),
          1, 2)
          .error,
      {"returned the result 'result-0.safetensors'", "expected 'result-1.safetensors'"});
}

TEST_F(Hostile, AResultThatStillGrows) {
  const std::string good = keep("good", good_result());
  const std::string error = step_error(
      engine(say(kHello), prepared(),
             "cp " + good +
                 " result-0.safetensors; (while :; do echo more >> result-0.safetensors; done) & " +
                 note("$!", "writer") + "; while ! test -s '" + folder_ +
                 "/writer'; do :; done; sleep 0.1; " +
                 say(R"({"stepped":0,"result":"result-0.safetensors"})")));
  EXPECT_TRUE(error.find("belong to no tensor") != std::string::npos ||
              error.find("are expected") != std::string::npos)
      << error;
  EXPECT_TRUE(gone("writer"));
}

TEST_F(Hostile, FoldersThatCannotBeEntered) {
  expect_says(
      step_error(engine(say(kHello), "mkdir -p a/b; touch a/b/c; chmod 0 a/b a; exit 7", "")),
      {"exit status 7"});
  expect_says(
      step_error(engine(say(kHello), "mkdir -p inputs-0.safetensors/x; " + prepared(), "exit 8")),
      {"exit status 8"});  // our input file replaces that folder
}

TEST_F(Hostile, FillsTheDisk) {
  const std::string disk = folder_ + "/disk";
  ::mkdir(disk.c_str(), 0700);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here (not root, or in a container)";
  ::setenv("TMPDIR", disk.c_str(), 1);
  expect_says(step_error(engine(say(kHello), "cat /dev/zero > all 2>/dev/null; " + prepared(), "")),
              {"cannot write", "No space left", "free space"});
  ::setenv("TMPDIR", sessions().c_str(), 1);
  EXPECT_TRUE(std::filesystem::is_empty(disk));
  ::umount(disk.c_str());
}

TEST_F(Hostile, ResultsThatAreNotWhatWasAsked) {
  const std::string name = "result-0.safetensors";
  const auto error = [&](const ArrayFile& file, int cores = 1) {
    return run(answers_with(keep("answer", file), name), cores).error;
  };
  EXPECT_EQ(error(good_result()), "");
  EXPECT_EQ(error(good_result(), 4), "");
  ArrayFile file = good_result();
  file.arrays[0].name = "state/v";
  expect_says(error(file),
              {"the array 'state/w' is missing", "nearest is 'state/v'", name.c_str()});
  file = good_result({1, 2, 3, 4});
  file.arrays[0].dims = {4};
  expect_says(error(file), {"state/w", "is float32[4]; expected f32[3]"});
  file = good_result();
  file.arrays[0].type = ElementType::kI32;
  expect_says(error(file), {"state/w", "is int32[3]"});
  file = good_result();
  file.arrays[0].name = "state/w@0";
  expect_says(error(file, 2), {"the array 'state/w@1' is missing"});
  file.arrays.clear();
  expect_says(error(file), {"the file has none"});
  // Values such as NaN are not errors: they are judged later.
  const Outcome nan = run(answers_with(
      keep("nan", good_result({std::numeric_limits<float>::quiet_NaN(), 0, 0})), name));
  EXPECT_EQ(nan.error, "");
  EXPECT_NE(nan.states[0].vars[0].as<float>()[0], nan.states[0].vars[0].as<float>()[0]);
}

}  // namespace
}  // namespace twinrun
