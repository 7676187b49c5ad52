// Starts child processes with pipes to their standard input and from their standard output.
#include "bench/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace twinrun {

PeerProcess::PeerProcess(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment) {
  int to[2], from[2];
  // Closed by exec, because another child that kept them open would keep this one from its end.
  if (pipe2(to, O_CLOEXEC) != 0) return;
  if (pipe2(from, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
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

std::optional<std::string> PeerProcess::ask(const std::string& line) {
  if (to_ == nullptr || from_ == nullptr) return std::nullopt;
  std::fputs((line + "\n").c_str(), to_);
  std::fflush(to_);
  char answer[1024];
  if (std::fgets(answer, sizeof answer, from_) == nullptr) return std::nullopt;
  std::string text = answer;
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::unique_ptr<PeerProcess> start(const PeerEntry& peer, int threads) {
  const auto filled = [&](std::string text) {
    const std::string mark = "{threads}";
    if (const size_t at = text.find(mark); at != std::string::npos)
      text.replace(at, mark.size(), std::to_string(threads));
    return text;
  };
  std::vector<std::string> command;
  for (const std::string& word : peer.command) command.push_back(filled(word));
  std::map<std::string, std::string> environment;
  for (const auto& [name, value] : peer.environment) environment[name] = filled(value);
  return std::make_unique<PeerProcess>(command, environment);
}

PeerProcesses::PeerProcesses(Suite& suite, const std::string& topic, int threads)
    : suite_(suite), threads_(threads) {
  for (const PeerEntry& peer : suite.peers_of(topic)) {
    if (!peer.command.empty()) members_.push_back({peer, nullptr});
  }
}

std::vector<Side> PeerProcesses::prepare(const std::string& name, const std::string& line,
                                         const std::function<std::string()>& check) {
  std::vector<Side> sides;
  for (Member& member : members_) {
    if (!member.process) member.process = start(member.entry, threads_);
    const std::optional<std::string> answer = member.process->ask("case " + line);
    std::string wrong = answer.value_or("its process ended");
    if (wrong.starts_with("failed ")) wrong = wrong.substr(7);
    if (answer == "ready") wrong = check ? check() : "";
    if (!wrong.empty()) {
      suite_.skip(name, wrong, member.entry.name);
      if (!answer) member.process = nullptr;  // the next row starts it again
      continue;
    }
    sides.push_back(
        {member.entry.name, [process = member.process](int times) -> std::optional<double> {
           const auto said = process->ask("run " + std::to_string(times));
           if (!said) return std::nullopt;
           const double seconds = std::atof(said->c_str());
           return seconds > 0 ? std::optional(seconds) : std::nullopt;
         }});
  }
  return sides;
}

}  // namespace twinrun
