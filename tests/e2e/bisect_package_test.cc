// Tests `twinrun bisect package` with a program that makes environments at once. The Python of such
// an environment is the shell with the release in $RELEASE, and the scripts are scripts for it.
#include <fmt/format.h>

#include <algorithm>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

constexpr int kReleases = 20;  // 0.1 to 0.20

// A script that answers by the number of the release after "0.".
const std::string kNumber = "n=${RELEASE#0.}\n";

class BisectPackage : public testing::Test {
 protected:
  void SetUp() override {
    std::string releases;
    for (int i = 1; i <= kReleases; ++i)
      releases += fmt::format(
          R"({}{{"version": "0.{}", "yanked": {}, "pythons": [{}], "date": "2024-01-{:02}"}})",
          i > 1 ? ", " : "", i, i == 5,
          i == 6   ? ""
          : i < 18 ? R"("3.9", "3.10")"
                   : R"("3.11")",
          i);
    write_text(folder_ / "releases.json", fmt::format(R"({{"releases": [{}]}})", releases));
    write_text(folder_ / "environment", R"(
case "$1" in
--releases)
  test "$2" = toy || { echo '{"unavailable": "the package index has no package"}'; exit 75; }
  cat releases.json; echo; exit;;
--remove)
  echo "remove $2" >> calls; rm -r "envs/${2#toy==}"; echo '{}'; exit;;
esac
echo "make $*" >> calls
version=${1#toy==}
made=true; test ! -e "envs/$version" || made=false
test "$version" != 0.7 || { echo '{"unavailable": "numpy<2 cannot be resolved"}'; exit 75; }
mkdir -p "envs/$version"
printf '#!/bin/sh\nRELEASE=%s exec sh "$@"\n' "$version" > "envs/$version/python"
chmod +x "envs/$version/python"
while [ $# -gt 0 ] && [ "$1" != --python ]; do shift; done
printf '{"python": "%s/envs/%s/python", "python_version": "%s.2", "seconds": 2, "bytes": 1000000000, "made": %s}\n' \
  "$PWD" "$version" "$2" $made
)");
    // The interpreter that has the package twinrun: it is asked only where the package lies.
    write_text(folder_ / "interpreter", "#!/bin/sh\necho \"$PWD/package\"\n");
    fs::create_directory(folder_ / "package");
    fs::permissions(folder_ / "interpreter", fs::perms::owner_all);
  }

  Words words(const std::string& script, const std::string& range, const Words& more) {
    write_text(folder_ / "script", kNumber + script);
    Words all = {"bisect", "package",        "toy",           range, "-o",
                 "out",    "--environments", "sh environment"};
    for (const auto& [name, value] : {std::pair("--way", "exit"), std::pair("--repeats", "1")}) {
      if (std::ranges::find(more, name) == more.end()) all = with(all, {name, value});
    }
    return with(with(all, more), {"--", "script", "argument"});
  }
  Outcome package(const std::string& script, const std::string& range, const Words& more = {}) {
    return twinrun(folder_, words(script, range, more),
                   {{"TWINRUN_PYTHON", folder_ / "interpreter"}});
  }
  static std::string verdict(const std::string& word) {
    return fmt::format(
        R"(echo '{{"verdict": "{}", "headline": "told of '$n'"}}' >> "$TWINRUN_VERDICTS")", word);
  }
  Folder folder_;
};

