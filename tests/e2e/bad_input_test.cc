// Tests that wrong input ends with exit code 128 and a message that says where, what was found,
// what is allowed and how to fix it, and that nothing is written. Cases that are plain text are in
// tests/cases/cli/*.case; cases that need binary files are below.
#include <fmt/format.h>

#include <algorithm>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

struct Case {
  Words args, says;
  std::map<std::string, std::string> files;
  int exit = 128;
};

// Sections of a case file: "=== args" has one argument per line, "=== file NAME" the content of a
// file, "=== says" the expected parts of the message, one per line, "=== exit N" the exit code.
Case read_case(const fs::path& path) {
  Case c;
  std::string part, line;
  std::ifstream in(path);
  while (std::getline(in, line)) {
    if (line.starts_with("=== exit ")) {
      c.exit = std::stoi(line.substr(9));
    } else if (line.starts_with("=== ")) {
      part = line.substr(4);
    } else if (part == "args") {
      c.args.push_back(line);
    } else if (part == "says") {
      c.says.push_back(line);
    } else if (part.starts_with("file ")) {
      c.files[part.substr(5)] += line + "\n";
    }
  }
  return c;
}

void expect_refused(const Folder& folder, const Words& args, const Words& says, int exit = 128) {
  const auto before = folder.entries();
  const Outcome o = twinrun(folder, args);
  EXPECT_EQ(o.code, exit) << o.err;
  EXPECT_EQ(o.signal, 0);
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(o.err.starts_with("twinrun: ")) << o.err;  // it comes before any progress output
  for (const std::string& part : says) EXPECT_TRUE(o.says(part)) << part << "\nin\n" << o.err;
  const auto fix = {"fix:", "allowed", "did you mean", "known:", "library scenarios:"};
  EXPECT_TRUE(std::ranges::any_of(fix, [&](const char* word) { return o.says(word); })) << o.err;
  EXPECT_EQ(folder.entries(), before) << "something was written";
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(TWINRUN_SOURCE_DIR "/tests/cases/cli")) {
    if (entry.path().extension() == ".case") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

class BadInput : public testing::TestWithParam<std::string> {};

TEST_P(BadInput, SaysWhatWhereAndHowToFix) {
  const Case c = read_case(TWINRUN_SOURCE_DIR "/tests/cases/cli/" + GetParam() + ".case");
  ASSERT_FALSE(c.says.empty());
  const Folder folder;
  for (const auto& [name, text] : c.files) write_text(folder / name, text);
  expect_refused(folder, c.args, c.says, c.exit);
}

INSTANTIATE_TEST_SUITE_P(Cases, BadInput, testing::ValuesIn(case_names()),
                         [](const auto& info) { return info.param; });

// ---- IDX files

std::string big_endian(uint32_t n) {
  return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
          static_cast<char>(n)};
}
std::string idx_images(uint32_t count) {
  return big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28) +
         std::string(size_t{count} * 28 * 28, '\x40');
}
std::string idx_labels(uint32_t count) {
  std::string labels;
  for (uint32_t i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
  return big_endian(0x801) + big_endian(count) + labels;
}

struct IdxFolder : Folder {
  IdxFolder() {
    ::mkdir((*this / "mnist").c_str(), 0700);
    write_text(*this / "mnist/t10k-images-idx3-ubyte", idx_images(600));
    write_text(*this / "mnist/t10k-labels-idx1-ubyte", idx_labels(600));
  }
};
const Words kIdx = {"diagnose", "mnist_quick", "--set", "data.dir=mnist", "-o", "out"};

// The control: the same folder without damage is accepted.
TEST(BadIdx, GoodFilesAreTaken) {
  const IdxFolder folder;
  const Outcome o = twinrun(folder, {"inspect", "mnist_quick", "--set", "data.dir=mnist"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("idx")) << o.out;
}

TEST(BadIdx, Truncated) {
  const IdxFolder folder;
  fs::resize_file(folder / "mnist/t10k-images-idx3-ubyte", 100'000);
  expect_refused(folder, kIdx,
                 {"t10k-images-idx3-ubyte", "470400", "99984", "download the file again"});
}

TEST(BadIdx, EmptyFile) {
  const IdxFolder folder;
  write_text(folder / "mnist/t10k-labels-idx1-ubyte", "");
  expect_refused(folder, kIdx, {"t10k-labels-idx1-ubyte"});
}

TEST(BadIdx, LabelsGivenAsImages) {
  const IdxFolder folder;
  expect_refused(folder,
                 {"diagnose", "mnist_quick", "-o", "out", "--set",
                  "data.files=[\"t10k-labels-idx1-ubyte\", \"t10k-images-idx3-ubyte\"]", "--set",
                  "data.dir=mnist"},
                 {"t10k-labels-idx1-ubyte", "holds labels; expected images", "swap the two"});
}

TEST(BadIdx, FewerLabelsThanImages) {
  const IdxFolder folder;
  write_text(folder / "mnist/t10k-labels-idx1-ubyte", idx_labels(599));
  expect_refused(folder, kIdx, {"600", "599"});
}

// ---- checkpoints

const Words kBriefly = {"--set",          "train.steps=4", "--set",
                        "data.train=128", "--set",         "data.eval=32"};

class BadCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(
        twinrun(folder_, with({"train", "digits_mlp", "--snapshot", "-o", "mlp.h5"}, kBriefly))
            .code,
        0);
  }
  void expect_train_refused(const std::string& scenario, const std::string& option,
                            const std::string& file, const Words& says) {
    expect_refused(
        folder_,
        with({"train", scenario, option, file, "-o", "run.h5", "--threads", "1"}, kBriefly), says);
  }
  // Changes the byte in the middle of the file, which lies in the data of the first kernel.
  void flip_a_byte() {
    std::string bytes = read_text(folder_ / "mlp.h5");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    write_text(folder_ / "mlp.h5", bytes);
  }
  Folder folder_;
};

// The control: an undamaged checkpoint is accepted, and training from it equals training from the
// seed.
TEST_F(BadCheckpoint, GoodOneIsTaken) {
  const Words train = with({"train", "digits_mlp", "--json", "-q", "--threads", "1"}, kBriefly);
  const auto from_seed = json_of(twinrun(folder_, with(train, {"-o", "a.h5"})).out);
  const auto from_file =
      json_of(twinrun(folder_, with(train, {"-o", "b.h5", "--init", "mlp.h5"})).out);
  EXPECT_EQ(from_seed["root_digest"], from_file["root_digest"]);
  const auto resumed =
      json_of(twinrun(folder_, with(train, {"-o", "c.h5", "--resume", "mlp.h5"})).out);
  EXPECT_EQ(from_seed["state_digest"], resumed["state_digest"]);
}

TEST_F(BadCheckpoint, OfAnotherModel) {
  expect_train_refused("litmus_dropout", "--init", "mlp.h5",
                       {"mlp.h5", "dense1/", "belongs to another model"});
  expect_train_refused("litmus_dropout", "--resume", "mlp.h5", {"mlp.h5", "another scenario"});
}

TEST_F(BadCheckpoint, FlippedByteNamesTheTensor) {
  flip_a_byte();
  for (const char* option : {"--init", "--resume"}) {
    expect_train_refused("digits_mlp", option, "mlp.h5", {"mlp.h5", "dense1/kernel", "damaged"});
  }
}

TEST_F(BadCheckpoint, TruncatedForeignOrMissing) {
  fs::resize_file(folder_ / "mlp.h5", 5000);
  expect_train_refused("digits_mlp", "--init", "mlp.h5", {"mlp.h5"});
  write_text(folder_ / "text.h5", "not HDF5 at all\n");
  expect_train_refused("digits_mlp", "--resume", "text.h5", {"text.h5"});
  expect_train_refused("digits_mlp", "--resume", "none.h5", {"none.h5"});
}

TEST_F(BadCheckpoint, ResumeOfWhatIsOver) {
  const Words train = with({"train", "digits_mlp", "-q", "--threads", "1"}, kBriefly);
  ASSERT_EQ(twinrun(folder_, with(train, {"-o", "done.h5"})).code, 0);
  expect_train_refused("digits_mlp", "--resume", "done.h5", {"after step 4", "ends at 4"});
}

// ---- paths that cannot be written

TEST(BadPlace, FolderThatDoesNotExistIsMade) {
  const Folder folder;
  const Words snapshot = {"train", "digits_mlp", "--snapshot", "-o", "none/at/all/init.h5"};
  EXPECT_EQ(twinrun(folder, snapshot).code, 0);
  EXPECT_TRUE(fs::exists(folder / "none/at/all/init.h5"));
}

TEST(BadPlace, FileWhereAFolderIsExpected) {
  const Folder folder;
  write_text(folder / "file", "x");
  expect_refused(folder, {"diagnose", "digits_mlp", "-o", "file"}, {"file"});
  expect_refused(folder, {"diagnose", "digits_mlp", "-o", "file/out"}, {"file"});
  expect_refused(folder, {"train", "digits_mlp", "-o", "file/run.h5"}, {"file"});
  EXPECT_EQ(read_text(folder / "file"), "x");
}

TEST(BadPlace, FolderWhereAFileIsExpected) {
  const Folder folder;
  ::mkdir((folder / "run.h5").c_str(), 0700);
  expect_refused(folder, {"train", "digits_mlp", "-o", "run.h5"}, {"run.h5", "folder"});
}

// The kernel refuses to create files in /proc, even for root.
TEST(BadPlace, FolderOfTheKernel) {
  const Folder folder;
  expect_refused(folder, {"diagnose", "digits_mlp", "-o", "/proc/twinrun"}, {"/proc/twinrun"});
  expect_refused(folder, {"train", "digits_mlp", "-o", "/proc/run.h5"}, {"/proc"});
}

// A disk that is full after 20 KB gives an error with the path, and leaves the previous file
// intact. The file size limit stands in for the full disk.
TEST(BadPlace, DiskFullKeepsTheGoodFile) {
  const Folder folder;
  ASSERT_EQ(twinrun(folder, {"train", "litmus_nan", "--snapshot", "-o", "init.h5"}).code, 0);
  const std::string good = read_text(folder / "init.h5");
  const auto small_files = [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  for (const Words& words : {Words{"train", "digits_mlp", "--snapshot", "-o", "init.h5"},
                             Words{"train", "digits_mlp", "-o", "init.h5", "-q", "--threads", "1",
                                   "--set", "train.steps=2"}}) {
    Process process(folder, words, {}, small_files);
    const Outcome o = process.finish();
    EXPECT_EQ(o.code, 128) << o.err;
    EXPECT_EQ(o.signal, 0);
    EXPECT_TRUE(o.says("init.h5")) << o.err;
    EXPECT_EQ(read_text(folder / "init.h5"), good);
    EXPECT_EQ(folder.entries(), (std::set<std::string>{"init.h5"}));
  }
}

// Output may still be in a buffer when the verb ends, so the final flush must be checked, too.
TEST(BadPlace, FullDiskBehindARedirection) {
  const Folder folder;
  const auto full = [] {
    const int fd = ::open("/dev/full", O_WRONLY);
    ::dup2(fd, STDOUT_FILENO);
  };
  for (const Words& words :
       {Words{"inspect"}, Words{"inspect", "digits_cnn", "--ops"}, Words{"--version"}}) {
    const Outcome o = Process(folder, words, {}, full).finish();
    EXPECT_EQ(o.code, 128) << words[0];
    EXPECT_TRUE(o.says("standard output: cannot write: No space left")) << o.err;
  }
}

// If stderr cannot be written, progress is lost, but the run completes and is saved.
TEST(BadPlace, ProgressThatCannotBeWritten) {
  const auto full = [] { ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO); };
  const auto closed = [] { ::close(STDERR_FILENO); };
  for (const std::function<void()>& prepare : {std::function<void()>(full), {closed}}) {
    const Folder folder;
    const Words train{"train", "litmus_nan", "--set", "train.steps=2", "-v", "-o", "run.h5"};
    EXPECT_EQ(Process(folder, train, {}, prepare).finish().code, 0);
    EXPECT_TRUE(fs::exists(folder / "run.h5"));
    const Outcome refused = Process(folder, {"train", "nosuch"}, {}, prepare).finish();
    EXPECT_EQ(refused.code, 128);
    EXPECT_EQ(refused.signal, 0);
  }
}

TEST(BadPlace, FolderInUse) {
  const Folder folder;
  Process first(folder, {"diagnose", "digits_mlp", "--threads", "1", "-o", "out"});
  ASSERT_TRUE(first.wait_for(folder / "out/runs/R.h5"));
  const Outcome second = twinrun(folder, {"diagnose", "digits_mlp", "-o", "out"});
  EXPECT_EQ(second.code, 128);
  EXPECT_TRUE(second.says("another twinrun is running")) << second.err;
  first.kill(SIGINT);
  EXPECT_EQ(first.finish().code, 130);
}

// A scenario may come from another person, so its name must not lead out of the results folder.
TEST(BadPlace, NameOfAScenarioChoosesNoFolder) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"diagnose", "litmus_nan", "--quick", "-q", "--set",
                                     "name=\"../x\"", "--set", "train.steps=2"});
  EXPECT_NE(o.code, 128) << o.err;
  for (const std::string& entry : folder.entries())
    EXPECT_TRUE(entry.starts_with("twinrun-results"));
  EXPECT_FALSE(folder.entries().empty());
}

