// Tests that a diagnosis is packed as a bundle and reproduced from it; also reduced, anonymous,
// damaged and hostile bundles.
#include "harness/bundle/bundle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "checkpoints/checkpoint.h"
#include "checkpoints/container/array.h"
#include "checkpoints/container/npy.h"
#include "checkpoints/container/zip.h"
#include "harness/bundle/manifest.h"
#include "harness/bundle/own_data.h"
#include "harness/bundle/replay.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;

constexpr const char* kFault = "scale@dense2/kernel.grad,magnitude=1.5";

Scenario small(const char* model = tiny::kDense, const Overrides& overrides = {}) {
  return tiny::experiment(model, overrides).scenario;
}

Report diagnosed(const Scenario& scenario, const std::string& folder,
                 const std::vector<std::string>& faults = {kFault}) {
  DiagnoseOptions o;
  o.quick = true;
  o.directory = folder;
  for (const std::string& fault : faults) o.faults.push_back(must(parse_fault(fault)));
  return must(diagnose(scenario, o, nullptr, nullptr)).report;
}

std::vector<std::byte> file(const std::string& path) { return must(read_whole_file(path)); }

std::string_view text_of(const ZipMember& member) {
  return {reinterpret_cast<const char*>(member.bytes.data()), member.bytes.size()};
}

std::vector<ZipMember> members_of(const std::string& path) {
  return must(read_zip(file(path), path, [](const std::string&) { return true; }));
}

void write(const std::string& path, const std::vector<ZipMember>& members) {
  const auto bytes = must(to_zip(members, path));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

Result<Replay> replayed(const std::string& path, const Folder& folder, bool allow_exec = false) {
  std::filesystem::create_directory(folder / "replay");
  auto done = replay(path, {.folder = folder / "replay", .data_dir = "", .allow_exec = allow_exec},
                     nullptr, nullptr);
  std::filesystem::remove_all(folder / "replay");
  return done;
}

// One bundle of an engine bug, for the tests that only read it.
class Bundled : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new Folder;
    const Report found = diagnosed(small(), *folder_ / "results");
    ASSERT_EQ(found.verdict, VerdictClass::kEngineBug) << found.headline;
    made_ = new Bundle(must(bundle(*folder_ / "results", path(), {}, nullptr, nullptr)));
  }
  static void TearDownTestSuite() {
    delete made_;
    delete folder_;
  }
  static std::string path() { return *folder_ / "fault.zip"; }

  // The bundle with the bytes of one member changed; the digests in the manifest stay.
  std::string changed(const std::string& member, const std::function<void(ZipMember&)>& change) {
    std::vector<ZipMember> members = members_of(path());
    const auto it = std::ranges::find(members, member, &ZipMember::name);
    EXPECT_NE(it, members.end()) << member;
    change(*it);
    const std::string other = own_ / "changed.zip";
    write(other, members);
    return other;
  }
  // The bundle with another manifest that fits its members.
  std::string claiming(const std::function<void(Manifest&)>& change) {
    return changed("manifest.json", [&](ZipMember& m) {
      Manifest manifest = must(manifest_from_json(text_of(m), "test"));
      change(manifest);
      const std::string text = to_json(manifest);
      m.bytes.resize(text.size());
      std::memcpy(m.bytes.data(), text.data(), text.size());
    });
  }

  static Folder* folder_;
  static Bundle* made_;
  Folder own_;
};
Folder* Bundled::folder_ = nullptr;
Bundle* Bundled::made_ = nullptr;

TEST_F(Bundled, IsTheSmallestThatFailsAlike) {
  const Scenario& s = made_->reduced->scenario;
  EXPECT_EQ(s.train.steps, 1);
  EXPECT_EQ(s.tpu.cores, 1);
  EXPECT_EQ(s.train.batch, 1);
  EXPECT_LT(s.model.layers.size(), small().model.layers.size());
  EXPECT_EQ(made_->reduced->report.findings.front().op, "dense2/kernel.grad");
  EXPECT_LT(made_->bytes, uint64_t{1} << 20);
}

