// Axis `package`: tries releases, each in an environment of its own, by the verdict of the user's
// script.
#include "harness/bisect/packages.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoints/container/atomic_file.h"
#include "harness/bisect/comparison_links.h"
#include "harness/bisect/release_version.h"
#include "program/base/digest.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::bisect {
namespace {

namespace fs = std::filesystem;
using Way = ScriptOptions::Way;

// Classes that say that something is wrong; the first that only one end shows is looked for.
constexpr std::string_view kWrong[] = {"ENGINE_BUG", "PROGRAM", "SHARDING", "NONDETERMINISTIC",
                                       kBadWord};
constexpr std::string_view kRight[] = {"NOISE", "IDENTICAL", kGoodWord};
constexpr std::string_view kOpen = "INCONCLUSIVE";

// The class that an execution's `why` begins with: "NOISE: every result ..."; "" if none.
std::string word_of(const std::string& why) {
  const std::string word = why.substr(0, why.find(':'));
  const bool known = std::ranges::find(kWrong, word) != std::end(kWrong) ||
                     std::ranges::find(kRight, word) != std::end(kRight) || word == kOpen;
  return known ? word : "";
}

// Adds what is left of the time to the stages of the search, and shows the making of environments
// as stages of their own.
class PackageProgress : public Progress {
 public:
  explicit PackageProgress(Progress* inner) : inner_(inner) {}
  std::function<std::string()> left;  // "about 4 min left", or ""
  bool quiet_once = false;            // the next end() was told before

  void begin(const std::string& what, int64_t total) override {
    const std::string more = left ? left() : "";
    label_ = more.empty() ? what : what + ", " + more;
    if (inner_ != nullptr) inner_->begin(label_, total);
  }
  void note(const std::string& line) override {
    if (inner_ != nullptr) inner_->note(line);
  }
  void end(const std::string& result) override {
    if (inner_ != nullptr && !quiet_once) inner_->end(result);
    quiet_once = false;
  }
  // A stage inside of the one that has begun, which then begins again.
  void inside(const std::string& what) {
    if (inner_ != nullptr) inner_->begin(what, 1);
  }
  void inside_ends(const std::string& result) {
    if (inner_ == nullptr) return;
    inner_->end(result);
    inner_->begin(label_, 1);
  }

 private:
  Progress* inner_;
  std::string label_;
};

class PackageOracle {
 public:
  PackageOracle(const PackageOptions& options, const ScriptOptions& script,
                const std::vector<Release>& releases, Session& session, PackageProgress& progress,
                const StopFlag* stop)
      : options_(options),
        script_(script),
        releases_(releases),
        common_(options.python.empty() ? common_python(releases) : options.python),
        session_(session),
        progress_(progress),
        stop_(stop),
        environments_({options.environments, options.package, options.requirements, options.folder,
                       options.disk, options.resume},
                      stop),
        number_(session.executions()) {
    for (const Release& r : releases)
      for (const Execution& e : session.known(r.version)) seen_[r.version].push_back(e);
  }

  // For the time that is left and for the environments that are still needed.
  void follow(const Lineage* lineage, const Judge* judge) { lineage_ = lineage, judge_ = judge; }

  Result<Execution> operator()(const std::string& version) {
    auto& before = remembered_[version];
    if (!before.empty()) {
      Execution e = std::move(before.front());
      before.pop_front();
      e.outcome = outcome(word_of(e.why));
      progress_.quiet_once = true;
      return e;
    }
    return execute(version);
  }

  // Runs both ends until one of them shows something wrong that the other one does not, at most
  // `agree` times each. Where LOW cannot be tested, a release above it takes its place. Returns the
  // number of the release to begin with; -1: there is none, and `why` says so.
  Result<int> decide(std::string& why) {
    const int last = static_cast<int>(releases_.size()) - 1;
    const std::string high = version(last), low = version(0);
    for (int round = 1; round <= options_.repeats.agree; ++round) {
      TWINRUN_ASSIGN(const bool one, ask(high, "HIGH", round));
      if (!one) {
        why = fmt::format("HIGH, {}, cannot be tested: {}", high, seen_[high].back().why);
        return -1;
      }
      TWINRUN_ASSIGN(const bool both, ask(low, "LOW", round));
      if (!both) return begin_above(why);
      if (choose(words(low), words(high))) return 0;
    }
    const bool both_bad =
        std::ranges::any_of(words(high), [&](const std::string& w) { return is_bad(w); });
    why = fmt::format("{} and {} are both {}", low, high,
                      both_bad ? "bad: give a LOW that is good"
                               : "good: give a HIGH that is bad, or --fail-on with a class that "
                                 "only one of them shows");
    for (const auto& [name, executions] : remembered_)
      for (const Execution& e : executions) TWINRUN_RETURN_IF_ERROR(session_.add(e));
    return -1;
  }

