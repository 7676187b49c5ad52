// Tests `twinrun diagnose MODULE --values`: exit codes, the keys of its JSON, and its text.
#include "checkpoints/container/safetensors.h"
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

NamedArray numbers(const std::string& name, const std::vector<float>& values) {
  Tensor t = Tensor::empty({DType::kF32, {static_cast<int64_t>(values.size())}});
  std::ranges::copy(values, t.as<float>().begin());
  return to_array(name, t);
}
void write_values(const Folder& folder, const std::vector<float>& result) {
  ArrayFile file;
  file.arrays = {numbers("argument/0", {1, 2, 3}), numbers("argument/1", {4, 5, 6}),
                 numbers("result/0", result)};
  const auto bytes = to_safetensors(file, "values");
  ASSERT_TRUE(bytes);
  write_text(folder / "values.safetensors",
             {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
}
constexpr const char* kModule =
    "HloModule m\nENTRY main {\n  a = f32[3]{0} parameter(0)\n  b = f32[3]{0} parameter(1)\n"
    "  p = f32[3]{0} multiply(a, b)\n  ROOT r = f32[3]{0} exponential(p)\n}\n";

TEST(JudgeModule, TellsWhatRoundingCannotExplain) {
  const Folder folder;
  write_text(folder / "m.hlo", kModule);
  const auto judge = [&](const Words& more) {
    return twinrun(folder, with({"diagnose", "m.hlo", "--values", "values.safetensors"}, more));
  };
  const std::vector<float> right = {54.59815f, 22026.465f, 65659969.0f};
  write_values(folder, right);
  Outcome o = judge({"--json"});
  EXPECT_EQ(o.code, 0) << o.err;
  nlohmann::json j = json_of(o.out);
  EXPECT_EQ(j["verdict"]["class"], "NOISE");
  EXPECT_EQ(j["answers"]["operations"]["outcome"], "yes");
  EXPECT_EQ(judge({"--precision", "highest"}).code, 0);
  EXPECT_EQ(judge({"--next", "0,-"}).code, 0);  // the result is the new value of argument 0
  EXPECT_EQ(judge({"--next", "one,-"}).code, 128);

  write_values(folder, {right[0], right[1] * 1.001f, right[2]});
  o = judge({"--json"});
  EXPECT_EQ(o.code, 20);
  j = json_of(o.out);
  EXPECT_EQ(j["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(j["details"][0]["rows"][0][3], 1);
  EXPECT_EQ(j["details"][0]["rows"][0][7], "[1]");
  o = judge({});
  EXPECT_EQ(o.code, 20);
  EXPECT_TRUE(o.prints("ENGINE_BUG")) << o.out;
  EXPECT_TRUE(o.prints("1 of 3 elements outside")) << o.out;
  EXPECT_EQ(judge({"--elementary-ulps", "100000"}).code, 0);
  // What every other kind of report can do.
  EXPECT_EQ(judge({"--fail-on", "program", "-o", "out"}).code, 0);
  for (const char* format : {"markdown", "html", "junit", "json", "csv"})
    EXPECT_EQ(twinrun(folder, {"report", "out", "--format", format, "-o", "again"}).code, 0)
        << format;
  EXPECT_NE(read_text(folder / "again/junit.xml").find("failures=\"1\""), std::string::npos);
  EXPECT_TRUE(twinrun(folder, {"report", "out", "-v"}).prints("1 of 3 elements outside"));
  ASSERT_EQ(twinrun(folder, {"bundle", "out", "-o", "f.zip"}).code, 0);
  const Outcome again = twinrun(folder, {"replay", "f.zip"});
  EXPECT_EQ(again.code, 0) << again.out;
  EXPECT_TRUE(again.prints("same       result: result 0")) << again.out;
}

TEST(JudgeModule, AResultThatIsNotThereIsNotRight) {
  const Folder folder;
  std::string two = kModule;
  two.replace(two.find("ROOT r"), 6, "r");
  two.replace(two.rfind("}"), 1, "  ROOT t = (f32[3]{0}, f32[3]{0}) tuple(r, p)\n}");
  write_text(folder / "m.hlo", two);
  write_values(folder, {54.59815f, 22026.465f, 65659969.0f});
  const Words words = {"diagnose", "m.hlo", "--values", "values.safetensors"};
  const Outcome missing = twinrun(folder, words);
  EXPECT_EQ(missing.code, 125) << missing.out << missing.err;
  EXPECT_TRUE(missing.prints("result/1 of m.hlo was not given")) << missing.out;
  write_text(folder / "m.hlo", kModule);
  ArrayFile file;
  file.arrays = {numbers("argument/0", {1, 2, 3}), numbers("argument/1", {4, 5, 6}),
                 numbers("result/0", {54.59815f, 22026.465f, 65659969.0f}),
                 numbers("result/1", {1, 1, 1})};
  const auto bytes = to_safetensors(file, "values");
  write_text(folder / "values.safetensors",
             {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  EXPECT_EQ(twinrun(folder, words).code, 128);
}

TEST(JudgeModule, RefusesWhatItCannotRead) {
  const Folder folder;
  write_values(folder, {1, 2, 3});
  write_text(folder / "m.hlo", std::string(kModule).replace(0, 9, "HloModul x"));
  const Words words = {"diagnose", "m.hlo", "--values", "values.safetensors"};
  Outcome o = twinrun(folder, words);
  EXPECT_EQ(o.code, 128);
  write_text(folder / "m.hlo", kModule);
  EXPECT_EQ(twinrun(folder, {"diagnose"}).code, 128);
  EXPECT_EQ(twinrun(folder, with(words, {"--samples", "3"})).code, 128);
  EXPECT_EQ(twinrun(folder, with(words, {"--flush", "perhaps"})).code, 128);
}

// The module of a filing proves itself: what XLA returned is outside of every bound.
TEST(JudgeModule, TheFiledModuleIsWrong) {
  const Folder folder;
  const std::string filing = TWINRUN_SOURCE_DIR "/cases/spatial_convolution/filing/";
  const Outcome o = twinrun(
      folder, {"diagnose", filing + "group.mlir", "--values", filing + "group.values.safetensors"});
  EXPECT_EQ(o.code, 20) << o.err;
  EXPECT_TRUE(o.prints("72 of 216 elements")) << o.out;
}

}  // namespace
}  // namespace twinrun::e2e
