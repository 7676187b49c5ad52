// A child process that answers every line with a line: for peers that run in a process of their
// own, and for measured copies of this program. If it cannot be started, its first answer is
// missing.
//
//   PeerProcess torch({"/usr/bin/python3", script, "use_tpus", "200", "f32", "2"},
//                     {{"OMP_NUM_THREADS", "2"}});
//   if (!torch.answer()) ... not installed ...
//   torch.ask();                       // sends "step\n" and reads the answer
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

  // Reads the next line, without its newline; nothing if the child has ended.
  std::optional<std::string> answer();
  // Sends the line "step" and reads the answer.
  std::optional<std::string> ask();

 private:
  int pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

}  // namespace twinrun
