// A child process that answers every line with a line: for peers that run in a process of their
// own, and for measured copies of this program. If it cannot be started, its answers are missing.
//
//   PeerProcess torch({"/usr/bin/python3", "bench/torch_peer.py", "2"}, {});
//   torch.ask("case step use_tpus 200 f32");   // "ready", or "failed WHY"
//   torch.ask("run 3");                        // seconds of three steps
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace twinrun {

class PeerProcess {
 public:
  PeerProcess(const std::vector<std::string>& command,
              const std::map<std::string, std::string>& environment);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Sends a line and reads the answer; nothing if the child has ended.
  std::optional<std::string> ask(const std::string& line);

 private:
  int pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

// The process of a peer of the list.
std::unique_ptr<PeerProcess> start(const PeerEntry& peer, int threads);

// The peers of a topic that are processes. Each is started when it is first needed, and ends with
// this object.
class PeerProcesses {
 public:
  PeerProcesses(Suite& suite, const std::string& topic, int threads);
  // Has all of them prepare a case, such as "dot f32 512 512 512 FOLDER", and returns those that
  // could; the others are reported as missing in the row `name`, as are those in whose results
  // `check` finds something.
  std::vector<Side> prepare(const std::string& name, const std::string& line,
                            const std::function<std::string()>& check = {});

 private:
  struct Member {
    PeerEntry entry;
    std::shared_ptr<PeerProcess> process;
  };
  Suite& suite_;
  int threads_;
  std::vector<Member> members_;
};

}  // namespace twinrun
