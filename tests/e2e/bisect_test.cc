// Tests `twinrun bisect` through the binary. `bisect rev` runs in a repository that the test makes:
// a small C++ engine with a planted regression, commits that do not compile, and flaky builds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

// Runs a shell command in the folder. Returns its exit code; `out` receives stdout and stderr.
int shell(const Folder& folder, const std::string& command, std::string* out = nullptr) {
  const std::string file = folder.streams() + "/shell";
  const int status = std::system(
      fmt::format("cd '{}' && {{ {}\n}} > '{}' 2>&1", folder.path(), command, file).c_str());
  if (out != nullptr) *out = read_text(file);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kCommits = 64;

// Source of an engine that sums its arguments. From commit `wrong` on it leaves out the last one;
// the commits in `broken` do not compile.
std::string engine(int commit, int wrong, const std::set<int>& broken) {
  return fmt::format(R"(// version {}
#include <cstdio>
#include <cstdlib>
int main(int n, char** words) {{
  long sum = 0;
  for (int i = 1; i < n{}; ++i) sum += std::atol(words[i]);
  std::printf("%ld\n", sum);
  return 0;
}}
{})",
                     commit, commit >= wrong ? " - 1" : "",
                     broken.contains(commit) ? "does not compile\n" : "");
}

// Writes the whole history with one git fast-import. Dates and authors are fixed, so that the
// commits have the same hashes every time.
void make_repository(const Folder& folder, int wrong, const std::set<int>& broken) {
  std::string stream;
  for (int i = 0; i < kCommits; ++i) {
    const std::string text = engine(i, wrong, broken);
    const std::string message = fmt::format("commit {}", i);
    stream += fmt::format(
        "commit refs/heads/main\nmark :{}\ncommitter T <t@example.org> {} +0000\ndata {}\n{}\n",
        i + 1, 1600000000 + i, message.size(), message);
    stream += fmt::format("{}M 100644 inline engine.cc\ndata {}\n{}\n",
                          i > 0 ? fmt::format("from :{}\n", i) : "", text.size(), text);
  }
  write_text(folder / "stream", stream);
  std::string said;
  ASSERT_EQ(shell(folder,
                  "git init -q -b main repo && git -C repo fast-import --quiet < stream && git -C "
                  "repo reset -q --hard",
                  &said),
            0)
      << said;
  fs::create_directory(folder / "tries");
  // A commit's hash decides whether its build fails zero, one or two times before it succeeds.
  write_text(folder / "build.sh",
             "sha=$(git rev-parse HEAD)\nfile=" + folder.path() +
                 "/tries/$sha\ntries=$(cat $file 2>/dev/null || echo 0)\necho $((tries + 1)) > "
                 "$file\n[ $tries -ge $((0x$(echo $sha | cut -c1-2) % 3)) ] || exit 7\ng++ -o "
                 "engine engine.cc\n");
  write_text(folder / "check.sh",
             "mkdir -p twinrun-results/sum\n./engine 1 2 3 > twinrun-results/sum/report.json\n"
             "test \"$(cat twinrun-results/sum/report.json)\" = 6\n");
}

Words bisect_rev(const Folder& folder, const Words& more) {
  return with(with({"bisect", "rev", "--repo", "repo", "--good", "main~63", "--bad", "main",
                    "--build", "sh " + folder / "build.sh", "-o", "out"},
                   more),
              {"--", "sh", folder / "check.sh"});
}

// The state of the user's repository that bisect must not change.
std::string fingerprint(const Folder& folder) {
  std::string text;
  EXPECT_EQ(
      shell(folder,
            "cd repo && git status --porcelain && git rev-parse HEAD && git symbolic-ref HEAD && "
            "git for-each-ref && git worktree list && git stash list && ls -a && ls -a .git | grep "
            "-v packed-refs",
            &text),
      0);
  return text;
}

