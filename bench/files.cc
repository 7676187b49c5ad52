// The cost of comparing runs: XXH3-128 of a tensor against libxxhash, and `twinrun diff` of two
// checkpoints against h5diff, as processes, with the files in the page cache. The checkpoints (1
// GiB each in 64 tensors) are written to a temporary folder first: equal ones, and ones that differ
// in ten elements of one tensor or of every tensor. Also the writing of such a checkpoint against
// that of its bytes.
//
//   ./dev bench --filter '^(digest|diff|checkpoint)'
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

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

// The bytes of all tensors in a new file under the same guarantees as a checkpoint's: on the disk,
// then renamed.
bool write_plainly(const std::string& path, const Checkpoint& checkpoint) {
  const std::string partial = path + ".part";
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool good = file >= 0;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    for (size_t done = 0; good && done < tensor.value.bytes();) {
      const ssize_t n = write(file, tensor.value.raw() + done, tensor.value.bytes() - done);
      good = n > 0;
      done += good ? static_cast<size_t>(n) : 0;
    }
  }
  good = good && fsync(file) == 0;
  if (file >= 0) close(file);
  return good && std::rename(partial.c_str(), path.c_str()) == 0;
}

}  // namespace

void bench_digest(Suite& suite) {
  suite.section("digest: XXH3-128; peer: XXH3_128bits of libxxhash");
#ifdef TWINRUN_XXHASH
  constexpr int64_t kBytes = 64 * kMiB;
  if (!suite.begin(
          {.name = "digest 64 MiB", .unit = "GB/s", .work = static_cast<double>(kBytes)})) {
    return;
  }
  const Tensor t = floats_of(kBytes, 1);
  suite.measure([&] { benchmark::DoNotOptimize(digest(t).low); }, {timed("libxxhash", [&] {
                  benchmark::DoNotOptimize(XXH3_128bits(t.raw(), t.bytes()).low64);
                })});
#else
  suite.skip("digest 64 MiB", "libxxhash was not found (libxxhash-dev)");
#endif
}

void bench_diff(Suite& suite) {
  suite.section("diff: `twinrun diff A B`, digests verified; peer: `h5diff A B`");
#ifdef TWINRUN_H5DIFF
  constexpr double kBytes = 2.0 * 1024 * kMiB;
  struct Row {
    const char* what;
    int changed;
    double target;
  };
  for (const auto& [what, changed, target] :
       {Row{"equal", 0, 20}, {"one tensor of 64 differs", 1, 20}, {"all differ", 64, 10}}) {
    const std::string name = fmt::format("diff 2 x 1 GiB, {}", what);
    if (!suite.begin({.name = name, .unit = "GB/s", .work = kBytes, .target = target})) continue;
    const BenchFolder folder(true);
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
      suite.measure(command(TWINRUN_BINARY " diff"), {timed("h5diff", command(TWINRUN_H5DIFF))});
    } else {
      suite.skip(name, "the two programs do not agree");
    }
  }
#else
  suite.skip("diff 2 x 1 GiB", "h5diff was not found (hdf5-tools)");
#endif
}

// One tensor of 1 GiB would be digested by one thread; a training state has many.
void bench_checkpoint(Suite& suite) {
  suite.section("checkpoint: 1 GiB in 64 tensors, on the disk of this program, with fsync");
  constexpr double kBytes = 1024.0 * kMiB;
  const BenchCase what{
      .name = "checkpoint write 1 GiB", .unit = "GB/s", .work = kBytes, .target = 1.0};
  if (!suite.begin(what)) return;
  const BenchFolder folder(true);
  const Checkpoint checkpoint = checkpoint_of(0);
  const std::string ours = folder.path + "/ours", peer = folder.path + "/peer";
  if (!folder.made || !write_checkpoint(ours, checkpoint).ok()) {
    return suite.skip(what.name, "no room for two files in " + folder.path);
  }
  suite.measure(
      [&] {
        if (!write_checkpoint(ours, checkpoint).ok()) std::abort();
      },
      {{"write and fsync", [&](int times) -> std::optional<double> {
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < times; ++i) {
            if (!write_plainly(peer, checkpoint)) return std::nullopt;
          }
          return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }}});
}

}  // namespace twinrun
