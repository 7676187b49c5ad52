// Tests `twinrun profile`: the files it writes, its JSON, and the input it rejects.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

TEST(ProfileVerb, LeavesItsFiles) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "use_tpus", "-o", "p/q", "--generation", "v3"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_NE(o.out.find("TPU v3-8, batch 200"), std::string::npos);
  EXPECT_EQ(folder.entries(), (std::set<std::string>{"p", "p/q", "p/q/profile.html",
                                                     "p/q/profile.json", "p/q/trace.json"}));
  const auto j = json_of(read_text(folder / "p/q/profile.json"));
  EXPECT_EQ(j["scenario"], "use_tpus");
  EXPECT_GT(j["ops"].size(), 20U);
  EXPECT_GT(json_of(read_text(folder / "p/q/trace.json"))["traceEvents"].size(),
            8 * j["ops"].size());
}

TEST(ProfileVerb, JsonAlone) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "resnet50", "--json", "--set", "train.batch=512"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["batch"], 512);
  EXPECT_TRUE(j["published"].empty()) << "the published runs had 1024";
  EXPECT_TRUE(folder.entries().empty());
}

TEST(ProfileVerb, Measured) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "digits_mlp", "--measured", "--engine", "cpu",
                                     "--steps", "2", "--threads", "1", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["source"], "measured");
  EXPECT_EQ(j["steps"].size(), 2U);
}

TEST(ProfileVerb, SaysWhatIsWrong) {
  const Folder folder;
  const std::pair<Words, std::string> wrong[] = {
      {{"profile", "digits_mlp", "--generation", "v33"}, "did you mean 'v3'"},
      {{"profile", "digits_mlp", "--set", "train.batch=100"}, "100"},
      {{"profile", "digits_mlp", "--measured", "--engine", "xla"}, "cpu, tpu"},
      {{"profile", "digits_mlp", "--measured", "--steps", "0"}, "--steps"},
      {{"profile", "resnet50", "--set", "data.shape=[]"}, "data.shape"},
      {{"profile", "digits_mlp", "-o", "/dev/null/x"}, "/dev/null/x"}};
  for (const auto& [words, said] : wrong) {
    const Outcome o = twinrun(folder, words);
    EXPECT_EQ(o.code, 128) << words.back();
    EXPECT_NE(o.err.find(said), std::string::npos) << o.err;
    EXPECT_EQ(o.out, "");
  }
}

}  // namespace
}  // namespace twinrun::e2e