  bool fixed() const { return fixed_; }
  std::string wrong() const { return join({bad_.begin(), bad_.end()}, ", "); }
  const std::string& common() const { return common_; }
  const Environments& environments() const { return environments_; }

  // Everything that is known of the releases that were tried, the oldest first.
  std::vector<TriedRelease> tried() const {
    std::vector<TriedRelease> all;
    for (const Release& r : releases_) {
      const auto it = seen_.find(r.version);
      if (it == seen_.end()) continue;
      TriedRelease t{r.version, r.date, "", answer(r.version), "", {}};
      if (const Environment* e = environments_.noted(r.version)) t.python = e->python_version;
      for (const Execution& e : it->second) {
        const Outcome o = outcome(word_of(e.why));
        ++(o == Outcome::kGood ? t.tally.good : o == Outcome::kBad ? t.tally.bad : t.tally.skip);
        const fs::path report = fs::path(options_.folder) / "reports" / fs::path(e.log).stem();
        std::error_code ignored;
        if (fs::exists(report / "report.html", ignored)) t.report = report.string();
      }
      all.push_back(std::move(t));
    }
    return all;
  }

  // "about 4 min left", as far as the runs until now tell.
  std::string left() const {
    if (judge_ == nullptr || runs_ == 0) return "";
    int open = 0, low = -1, high = lineage_->size();
    for (int i = 0; i < lineage_->size(); ++i) {
      const Tally t = judge_->of(lineage_->names[static_cast<size_t>(i)]);
      if (t.good > 0 && t.bad == 0) low = i, open = 0;
      if (t.bad > 0) high = std::min(high, i);
      if (!t.testable() && t.skip == 0 && i < high) ++open;
    }
    if (low < 0 || high == lineage_->size()) return "";
    const double run = run_seconds_ / runs_;
    const double environment =
        environments_.made() == 0
            ? 0
            : environments_.seconds() / static_cast<double>(environments_.made());
    const double seconds = tries_left(open) * (environment + options_.repeats.agree * run) +
                           2 * options_.repeats.agree * run;
    return fmt::format("about {} left", text::duration(seconds));
  }

 private:
  const std::string& version(int i) const { return releases_[static_cast<size_t>(i)].version; }

  // Executes a release, before the search does, until `answers` executions have given a class.
  // False: it was skipped too often in a row.
  Result<bool> ask(const std::string& version, const char* name, int answers) {
    std::vector<Execution>& seen = seen_[version];
    while (static_cast<int>(words(version).size()) < answers) {
      const auto skips = std::find_if(seen.rbegin(), seen.rend(),
                                      [](const Execution& e) { return !word_of(e.why).empty(); }) -
                         seen.rbegin();
      if (skips >= options_.repeats.skips) return false;
      progress_.begin(fmt::format("{}, {}", version, name), 1);
      TWINRUN_ASSIGN(const Execution e, execute(version));
      progress_.end(e.why);
      if (word_of(e.why).empty()) {
        TWINRUN_RETURN_IF_ERROR(session_.add(e));
      } else {
        remembered_[version].push_back(e);
      }
    }
    return true;
  }

  // Finds a release above LOW that can be tested and differs from HIGH, by halving: what LOW lacks,
  // later releases have.
  Result<int> begin_above(std::string& why) {
    const std::string high = releases_.back().version;
    progress_.note(fmt::format("LOW, {}, cannot be tested: {}; the search begins above it",
                               version(0), seen_[version(0)].back().why));
    int untestable = 0, same = static_cast<int>(releases_.size()) - 1;
    while (same - untestable > 1) {
      const int middle = untestable + (same - untestable) / 2;
      TWINRUN_ASSIGN(const bool testable, ask(version(middle), "in place of LOW", 1));
      if (testable && choose(words(version(middle)), words(high))) return middle;
      (testable ? same : untestable) = middle;
    }
    why = fmt::format("{} cannot be tested ({}), and above it no release differs from {}",
                      version(untestable), seen_[version(untestable)].back().why, high);
    return -1;
  }

