// The axis of commits: the first bad one of a repository of the user's, by a command of theirs.
//
//   RevisionOptions o{.repository = ".", .good = "v1.0", .bad = "main", .folder = "out", .command = {"./check"}};
//   TWINRUN_ASSIGN(const RevisionsFound f, bisect_revisions(o, progress, stop));
//   f.first_bad.name;  f.found.end;
#pragma once

#include <string>
#include <vector>

#include "harness/bisect/search.h"

namespace twinrun::bisect {

struct RevisionOptions {
  std::string repository = ".", good, bad;
  std::string folder;  // of results: session.jsonl, logs/, good/, bad/, bisect.log
  std::string
      build;  // for sh, in the worktree; where it fails, the commit cannot be tested. "": none
  std::vector<std::string> command;  // run in the worktree; its exit code is the answer
  Repeats repeats;
  double timeout_seconds = 0;  // of a build and of the command, each; 0: none
  bool clean = false;          // untracked files go before a commit is tried
  bool resume = false;
  std::string typed;  // command line, for the session
};

struct Commit {
  std::string name, subject;
};

struct RevisionsFound {
  Found found;
  int64_t commits = 0;                  // between the ends, both included
  Commit last_good, first_bad;          // "" where nothing was found
  std::vector<Commit> skipped;          // between the two, untestable
  std::string good_folder, bad_folder;  // their files, side by side, each with a .log beside it
  std::string git_says;                 // what git bisect concludes from the same answers
};

// Works in a worktree of its own below `folder`, which is removed in the end; the user's checkout is not touched.
Result<RevisionsFound> bisect_revisions(const RevisionOptions& options, Progress* progress,
                                        const StopFlag* stop);

}  // namespace twinrun::bisect
