// Tests gates as JUnit XML, JSON lines and text. Python's XML parser reads the XML where Python is
// installed.
#include "reports/gate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/folder.h"

namespace twinrun {
namespace {

Gate divergence() {
  Gate g;
  g.golden = "goldens/<\"a&b'>\x01\xff\xef\xbf\xbf.golden.h5";
  g.scenario = "digits_mlp";
  g.engine = "tpu";
  g.settings = "cores=8";
  g.decides = "bits";
  g.outcome = GateOutcome::kDiverged;
  g.headline = "Bits moved, first in a<b at step 5.";
  g.divergence = GateSite{5, "dense1/kernel.grad", 3, "digest 1", "digest ]]> 2"};
  g.noise = Gate::Noise{
      .inside = false, .ratio = 1e300, .threshold = 6, .false_alarm = 1e-6, .states = 4};
  g.noise->outside = g.divergence;
  g.notes = {"a\nb"};
  g.changed = {"isa: avx2, now scalar"};
  g.seconds = 1.5;
  return g;
}

std::vector<Gate> all() {
  std::vector<Gate> gates;
  for (const GateOutcome outcome :
       {GateOutcome::kSame, GateOutcome::kInside, GateOutcome::kDiverged, GateOutcome::kUnavailable,
        GateOutcome::kBadInput, GateOutcome::kInterrupted}) {
    gates.push_back(divergence());
    gates.back().outcome = outcome;
  }
  return gates;
}

TEST(Gate, TheWorstDecidesTheExitCode) {
  EXPECT_EQ(exit_code(std::vector<Gate>{}), 0);
  std::vector<Gate> gates = all();
  for (const int code : {130, 128, 125, 1, 0, 0}) {
    EXPECT_EQ(exit_code(gates), code);
    gates.pop_back();
  }
}

TEST(Gate, AJsonLineIsOneLineAndOneObject) {
  const std::string line = to_json_line(divergence());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto j = nlohmann::json::parse(line);
  EXPECT_EQ(j["schema"], 1);
  EXPECT_EQ(j["outcome"], "moved");
  EXPECT_EQ(j["exit_code"], 1);
  EXPECT_EQ(j["moved"]["step"], 5);
  EXPECT_EQ(j["moved"]["core"], 3);
  EXPECT_EQ(j["noise"]["inside"], false);
  Gate same;
  const auto k = nlohmann::json::parse(to_json_line(same));
  EXPECT_TRUE(k["moved"].is_null());
  EXPECT_TRUE(k["noise"].is_null());
}

TEST(Gate, TextNamesStepTensorAndCore) {
  const std::string text = to_terminal(divergence());
  for (const char* part : {"MOVED", "step 5, dense1/kernel.grad, core 3", "isa: avx2, now scalar",
                           "one conforming engine in 1,000,000"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// CI servers use an XML parser, so counts, attributes and nesting must be right as a parser reads
// them.
TEST(Gate, JunitIsWhatAParserReads) {
  if (access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "no /usr/bin/python3 to read XML with";
  const Folder folder;
  const std::string path = folder / "gates.xml";
  std::ofstream(path, std::ios::binary) << to_junit(all());
  const std::string command =
      "/usr/bin/python3 -c \"\nimport sys, xml.etree.ElementTree as e\n"
      "r = e.parse(sys.argv[1]).getroot(); s = r[0]\n"
      "print(r.tag, s.tag, *(s.get(k) for k in ('tests', 'failures', 'errors', 'skipped')))\n"
      "print(*(c.tag + ':' + ','.join(x.tag for x in c) for c in s))\n"
      "c = s[2]\nprint(c.get('classname'), c.get('time'))\n"
      "print(ascii(c.get('name')))\n"
      "print(c[0].get('type'), c[0].get('message'))\n"
      "print(']]> 2' in c[0].text, len(c[0].text.splitlines()) > 5)\n\" " +
      path + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.append(buffer.data(), n);
  EXPECT_EQ(pclose(pipe), 0);
  std::remove(path.c_str());
  EXPECT_EQ(out,
            "testsuites testsuite 6 1 2 1\n"
            "testcase:system-out testcase:system-out testcase:failure testcase:error "
            "testcase:error testcase:skipped\n"
            "twinrun.digits_mlp 1.500\n"
            "'goldens/<\"a&b\\'>\\ufffd\\ufffd\\ufffd.golden.h5'\n"
            "moved Bits moved, first in a<b at step 5.\n"
            "True True\n");
}

}  // namespace
}  // namespace twinrun
