// A repository of the user's, accessed through git, and a separate worktree of it for the search
// over commits (revisions.h). The user's checkout, index and branches are not changed.
//
//   TWINRUN_ASSIGN(const Repository repo, Repository::open(".", "out/git.log", stop));
//   TWINRUN_ASSIGN(const std::string bad, repo.commit("main"));
//   TWINRUN_ASSIGN(auto tree, Worktree::add(repo, "out/worktree", bad));   // removed with `tree`
//   TWINRUN_RETURN_IF_ERROR(tree->checkout(sha, /*clean=*/false));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/search/search.h"

namespace twinrun::bisect {

class Repository {
 public:
  // `log`: file for git's messages. Errors: no git, no repository.
  static Result<Repository> open(const std::string& folder, const std::string& log,
                                 const StopFlag* stop);

  // Full name of the commit that `revision` names. Error: there is none; it suggests the nearest
  // branch or tag.
  Result<std::string> commit(const std::string& revision) const;
  // GOOD, then the commits that are ancestors of BAD (or BAD itself) but not of GOOD. Error: GOOD
  // is no ancestor of BAD.
  Result<Lineage> between(const std::string& good, const std::string& bad) const;
  // Subject line of a commit; "" if git fails.
  std::string subject(const std::string& commit) const;
  // Writes the commit's files to `folder`, which is emptied first.
  Status export_to(const std::string& commit, const std::string& folder) const;
  // Standard output of `git -C FOLDER WORDS`; FOLDER is the repository unless given. No hook runs.
  Result<std::string> git(std::vector<std::string> words, const std::string& folder = "") const;

  const std::string& top() const { return top_; }
  // The same repository, but the stop flag does not end its commands: for cleaning up.
  Repository unstoppable() const;

 private:
  std::string top_, log_;
  const StopFlag* stop_ = nullptr;
};

class Worktree {
 public:
  // First removes a worktree that an earlier, killed search left at `path`.
  static Result<std::unique_ptr<Worktree>> add(const Repository& repository,
                                               const std::string& path, const std::string& commit);
  ~Worktree();
  Worktree(const Worktree&) = delete;
  Worktree& operator=(const Worktree&) = delete;

  // Checks out the commit and overwrites changes to tracked files. `clean`: also removes all other
  // files.
  Status checkout(const std::string& commit, bool clean);
  const std::string& path() const { return path_; }

 private:
  Worktree(Repository repository, std::string path)
      : repository_(std::move(repository)), path_(std::move(path)) {}
  void remove() const;
  Repository repository_;
  std::string path_, at_;
};

}  // namespace twinrun::bisect
