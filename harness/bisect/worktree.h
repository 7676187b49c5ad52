// A repository of the user's, seen through git, and a worktree of it that is ours: their checkout, index and branches stay as they are.
//
//   TWINRUN_ASSIGN(const Repository repo, Repository::open(".", "out/git.log", stop));
//   TWINRUN_ASSIGN(const std::string bad, repo.commit("main"));
//   TWINRUN_ASSIGN(auto tree, Worktree::add(repo, "out/worktree", bad));      // goes with this object
//   TWINRUN_RETURN_IF_ERROR(tree->checkout(sha, /*clean=*/false));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/bisect/search.h"

namespace twinrun::bisect {

class Repository {
 public:
  // `log`: what git says goes there. Errors: no git, no repository.
  static Result<Repository> open(const std::string& folder, const std::string& log,
                                 const StopFlag* stop);

  // Full name of the commit that `revision` names. Error: none; with the nearest branch or tag.
  Result<std::string> commit(const std::string& revision) const;
  // The commits of BAD that are not before GOOD, with GOOD as the first of them. Error: GOOD is not before BAD.
  Result<Lineage> between(const std::string& good, const std::string& bad) const;
  // "Subject line" of a commit; "" where git does not say.
  std::string subject(const std::string& commit) const;
  // The commit's files in `folder`, which is made anew.
  Status export_to(const std::string& commit, const std::string& folder) const;
  // Standard output of `git -C FOLDER WORDS`; FOLDER is the repository unless given. No hook runs.
  Result<std::string> git(std::vector<std::string> words, const std::string& folder = "") const;

  const std::string& top() const { return top_; }
  // The same, but not ended by the stop flag: for what must be tidied up.
  Repository unstoppable() const;

 private:
  std::string top_, log_;
  const StopFlag* stop_ = nullptr;
};

class Worktree {
 public:
  // One that an earlier, killed search left at `path` is removed first.
  static Result<std::unique_ptr<Worktree>> add(const Repository& repository,
                                               const std::string& path, const std::string& commit);
  ~Worktree();
  Worktree(const Worktree&) = delete;
  Worktree& operator=(const Worktree&) = delete;

  // The commit's files, over whatever was changed in tracked ones; `clean`: without any others.
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