TEST_F(Bundled, IsReproduced) {
  const Replay again = must(replayed(path(), own_));
  for (const ReplayRow& row : again.rows)
    EXPECT_TRUE(row.same) << row.what << ": " << row.expected << " | " << row.found;
  EXPECT_TRUE(again.reproduced());
  EXPECT_GE(again.rows.size(), 2u + 2 * 3);  // verdict, finding, two rows each of R, R2 and T
}

TEST_F(Bundled, HasTheStatesAndItsOwnBatches) {
  for (const ZipMember& member : members_of(path())) {
    if (!member.name.ends_with(".h5")) continue;
    std::ofstream(own_ / member.name, std::ios::binary)
        .write(reinterpret_cast<const char*>(member.bytes.data()),
               static_cast<std::streamsize>(member.bytes.size()));
    EXPECT_EQ(must(read_checkpoint(own_ / member.name)).step, 0) << member.name;
  }
  const std::vector<ZipMember> members = members_of(path());
  const auto data = std::ranges::find(members, kOwnData, &ZipMember::name);
  ASSERT_NE(data, members.end());
  EXPECT_EQ(must(parse_npz(data->bytes, "data")).arrays.front().dims.front(), 1);
}

TEST_F(Bundled, EqualDiagnosesMakeEqualBytes) {
  must(bundle(*folder_ / "results", own_ / "again.zip", {}, nullptr, nullptr));
  EXPECT_EQ(file(own_ / "again.zip"), file(path()));
}

TEST_F(Bundled, AFlippedByteIsRefusedByName) {
  for (const std::string& name : made_->members) {
    if (name == "manifest.json") continue;
    const std::string other =
        changed(name, [](ZipMember& m) { m.bytes[m.bytes.size() / 2] ^= std::byte{1}; });
    const auto again = replayed(other, own_);
    ASSERT_FALSE(again) << name;
    EXPECT_NE(again.error().what.find("'" + name + "'"), std::string::npos)
        << again.error().message();
  }
}

