// The cost of comparing runs: XXH3-128 of a tensor against libxxhash, and `twinrun diff` of two
// checkpoints against h5diff, as processes, with the files in the page cache. The checkpoints (1
// GiB each in 64 tensors) are written to a temporary folder first: equal ones, and ones that differ
// in ten elements of one tensor or of every tensor. Also a whole `twinrun diagnose` against single
// runs of `twinrun train`.
//
//   twinrun_bench --filter '^(digest|diff|diagnose)'
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "bench/bench.h"
#include "checkpoints/checkpoint.h"
#include "program/base/digest.h"
#ifdef TWINRUN_XXHASH
#include <xxhash.h>
#endif

namespace twinrun {
namespace {

constexpr int64_t kMiB = 1 << 20;

Tensor floats_of(int64_t bytes, uint32_t seed) {
  return random_tensor({DType::kF32, {bytes / 1024 / 4, 1024}}, seed);
}

// A temporary folder; the destructor removes it.
struct TemporaryFolder {
  std::string path = (std::filesystem::temp_directory_path() / "twinrun_bench_XXXXXX").string();
  bool made = mkdtemp(path.data()) != nullptr;
  TemporaryFolder() = default;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (made) std::filesystem::remove_all(path, ignored);
  }
};

double seconds_of_command(const std::string& line) {
  const auto start = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(std::system(line.c_str()));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

#ifdef TWINRUN_H5DIFF
// 64 tensors of 16 MiB. The first `changed` of them differ in ten elements from those of
// checkpoint_of(0).
Checkpoint checkpoint_of(int changed) {
  Checkpoint c;
  for (int i = 0; i < 64; ++i) {
    Tensor t = floats_of(16 * kMiB, static_cast<uint32_t>(i + 1));
    if (i < changed) {
      for (size_t j = 0; j < 10; ++j) t.as<float>()[j * 1000] += 1.0f;
    }
    c.tensors[fmt::format("dense{}/kernel", i)] = {t, "parameter"};
  }
  return c;
}
#endif

}  // namespace

void bench_digest(Suite& suite) {
  suite.section("digest: XXH3-128; peer: XXH3_128bits of libxxhash");
#ifdef TWINRUN_XXHASH
  constexpr int64_t kBytes = 64 * kMiB;
  if (!suite.begin({.name = "digest 64 MiB",
                    .unit = "GB/s",
                    .ours_work = static_cast<double>(kBytes),
                    .peer_work = static_cast<double>(kBytes)})) {
    return;
  }
  const Tensor t = floats_of(kBytes, 1);
  suite.measure([&] { benchmark::DoNotOptimize(digest(t).low); },
                [&] { benchmark::DoNotOptimize(XXH3_128bits(t.raw(), t.bytes()).low64); });
#else
  suite.skip("digest 64 MiB", "libxxhash was not found (libxxhash-dev)");
#endif
}

void bench_diff(Suite& suite) {
  suite.section("diff: `twinrun diff A B`, digests verified; peer: `h5diff A B`");
#ifdef TWINRUN_H5DIFF
  constexpr double kBytes = 2.0 * 1024 * kMiB;
  for (const auto& [what, changed] : {std::pair<const char*, int>{"equal", 0},
                                      {"one tensor of 64 differs", 1},
                                      {"all differ", 64}}) {
    const std::string name = fmt::format("diff 2 x 1 GiB, {}", what);
    if (!suite.begin(
            {.name = name, .unit = "GB/s", .ours_work = kBytes, .peer_work = kBytes, .target = 20}))
      continue;
    const TemporaryFolder folder;
    const std::string a = folder.path + "/a.h5", b = folder.path + "/b.h5";
    if (!folder.made || !write_checkpoint(a, checkpoint_of(0)).ok() ||
        !write_checkpoint(b, checkpoint_of(changed)).ok()) {
      suite.skip(name, "no room for two files in " + folder.path);
      continue;
    }
    const auto line_of = [&](const char* program) {
      return fmt::format("{} {} {} > {}/out 2>&1", program, a, b, folder.path);
    };
    const auto command = [&](const char* program) {
      return [line = line_of(program)] { benchmark::DoNotOptimize(std::system(line.c_str())); };
    };
    bool agree = true;
    for (const char* program : {TWINRUN_BINARY " diff", TWINRUN_H5DIFF}) {
      const int status = std::system(line_of(program).c_str());
      agree = agree && WIFEXITED(status) &&
              WEXITSTATUS(status) == (changed > 0 ? 1 : 0);  // 1: they differ
    }
    if (agree) {
      suite.measure(command(TWINRUN_BINARY " diff"), command(TWINRUN_H5DIFF));
    } else {
      suite.skip(name, "the two programs do not agree");
    }
  }
#else
  suite.skip("diff 2 x 1 GiB", "h5diff was not found (hdf5-tools)");
#endif
}

// A whole diagnosis with one seed. No results of earlier runs are reused (TWINRUN_CACHE is empty).
void bench_diagnose(Suite& suite) {
  suite.section(
      "diagnose, all cores, nothing kept; peer: six times a single `twinrun train` on the "
      "reference");
  if (!suite.begin({.name = "diagnose digits_cnn, one seed",
                    .threads = suite.threads().back(),
                    .unit = "s",
                    .target = 1})) {
    return;
  }
  const TemporaryFolder folder;
  const std::string twinrun = "TWINRUN_CACHE= " TWINRUN_BINARY;
  std::vector<double> ours, peer, ratios;
  for (int i = 0; i < 3; ++i) {
    ours.push_back(seconds_of_command(
        fmt::format("{} diagnose digits_cnn --set diagnose.seeds=1 -q -o {}/d{} > {}/out 2>&1",
                    twinrun, folder.path, i, folder.path)));
    peer.push_back(6 *
                   seconds_of_command(fmt::format("{} train digits_cnn -q -o {}/r.h5 > {}/out 2>&1",
                                                  twinrun, folder.path, folder.path)));
    ratios.push_back(peer.back() / ours.back());
  }
  for (std::vector<double>* figures : {&ours, &peer, &ratios}) std::ranges::sort(*figures);
  suite.record(ours[1], peer[1], ratios[1]);
}

}  // namespace twinrun
