// Measures samples for bench/run.py, which ./dev bench runs.
//
//   twinrun_bench [--filter REGEX] [--samples N] [--peers FILE]   # lines of JSON (bench.h)
//   perf record --delay=-1 --control=fifo:FIFO twinrun_bench --filter '^NAME$' --threads 1
//     --profile FIFO                                               # as bench/profiles.py does
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench/bench.h"
#include "harness/host/heap.h"

namespace {

[[noreturn]] void usage_error(std::string_view what) {
  fmt::print(stderr,
             "twinrun_bench: {}\nusage: twinrun_bench [--filter REGEX] [--samples N] "
             "[--peers FILE] [--threads N] [--profile FIFO]; see ./dev bench --help\n",
             what);
  std::exit(128);
}

// The list that bench/peers.py writes.
std::vector<twinrun::PeerEntry> read_peers(const char* path) {
  std::vector<twinrun::PeerEntry> peers;
  const auto list = nlohmann::json::parse(std::ifstream(path));
  for (const auto& entry : list) {
    twinrun::PeerEntry& peer = peers.emplace_back();
    peer.name = entry.at("name");
    peer.topics = entry.at("topics");
    peer.file = entry.value("library", "");
    peer.symbols = entry.value("symbols", "{}");
    peer.wide = entry.value("wide", false);
    peer.command = entry.value("command", std::vector<std::string>{});
    peer.environment = entry.value("environment", std::map<std::string, std::string>{});
  }
  return peers;
}

twinrun::Suite::Options parse(int argc, char** argv) {
  twinrun::Suite::Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view word = argv[i];
    if (i + 1 == argc) usage_error(fmt::format("'{}' is unknown or lacks a value", word));
    try {
      if (word == "--filter") {
        options.filter = std::regex(argv[i + 1]);
      } else if (word == "--peers") {
        options.peers = read_peers(argv[i + 1]);
      } else if (word == "--threads") {
        options.threads = std::max(1, std::atoi(argv[i + 1]));
      } else if (word == "--profile") {
        options.profile = argv[i + 1];
      } else if (word == "--samples") {
        options.samples = std::max(3, std::atoi(argv[i + 1]));
      } else {
        usage_error(fmt::format("unknown argument '{}'", word));
      }
    } catch (const std::exception& error) {
      usage_error(fmt::format("{} {}: {}", word, argv[i + 1], error.what()));
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  twinrun::keep_freed_pages();  // as the program itself does
  std::signal(SIGPIPE, SIG_IGN);
  if (argc == 5 && std::string_view(argv[1]) == "--steps") {
    return twinrun::bench_steps_on_request(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  }
  twinrun::Suite suite(parse(argc, argv));
  for (const auto topic : {twinrun::bench_ceilings, twinrun::bench_dot_f32, twinrun::bench_dot_bf16,
                           twinrun::bench_instructions, twinrun::bench_convolution,
                           twinrun::bench_elementary, twinrun::bench_digest, twinrun::bench_diff,
                           twinrun::bench_checkpoint, twinrun::bench_field_proof,
                           twinrun::bench_step, twinrun::bench_traffic, twinrun::bench_growth}) {
    topic(suite);
  }
}
