// Leaves out of a bundle where its maker keeps files: paths below the current folder become
// relative to it, others become "…/NAME", and the names of user and host are left out. Folders of
// the system (/usr/bin/python3) stay, because a replay needs them and they tell nothing.
//
//   const PrivatePaths filter = PrivatePaths::of_this_process();
//   filter.text("twinrun diagnose /home/ann/work/model.toml");  // "twinrun diagnose …/model.toml"
//   filter.engine("exec:python3 /home/ann/engine.py --fast");   // "exec:python3 …/engine.py --fast"
#pragma once

#include <string>
#include <string_view>

#include "reports/report.h"
#include "scenarios/scenario.h"

namespace twinrun {

// Begins a path whose folder was left out.
inline constexpr std::string_view kElsewhere = "…/";

class PrivatePaths {
 public:
  // "" for what is not known.
  struct Here {
    std::string project, home, user, host;
  };
  explicit PrivatePaths(Here here) : here_(std::move(here)) {}
  // The current folder, $HOME, the user and the host of this process.
  static PrivatePaths of_this_process();

  std::string path(const std::string& path) const;      // the whole string is a path
  std::string text(std::string_view text) const;        // all paths and names in a text
  std::string word(const std::string& word) const;      // of the command line of an engine
  std::string engine(const std::string& engine) const;  // every word of an exec: command
  Report report(const Report& report) const;            // all texts
  Scenario scenario(Scenario scenario) const;           // data.dir, files, description

 private:
  std::string without_paths(std::string_view text) const;
  Here here_;
};

}  // namespace twinrun
