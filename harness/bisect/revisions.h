// The axis `rev` of twinrun bisect: the first bad commit of the user's repository, as judged by the
// user's command.
//
//   RevisionOptions o{.good = "v1.0", .bad = "main", .folder = "out", .command = {"./check"}};
//   TWINRUN_ASSIGN(const RevisionsFound f, bisect_revisions(o, progress, stop));
//   f.first_bad.name;  f.found.end;
#pragma once

#include <string>
#include <vector>

#include "harness/search/search.h"

namespace twinrun::bisect {

struct RevisionOptions {
  std::string repository = ".", good, bad;
  std::string folder;  // of results: session.jsonl, logs/, reports/, good/, bad/
  // Command for sh, run in the worktree; if it fails, the commit cannot be tested. "": none.
  std::string build;
  std::vector<std::string> command;  // run in the worktree; its exit code is the answer
  Repeats repeats;
  double timeout_seconds = 0;  // of a build and of the command, each; 0: none
  bool clean = false;          // remove untracked files before a commit is tried
  bool resume = false;
  std::string typed;  // the command line as typed, for the session
};

struct Commit {
  std::string name, subject;
};

struct RevisionsFound {
  Found found;
  int64_t commits = 0;                  // between the ends, both included
  Commit last_good, first_bad;          // empty if the search was not reproducible
  std::vector<Commit> skipped;          // between the two, untestable
  std::string good_folder, bad_folder;  // their files, side by side, each with a .log beside it
  std::string bad_report;               // folder of a diagnosis of the first bad commit; "": none
  std::string git_says;                 // the conclusion of git bisect from the same answers
};

// Works in a separate worktree below `folder`, which is removed at the end. The user's checkout is
// not touched.
Result<RevisionsFound> bisect_revisions(const RevisionOptions& options, Progress* progress,
                                        const StopFlag* stop);

}  // namespace twinrun::bisect
