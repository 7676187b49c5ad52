// Axis `rev`: tries commits in a worktree of their own, by the user's build and command.
#include "harness/bisect/revisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoints/container/atomic_file.h"
#include "harness/bisect/worktree.h"
#include "harness/diagnose/write_report.h"
#include "harness/host/command.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShort = 12;  // characters of a commit's name that are shown

// Where what diagnoses of a commit left is kept.
fs::path reports_of(const fs::path& folder, const std::string& commit) {
  return folder / "reports" / commit.substr(0, kShort);
}

// Builds a commit (once while it is checked out) and runs the user's command on it.
class CommitOracle {
 public:
  CommitOracle(const RevisionOptions& options, const std::string& folder, Worktree& tree,
               Session& session, const StopFlag* stop)
      : options_(options), folder_(folder), tree_(tree), session_(session), stop_(stop) {}

  Result<Execution> operator()(const std::string& commit) {
    Execution e;
    e.candidate = commit;
    e.log = fmt::format("logs/{:03}-{}.log", session_.executions() + 1, commit.substr(0, kShort));
    const CommandOptions how{.folder = tree_.path(),
                             .log = (fs::path(folder_) / e.log).string(),
                             .timeout_seconds = options_.timeout_seconds,
                             .on_kill = tree_.path()};
    std::error_code ignored;
    fs::remove(how.log, ignored);  // left by an interrupted execution
    TWINRUN_RETURN_IF_ERROR(tree_.checkout(commit, options_.clean));
    if (!options_.build.empty() && built_ != commit) {
      built_.clear();
      TWINRUN_ASSIGN(const CommandResult build,
                     run_command({"sh", "-c", options_.build}, how, stop_));
      if (build.ended == CommandResult::Ended::kInterrupted) return outcome_of(build, "").error();
      e.seconds = build.seconds;
      if (build.ended != CommandResult::Ended::kExit || build.code != 0) {
        e.why = "the build: " + build.text();
        return e;
      }
      built_ = commit;
    }
    TWINRUN_ASSIGN(const CommandResult ran, run_command(options_.command, how, stop_));
    TWINRUN_ASSIGN(e.outcome, outcome_of(ran, options_.command[0]));
    e.seconds += ran.seconds;
    e.why = ran.text();
    last_log_[commit] = e.log;
    keep_reports(commit);
    return e;
  }

  // The log of the commit's last execution in this process that gave an answer; "": there is none.
  std::string last_log(const std::string& commit) const {
    const auto it = last_log_.find(commit);
    return it == last_log_.end() ? "" : it->second;
  }

 private:
  // A diagnosis leaves its results in the worktree, which does not stay.
  void keep_reports(const std::string& commit) const {
    std::error_code ignored;
    const fs::path results = fs::path(tree_.path()) / "twinrun-results";
    for (const auto& one : fs::directory_iterator(results, ignored)) {
      if (!fs::exists(one.path() / "report.json", ignored)) continue;
      copy_report(one.path(), reports_of(folder_, commit) / one.path().filename());
    }
    fs::remove_all(results, ignored);
  }

  const RevisionOptions& options_;
  const std::string& folder_;
  Worktree& tree_;
  Session& session_;
  const StopFlag* stop_;
  std::string built_;
  std::map<std::string, std::string> last_log_;
};