  Result<Execution> execute(const std::string& version) {
    Execution e{version, Outcome::kSkip, "", 0, ""};
    const std::string name = fmt::format("{:03}-{}", ++number_, version);
    e.log = fmt::format("logs/{}.log", name);
    const std::string log =
        (fs::path(options_.folder) / "logs" / (name + ".environment.log")).string();
    std::error_code ignored;
    for (const std::string& file : {log, (fs::path(options_.folder) / e.log).string()})
      fs::remove(file, ignored);  // left by an interrupted execution
    const auto none = unavailable_.find(version);
    if (none != unavailable_.end()) {
      e.why = none->second;
    } else {
      TWINRUN_ASSIGN(const Environment environment, environment_of(version, log));
      e.why = environment.unavailable;
      if (e.why.empty()) {
        TWINRUN_ASSIGN(const ScriptAnswer a, run_script(script_, environment.python, name, stop_));
        e.why = a.word.empty() ? a.why : a.why.empty() ? a.word : a.word + ": " + a.why;
        e.seconds = a.seconds;
        ++runs_, run_seconds_ += a.seconds;
      } else {
        unavailable_[version] = e.why;
      }
    }
    e.outcome = outcome(word_of(e.why));
    seen_[version].push_back(e);
    return e;
  }

  Result<Environment> environment_of(const std::string& version, const std::string& log) {
    const bool ready = environments_.ready(version);
    const auto release =
        std::ranges::find_if(releases_, [&](const Release& r) { return r.version == version; });
    const std::string python =
        options_.python.empty() ? python_for(*release, common_) : options_.python;
    if (!ready) progress_.inside(fmt::format("{}, environment with Python {}", version, python));
    const int64_t removed = environments_.removed(), made = environments_.made();
    TWINRUN_ASSIGN(const Environment e, environments_.make(version, python, needed(), log));
    if (ready) return e;
    std::string told = e.unavailable;
    if (told.empty())
      told = fmt::format("{}, {:.0f} MB", environments_.made() > made ? "made" : "found",
                         static_cast<double>(e.bytes) / 1e6);
    if (environments_.removed() > removed)
      told += fmt::format("; {} removed", environments_.removed() - removed);
    progress_.inside_ends(told);
    return e;
  }

  // Releases that the search asks again in the end, as far as it knows.
  std::vector<std::string> needed() const {
    if (judge_ == nullptr) return {releases_.front().version, releases_.back().version};
    std::string good, bad;
    for (const std::string& name : lineage_->names) {
      const Tally t = judge_->of(name);
      if (t.bad == 0 && t.good > 0) good = name;
      if (t.bad > 0 && bad.empty()) bad = name;
    }
    return {good, bad};
  }

  // The classes that a release has shown.
  std::vector<std::string> words(const std::string& version) const {
    std::vector<std::string> all;
    const auto it = seen_.find(version);
    if (it == seen_.end()) return all;
    for (const Execution& e : it->second) {
      std::string word = word_of(e.why);
      if (!word.empty()) all.push_back(std::move(word));
    }
    return all;
  }

  // Finds what is bad by the classes of the ends. False: they do not differ in any.
  bool choose(const std::vector<std::string>& low, const std::vector<std::string>& high) {
    const auto shows = [](const std::vector<std::string>& all, const std::set<std::string>& which) {
      return std::ranges::any_of(all, [&](const std::string& w) { return which.contains(w); });
    };
    std::vector<std::set<std::string>> sets;
    if (!options_.fail_on.empty() && script_.way != Way::kExit) {
      sets.emplace_back(options_.fail_on.begin(), options_.fail_on.end());
    } else {
      for (const std::string_view word : kWrong) sets.push_back({std::string(word)});
    }
    for (const auto& which : sets) {
      const bool a = shows(low, which), b = shows(high, which);
      if (a == b) continue;
      bad_ = which;
      fixed_ = a;
      const auto& good = fixed_ ? high : low;
      good_.insert(good.begin(), good.end());
      return true;
    }
    return false;
  }

  bool is_bad(const std::string& word) const {
    if (!bad_.empty()) return bad_.contains(word);
    if (!options_.fail_on.empty())
      return std::ranges::find(options_.fail_on, word) != options_.fail_on.end();
    return std::ranges::find(kWrong, word) != std::end(kWrong);
  }