bool no_compiler(const Folder& folder) {
  return shell(folder, "git --version && g++ --version") != 0;
}

void find_regressions(int trials, unsigned seed) {
  std::mt19937 random(seed);
  for (int trial = 0; trial < trials; ++trial) {
    const Folder folder;
    const int wrong = 1 + static_cast<int>(random() % (kCommits - 1));
    std::set<int> broken;
    for (int i = 1; i + 1 < kCommits; ++i) {
      if (random() % 4 == 0 && i != wrong && i != wrong - 1) broken.insert(i);
    }
    ASSERT_NO_FATAL_FAILURE(make_repository(folder, wrong, broken));
    const std::string before = fingerprint(folder);
    const Outcome o = twinrun(folder, bisect_rev(folder, {"--json", "-q"}));
    ASSERT_EQ(o.code, 0) << o.out << o.err;
    const auto j = json_of(o.out);
    EXPECT_EQ(j["end"], "found");
    EXPECT_EQ(j["first_bad"]["subject"], fmt::format("commit {}", wrong));
    EXPECT_EQ(j["last_good"]["subject"], fmt::format("commit {}", wrong - 1));
    EXPECT_EQ(j["commits"], kCommits);
    EXPECT_LE(j["testable"], 8) << wrong;
    EXPECT_LE(j["untestable"], broken.size());
    // `git bisect`, given the same answers, finds the same commit.
    EXPECT_NE(j["git"].get<std::string>().find(j["first_bad"]["commit"]), std::string::npos)
        << j["git"];
    // The last good and the first bad commit are checked out side by side, and the user's
    // repository is unchanged.
    EXPECT_EQ(read_text(folder / "out/bad/engine.cc"), engine(wrong, wrong, broken));
    EXPECT_EQ(read_text(folder / "out/good/engine.cc"), engine(wrong - 1, wrong, broken));
    EXPECT_TRUE(fs::exists(folder / "out/good.log") && fs::exists(folder / "out/bad.log"));
    EXPECT_FALSE(fs::exists(folder / "out/worktree"));
    // What a diagnosis of a commit leaves in its folder is kept.
    EXPECT_EQ(read_text(j["report"].get<std::string>() + "/report.json"), "3\n");
    EXPECT_EQ(fingerprint(folder), before);
    const auto replayed =
        json_of(twinrun(folder, {"bisect", "--replay", "out/session.jsonl", "--json"}).out);
    EXPECT_EQ(replayed["result"]["first_bad"], j["first_bad"]["commit"]);
    EXPECT_EQ(replayed["executions"].size(), j["executions"]);
  }
}

TEST(BisectRevSlow, FindsPlantedRegressions) {
  if (const Folder folder; no_compiler(folder)) GTEST_SKIP() << "no git or no g++ here";
  find_regressions(6, 5);
}

TEST(BisectRevSlow, WhatCannotBeToldApartIsNotDecided) {
  const Folder folder;
  if (no_compiler(folder)) GTEST_SKIP() << "no git or no g++ here";
  ASSERT_NO_FATAL_FAILURE(make_repository(folder, 20, {18, 19}));
  const Outcome o = twinrun(folder, bisect_rev(folder, {"--json", "-q", "--repeats", "1"}));
  EXPECT_EQ(o.code, 125) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["end"], "undecided");
  EXPECT_EQ(j["first_bad"]["subject"], "commit 20");
  EXPECT_EQ(j["last_good"]["subject"], "commit 17");
  EXPECT_EQ(j["skipped"].size(), 2u);
}

