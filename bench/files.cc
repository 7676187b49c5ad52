// What the comparison of runs costs: XXH3-128 of a tensor against libxxhash, and `twinrun diff` of two
// checkpoints against h5diff, as processes, files in the page cache.
//   The checkpoints (256 MiB each, ten elements apart) are written to a temporary folder first.
//
//   twinrun_bench --filter '^(digest|diff)'
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/wait.h>

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

#ifdef TWINRUN_H5DIFF
// A folder that goes away with its scope.
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

// 16 tensors of 16 MiB.
Checkpoint checkpoint_of(bool changed) {
  Checkpoint c;
  for (uint32_t i = 0; i < 16; ++i) {
    Tensor t = floats_of(16 * kMiB, i + 1);
    if (changed && i == 7) {
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
  constexpr double kBytes = 2.0 * 256 * kMiB;
  if (!suite.begin(
          {.name = "diff 2 x 256 MiB", .unit = "GB/s", .ours_work = kBytes, .peer_work = kBytes})) {
    return;
  }
  const TemporaryFolder folder;
  const std::string a = folder.path + "/a.h5", b = folder.path + "/b.h5";
  if (!folder.made || !write_checkpoint(a, checkpoint_of(false)).ok() ||
      !write_checkpoint(b, checkpoint_of(true)).ok()) {
    return suite.skip("diff 2 x 256 MiB", "no room for two files in " + folder.path);
  }
  const auto line_of = [&](const char* program) {
    return fmt::format("{} {} {} > {}/out 2>&1", program, a, b, folder.path);
  };
  const auto command = [&](const char* program) {
    return [line = line_of(program)] { benchmark::DoNotOptimize(std::system(line.c_str())); };
  };
  for (const char* program : {TWINRUN_BINARY " diff", TWINRUN_H5DIFF}) {
    const int status = std::system(line_of(program).c_str());
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) {  // 1: they differ
      return suite.skip("diff 2 x 256 MiB", fmt::format("{}: status {}", program, status));
    }
  }
  suite.measure(command(TWINRUN_BINARY " diff"), command(TWINRUN_H5DIFF));
#else
  suite.skip("diff 2 x 256 MiB", "h5diff was not found (hdf5-tools)");
#endif
}

}  // namespace twinrun
