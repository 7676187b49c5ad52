// Tests that `twinrun_dev serve` reads and writes plain files of its session folder only, whatever the
// names in its requests are.
#include "harness/doctor/serve.h"

#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backends/exec/arrays.h"
#include "backends/exec/messages.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/safetensors.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A session folder that holds a program and all that its first step needs, inside a folder whose
// other files must be left alone.
class ServedFolder : public testing::Test {
 protected:
  ServedFolder() {
    fs::create_directory(session());
    const Experiment e = tiny::experiment(tiny::kDense, {{"train.steps", "1"}});
    const Program program = e.whole();
    put("program-1.json", exec::program_json(program, resolved_toml(e.scenario)));
    ArrayFile state, inputs;
    const States states = initial_states(e, program);
    for (size_t i = 0; i < program.state.size(); ++i)
      exec::add_arrays(state, "state/" + program.state[i].name, {&states[0].vars[i], 1});
    StepFeed feed(e, program);
    const StepInputs fed = tiny::must(feed.inputs(0));
    for (size_t i = 0; i < program.inputs.size(); ++i)
      exec::add_arrays(inputs, "input/" + program.inputs[i].name, {&fed[0][i], 1});
    put("state-0.safetensors", text_of(state));
    put("inputs-0.safetensors", text_of(inputs));
  }

  static std::string text_of(const ArrayFile& file) {
    const auto bytes = tiny::must(to_safetensors(file, "f"));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string session() const { return folder_ / "session"; }
  std::string of_session(const std::string& name) const { return session() + "/" + name; }
  void put(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(write_file_atomically(of_session(name), text).ok());
  }

  // The reply to the last of these requests.
  json reply(const std::vector<json>& requests) const {
    std::string lines;
    for (const json& request : requests) lines += request.dump() + "\n";
    std::istringstream in(lines);
    std::ostringstream out;
    EXPECT_TRUE(serve({"cpu", session(), 1, {}}, in, out).ok());
    std::istringstream replies(out.str());
    std::string last;
    for (std::string line; std::getline(replies, line);) last = line;
    return json::parse(last);
  }
  json step(const std::string& result, const json& changes = json::object()) const {
    json request = {{"do", "step"},
                    {"program", "program-1.json"},
                    {"step", 0},
                    {"inputs", "inputs-0.safetensors"},
                    {"state", "state-0.safetensors"},
                    {"result", result}};
    request.update(changes);
    return reply({{{"do", "prepare"}, {"program", "program-1.json"}}, request});
  }

  Folder folder_;
};

void expect_refused(const json& reply, const std::string& why) {
  ASSERT_TRUE(reply.contains("error")) << reply;
  EXPECT_NE(reply["error"].get<std::string>().find(why), std::string::npos) << reply;
}

TEST_F(ServedFolder, AStepIsAnsweredWithAFileOfTheFolder) {
  EXPECT_EQ(step("result-0")["result"], "result-0.safetensors");
  const std::string first = content(of_session("result-0.safetensors"));
  EXPECT_FALSE(first.empty());
  // A plain file is replaced, and what else has its inode keeps its content.
  fs::create_hard_link(of_session("result-0.safetensors"), folder_ / "kept");
  put("state-0.safetensors", first);
  EXPECT_EQ(step("result-0")["result"], "result-0.safetensors");
  EXPECT_NE(content(of_session("result-0.safetensors")), first);
  EXPECT_EQ(content(folder_ / "kept"), first);
}

TEST_F(ServedFolder, AResultOutsideOfTheFolderIsRefused) {
  for (const std::string& name : {std::string("../evil"), folder_ / "evil", std::string("a/evil"),
                                  std::string("..\0/evil", 8)}) {
    expect_refused(step(name), "is not a file of the session folder");
    EXPECT_FALSE(fs::exists(folder_ / "evil.safetensors"));
  }
}

TEST_F(ServedFolder, AResultIsNotWrittenThroughALink) {
  std::ofstream(folder_ / "precious") << "kept";
  fs::create_symlink(folder_ / "precious", of_session("result-0.safetensors"));
  expect_refused(step("result-0"), "is a link");
  EXPECT_EQ(content(folder_ / "precious"), "kept");
  fs::create_symlink(folder_ / "missing", of_session("result-1.safetensors"));
  expect_refused(step("result-1"), "is a link");
  EXPECT_FALSE(fs::exists(folder_ / "missing"));
  ASSERT_EQ(::mkfifo(of_session("result-2.safetensors").c_str(), 0600), 0);
  expect_refused(step("result-2"), "is not a plain file");
}

TEST_F(ServedFolder, NothingIsReadFromOutsideOfTheFolder) {
  fs::copy(of_session("program-1.json"), folder_ / "program-2.json");
  fs::copy(of_session("state-0.safetensors"), folder_ / "state-2.safetensors");
  fs::create_symlink(folder_ / "program-2.json", of_session("program-3.json"));
  fs::create_symlink(folder_ / "state-2.safetensors", of_session("state-3.safetensors"));
  ASSERT_EQ(::mkfifo(of_session("program-4.json").c_str(), 0600), 0);
  const auto prepared = [&](const std::string& name) {
    return reply({{{"do", "prepare"}, {"program", name}}});
  };
  expect_refused(prepared("../program-2.json"), "is not a file of the session folder");
  expect_refused(prepared(folder_ / "program-2.json"), "is not a file of the session folder");
  expect_refused(prepared("program-3.json"), "is a link");
  expect_refused(prepared("program-4.json"), "is not a plain file");
  expect_refused(step("result-0", {{"state", "../state-2.safetensors"}}),
                 "is not a file of the session folder");
  expect_refused(step("result-0", {{"state", "state-3.safetensors"}}), "is a link");
}

TEST_F(ServedFolder, TheTextOfAnImportedProgramIsReadFromTheFolderOnly) {
  json program = json::parse(content(of_session("program-1.json")));
  std::ofstream(folder_ / "step.mlir") << "module {}";
  program["step"] = {{"stablehlo", "../step.mlir"}, {"results", json::array()}};
  put("program-5.json", program.dump());
  expect_refused(reply({{{"do", "prepare"}, {"program", "program-5.json"}}}),
                 "is not a file of the session folder");
}

// A program that could not be prepared must not be stepped.
TEST_F(ServedFolder, AStepOfAProgramThatFailedIsRefused) {
  json program = json::parse(content(of_session("program-1.json")));
  program["scenario"] = "[[[";
  put("program-6.json", program.dump());
  expect_refused(reply({{{"do", "prepare"}, {"program", "program-6.json"}},
                        {{"do", "step"}, {"program", "program-6.json"}, {"step", 0}}}),
                 "no such program was prepared");
}

}  // namespace
}  // namespace twinrun