  // What the good end has shown is good. Something else wrong, or nothing certain, is a skip.
  Outcome outcome(const std::string& word) const {
    if (word.empty()) return Outcome::kSkip;
    if (is_bad(word)) return Outcome::kBad;
    if (good_.contains(word) || std::ranges::find(kRight, word) != std::end(kRight))
      return Outcome::kGood;
    return options_.fail_on.empty() || word == kOpen ? Outcome::kSkip : Outcome::kGood;
  }

  // What the release has answered last, of answers that agree with its outcome.
  std::string answer(const std::string& version) const {
    const auto it = seen_.find(version);
    if (it == seen_.end()) return "";
    std::string last;
    Outcome of_last = Outcome::kSkip;
    for (const Execution& e : it->second) {
      const Outcome o = outcome(word_of(e.why));
      if (o == Outcome::kBad || of_last != Outcome::kBad) last = e.why, of_last = o;
    }
    return last;
  }

  const PackageOptions& options_;
  const ScriptOptions& script_;
  const std::vector<Release>& releases_;
  const std::string common_;
  Session& session_;
  PackageProgress& progress_;
  const StopFlag* stop_;
  Environments environments_;
  const Lineage* lineage_ = nullptr;
  const Judge* judge_ = nullptr;
  std::map<std::string, std::vector<Execution>> seen_;
  // Executions of the ends that the search has not asked for yet.
  std::map<std::string, std::deque<Execution>> remembered_;
  std::map<std::string, std::string> unavailable_;
  std::set<std::string> bad_, good_;  // classes
  bool fixed_ = false;
  int64_t number_;  // of the last execution
  int runs_ = 0;
  double run_seconds_ = 0;
};

// "0.4.30 and 0.4.31": the releases on both sides of a version that is none.
std::string neighbours(const std::vector<std::pair<ReleaseVersion, Release>>& usable,
                       const ReleaseVersion& version) {
  std::string before, after;
  for (const auto& [v, r] : usable) {
    if (v < version) before = r.version;
    if (v > version && after.empty()) after = r.version;
  }
  return before.empty() ? after : after.empty() ? before : before + " and " + after;
}

}  // namespace

Result<std::vector<Release>> releases_between(const std::vector<Release>& all,
                                              const std::string& package, const std::string& low,
                                              const std::string& high, const std::string& python) {
  TWINRUN_ASSIGN(const ReleaseVersion first, ReleaseVersion::parse(low));
  TWINRUN_ASSIGN(const ReleaseVersion last, ReleaseVersion::parse(high));
  if (!(first < last))
    return Error{fmt::format("LOW {} is not below HIGH {}", low, high), "",
                 first == last ? "give two releases" : fmt::format("{}..{}", high, low)};
  const auto fits = [&](const Release& r) {
    return python.empty() ? !r.pythons.empty()
                          : std::ranges::find(r.pythons, python) != r.pythons.end();
  };
  const std::string whose = python.empty() ? "a Python of this machine" : "Python " + python;
  std::vector<std::pair<ReleaseVersion, Release>> usable;
  for (const Release& r : all) {
    const auto v = ReleaseVersion::parse(r.version);
    if (v.ok() && !r.yanked && fits(r)) usable.emplace_back(*v, r);
  }
  std::ranges::sort(usable, {}, [](const auto& entry) { return entry.first; });
  for (const auto& [end, typed] : {std::pair(first, low), std::pair(last, high)}) {
    const auto same = [&end = end](const Release& r) {
      const auto v = ReleaseVersion::parse(r.version);
      return v.ok() && *v == end;
    };
    const auto found = std::ranges::find_if(all, same);
    if (found != all.end() && !found->yanked && fits(*found)) continue;
    const std::string near = neighbours(usable, end);
    return Error{fmt::format("{} {} {}", package, typed,
                             found == all.end() ? "is not released"
                             : found->yanked    ? "was yanked"
                                                : "has no wheel for " + whose),
                 "", near.empty() ? "none of its releases can be used" : "the nearest: " + near};
  }
  const bool candidates = first.is_prerelease() || last.is_prerelease();
  std::vector<Release> between;
  for (const auto& [v, r] : usable) {
    if (v >= first && v <= last && (candidates || !v.is_prerelease())) between.push_back(r);
  }
  return between;
}