// Reports the same answers to git bisect, in the worktree's own state. The user can replay its log,
// and git's conclusion is a second opinion.
std::string tell_git(const Repository& repo, const Worktree& tree, const Lineage& lineage,
                     const Judge& judge, const std::string& log) {
  const auto say = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "bisect");
    const auto said = repo.git(std::move(words), tree.path());
    return said.ok() ? *said : "";
  };
  say({"start", "--no-checkout", lineage.names.back(), lineage.names.front()});
  std::string last;
  // git takes the last bad commit that is reported as its bad end, so report the earliest one last.
  for (const Outcome outcome : {Outcome::kSkip, Outcome::kGood, Outcome::kBad}) {
    for (int i = lineage.size() - 2; i > 0; --i) {
      const std::string& name = lineage.names[static_cast<size_t>(i)];
      const Tally t = judge.of(name);
      if ((!t.testable() && t.skip == 0) || t.outcome() != outcome) continue;
      const std::string said = say({std::string(to_string(outcome)), name});
      if (said.find("is the first bad commit") != std::string::npos)
        last = said.substr(0, said.find('\n'));
    }
  }
  const std::string all = say({"log"});
  if (!all.empty()) (void)write_file_atomically(log, all);  // the search does not depend on it
  return last;
}

}  // namespace

Result<RevisionsFound> bisect_revisions(const RevisionOptions& options, Progress* progress,
                                        const StopFlag* stop) {
  std::error_code error;
  // Commands run in the worktree, so paths must be absolute.
  const std::string folder = fs::absolute(options.folder, error).lexically_normal().string();
  fs::create_directories(fs::path(folder) / "logs", error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), folder, "choose another with -o"};
  TWINRUN_ASSIGN(const Repository repo,
                 Repository::open(options.repository, folder + "/git.log", stop));
  TWINRUN_ASSIGN(const std::string good, repo.commit(options.good));
  TWINRUN_ASSIGN(const std::string bad, repo.commit(options.bad));
  TWINRUN_ASSIGN(const Lineage lineage, repo.between(good, bad));
  const nlohmann::ordered_json identity = {
      {"repository", repo.top()}, {"good", good},           {"bad", bad},
      {"build", options.build},   {"clean", options.clean}, {"command", options.command}};
  TWINRUN_ASSIGN(const auto session, Session::open(folder, {"rev", identity.dump(), options.typed},
                                                   options.resume, progress));
  TWINRUN_ASSIGN(const auto tree, Worktree::add(repo, folder + "/worktree", good));
  CommitOracle oracle(options, folder, *tree, *session, stop);
  Judge judge(std::ref(oracle), options.repeats, *session, progress, stop);
  judge.shown_as([&](const std::string& commit) { return commit.substr(0, kShort); });

  RevisionsFound r;
  r.commits = lineage.size();
  TWINRUN_ASSIGN(r.found, search(lineage, 0, lineage.size() - 1, judge));
  const auto named = [&](int i) {
    const std::string& name = lineage.names[static_cast<size_t>(i)];
    return Commit{name, repo.subject(name)};
  };
  if (r.found.end != Found::End::kNotReproducible) {
    r.last_good = named(r.found.last_good);
    r.first_bad = named(r.found.first_bad);
    for (const int i : r.found.skipped) r.skipped.push_back(named(i));
    r.git_says = tell_git(repo, *tree, lineage, judge, folder + "/bisect.log");
    // Of several the first by name: folders are listed in any order.
    for (const auto& one : fs::directory_iterator(reports_of(folder, r.first_bad.name), error))
      if (r.bad_report.empty() || one.path().string() < r.bad_report)
        r.bad_report = one.path().string();
    r.good_folder = folder + "/good";
    r.bad_folder = folder + "/bad";
    for (const auto& [commit, to] :
         {std::pair(&r.last_good, &r.good_folder), std::pair(&r.first_bad, &r.bad_folder)}) {
      TWINRUN_RETURN_IF_ERROR(repo.export_to(commit->name, *to));
      const std::string log = oracle.last_log(commit->name);
      if (!log.empty()) {
        fs::copy_file(fs::path(folder) / log, *to + ".log", fs::copy_options::overwrite_existing,
                      error);
      }
    }
  }
  const nlohmann::ordered_json result = {{"end", to_string(r.found.end)},
                                         {"last_good", r.last_good.name},
                                         {"first_bad", r.first_bad.name},
                                         {"why", r.found.why}};
  TWINRUN_RETURN_IF_ERROR(session->finish(result.dump()));
  return r;
}

}  // namespace twinrun::bisect