// Here the check is a shell command, so that nothing needs to be compiled.
class BisectRev : public testing::Test {
 protected:
  void SetUp() override {
    if (shell(folder_, "git --version") != 0) GTEST_SKIP() << "no git here";
    std::string stream;
    for (int i = 0; i < 16; ++i) {
      const std::string text = std::to_string(i), message = "commit " + text;
      stream += fmt::format(
          "commit refs/heads/main\nmark :{}\ncommitter T <t@example.org> {} +0000\ndata "
          "{}\n{}\n{}M "
          "100644 inline version\ndata {}\n{}\n",
          i + 1, 1600000000 + i, message.size(), message, i > 0 ? fmt::format("from :{}\n", i) : "",
          text.size(), text);
    }
    write_text(folder_ / "stream", stream);
    ASSERT_EQ(shell(folder_,
                    "git init -q -b main repo && git -C repo fast-import --quiet < stream "
                    "&& git -C repo reset -q --hard"),
              0);
  }
  Outcome rev(const std::string& check, const Words& more = {}) {
    return twinrun(folder_, words(check, more));
  }
  static Words words(const std::string& check, const Words& more) {
    Words all = {"bisect",  "rev",   "--repo", "repo", "--good",
                 "main~15", "--bad", "main",   "-o",   "out"};
    if (std::ranges::find(more, "--repeats") == more.end()) all = with(all, {"--repeats", "1"});
    return with(with(all, more), {"--", "sh", "-c", check});
  }
  Folder folder_;
};

TEST_F(BisectRev, TellsWhatItFound) {
  const Outcome o = rev("touch left; test $(cat version) -lt 11", {"--clean"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("commit 11")) << o.out;
  EXPECT_TRUE(o.says("14 of 16 left, about 4 tries")) << o.err;
  EXPECT_TRUE(o.prints("8 executions of 6 candidates (at most 6 by halving)")) << o.out;
  const Outcome again = twinrun(folder_, {"bisect", "--replay", "out/session.jsonl"});
  EXPECT_EQ(again.code, 0);
  EXPECT_TRUE(again.prints("exit code 1")) << again.out;
}

TEST_F(BisectRev, WhatDoesNotShowIsNotReproducible) {
  Outcome o = rev("exit 0");
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("the bad end")) << o.out;
  o = rev("exit 1");
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("the good end")) << o.out;
  o = rev("exit 125");
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("cannot be tested")) << o.out;
  // Both ends fail on every other execution.
  o = rev("echo x >> ../../n; test $(($(wc -l < ../../n) % 2)) = 0",
          {"--repeats", "3", "--most", "6"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("flaky")) << o.out;
}

TEST_F(BisectRev, StopsAtWhatIsNoAnswer) {
  Outcome o = rev("exit 128");
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("exit code 128")) << o.err;
  o = rev("kill -SEGV $$");
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("signal 11")) << o.err;
  o = rev("sleep 60 & sleep 60", {"--timeout", "0.2", "--retries", "2"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.says("was still running after 0.2")) << o.err;
  EXPECT_FALSE(fs::exists(folder_ / "out/worktree"));
}

TEST_F(BisectRev, RefusesWhatItCannotUse) {
  const std::tuple<Words, const char*, const char*> bad[] = {
      {{"--good", "mian"}, "'mian' is not a commit", "did you mean main?"},
      {{"--good", "main", "--bad", "main~3"}, "is not before", "common ancestor"},
      {{"--repo", "nowhere"}, "nowhere", "--repo"},
      {{"--repeats", "0"}, "--repeats", "1 to 1000"},
      {{"--timeout", "-1"}, "--timeout", "allowed"},
      {{"--confidence", "1"}, "--confidence", "between 0 and 1"},
  };
  for (const auto& [more, what, fix] : bad) {
    Words all = {"bisect", "rev", "-o", "out"};
    const auto add = [&, &more = more](const char* name, const char* value) {
      if (std::ranges::find(more, name) == more.end()) all = with(all, {name, value});
    };
    add("--repo", "repo"), add("--good", "main~15"), add("--bad", "main");
    const Outcome o = twinrun(folder_, with(with(all, more), {"--", "true"}));
    EXPECT_EQ(o.code, 128) << what;
    EXPECT_TRUE(o.says(what)) << o.err;
    EXPECT_TRUE(o.says(fix)) << o.err;
  }
  EXPECT_EQ(twinrun(folder_, {"bisect", "rev", "--good", "a", "--bad", "b"}).code, 128);
  EXPECT_TRUE(twinrun(folder_, {"bisect", "rve"}).says("did you mean 'rev'?"));
}