Result<PackagesFound> bisect_packages(const PackageOptions& options, Progress* progress,
                                      const StopFlag* stop) {
  std::error_code error;
  PackageOptions o = options;
  o.folder = fs::absolute(options.folder, error).lexically_normal().string();
  fs::create_directories(fs::path(o.folder) / "logs", error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), o.folder,
                 "choose another with -o"};
  ScriptOptions script{.script = o.script,
                       .folder = o.folder,
                       .steps = o.steps,
                       .threads = o.threads,
                       .timeout_seconds = o.timeout_seconds};
  TWINRUN_ASSIGN(script.way, way_of(o.script[0]));
  if (o.way) script.way = *o.way;
  const auto package = package_folder(o.interpreter, o.folder + "/package.log", stop);
  if (package) {
    script.package = *package;
  } else if (script.way != Way::kExit || package.error().kind == Error::Kind::kInterrupted) {
    return package.error();
  }
  PackagesFound r;
  r.way = script.way;
  TWINRUN_ASSIGN(
      const auto all,
      Environments({.command = o.environments, .package = o.package, .folder = o.folder}, stop)
          .releases());
  TWINRUN_ASSIGN(const auto releases, releases_between(all, o.package, o.low, o.high, o.python));
  r.releases = static_cast<int64_t>(releases.size());
  std::ifstream in(o.script[0], std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string content = text.str();
  const nlohmann::ordered_json identity = {
      {"package", o.package},
      {"low", releases.front().version},
      {"high", releases.back().version},
      {"requires", o.requirements},
      {"python", o.python},
      {"way", static_cast<int>(script.way)},
      {"fail_on", o.fail_on},
      {"steps", o.steps},
      {"script", o.script},
      {"content", digest_bytes(content.data(), content.size()).hex()}};
  TWINRUN_ASSIGN(const auto session, Session::open(o.folder, {"package", identity.dump(), o.typed},
                                                   o.resume, progress));
  PackageProgress stages(progress);
  PackageOracle oracle(o, script, releases, *session, stages, stop);
  stages.note(fmt::format("{} releases of {} from {} to {}, of which about {} are tried; Python {}",
                          releases.size(), o.package, releases.front().version,
                          releases.back().version, 2 + tries_left(r.releases - 2),
                          oracle.common()));
  stages.left = [&] { return oracle.left(); };
  std::string why;
  TWINRUN_ASSIGN(const int begin, oracle.decide(why));
  r.fixed = oracle.fixed();
  r.wrong = oracle.wrong();
  if (begin >= 0) {
    std::vector<std::string> names;
    for (size_t i = static_cast<size_t>(begin); i < releases.size(); ++i)
      names.push_back(releases[i].version);
    if (r.fixed) std::ranges::reverse(names);
    const Lineage lineage = Lineage::line(names);
    Judge judge(std::ref(oracle), o.repeats, *session, &stages, stop);
    oracle.follow(&lineage, &judge);
    TWINRUN_ASSIGN(r.found, search(lineage, 0, lineage.size() - 1, judge));
    oracle.follow(nullptr, nullptr);
    r.tried = oracle.tried();
    const auto named = [&](int i) {
      const std::string& name = names[static_cast<size_t>(i)];
      return *std::ranges::find_if(r.tried, [&](const auto& t) { return t.version == name; });
    };
    if (r.found.end != Found::End::kNotReproducible) {
      r.last_good = named(r.found.last_good);
      r.first_bad = named(r.found.first_bad);
      for (const int i : r.found.skipped) r.skipped.push_back(names[static_cast<size_t>(i)]);
      const TriedRelease& before = r.fixed ? r.first_bad : r.last_good;
      const TriedRelease& after = r.fixed ? r.last_good : r.first_bad;
      r.links = comparison_links(o.package, before.version, after.version);
    }
  } else {
    r.found.end = Found::End::kNotReproducible;
    r.found.why = why;
    r.tried = oracle.tried();
  }
  // With those that were tried before the search.
  r.found.executions = r.found.testable = r.found.untestable = 0;
  for (const TriedRelease& t : r.tried) {
    r.found.executions += t.tally.good + t.tally.bad + t.tally.skip;
    ++(t.tally.testable() ? r.found.testable : r.found.untestable);
  }
  r.environments = oracle.environments().made();
  r.removed = oracle.environments().removed();
  r.environment_seconds = oracle.environments().seconds();
  r.bytes = oracle.environments().bytes();
  const nlohmann::ordered_json result = {{"end", to_string(r.found.end)},
                                         {"fixed", r.fixed},
                                         {"last_good", r.last_good.version},
                                         {"first_bad", r.first_bad.version},
                                         {"why", r.found.why}};
  TWINRUN_RETURN_IF_ERROR(session->finish(result.dump()));
  return r;
}

}  // namespace twinrun::bisect