TEST(BadPlace, FullFileSystem) {
  const Folder folder;
  ::mkdir((folder / "disk").c_str(), 0700);
  const std::string mount = "mount -t tmpfs -o size=64k tmpfs " + folder / "disk" + " 2>/dev/null";
  if (std::system(mount.c_str()) != 0) GTEST_SKIP() << "mounting a small tmpfs is not allowed here";
  const Outcome o = twinrun(folder, {"diagnose", "digits_mlp", "-q", "-o", "disk/out"});
  EXPECT_EQ(o.code, 128) << o.err;
  EXPECT_TRUE(o.says("disk/out")) << o.err;
  EXPECT_TRUE(o.says("No space left")) << o.err;
  EXPECT_FALSE(fs::exists(folder / "disk/out/report.json"));
  EXPECT_EQ(std::system(("umount " + folder / "disk").c_str()), 0);
}

// Somebody holds the pipe open, so opening it would succeed and reading would wait for ever.
TEST(BadPlace, PipeWhereAScenarioIsExpected) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const int writer = ::open((folder / "pipe").c_str(), O_RDWR | O_CLOEXEC);
  for (const char* verb : {"inspect", "train", "check", "diagnose"})
    expect_refused(folder, {verb, "pipe"}, {"pipe: is not a regular file"});
  ::close(writer);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Without the check the system kills the process in the middle of the first step.
