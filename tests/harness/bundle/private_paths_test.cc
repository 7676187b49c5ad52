// Tests which paths and names a bundle leaves out of its texts, and that the rest of a text stays.
#include "harness/bundle/private_paths.h"

#include <gtest/gtest.h>

#include "harness/bundle/engine_files.h"

namespace twinrun {
namespace {

const PrivatePaths kPaths({"/home/ann/my project", "/home/ann", "ann", "box-17"});

TEST(PrivatePaths, OfATextOnlyTheNamesOfFilesStay) {
  const std::pair<const char*, const char*> all[] = {
      {"twinrun diagnose /home/ann/model.toml", "twinrun diagnose …/model.toml"},
      {"'/home/ann/my project/sub/m.toml'", "'sub/m.toml'"},
      {"in /home/ann/my project.", "in .."},
      {"in \"/home/ann\", ~, ~/x, ~bob/y/z", "in \"…\", ~, …/x, …/z"},
      {"-o /data/runs/results/", "-o …/results"},
      {"-o/data/runs --out=/data/runs", "-o…/runs --out=…/runs"},
      {"--set data.dir=/mnt/secret/mnist --set x=1", "--set data.dir=…/mnist --set x=1"},
      {"tool:/opt/acme/data.bin", "tool:…/data.bin"},
      {"loc(\"/srv/acme/train.py\":12:3)", "loc(\"…/train.py\":12:3)"},
      {"File \"/home/ann/a/train.py\", line 5", "File \"…/train.py\", line 5"},
      {"file:///home/bob/x.py and ../other/m.toml", "file://…/x.py and …/m.toml"},
      {"/home/bob, /Users/bob/, /root/x", "…, …, …/x"},
      {"ssh ann@box-17 python3", "ssh …@… python3"},
      {"no device on box-17.", "no device on …."},
      {"/tmp/a:/tmp/b", "…/a:…/b"},
  };
  for (const auto& [text, expected] : all) {
    EXPECT_EQ(kPaths.text(text), expected);
    EXPECT_EQ(kPaths.text(expected), expected) << "twice is once";
  }
}

TEST(PrivatePaths, OtherTextStays) {
  for (const char* text :
       {"exec:/usr/bin/python3 engine.py", "scale@dense1/kernel.grad,magnitude=1.5",
        "|T - R| / |R|", "12 of 256 elements, 1/8 of them", "https://github.com/acme/repo/issues/3",
        "a // comment", "and/or", "jit(step)/jit(main)/dot_general", "channel ann of the banner",
        "12 GB/s", "0x3f800000", "~0.5 of it", "/", "/ ", "…/x", "GANs: u/2", "./sub/m.toml",
        "box-170"})
    EXPECT_EQ(kPaths.text(text), text);
}

TEST(PrivatePaths, OfWholePathsAndWordsOfEngines) {
  EXPECT_EQ(kPaths.path("/data/my set/x.npz"), "…/x.npz");
  EXPECT_EQ(kPaths.path("/home/ann/my project/data"), "data");
  EXPECT_EQ(kPaths.path("/home/ann/my project"), ".");
  EXPECT_EQ(kPaths.path("/home/ann/my project/../x"), "…/x");
  EXPECT_EQ(kPaths.path("data/x"), "data/x");
  EXPECT_EQ(kPaths.path(""), "");
  EXPECT_EQ(kPaths.engine("exec:/usr/bin/python3 '/home/ann/my engine.py' --data=/data/x -v"),
            "exec:/usr/bin/python3 \"…/my engine.py\" --data=…/x -v");
  EXPECT_EQ(kPaths.engine("exec:run --on box-17 ann@box-17"), "exec:run --on box-17 …@…");
  EXPECT_EQ(kPaths.engine("cpu"), "cpu");
}

// What a replay makes of a command line whose folders were left out.
TEST(PrivatePaths, AReplayFindsProgramsByTheirName) {
  const std::vector<EngineFile> files = {{"…/engine.py", "engine/engine.py"}};
  const std::string command = "exec:…/python3 …/engine.py --data=…/x ./here";
  EXPECT_EQ(engine_from(command, files, {}, "work"),
            "exec:python3 work/engine/engine.py --data=x ./here");
}

TEST(PrivatePaths, OfAReportAndAScenario) {
  Report r;
  r.command = "twinrun diagnose /home/ann/model.toml";
  r.directory = "/data/runs/results";
  r.findings = {{}};
  r.findings[0].op = "dense1/kernel.grad";
  r.findings[0].reproduce = r.command;
  r.notes = {"the engine said: no /home/ann/weights.bin"};
  r.asked.subject = "exec:python3 /home/ann/engine.py";
  r.asked.files = {{"program", "/home/ann/step.mlir"}};
  const std::string text = to_json(kPaths.report(r));
  EXPECT_EQ(text.find("ann"), std::string::npos) << text;
  EXPECT_EQ(text.find("/data"), std::string::npos) << text;
  EXPECT_NE(text.find("\"op\": \"dense1/kernel.grad\""), std::string::npos);
  EXPECT_NE(text.find("exec:python3 …/engine.py"), std::string::npos);
  Scenario s;
  s.data.dir = "/data/mnist";
  s.data.files = {"/data/mnist/a.npz", "b.npz"};
  EXPECT_EQ(kPaths.scenario(s).data.dir, "…/mnist");
  EXPECT_EQ(kPaths.scenario(s).data.files, (std::vector<std::string>{"…/a.npz", "b.npz"}));
}

}  // namespace
}  // namespace twinrun
