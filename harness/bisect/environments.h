// Environments of released packages, made by another program (by default python -m twinrun
// environment), and how much disk those that a search has made may take.
//
//   Environments environments({.command = {"python3", "-m", "twinrun", "environment"},
//                              .package = "jaxlib", .folder = "out", .disk = 20e9}, stop);
//   TWINRUN_ASSIGN(const auto releases, environments.releases());
//   TWINRUN_ASSIGN(const Environment e, environments.make("0.4.28", "3.11", {"0.4.21"}, log));
//   e.python;                                      // or e.unavailable: why there is none
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/host/command.h"

namespace twinrun::bisect {

struct Release {
  std::string version;
  bool yanked = false;
  std::vector<std::string> pythons;  // of this machine for which it has a wheel: "3.9"
  std::string date;                  // "2024-05-09"; "" if not known
};

struct Environment {
  std::string unavailable;  // why there is none; "": there is one
  std::string python, python_version;
  bool made = false;  // by this call, or by an earlier one of the same search
  double seconds = 0;
  int64_t bytes = 0;
};

struct EnvironmentOptions {
  std::vector<std::string> command;
  std::string package;
  std::vector<std::string> requirements;  // further packages, as pip takes them
  std::string folder;  // of the search: environments/VERSION.json is written there
  double disk = 20e9;  // bytes that environments of this search may take
  bool resume = false;
};

class Environments {
 public:
  // To resume, reads what the interrupted search has noted in the folder.
  Environments(EnvironmentOptions options, const StopFlag* stop);

  // As the program gives them. Errors: the program cannot be started or knows no such package.
  Result<std::vector<Release>> releases() const;
  // Makes the environment of a release, or finds it. Before that, it removes environments that this
  // search has made until the new one fits on the disk that is allowed: the least recently used
  // first, those of `needed` last. The log receives what the program says. Errors: the program
  // cannot be started; interrupted.
  Result<Environment> make(const std::string& version, const std::string& python,
                           const std::vector<std::string>& needed, const std::string& log);
  // Whether make() knows without asking that the environment is there.
  bool ready(const std::string& version) const;
  // What is noted of a release; nullptr: nothing.
  const Environment* noted(const std::string& version) const;

  int64_t made() const { return made_; }       // how many were made and not found
  double seconds() const { return seconds_; }  // that this took, in total
  int64_t removed() const { return removed_; }
  int64_t bytes() const;  // of those that this search has made and left

 private:
  struct Noted {
    Environment environment;
    std::string asked;  // the Python that was asked for
    bool present = false;
    bool confirmed = false;  // by the program, in this process
    int64_t used = 0;        // counts calls of make()
  };
  std::vector<std::string> words(const std::string& version, const std::string& python) const;
  Status make_room(const std::string& version, const std::vector<std::string>& needed,
                   const std::string& log);
  Status write(const std::string& version) const;

  EnvironmentOptions options_;
  const StopFlag* stop_;
  std::map<std::string, Noted> noted_;
  int64_t calls_ = 0, made_ = 0, removed_ = 0;
  double seconds_ = 0;
};

// The Python that most of the releases have a wheel for, of equal ones the newest; "": none has.
std::string common_python(const std::vector<Release>& releases);
// The common one if the release has a wheel for it, else the newest that it has one for.
std::string python_for(const Release& release, const std::string& common);

}  // namespace twinrun::bisect