TEST(BadEnvironment, MoreMemoryThanIsLeftIsRefusedBeforeTheFirstStep) {
  const auto limited = [] {
    const rlimit limit{600'000'000, 600'000'000};
    ::setrlimit(RLIMIT_AS, &limit);
  };
  for (const Words& words :
       {Words{"train", "gpt_synthetic", "-q", "--threads", "1", "-o", "run.h5"},
        Words{"diagnose", "gpt_synthetic", "-q", "--threads", "1", "-o", "out"}}) {
    const Folder folder;
    const Outcome o =
        Process(folder, with(words, {"--set", "train.batch=16384", "--set", "data.train=16384"}),
                {}, limited)
            .finish();
    EXPECT_EQ(o.code, 128) << o.err;
    for (const char* part : {"needs", "values of a step with 16384 samples", "left of ulimit -v",
                             "lower train.batch (16384)"})
      EXPECT_TRUE(o.says(part)) << o.err;
    EXPECT_FALSE(fs::exists(folder / "run.h5"));
    EXPECT_FALSE(fs::exists(folder / "out/report.json"));
  }
}
#endif

// As many ops as are allowed take some seconds. Where the cost grows by their square they take
// minutes, and the system ends the process at its limit of processor time.
TEST(BadEnvironment, ManyOpsTakeSecondsAndNotMinutes) {
  const Folder folder;
  std::string text = "HloModule many\nENTRY main {\n  a0 = f32[8] parameter(0)\n";
  constexpr int kOps = 149'000;
  for (int i = 1; i < kOps; ++i)
    text += fmt::format("  a{} = f32[8] add(a{}, a{})\n", i, i - 1, (i - 1) / 2);
  text += fmt::format(
      "  w = f32[8] subtract(a0, a{0})\n"
      "  d = f32[] dot(a{0}, a0), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}\n"
      "  ROOT out = (f32[8], f32[]) tuple(w, d)\n}}\n",
      kOps - 1);
  write_text(folder / "many.hlo", text);
  const auto limited = [] {
    const rlimit limit{60, 60};
    ::setrlimit(RLIMIT_CPU, &limit);
  };
  const Outcome o = Process(folder, {"check", "--program", "many.hlo"}, {}, limited).finish();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("0 errors")) << o.out << o.err;
  EXPECT_FALSE(o.prints("not imported")) << o.out;
}

