// Runs git on the user's repository and on the worktree of the search.
#include "harness/bisect/worktree.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "harness/host/command.h"
#include "program/base/names.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

Result<std::string> Repository::git(std::vector<std::string> words,
                                    const std::string& folder) const {
  const std::string what = words.empty() ? "" : words[0];
  std::vector<std::string> all = {"git", "-C", folder.empty() ? top_ : folder};
  for (const char* setting :
       {"core.hooksPath=/dev/null", "advice.detachedHead=false", "gc.auto=0"}) {
    all.emplace_back("-c");
    all.emplace_back(setting);
  }
  all.insert(all.end(), words.begin(), words.end());
  const std::string out = log_ + ".out";
  TWINRUN_ASSIGN(const CommandResult ran, run_command(all, {.log = log_, .out = out}, stop_));
  std::string said = text_of(out);
  std::error_code ignored;
  fs::remove(out, ignored);
  if (ran.ended == CommandResult::Ended::kExit && ran.code == 0) return said;
  if (ran.ended == CommandResult::Ended::kInterrupted) return interrupted();
  return Error{fmt::format("git {}: {}: {}", what, ran.text(), last_line(log_)), top_, ""};
}

Result<Repository> Repository::open(const std::string& folder, const std::string& log,
                                    const StopFlag* stop) {
  Repository r;
  r.top_ = folder;
  r.log_ = log;
  r.stop_ = stop;
  const auto top = r.git({"rev-parse", "--show-toplevel"});
  if (!top) {
    Error error = top.error();
    error.where = folder;
    error.fix = "give --repo FOLDER, a repository with a checkout";
    return error;
  }
  r.top_ = top->substr(0, top->find('\n'));
  return r;
}

Repository Repository::unstoppable() const {
  Repository r = *this;
  r.stop_ = nullptr;
  return r;
}

Result<std::string> Repository::commit(const std::string& revision) const {
  const auto name =
      git({"rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}"});
  if (name.ok() && !name->empty()) return name->substr(0, name->find('\n'));
  const auto refs = git({"for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags"});
  const std::string near = refs.ok() ? meant(revision, lines_of(*refs)) : "";
  return Error{fmt::format("'{}' is not a commit", revision), top_,
               near.empty() ? "give a branch, a tag, or the name of a commit"
                            : fmt::format("did you mean {}?", near)};
}

Result<Lineage> Repository::between(const std::string& good, const std::string& bad) const {
  TWINRUN_ASSIGN(const std::string base, git({"merge-base", "--all", good, bad}));
  if (good == bad)
    return Error{"the good and the bad end are the same commit", "--good, --bad", ""};
  if (base.substr(0, base.find('\n')) != good) {
    return Error{
        fmt::format("{} is not before {}", good.substr(0, 12), bad.substr(0, 12)), "--good",
        base.empty() ? "two commits of one history"
                     : fmt::format("their common ancestor is {}: is it good?", base.substr(0, 12))};
  }
  TWINRUN_ASSIGN(const std::string text,
                 git({"rev-list", "--topo-order", "--reverse", "--parents", bad, "^" + good}));
  Lineage lineage;
  lineage.names = {good};
  lineage.before.emplace_back();
  std::map<std::string, int> numbers{{good, 0}};
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<int> before;
    for (std::string parent; words >> parent;) {
      // Parents outside the range are ancestors of the good end: they count as the good end.
      const auto it = numbers.find(parent);
      before.push_back(it == numbers.end() ? 0 : it->second);
    }
    numbers[name] = lineage.size();
    lineage.names.push_back(name);
    lineage.before.push_back(std::move(before));
  }
  return lineage;
}

std::string Repository::subject(const std::string& commit) const {
  const auto text = git({"log", "-1", "--format=%s", commit});
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

Status Repository::export_to(const std::string& commit, const std::string& folder) const {
  const std::string archive = folder + ".tar";
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error) return Error{"cannot create the folder: " + error.message(), folder, ""};
  TWINRUN_RETURN_IF_ERROR(git({"archive", "--format=tar", "--output=" + archive, commit}));
  TWINRUN_ASSIGN(const CommandResult ran,
                 run_command({"tar", "-xf", archive, "-C", folder}, {.log = log_}, stop_));
  fs::remove(archive, error);
  if (ran.ended == CommandResult::Ended::kExit && ran.code == 0) return Ok{};
  return Error{fmt::format("tar: {}: {}", ran.text(), last_line(log_)), folder, "free space"};
}

Result<std::unique_ptr<Worktree>> Worktree::add(const Repository& repository,
                                                const std::string& path,
                                                const std::string& commit) {
  std::unique_ptr<Worktree> tree(new Worktree(repository.unstoppable(), path));
  if (fs::exists(path)) tree->remove();
  TWINRUN_RETURN_IF_ERROR(
      repository.git({"worktree", "add", "--quiet", "--force", "--detach", path, commit}));
  tree->at_ = commit;
  return tree;
}

Worktree::~Worktree() { remove(); }

void Worktree::remove() const {
  (void)repository_.git({"worktree", "remove", "--force", "--force", path_});
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  (void)repository_.git({"worktree", "prune"});
}

Status Worktree::checkout(const std::string& commit, bool clean) {
  if (commit == at_) return Ok{};
  at_.clear();
  TWINRUN_RETURN_IF_ERROR(
      repository_.git({"checkout", "--quiet", "--force", "--detach", commit}, path_));
  if (clean) TWINRUN_RETURN_IF_ERROR(repository_.git({"clean", "-ffdxq"}, path_));
  at_ = commit;
  return Ok{};
}

}  // namespace twinrun::bisect