TEST_F(BisectRev, AnInterruptedSearchGoesOn) {
  const std::string check =
      "echo x >> ../../n; wc -l < ../../n; test $(wc -l < ../../n) != 4 || { touch ../../now; "
      "sleep 30; }; "
      "test $(cat version) -lt 6";
  {
    Process process(folder_, words(check, {}));
    ASSERT_TRUE(process.wait_for(folder_ / "now"));
    process.kill(SIGINT);
    const Outcome o = process.finish();
    EXPECT_EQ(o.code, 130) << o.err;
    EXPECT_TRUE(o.says("--resume")) << o.err;
    EXPECT_FALSE(fs::exists(folder_ / "out/worktree"));
  }
  const Outcome o = rev(check, {"--resume", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["subject"], "commit 6");
  // Each candidate ran once, except that the interrupted execution was repeated.
  EXPECT_EQ(shell(folder_, fmt::format("test $(wc -l < n) = {}", j["executions"].get<int>() + 1)),
            0);
  // A search with another check must not resume from this session.
  const Outcome other = rev("test $(cat version) -lt 7", {"--resume"});
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("another search")) << other.err;
}

// ---- the other axes

class Bisect : public testing::Test {
 protected:
  Folder folder_;
};

TEST_F(Bisect, StepAndOp) {
  const Words engines = {"--a", "tpu",     "--b",
                         "tpu", "--fault", "scale@dense2/kernel.grad,core=5,from=3,magnitude=2"};
  Outcome o = twinrun(folder_, with({"bisect", "step", "drill_mlp", "--json", "-q"}, engines));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json_of(o.out)["step"], 3);
  o = twinrun(folder_, with({"bisect", "op", "drill_mlp", "--json", "-q"}, engines));
  ASSERT_EQ(o.code, 0) << o.err;
  auto j = json_of(o.out);
  EXPECT_EQ(j["op"], "dense2/kernel.grad");
  EXPECT_EQ(j["gap"]["cores"], nlohmann::json({5}));
  o = twinrun(folder_, with({"bisect", "op", "drill_mlp", "-q"}, engines));
  EXPECT_TRUE(o.prints("step 3, op dense2/kernel.grad")) << o.out;
  // This engine conforms but is not bit-exact: the bounds show that no op is wrong.
  o = twinrun(folder_, {"bisect", "op", "drill_mlp", "--b", "tpu", "--tolerance", "bound", "--set",
                        "train.steps=2", "-q"});
  EXPECT_EQ(o.code, 125) << o.err;
  EXPECT_TRUE(o.prints("no op of steps 0 to 1 is outside its bound")) << o.out;
  o = twinrun(folder_,
              with({"bisect", "op", "drill_mlp", "--tolerance", "bound", "--json", "-q"}, engines));
  ASSERT_EQ(o.code, 0) << o.err;
  j = json_of(o.out);
  EXPECT_EQ(j["op"], "dense2/kernel.grad");
  EXPECT_EQ(j["step"], 3);
  EXPECT_EQ(j["core"], 5);
}