TEST_F(BisectPackage, FindsTheFirstBadRelease) {
  const Outcome o =
      package("test \"$1\" = argument || exit 125\ntest $n -lt 13", "0.1..0.17", {"--json"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["version"], "0.13");
  EXPECT_EQ(j["first_bad"]["date"], "2024-01-13");
  EXPECT_EQ(j["first_bad"]["answer"], "FAILED: exit code 1");
  EXPECT_EQ(j["last_good"]["version"], "0.12");
  EXPECT_EQ(j["last_good"]["python"], "3.10.2");
  EXPECT_EQ(j["last_bad"], nullptr);
  EXPECT_EQ(j["fixed"], false);
  EXPECT_EQ(j["releases"], 15);  // one is yanked, one has no wheel
  EXPECT_LE(j["testable"], j["bound"]);
  EXPECT_EQ(j["environments"]["made"], j["testable"]);
  EXPECT_EQ(j["tried"].size(), j["testable"].get<size_t>() + j["untestable"].get<size_t>());
  EXPECT_TRUE(j["links"].empty());
  EXPECT_TRUE(
      o.says("15 releases of toy from 0.1 to 0.17, of which about 6 are tried; Python 3.10"))
      << o.err;
  EXPECT_TRUE(o.says("environment with Python 3.10")) << o.err;
  EXPECT_TRUE(o.says(" left\n") || o.says("about 1 try, about")) << o.err;
  // Every environment was asked for once.
  const std::string calls = read_text(folder_ / "calls");
  EXPECT_EQ(std::ranges::count(calls, '\n'), j["environments"]["made"].get<int>()) << calls;
}

TEST_F(BisectPackage, TellsInWordsWhatItFound) {
  const Outcome o = package("test $n -lt 13 || { echo 'ValueError: wrong sum'; exit 3; }",
                            "0.1..0.17", {"--with", "numpy<2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(read_text(folder_ / "calls").find("make toy==0.13 numpy<2"), std::string::npos);
  EXPECT_TRUE(
      o.prints("first bad  toy 0.13, of 2024-01-13\n           FAILED: exit code 3, ValueError: "
               "wrong sum\nlast good  toy 0.12, of 2024-01-12\n           PASSED: exit code 0\n"))
      << o.out;
  EXPECT_FALSE(o.prints("compare")) << o.out;
  const Outcome again = twinrun(folder_, {"bisect", "--replay", "out/session.jsonl"});
  EXPECT_TRUE(again.prints("ValueError: wrong sum")) << again.out;
}

TEST_F(BisectPackage, FindsTheReleaseThatFixedIt) {
  Outcome o = package("test $n -ge 10", "0.1..0.17", {"--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["fixed"], true);
  EXPECT_EQ(j["first_good"]["version"], "0.10");
  EXPECT_EQ(j["last_bad"]["version"], "0.9");
  EXPECT_EQ(j["first_bad"], nullptr);
  o = package("test $n -ge 10", "0.1..0.17", {"-q"});
  EXPECT_TRUE(o.prints("fixed in   toy 0.10")) << o.out;
  EXPECT_TRUE(o.prints("last bad   toy 0.9")) << o.out;
}

TEST_F(BisectPackage, SkipsWhatCannotRun) {
  // 0.7 has no environment, and 0.8 to 0.10 have another interface.
  Outcome o = package(
      "case $n in 8|9|10) echo \"AttributeError: no 'scan'\"; echo 'twinrun: 0 steps'; exit 1;; "
      "esac\ntest $n -lt 15",
      "0.1..0.17", {"--json"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["version"], "0.15");
  EXPECT_GT(j["untestable"], 0);
  EXPECT_TRUE(o.says("AttributeError: no 'scan'")) << o.err;
  // What could decide cannot be tested.
  o = package("case $n in 8|9|10) exit 125;; esac\ntest $n -lt 9", "0.1..0.17", {"--json", "-q"});
  EXPECT_EQ(o.code, 125) << o.out << o.err;
  j = json_of(o.out);
  EXPECT_EQ(j["end"], "undecided");
  EXPECT_EQ(j["last_good"]["version"], "0.4");
  EXPECT_EQ(j["first_bad"]["version"], "0.11");
  EXPECT_EQ(j["skipped"], nlohmann::json({"0.7", "0.8", "0.9", "0.10"}));
  for (const auto& t : j["tried"]) {
    if (t["version"] == "0.7") {
      EXPECT_EQ(t["answer"], "numpy<2 cannot be resolved");
    }
  }
}

// LOW and the releases above it lack what the script needs.
TEST_F(BisectPackage, BeginsAboveALowThatCannotRun) {
  const std::string lacks =
      "test $n -ge 9 || { echo \"TypeError: f() got an unexpected keyword "
      "argument 'smoothing'\"; exit 1; }\n";
  Outcome o = package(lacks + "test $n -ge 12", "0.1..0.17", {"--json"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  auto j = json_of(o.out);
  EXPECT_EQ(j["fixed"], true);
  EXPECT_EQ(j["first_good"]["version"], "0.12");
  EXPECT_EQ(j["last_bad"]["version"], "0.11");
  EXPECT_EQ(j["tried"][0]["version"], "0.1");
  EXPECT_NE(j["tried"][0]["answer"].dump().find("unexpected keyword"), std::string::npos);
  EXPECT_TRUE(o.says("LOW, 0.1, cannot be tested")) << o.err;
  o = package(lacks + "exit 0", "0.1..0.17", {"--json", "-q"});
  EXPECT_EQ(o.code, 125) << o.err;
  EXPECT_TRUE(o.prints("0.8 cannot be tested (exit code 1, TypeError")) << o.out;
  EXPECT_TRUE(o.prints("above it no release differs from 0.17")) << o.out;
}

TEST_F(BisectPackage, AFlakyScriptIsAskedMoreOften) {
  // A bad release is bad in two of three executions.
  const Outcome o =
      package("test $n -lt 12 && exit\necho x >> count.$n\ntest $(($(wc -l < count.$n) % 3)) = 2",
              "0.1..0.17", {"--json", "-q", "--repeats", "2"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["version"], "0.12");
  EXPECT_EQ(j["last_good"]["version"], "0.11");
  EXPECT_NE(j["notes"].dump().find("flaky: the bad end"), std::string::npos) << j["notes"];
}

TEST_F(BisectPackage, AnInterruptedSearchGoesOn) {
  const std::string script =
      "echo x >> n\ntest $(wc -l < n) != 5 || { touch now; sleep 30; }\ntest $n -lt 9";
  {
    Process process(folder_, words(script, "0.1..0.17", {}),
                    {{"TWINRUN_PYTHON", folder_ / "interpreter"}});
    ASSERT_TRUE(process.wait_for(folder_ / "now"));
    process.kill(SIGINT);
    const Outcome o = process.finish();
    EXPECT_EQ(o.code, 130) << o.err;
    EXPECT_TRUE(o.says("--resume")) << o.err;
  }
  const Outcome o = package(script, "0.1..0.17", {"--resume", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["version"], "0.9");
  // Each execution was made once, except the one that was interrupted. Those of 0.7 run no script.
  int ran = 0;
  for (const auto& t : j["tried"]) {
    if (t["version"] == "0.7") continue;
    ran += t["answers"]["good"].get<int>() + t["answers"]["bad"].get<int>();
  }
  const std::string lines = read_text(folder_ / "n");
  EXPECT_EQ(std::ranges::count(lines, '\n'), ran + 1);
  EXPECT_EQ(j["environments"]["made"], j["testable"]);
  const Outcome other = package("test $n -lt 8", "0.1..0.17", {"--resume"});
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("another search")) << other.err;
}

TEST_F(BisectPackage, EndsThatDoNotDiffer) {
  Outcome o = package("exit 0", "0.1..0.17", {"-q"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("not found: 0.1 and 0.17 are both good")) << o.out;
  o = package("exit 1", "0.1..0.17", {"-q"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("not found: 0.1 and 0.17 are both bad")) << o.out;
  EXPECT_TRUE(o.prints("FAILED: exit code 1")) << o.out;
  o = package("echo 'ImportError: no toy'; exit 1", "0.1..0.17", {"-q"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.prints("HIGH, 0.17, cannot be tested: exit code 1, ImportError: no toy")) << o.out;
}

TEST_F(BisectPackage, RefusesWhatItCannotUse) {
  const std::tuple<const char*, const char*, const char*> bad[] = {
      {"0.17..0.1", "LOW 0.17 is not below HIGH 0.1", "0.1..0.17"},
      {"0.1..0.33", "toy 0.33 is not released", "the nearest: 0.20"},
      {"0.5..0.9", "toy 0.5 was yanked", "the nearest: 0.4 and 0.7"},
      {"0.6..0.9", "toy 0.6 has no wheel for a Python of this machine", "the nearest: 0.4 and 0.7"},
      {"0.1", "'0.1' is not a range", "0.4.21..0.4.35"},
      {"0.1..main", "'main' is not a version", "such as"},
  };
  for (const auto& [range, what, fix] : bad) {
    const Outcome o = package("exit 0", range);
    EXPECT_EQ(o.code, 128) << what;
    EXPECT_TRUE(o.says(what)) << o.err;
    EXPECT_TRUE(o.says(fix)) << o.err;
  }
  Words unknown = words("exit 0", "0.1..0.17", {});
  std::ranges::replace(unknown, "toy", "tyo");
  Outcome o = twinrun(folder_, unknown);
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("tyo: the package index has no package")) << o.err;
  o = twinrun(folder_, {"bisect", "package", "toy", "0.1..0.17", "--", "nothing.py"});
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("cannot read the script")) << o.err;
  // A Python without the package twinrun.
  write_text(folder_ / "interpreter",
             "#!/bin/sh\necho \"No module named 'twinrun'\" >&2; exit 1\n");
  o = package("exit 0", "0.1..0.17", {"--way", "watch"});
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("pip install twinrun")) << o.err;
}

TEST_F(BisectPackage, VerdictsOfDiagnose) {
  // LOW shows a class of its own, and one in the middle another: neither is what is looked for.
  const std::string script = "# twinrun.diagnose(step)\ncase $n in 8) " + verdict("SHARDING") +
                             ";; 1) " + verdict("INCONCLUSIVE") + ";; 9|1?) " +
                             verdict("ENGINE_BUG") + ";; *) " + verdict("NOISE") + ";; esac";
  const Outcome o = package(script, "0.1..0.17", {"--json", "-q", "--way", "diagnose"});
  ASSERT_EQ(o.code, 125) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["wrong"], "ENGINE_BUG");
  EXPECT_EQ(j["first_bad"]["version"], "0.9");
  EXPECT_EQ(j["first_bad"]["answer"], "ENGINE_BUG: told of 9");
  EXPECT_EQ(j["last_good"]["version"], "0.4");
  EXPECT_EQ(j["skipped"], nlohmann::json({"0.7", "0.8"}));
  // With --fail-on all other classes are good.
  const auto named = json_of(
      package(script, "0.2..0.17", {"--json", "-q", "--way", "diagnose", "--fail-on", "engine_bug"})
          .out);
  EXPECT_EQ(named["last_good"]["version"], "0.8");
  const auto both =
      json_of(package(script, "0.2..0.17",
                      {"--json", "-q", "--way", "diagnose", "--fail-on", "engine_bug,sharding"})
                  .out);
  EXPECT_EQ(both["first_bad"]["version"], "0.8");
}

TEST_F(BisectPackage, TheScriptDecidesTheWay) {
  Outcome o =
      package("import twinrun\ntwinrun.diagnose(step)\n", "0.1..0.17", {"--way", "diagnose", "-q"});
  EXPECT_TRUE(o.prints("cannot be tested: exit code")) << o.out;
  write_text(folder_ / "script", "true # without twinrun, diagnose (x) means nothing\n");
  Words automatic = {"bisect",         "package",        "toy",    "0.1..0.17", "-o", "out",
                     "--environments", "sh environment", "--json", "-q",        "--", "script"};
  const std::map<std::string, std::string> environment = {
      {"TWINRUN_PYTHON", folder_ / "interpreter"}};
  o = twinrun(folder_, automatic, environment);
  EXPECT_EQ(json_of(o.out)["way"], "diagnose") << o.out;
  EXPECT_TRUE(o.prints("without calling twinrun.diagnose; --way watch")) << o.out;
  write_text(folder_ / "script", "train()\n");
  o = twinrun(folder_, automatic, environment);
  EXPECT_EQ(json_of(o.out)["way"], "watch") << o.out;
}

TEST_F(BisectPackage, TheDiskIsBounded) {
  fs::create_directories(folder_ / "envs/0.17");  // made by somebody else
  const Outcome o = package("test $n -lt 13", "0.1..0.17", {"--json", "-q", "--disk", "3.5"});
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["first_bad"]["version"], "0.13");
  EXPECT_EQ(j["environments"]["made"].get<int>(), j["testable"].get<int>() - 1);
  EXPECT_EQ(j["environments"]["removed"].get<int>(), j["environments"]["made"].get<int>() - 3);
  EXPECT_EQ(j["environments"]["bytes_left"], 3000000000);
  // The neighbours, which are asked again, are still there, and so is what was there before.
  for (const char* version : {"0.12", "0.13", "0.17"})
    EXPECT_TRUE(fs::exists(folder_ / ("envs/" + std::string(version)))) << version;
  EXPECT_FALSE(fs::exists(folder_ / "envs/0.1"));
}

TEST_F(BisectPackage, AnotherPythonIsTold) {
  // 0.18 has wheels for another Python only.
  const Outcome o = package("test $n -lt 18", "0.14..0.20", {"-q"});
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  EXPECT_TRUE(o.prints("first bad  toy 0.18")) << o.out;
  EXPECT_TRUE(o.prints("their Pythons differ, 3.11.2 and 3.10.2")) << o.out;
  const Outcome fixed = package("test $n -lt 18", "0.14..0.20", {"-q", "--python", "3.10"});
  EXPECT_EQ(fixed.code, 128);
  EXPECT_TRUE(fixed.says("0.20 has no wheel for Python 3.10")) << fixed.err;
}

}  // namespace
}  // namespace twinrun::e2e