// A flipped byte anywhere in the file gives an error or, in a time stamp for example, the same
// bundle.
TEST_F(Bundled, AnyFlippedByteOfTheFileIsRefusedOrHarmless) {
  const std::vector<std::byte> whole = file(path());
  int refused = 0;
  constexpr size_t kTries = 300;
  for (size_t i = 0; i < kTries; ++i) {
    std::vector<std::byte> bytes = whole;
    bytes[i * bytes.size() / kTries] ^= std::byte{0x10};
    std::ofstream(own_ / "flipped.zip", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    const auto opened = open_bundle(own_ / "flipped.zip");
    refused += !opened;
  }
  EXPECT_GT(refused, static_cast<int>(kTries) * 9 / 10);
}

TEST_F(Bundled, SaysWhatDiffers) {
  const auto again = must(replayed(
      claiming([](Manifest& m) { m.runs.front().root_digest = std::string(32, '0'); }), own_));
  EXPECT_FALSE(again.reproduced());
  EXPECT_EQ(std::ranges::count_if(again.rows, [](const ReplayRow& row) { return !row.same; }), 1);
}

TEST_F(Bundled, RunsNoCodeOfOthersUnasked) {
  const auto again = replayed(
      claiming([](Manifest& m) { m.asked.subject = "exec:touch /tmp/twinrun-was-here"; }), own_);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().fix.find("--allow-exec"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists("/tmp/twinrun-was-here"));
}

TEST_F(Bundled, HoldsNothingButItsMembers) {
  std::vector<ZipMember> members = members_of(path());
  members.push_back({"payload.sh", {std::byte{'x'}}, true});
  write(own_ / "more.zip", members);
  const auto more = replayed(own_ / "more.zip", own_);
  ASSERT_FALSE(more);
  EXPECT_NE(more.error().what.find("payload.sh"), std::string::npos);

  for (const std::string name : {"manifest.json", "scenario.toml", "data.npz"}) {
    std::vector<ZipMember> fewer = members_of(path());
    std::erase_if(fewer, [&](const ZipMember& m) { return m.name == name; });
    write(own_ / "fewer.zip", fewer);
    const auto less = replayed(own_ / "fewer.zip", own_);
    ASSERT_FALSE(less);
    EXPECT_NE(less.error().what.find(name), std::string::npos) << less.error().message();
  }
}

TEST_F(Bundled, ItsScenarioReadsNoFileButItsOwn) {
  const std::string other = changed("scenario.toml", [](ZipMember& m) {
    std::string text(text_of(m));
    const size_t at = text.find("\"data.npz\"");
    ASSERT_NE(at, std::string::npos);
    text.replace(at, 10, "\"../../etc/passwd\"");
    m.bytes.resize(text.size());
    std::memcpy(m.bytes.data(), text.data(), text.size());
  });
  // Adapt the manifest, so that only the path of the data is wrong.
  std::vector<ZipMember> members = members_of(other);
  Manifest manifest = must(manifest_from_json(text_of(members.front()), "test"));
  for (BundledFile& f : manifest.files) {
    if (f.name != "scenario.toml") continue;
    const auto it = std::ranges::find(members, f.name, &ZipMember::name);
    f.size = it->bytes.size();
    f.digest = digest_bytes(it->bytes.data(), it->bytes.size());
  }
  const std::string text = to_json(manifest);
  members.front().bytes.resize(text.size());
  std::memcpy(members.front().bytes.data(), text.data(), text.size());
  write(own_ / "reads.zip", members);
  const auto again = replayed(own_ / "reads.zip", own_);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().what.find("other files"), std::string::npos) << again.error().message();
}

TEST_F(Bundled, AManifestThatWasChangedIsRefused) {
  const auto flip = [](ZipMember& m) {
    const size_t at = text_of(m).find("\"root_digest\": \"") + 16;
    m.bytes[at] = m.bytes[at] == std::byte{'0'} ? std::byte{'1'} : std::byte{'0'};
  };
  const auto again = replayed(changed("manifest.json", flip), own_);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message().find("manifest.json: was changed after it was written"),
            std::string::npos)
      << again.error().message();
  const auto older = [&](ZipMember& m) {
    std::string text(text_of(m));
    text.erase(text.rfind(",\n \"checksum\""));
    text += "\n}\n";
    m.bytes.resize(text.size());
    std::memcpy(m.bytes.data(), text.data(), text.size());
  };
  const auto read = must(replayed(changed("manifest.json", older), own_));
  EXPECT_TRUE(read.reproduced());
  ASSERT_FALSE(read.notes.empty());
  EXPECT_NE(read.notes.front().find("manifest.json has no checksum"), std::string::npos);
}

TEST_F(Bundled, ManifestsOfOthersAreErrors) {
  for (const char* text : {"", "[]", "{}", "{\"schema\": 99}", "{\"schema\": \"1\"}",
                           "{\"schema\": 1, \"twinrun\": 3}",
                           "{\"schema\": 1, \"twinrun\": \"x\", \"headline\": \"\","
                           "\"asked\": []}"}) {
    const auto m = manifest_from_json(text, "x.zip");
    ASSERT_FALSE(m) << text;
    EXPECT_EQ(m.error().where, "x.zip");
  }
}

