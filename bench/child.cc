// Starts a child process with pipes to its standard input and from its standard output.
#include "bench/child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace twinrun {

PeerProcess::PeerProcess(const std::vector<std::string>& command,
                         const std::vector<std::pair<std::string, std::string>>& environment) {
  int to[2], from[2];
  if (pipe(to) != 0) return;
  if (pipe(from) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  to_ = fdopen(to[1], "w");
  from_ = fdopen(from[0], "r");
}

PeerProcess::~PeerProcess() {
  if (to_ != nullptr) fclose(to_);
  if (from_ != nullptr) fclose(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

std::optional<std::string> PeerProcess::answer() {
  char line[256];
  if (from_ == nullptr || std::fgets(line, sizeof line, from_) == nullptr) return std::nullopt;
  std::string text = line;
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<std::string> PeerProcess::ask() {
  std::fputs("step\n", to_);
  std::fflush(to_);
  return answer();
}

}  // namespace twinrun
