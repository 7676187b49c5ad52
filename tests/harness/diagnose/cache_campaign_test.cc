// Tests that no file in a cache changes a report: the kept reference runs and the samples of
// data.cache are swapped, replaced by older or foreign files, flipped and cut, and a diagnosis must
// say what it says without any cache. TWINRUN_CACHE_TRIES sets the number of tries:
//
//   TWINRUN_CACHE_TRIES=2000 build/release/tests/harness_tests --gtest_filter='CacheCampaign.*'
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "harness/diagnose/pipeline.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // by path

std::string bytes_at(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

void put_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class CacheCampaign : public testing::Test {
 protected:
  static constexpr size_t kScenarios = 3;

  // The scenarios differ in their data, so that the caches of one are foreign to the others.
  Scenario scenario(size_t which) const {
    const std::string seed = std::to_string(which + 1);
    return tiny::scenario(tiny::kDense, {{"seed", seed},
                                         {"data.train", "32"},
                                         {"data.eval", "16"},
                                         {"data.cache", samples(which)},
                                         {"train.batch", "8"},
                                         {"train.steps", "2"},
                                         {"tpu.cores", "2"}});
  }
  std::string samples(size_t which) const {
    return folder_ / ("samples" + std::to_string(which) + ".cache");
  }
  std::string references() const { return folder_ / "references"; }

  // The report of a diagnosis, without what a cache may change: times, and notes of where runs and
  // samples came from.
  Result<std::string> diagnosed(size_t which, const std::string& cache) const {
    DiagnoseOptions o;
    o.quick = true;
    o.directory = folder_ / "results";
    o.cache = cache;
    TWINRUN_ASSIGN(Diagnosis found, diagnose(scenario(which), o, nullptr, nullptr));
    for (RunSummary& run : found.report.runs) {
      run.seconds = 0;
      run.kept = false;
    }
    std::erase_if(found.report.notes,
                  [](const std::string& note) { return note.starts_with("data.cache: "); });
    return to_json(found.report);
  }

  Files cached() const {
    Files files;
    for (size_t i = 0; i < kScenarios; ++i) files[samples(i)] = bytes_at(samples(i));
    for (const auto& entry : fs::directory_iterator(references()))
      files[entry.path().string()] = bytes_at(entry.path());
    return files;
  }

  void restore(const Files& files) const {
    fs::remove_all(references());
    fs::create_directory(references());
    for (size_t i = 0; i < kScenarios; ++i) fs::remove_all(samples(i));
    for (const auto& [path, bytes] : files) put_bytes(path, bytes);
  }

  // In memory where there is such a folder, because a try waits for the disk longer than it
  // computes.
  static fs::path parent() {
    return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
  }
  Folder folder_{parent()};
};

using Random = std::mt19937_64;
size_t below(Random& random, size_t n) { return random() % n; }

// Files of programs that the caches never hold: what `train` and `diagnose` write themselves.
std::string foreign(Random& random, const std::string& results) {
  switch (below(random, 5)) {
    case 0:
      return "";
    case 1:
      return std::string(below(random, 5000), static_cast<char>(random()));
    case 2:
      return bytes_at(results + "/init.h5");
    case 3:
      return bytes_at(results + "/runs/T.h5");
    default:
      return bytes_at(results + "/runs/R.h5");  // whole, but it was not kept under a key
  }
}

// Changes some files of the caches, and says how.
std::string tamper(Random& random, Files& files, const std::vector<Files>& older,
                   const std::string& results) {
  const auto any = [&](const Files& all) {
    return std::next(all.begin(), static_cast<std::ptrdiff_t>(below(random, all.size())));
  };
  std::string how;
  for (size_t n = 1 + below(random, 4); n > 0; --n) {
    std::string& bytes = files[any(files)->first];
    switch (below(random, 5)) {
      case 0:
        how += " swapped";
        std::swap(bytes, files[any(files)->first]);
        break;
      case 1:
        how += " stale";
        bytes = any(older[below(random, older.size())])->second;
        break;
      case 2:
        how += " foreign";
        bytes = foreign(random, results);
        break;
      case 3:
        how += " cut";
        bytes.resize(below(random, bytes.size() + 1));
        break;
      default:
        how += " flipped";
        for (size_t k = 1 + below(random, 8); k > 0 && !bytes.empty(); --k)
          bytes[below(random, bytes.size())] ^= static_cast<char>(1 << below(random, 8));
    }
  }
  return how;
}

TEST_F(CacheCampaign, NoFileOfACacheChangesAReport) {
  const char* asked = std::getenv("TWINRUN_CACHE_TRIES");
  const int tries = asked != nullptr ? std::atoi(asked) : 150;
  std::vector<std::string> truth;
  std::vector<Files> older;  // caches as they were while fewer scenarios had run
  for (size_t i = 0; i < kScenarios; ++i) {
    fs::create_directory(references());
    truth.push_back(tiny::must(diagnosed(i, references())));
    EXPECT_EQ(tiny::must(diagnosed(i, "")), truth[i]);
    EXPECT_EQ(tiny::must(diagnosed(i, references())), truth[i]);
    Files now;
    for (const auto& entry : fs::directory_iterator(references()))
      now[entry.path().string()] = bytes_at(entry.path());
    now[samples(i)] = bytes_at(samples(i));
    older.push_back(std::move(now));
  }
  EXPECT_NE(truth[0], truth[1]);
  const Files whole = cached();
  ASSERT_GT(whole.size(), 2 * kScenarios);
  int refused = 0;
  for (int i = 0; i < tries; ++i) {
    Random random(static_cast<uint64_t>(i));
    const size_t which = below(random, kScenarios);
    Files files = whole;
    const std::string how = tamper(random, files, older, folder_ / "results");
    restore(files);
    const auto found = diagnosed(which, references());
    // A file that is no cache of samples at all is not overwritten, which is said.
    if (!found) {
      ++refused;
      EXPECT_NE(found.error().message().find("is not a cache of samples"), std::string::npos)
          << "try " << i << how << ": " << found.error().message();
      continue;
    }
    ASSERT_EQ(*found, truth[which]) << "try " << i << ":" << how;
  }
  RecordProperty("tries", tries);
  RecordProperty("refused", refused);
  EXPECT_LT(refused, tries / 2);
}

// Links, folders and pipes in the place of files are not followed into something else either.
TEST_F(CacheCampaign, NoLinkOrFolderChangesAReport) {
  const std::string truth = tiny::must(diagnosed(0, references()));
  tiny::must(diagnosed(1, references()));
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(references())) runs.push_back(entry.path());
  const Files whole = [&] {
    Files files;
    for (const fs::path& run : runs) files[run.string()] = bytes_at(run);
    return files;
  }();
  for (const bool link : {true, false}) {
    for (size_t i = 0; i < runs.size(); ++i) {
      fs::remove_all(runs[i]);
      if (link) {
        fs::create_symlink(runs[(i + 1) % runs.size()], runs[i]);
      } else {
        fs::create_directory(runs[i]);
      }
    }
    EXPECT_EQ(tiny::must(diagnosed(0, references())), truth);
    for (const auto& [path, bytes] : whole) {
      fs::remove_all(path);
      put_bytes(path, bytes);
    }
  }
}

}  // namespace
}  // namespace twinrun