// Noise replaces the data: the bundle has no sample of the original, and it fails in the same way.
TEST(BundleSlow, AnAnonymousOneHasNoneOfTheData) {
  const Folder folder;
  const Scenario scenario = small();
  diagnosed(scenario, folder / "results");
  const Bundle made =
      must(bundle(folder / "results", folder / "a.zip", {.anonymise = true}, nullptr, nullptr));
  for (const ZipMember& member : members_of(folder / "a.zip"))
    EXPECT_FALSE(member.name.starts_with("original/")) << member.name;
  EXPECT_TRUE(must(replayed(folder / "a.zip", folder)).reproduced());
  const Experiment e = must(make_experiment(scenario));
  const std::vector<ZipMember> members = members_of(folder / "a.zip");
  const auto data = std::ranges::find(members, kOwnData, &ZipMember::name);
  const ArrayFile arrays = must(parse_npz(data->bytes, "data"));
  const Tensor noise = must(to_tensor(arrays.arrays.front(), DType::kF32, "data"));
  const size_t pixels = noise.as<float>().size() / static_cast<size_t>(noise.dims()[0]);
  const std::span<const float> all = e.data->train.features.as<float>();
  for (size_t at = 0; at + pixels <= all.size(); at += pixels)
    EXPECT_FALSE(std::equal(all.begin() + static_cast<std::ptrdiff_t>(at),
                            all.begin() + static_cast<std::ptrdiff_t>(at + pixels),
                            noise.as<float>().begin()));
}

// A fault that begins at a later step, and one that needs its core.
TEST(BundleSlow, KeepsWhatTheFaultNeeds) {
  const Folder folder;
  diagnosed(small(), folder / "late", {"scale@dense2/kernel.grad,magnitude=1.5,from=3"});
  const Bundle late = must(bundle(folder / "late", folder / "late.zip", {}, nullptr, nullptr));
  EXPECT_EQ(late.reduced->scenario.train.steps, 4);
  EXPECT_TRUE(must(replayed(folder / "late.zip", folder)).reproduced());

  const Scenario two = small(tiny::kDense, {{"tpu.cores", "2"}});
  diagnosed(two, folder / "core", {"drop_core@dense2/kernel.grad.all_reduce,core=1"});
  const Bundle core = must(bundle(folder / "core", folder / "core.zip", {}, nullptr, nullptr));
  EXPECT_EQ(core.reduced->scenario.tpu.cores, 2);
  EXPECT_EQ(core.reduced->scenario.train.batch, 2);
  EXPECT_TRUE(must(replayed(folder / "core.zip", folder)).reproduced());
}

// Without a bug there is nothing to reduce: the bundle holds the scenario as it is, and its bits.
TEST(Bundle, OfNoiseIsTheScenarioAsItIs) {
  const Folder folder;
  const Report clean = diagnosed(small(), folder / "results", {});
  ASSERT_NE(clean.verdict, VerdictClass::kEngineBug);
  const Bundle made = must(bundle(folder / "results", folder / "n.zip", {}, nullptr, nullptr));
  EXPECT_FALSE(made.reduced);
  EXPECT_TRUE(must(replayed(folder / "n.zip", folder)).reproduced());
  const auto anonymous =
      bundle(folder / "results", folder / "a.zip", {.anonymise = true}, nullptr, nullptr);
  ASSERT_FALSE(anonymous);
  EXPECT_EQ(anonymous.error().where, "--anonymise");
}

