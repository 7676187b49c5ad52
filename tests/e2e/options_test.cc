// Tests of options that stand in no other test of the command line, and that no option is left out.
#include <regex>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

std::string all_tests() {
  std::string text;
  for (const auto& entry : fs::recursive_directory_iterator(TWINRUN_SOURCE_DIR "/tests")) {
    const std::string ending = entry.path().extension().string();
    if (entry.is_regular_file() && (ending == ".cc" || ending == ".py"))
      text += read_text(entry.path());
  }
  return text;
}

TEST(Options, EachIsNamedByATest) {
  const Folder folder;
  const std::string tests = all_tests();
  const auto words_in = [&](Words words, const std::string& pattern) {
    words.push_back("--help");
    const std::string text = twinrun(folder, words).out;
    const std::regex row(pattern);
    Words out;
    for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
      out.push_back((*it)[1]);
    return out;
  };
  std::vector<Words> verbs;
  for (const std::string& verb : words_in({}, "\n  ([a-z]+) +[a-z]")) {
    if (verb != "twinrun") verbs.push_back({verb});
  }
  ASSERT_EQ(verbs.size(), 15u);
  for (const std::string& axis : words_in({"bisect"}, "\n  ([a-z]+) +[a-z]")) {
    if (axis != "twinrun") verbs.push_back({"bisect", axis});
  }
  size_t count = 0;
  for (const Words& verb : verbs) {
    for (const std::string& option : words_in(verb, "\n  (?:-[a-z] \\[ )?(--[a-z-]+)")) {
      ++count;
      EXPECT_NE(tests.find("\"" + option + "\""), std::string::npos)
          << verb.back() << " " << option << " is in no test";
    }
  }
  EXPECT_GT(count, 150u);
}

class OnSmall : public testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "small.toml", R"(data = { train = 32, eval = 16 }
model.layers = [{ kind = "flatten" }, { kind = "dense", units = 10 }]
optimizer = { kind = "sgd", lr = 0.05 }
train = { batch = 8, steps = 6 }
tpu.cores = 2
)");
  }
  Outcome run(const Words& words, int code) {
    const Outcome o = twinrun(folder_, words);
    EXPECT_EQ(o.code, code) << o.out.substr(0, 2000) << o.err;
    return o;
  }
  Folder folder_;
};

// Each arm of a comparison has its own cores and keys.
TEST_F(OnSmall, ArmsOfAComparison) {
  const auto compare = [&](const Words& more, int code) {
    return json_of(run(with({"compare", "small.toml", "--a", "cpu", "--b", "cpu", "--seeds", "3",
                             "--json", "-q"},
                            more),
                       code)
                       .out);
  };
  EXPECT_EQ(compare({"--a-cores", "1", "--b-cores", "1"}, 0)["outcome"], "identical");
  const auto other =
      compare({"--a-cores", "1", "--b-cores", "2", "--a-set", "optimizer.lr=0.5"}, 0);
  EXPECT_NE(other["outcome"], "identical") << other;
  EXPECT_EQ(other["a"]["asked"], "cpu --a-cores 1 --a-set optimizer.lr=0.5");
  EXPECT_TRUE(other["b"]["settings"].get<std::string>().starts_with("cores=2")) << other;
}

TEST_F(OnSmall, ColumnsOfCurves) {
  write_text(folder_ / "a.csv", "step,train_loss,other\n0,1.5,3\n1,1.25,4\n");
  write_text(folder_ / "b.csv", "step,cost\n0,1.5\n1,1.25\n");
  run({"diff", "a.csv", "b.csv", "--column", "train_loss", "--column-b", "cost"}, 0);
  run({"diff", "a.csv", "b.csv", "--column", "other", "--column-b", "cost"}, 1);
}

TEST_F(OnSmall, FilesOfRuns) {
  run({"train", "small.toml", "-q", "-o", "r.h5"}, 0);
  run({"train", "small.toml", "-q", "-o", "t.h5", "--fault", "scale@dense1/kernel.grad,step=3"}, 0);
  run({"diff", "r.h5", "r.h5", "--verify"}, 0);
  run({"diff", "r.h5", "t.h5", "--verify"}, 1);
  const auto scanned =
      run({"bisect", "step", "t.h5", "--b", "cpu", "--cores", "1", "--scan", "--json", "-q"}, 0);
  EXPECT_EQ(json_of(scanned.out)["step"], 3) << scanned.out;
}

TEST_F(OnSmall, ACureIsTrained) {
  const Words words = {"diagnose", "small.toml", "--set", "loss.reduction=sum", "--cure", "--json",
                       "-q",       "-o",         "out"};
  // That the reference learns too little to say whether it matters is no obstacle.
  const auto report = json_of(run(words, 10).out);
  ASSERT_FALSE(report["cures"].empty());
  EXPECT_TRUE(fs::exists(folder_ / "out/runs/U.h5"));
}

TEST_F(OnSmall, ABundleIsReducedOrNot) {
  run({"diagnose", "small.toml", "--quick", "--fault", "scale@dense1/kernel.grad,from=2", "-q",
       "-o", "out"},
      20);
  const auto packed = [&](const Words& more) {
    return json_of(run(with({"bundle", "out", "-o", "f.zip", "-q", "--json"}, more), 0).out);
  };
  EXPECT_TRUE(packed({"--no-reduction"})["reduction"].empty());
  EXPECT_FALSE(packed({"--reduction"})["reduction"].empty());
  run({"replay", "f.zip", "-q", "--data", "."}, 0);
}

}  // namespace
}  // namespace twinrun::e2e
