// A program that answers every line with a line: how a peer in another process, or a measured copy of ourselves, takes
// part. If it cannot be started, its first answer is missing.
//
//   PeerProcess torch({"/usr/bin/python3", script, "use_tpus", "200", "f32", "2"}, {{"OMP_NUM_THREADS", "2"}});
//   if (!torch.answer()) ... not installed ...
//   torch.ask();                       // "step\n", and its answer
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace twinrun {

class PeerProcess {
 public:
  PeerProcess(const std::vector<std::string>& command,
              const std::vector<std::pair<std::string, std::string>>& environment);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The next line, without its end; nothing if the child has left.
  std::optional<std::string> answer();
  std::optional<std::string> ask();

 private:
  int pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

}  // namespace twinrun