// Which files of an engine a bundle may write, and where a replay finds them again.
TEST(Bundle, AnEnginesFilesStayInTheirFolder) {
  EXPECT_TRUE(is_engine_member("engine/my-engine_2.py"));
  for (const char* name : {"engine/", "engine/.", "engine/..", "engine/../x", "engine/a/b", "x.py",
                           "/engine/x", "engine/a b", "engine/a\\b"})
    EXPECT_FALSE(is_engine_member(name)) << name;
  const Folder folder;
  const auto write_to = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  };
  const std::string script = write_to("my engine.py", "print()"),
                    program = write_to("program", std::string("\177ELF\0", 5)),
                    large = write_to("large.txt", std::string((1 << 20) + 1, 'x'));
  const std::string engine =
      "exec:" + program + " '" + script + "' --fast --data=" + large + " " + large + " /no/such";
  const PackedEngine packed = pack_engine(engine);
  ASSERT_EQ(packed.files.size(), 1u);
  EXPECT_EQ(packed.files[0].word, script);
  EXPECT_EQ(packed.files[0].member, "engine/my_engine.py");
  ASSERT_EQ(packed.left_out.size(), 2u);
  EXPECT_NE(packed.left_out[0].find("program"), std::string::npos);
  EXPECT_NE(packed.left_out[1].find("larger"), std::string::npos);
  EXPECT_TRUE(pack_engine("honest:17").files.empty());
  // If the same file still exists at its original path, it is used there, together with the files
  // beside it.
  const auto here = engine_from(engine, packed.files, packed.members, "work");
  EXPECT_NE(here.find("\"" + script + "\""), std::string::npos) << here;
  write_to("my engine.py", "print(1)");
  const auto there = engine_from(engine, packed.files, packed.members, "a folder");
  EXPECT_NE(there.find(" \"a folder/engine/my_engine.py\" --fast "), std::string::npos) << there;
}

// With a script goes what it imports from beside it, and what that imports.
TEST(Bundle, AnEnginesImportsArePacked) {
  const Folder folder;
  const auto write_to = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  write_to("main.py", "import os, model\nfrom data import batches\n  # import other\n");
  write_to("model.py", "def f():\n    import layers  # later\nimport main\n");
  for (const char* name : {"data.py", "layers.py", "other.py"}) write_to(name, "");
  std::vector<std::string> members;
  for (const EngineFile& file : pack_engine("exec:python3 " + (folder / "main.py")).files)
    members.push_back(file.member);
  EXPECT_EQ(members, (std::vector<std::string>{"engine/main.py", "engine/model.py",
                                               "engine/data.py", "engine/layers.py"}));
}

// A digit that changed on the disk must not look like another result of the machine.
TEST(Bundle, AReportThatWasChangedIsRefused) {
  const Folder folder;
  const Report found = diagnosed(small(), folder / "results");
  const std::string path = folder / "results/report.json";
  const std::string good = to_json(found), digest = found.runs.front().root_digest;
  ASSERT_EQ(found.runs.front().name, "R");
  const auto packed = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    return bundle(folder / "results", folder / "f.zip",
                  {.reduction = BundleOptions::Reduction::kNever}, nullptr, nullptr);
  };
  ASSERT_TRUE(packed(good));

  std::string flipped = good;
  flipped[good.find(digest)] = digest[0] == '0' ? '1' : '0';
  const auto changed = packed(flipped);
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().where, path);
  EXPECT_NE(changed.error().what.find("changed after it was written"), std::string::npos);

  // Without a checksum, as older versions wrote it, the run files tell.
  const auto older = [](std::string text) {
    const size_t comma = text.rfind(",\n  \"checksum\"");
    return text.erase(comma, text.rfind('\n', text.size() - 2) - comma);
  };
  ASSERT_TRUE(packed(older(good)));
  const auto of_another_run = packed(older(flipped));
  ASSERT_FALSE(of_another_run);
  EXPECT_EQ(of_another_run.error().where, folder / "results/runs/R.h5");
  EXPECT_NE(of_another_run.error().what.find("its digest is " + digest), std::string::npos);
  Report other = found;
  other.runs.front().losses.back() += 1;
  EXPECT_NE(packed(to_json(other)).error().what.find("its losses"), std::string::npos);

  std::filesystem::remove(folder / "results/runs/R.h5");
  const Bundle made = must(packed(good));
  ASSERT_FALSE(made.notes.empty());
  EXPECT_NE(made.notes.front().find("runs/R.h5 is missing"), std::string::npos);
}

TEST(Bundle, NeedsAReport) {
  const Folder folder;
  const auto made = bundle(folder / "nothing", folder / "n.zip", {}, nullptr, nullptr);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message().find("report.json"), std::string::npos);
}

}  // namespace
}  // namespace twinrun