TEST_F(Bisect, RunsOnFile) {
  const Words train = {
      "train", "drill_mlp", "--engine", "tpu", "-q", "--set", "train.checkpoint_every=2"};
  ASSERT_EQ(twinrun(folder_, with(train, {"-o", "a.h5"})).code, 0);
  const std::string fault = "scale@dense2/kernel.grad,core=5,from=9,magnitude=2";
  ASSERT_EQ(twinrun(folder_, with(train, {"-o", "b.h5", "--fault", fault})).code, 0);
  Outcome o = twinrun(folder_, {"bisect", "step", "a.h5", "b.h5"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("step 9:")) << o.out;
  EXPECT_TRUE(o.prints("0 executions")) << o.out;
  EXPECT_EQ(twinrun(folder_, {"bisect", "step", "a.h5", "a.h5"}).code, 125);
  o = twinrun(folder_, {"bisect", "step", "a.h5", "--b", "tpu", "--fault", fault, "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json_of(o.out)["step"], 9);
  o = twinrun(folder_,
              {"bisect", "op", "drill_mlp", "--a", "tpu", "--b", "tpu", "--fault", fault, "--from",
               "a.h5", "--step", "9", "--set", "train.checkpoint_every=2", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json_of(o.out)["op"], "dense2/kernel.grad");
  write_text(folder_ / "bad.h5", "no run");
  EXPECT_EQ(twinrun(folder_, {"bisect", "step", "bad.h5", "a.h5"}).code, 128);
}

TEST_F(Bisect, Keys) {
  const Words keys = {"bisect",
                      "config",
                      "drill_mlp",
                      "--set-b",
                      "train.log_every=3",
                      "--set-b",
                      "optimizer.lr=0.06",
                      "--set-b",
                      "train.eval_every=4",
                      "--set-b",
                      "diagnose.margin=0.5",
                      "--set-b",
                      "diagnose.seeds=4"};
  Outcome o = twinrun(folder_, with(keys, {"--test", "digest", "--json", "-q"}));
  ASSERT_EQ(o.code, 0) << o.err;
  auto j = json_of(o.out);
  ASSERT_EQ(j["keys"].size(), 1u);
  EXPECT_EQ(j["keys"][0]["key"], "optimizer.lr");
  EXPECT_EQ(j["differ"].size(), 5u);
  EXPECT_LE(j["testable"], j["bound"]);
  EXPECT_NE(read_text(folder_ / "twinrun-results/bisect-config/bad.toml").find("lr = 0.06"),
            std::string::npos);
  EXPECT_NE(read_text(folder_ / "twinrun-results/bisect-config/good.toml").find("lr = 0.05"),
            std::string::npos);
  // A test command of the user's receives the scenario file as its argument.
  o = twinrun(folder_, with(keys, {"--test", "command", "-q", "--", "sh", "-c",
                                   "! grep -q 'margin = 0.5' $0"}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("--set 'diagnose.margin=0.5'")) << o.out;
  // A key that has no effect on the result.
  o = twinrun(folder_, {"bisect", "config", "drill_mlp", "--set-b", "train.log_every=3", "--test",
                        "digest"});
  EXPECT_EQ(o.code, 125) << o.err;
  EXPECT_TRUE(o.prints("not reproducible")) << o.out;
  for (const Words& bad : {Words{}, Words{"--set-b", "train.log_every=10"},
                           Words{"--set-b", "train.steps=2", "--test", "lost"},
                           Words{"--set-b", "train.steps=2", "--test", "command"}}) {
    EXPECT_EQ(twinrun(folder_, with({"bisect", "config", "drill_mlp"}, bad)).code, 128);
  }
}

// The limit of the size of files stands in for a full disk: a candidate that cannot be diagnosed
// for that reason is not one that cannot be tested.
TEST_F(Bisect, AFullDiskStopsTheSearch) {
  Process process(folder_,
                  {"bisect", "config", "drill_mlp", "--set-b", "optimizer.lr=0.06", "--set-b",
                   "train.eval_every=4", "--test", "verdict", "-q"},
                  {}, [] {
                    const rlimit limit{16'384, 16'384};
                    ::setrlimit(RLIMIT_FSIZE, &limit);
                  });
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 128) << o.out;
  EXPECT_TRUE(o.says("File too large")) << o.err;
}

}  // namespace
}  // namespace twinrun::e2e