// A soft limit of the stack is raised, for threads too; a hard one is an error and not a crash.
TEST(BadEnvironment, ASmallStack) {
  const Folder folder;
  const Words train = {"train",     "drill_mlp", "--set", "train.steps=2", "-q",
                       "--threads", "3",         "-o",    "run.h5"};
  const auto limited = [](rlim_t hard) {
    return [hard] {
      const rlimit limit{64 << 10, hard};
      ::setrlimit(RLIMIT_STACK, &limit);
    };
  };
  EXPECT_EQ(Process(folder, train, {}, limited(8 << 20)).finish().code, 0);
  const Outcome o = Process(folder, train, {}, limited(64 << 10)).finish();
  EXPECT_EQ(o.code, 128) << o.signal;
  EXPECT_TRUE(o.says("the stack is limited to 65536 bytes")) << o.err;
}

TEST(BadEnvironment, UnknownInstructionSet) {
  const Folder folder;
  for (const Words& words : {Words{"doctor"}, Words{"inspect"}, Words{"--version"},
                             Words{"train", "digits_mlp", "--snapshot"}}) {
    for (const char* name : {"avx521", "AVX512", "amx-model", "avx2 "}) {
      const Outcome o = twinrun(folder, words, {{"TWINRUN_ISA", name}});
      EXPECT_EQ(o.code, 128) << words[0];
      EXPECT_EQ(o.out, "");
      const std::string start = "twinrun: TWINRUN_ISA: unknown instruction set '";
      EXPECT_TRUE(o.err.starts_with(start + name +
                                    "' (known: scalar, neon, avx2, avx512, avx512bf16, amx)"))
          << o.err;
      EXPECT_TRUE(o.says("fix: did you mean '")) << o.err;
    }
    EXPECT_TRUE(folder.entries().empty());
  }
  EXPECT_EQ(twinrun(folder, {"--help"}, {{"TWINRUN_ISA", "avx521"}}).code, 0);
  EXPECT_EQ(twinrun(folder, {"--version"}, {{"TWINRUN_ISA", ""}}).code, 0);
  const Outcome scalar = twinrun(folder, {"--version"}, {{"TWINRUN_ISA", "scalar"}});
  EXPECT_TRUE(scalar.prints("isa scalar")) << scalar.out;
}

}  // namespace
}  // namespace twinrun::e2e
