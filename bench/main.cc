// The benchmarks: ratios against peers, with targets. ./dev bench builds and runs this.
//
//   twinrun_bench                          # all topics, a table
//   twinrun_bench --filter '^dot f32'      # cases whose name matches
//   twinrun_bench --json                   # {machine, ratios, skipped} on stdout
//   twinrun_bench --samples 15             # pairs per case, at least 7
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "bench/bench.h"
#include "harness/host/heap.h"

namespace {

constexpr const char* kUsage =
    "usage: ./dev bench [--filter REGEX] [--json] [--samples N]\n"
    "names begin with: dot f32, dot bf16, conv, ceiling, elementary, digest, diff, diagnose, field "
    "proof, step\n";

[[noreturn]] void usage_error(std::string_view what) {
  fmt::print(stderr, "twinrun_bench: {}\n{}", what, kUsage);
  std::exit(128);
}

twinrun::Suite::Options parse(int argc, char** argv) {
  twinrun::Suite::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--help" || word == "-h") {
      fmt::print("{}", kUsage);
      std::exit(0);
    } else if ((word == "--filter" || word == "--samples") && i + 1 == argc) {
      usage_error(fmt::format("{} wants a value", word));
    } else if (word == "--filter") {
      try {
        options.filter = std::regex(argv[++i]);
      } catch (const std::regex_error& error) {
        usage_error(fmt::format("--filter {}: {}", argv[i], error.what()));
      }
    } else if (word == "--samples") {
      options.samples = std::max(7, std::atoi(argv[++i]));
    } else {
      usage_error(fmt::format("unknown argument '{}'", word));
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  twinrun::keep_freed_pages();  // as the program itself does
  twinrun::openblas_for_this_machine(argv);
  if (argc == 5 && std::string_view(argv[1]) == "--steps") {
    return twinrun::bench_steps_on_request(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  }
  twinrun::Suite suite(parse(argc, argv));
  twinrun::bench_dot_f32(suite);
  twinrun::bench_dot_bf16(suite);
  twinrun::bench_instructions(suite);
  twinrun::bench_convolution(suite);
  twinrun::bench_ceilings(suite);
  twinrun::bench_elementary(suite);
  twinrun::bench_digest(suite);
  twinrun::bench_diff(suite);
  twinrun::bench_diagnose(suite);
  twinrun::bench_field_proof(suite);
  twinrun::bench_step(suite);
  suite.finish();
}
