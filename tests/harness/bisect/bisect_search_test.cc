// Tests the search on simulated candidates, where every answer and its cost are known: lines,
// histories with merges, sets of changes; also candidates that cannot be tested and answers that
// change.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "harness/search/search.h"
#include "harness/search/smallest_set.h"
#include "tests/harness/tiny.h"

namespace twinrun::bisect {
namespace {

using tiny::must;

// Answers by a function of the candidate, and counts the executions.
struct Simulated {
  std::function<Outcome(const std::string&)> answer;
  int asked = 0;
  Session session;
  Judge judge(Repeats repeats = {.agree = 1, .skips = 1}) {
    return Judge(
        [this](const std::string& candidate) -> Result<Execution> {
          ++asked;
          return Execution{candidate, answer(candidate), "", 0, ""};
        },
        repeats, session, nullptr, nullptr);
  }
};

Lineage numbered(int n) {
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.push_back(std::to_string(i));
  return Lineage::line(names);
}

TEST(BisectSearch, FindsEveryPlaceOnEveryLineWithinTheBound) {
  for (int n = 2; n <= 70; n += n < 20 ? 1 : 5) {
    for (int first_bad = 1; first_bad < n; ++first_bad) {
      Simulated s{[&](const std::string& c) {
        return std::stoi(c) >= first_bad ? Outcome::kBad : Outcome::kGood;
      }};
      Judge judge = s.judge();
      const Found f = must(search(numbered(n), 0, n - 1, judge));
      ASSERT_EQ(f.end, Found::End::kFound);
      ASSERT_EQ(f.first_bad, first_bad) << n;
      ASSERT_EQ(f.last_good, first_bad - 1);
      ASSERT_EQ(f.bound, 2 + static_cast<int>(std::ceil(std::log2(n - 1))));
      ASSERT_LE(f.testable, f.bound) << n << " " << first_bad;
      ASSERT_EQ(f.executions, s.asked);
      ASSERT_EQ(f.executions, f.testable + 2);  // the final pair is tested once more
    }
  }
}

// Candidates that cannot be tested cost executions of their own, but never more of the others.
TEST(BisectSearch, SkipsNeverCostMoreThanThemselves) {
  std::mt19937 random(1);
  int undecided = 0;
  for (int trial = 0; trial < 700; ++trial) {
    const int n = 2 + static_cast<int>(random() % 69);
    const int first_bad = 1 + static_cast<int>(random() % (n - 1));
    const double share = 0.9 * static_cast<double>(random() % 1000) / 1000;
    std::set<int> untestable;
    for (int i = 1; i + 1 < n; ++i) {
      if (static_cast<double>(random() % 1000) / 1000 < share) untestable.insert(i);
    }
    Simulated s{[&](const std::string& c) {
      const int i = std::stoi(c);
      return untestable.contains(i) ? Outcome::kSkip
             : i >= first_bad       ? Outcome::kBad
                                    : Outcome::kGood;
    }};
    Judge judge = s.judge();
    const Found f = must(search(numbered(n), 0, n - 1, judge));
    // The nearest candidates that can be tested.
    int below = first_bad - 1, above = first_bad;
    while (untestable.contains(below)) --below;
    while (untestable.contains(above)) ++above;
    ASSERT_EQ(f.last_good, below);
    ASSERT_EQ(f.first_bad, above);
    ASSERT_EQ(f.skipped.size(), static_cast<size_t>(above - below - 1));
    ASSERT_EQ(f.end, f.skipped.empty() ? Found::End::kFound : Found::End::kUndecided);
    ASSERT_LE(f.testable, f.bound);
    ASSERT_LE(f.untestable, static_cast<int64_t>(untestable.size()));
    undecided += f.end == Found::End::kUndecided;
  }
  EXPECT_GT(undecided, 70);
}

// Histories in which each commit has one or two parents: the first bad commit and all its
// descendants are bad.
TEST(BisectSearch, FollowsMerges) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const int n = 3 + static_cast<int>(random() % 60);
    Lineage lineage;
    for (int i = 0; i < n; ++i) {
      lineage.names.push_back(std::to_string(i));
      lineage.before.emplace_back();
      if (i == 0) continue;
      const int reach = std::min(i, 4);
      const int parent = i - 1 - static_cast<int>(random() % static_cast<unsigned>(reach));
      lineage.before.back().push_back(parent);
      if (i > 1 && (random() % 3 == 0 || i == n - 1) && parent != i - 1)
        lineage.before.back().push_back(i - 1);
    }
    std::vector<char> is_ancestor(static_cast<size_t>(n), 0);
    is_ancestor.back() = 1;
    for (int i = n - 1; i >= 0; --i) {
      for (const int p : lineage.before[static_cast<size_t>(i)])
        is_ancestor[static_cast<size_t>(p)] |= is_ancestor[static_cast<size_t>(i)];
    }
    int culprit = 1 + static_cast<int>(random() % static_cast<unsigned>(n - 1));
    while (is_ancestor[static_cast<size_t>(culprit)] == 0) ++culprit;
    std::vector<char> is_bad(static_cast<size_t>(n), 0);
    for (int i = culprit; i < n; ++i) {
      is_bad[static_cast<size_t>(i)] = i == culprit;
      for (const int p : lineage.before[static_cast<size_t>(i)])
        is_bad[static_cast<size_t>(i)] |= is_bad[static_cast<size_t>(p)];
    }
    if (is_bad.back() == 0) continue;
    Simulated s{[&](const std::string& c) {
      return is_bad[static_cast<size_t>(std::stoi(c))] != 0 ? Outcome::kBad : Outcome::kGood;
    }};
    Judge judge = s.judge();
    const Found f = must(search(lineage, 0, n - 1, judge));
    ASSERT_EQ(f.end, Found::End::kFound);
    ASSERT_EQ(f.first_bad, culprit);
  }
}

TEST(BisectSearch, EndsThatDoNotAnswerAsSaidAreNotReproducible) {
  const auto with = [](Outcome first, Outcome last) {
    Simulated s{[=](const std::string& c) { return c == "0" ? first : last; }};
    Judge judge = s.judge({.agree = 2});
    return must(search(numbered(9), 0, 8, judge));
  };
  Found f = with(Outcome::kGood, Outcome::kGood);
  EXPECT_EQ(f.end, Found::End::kNotReproducible);
  EXPECT_EQ(f.why, "the bad end, 8, is good in 2 of 2: what is looked for does not show");
  EXPECT_EQ(f.executions, 2);  // no other candidate was tried
  f = with(Outcome::kBad, Outcome::kBad);
  EXPECT_EQ(f.why, "the good end, 0, is bad in 2 of 2: what is looked for was there before it");
  f = with(Outcome::kGood, Outcome::kSkip);
  EXPECT_EQ(f.why, "the bad end, 8, is skipped 3 times: it cannot be tested");
  // A good end that is bad now and then.
  int n = 0;
  Simulated s{
      [&](const std::string& c) { return c != "0" || ++n == 2 ? Outcome::kBad : Outcome::kGood; }};
  Judge judge = s.judge({.agree = 2});
  f = must(search(numbered(9), 0, 8, judge));
  EXPECT_EQ(f.why, "the good end, 0, is bad in 1 of 2: the test is flaky there");
}

// A defect that shows in only a part of the executions is nearly always found, within what the
// notes state.
TEST(BisectSearch, FindsWhatShowsNowAndThen) {
  std::mt19937 random(3);
  for (const double rate : {0.9, 0.7, 0.5}) {
    int right = 0, reported = 0, proven = 0;
    constexpr int kTrials = 150;
    for (int trial = 0; trial < kTrials; ++trial) {
      const int first_bad = 1 + static_cast<int>(random() % 63);
      Simulated s{[&](const std::string& c) {
        return std::stoi(c) >= first_bad && std::uniform_real_distribution<>()(random) < rate
                   ? Outcome::kBad
                   : Outcome::kGood;
      }};
      Judge judge = s.judge({.agree = 2, .most = 60});
      const Found f = must(search(numbered(64), 0, 63, judge));
      if (f.end == Found::End::kNotReproducible)
        continue;  // the first answers of the bad end were good
      ++proven;
      right += f.first_bad == first_bad;
      reported += !f.notes.empty() && f.notes[0].starts_with("flaky");
    }
    EXPECT_GT(proven, kTrials / 2) << rate;
    EXPECT_GE(right, 0.95 * proven) << rate;
    EXPECT_GE(reported, (rate < 0.6 ? 0.9 : 0.5) * proven) << rate;
  }
}

TEST(BisectSearch, ADefectThatIsGoneInTheEndIsLost) {
  int n = 0;
  Simulated s{[&](const std::string& c) {
    return ++n < 12 && std::stoi(c) >= 5 ? Outcome::kBad : Outcome::kGood;
  }};
  Judge judge = s.judge({.agree = 2});
  const Found f = must(search(numbered(9), 0, 8, judge));
  EXPECT_EQ(f.end, Found::End::kNotReproducible);
  EXPECT_EQ(f.why,
            "5 was bad in 2 of 2, and is good in 2 of 2 now: lost; something else has changed");
}

TEST(BisectSearch, FlakyBuildsAreTriedAgain) {
  std::map<std::string, int> tries;
  Simulated s{[&](const std::string& c) {
    if (++tries[c] < 3) return Outcome::kSkip;
    return std::stoi(c) >= 23 ? Outcome::kBad : Outcome::kGood;
  }};
  Judge judge = s.judge({.agree = 1, .skips = 3});
  const Found f = must(search(numbered(64), 0, 63, judge));
  EXPECT_EQ(f.end, Found::End::kFound);
  EXPECT_EQ(f.first_bad, 23);
  EXPECT_EQ(f.untestable, 0);
}

// The excluded rate q follows from (1 - q)^k = 1 - confidence.
TEST(BisectSearch, SaysWhatRepeatsAreWorth) {
  EXPECT_NEAR(excluded_rate(1, 0.95), 0.95, 1e-12);
  EXPECT_NEAR(excluded_rate(4, 0.95), 0.5271, 1e-4);
  EXPECT_EQ(tries_left(0), 0);
  EXPECT_EQ(tries_left(1), 1);
  EXPECT_EQ(tries_left(62), 6);
  EXPECT_EQ(tries_left(63), 6);
  EXPECT_EQ(tries_left(64), 7);
}

// ---- sets of changes

std::string key(const std::vector<int>& set) {
  std::string text = "{";
  for (const int i : set) text += (text.size() > 1 ? "," : "") + std::to_string(i);
  return text + "}";
}
std::set<int> set_of(const std::string& key) {
  std::set<int> set;
  for (size_t at = 1; at + 1 < key.size();) {
    size_t used = 0;
    set.insert(std::stoi(key.substr(at), &used));
    at += used + 1;
  }
  return set;
}

TEST(BisectSmallestSet, FindsWhatIsNeededWithinTheBound) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 1500; ++trial) {
    const int n = 1 + static_cast<int>(random() % 40);
    std::set<int> needed;
    const int k = 1 + static_cast<int>(random() % static_cast<unsigned>(std::min(n, 4)));
    while (static_cast<int>(needed.size()) < k) needed.insert(static_cast<int>(random() % n));
    Simulated s{[&](const std::string& c) {
      return std::ranges::includes(set_of(c), needed) ? Outcome::kBad : Outcome::kGood;
    }};
    Judge judge = s.judge();
    const SmallestSet found = must(smallest_set(n, key, judge));
    ASSERT_EQ(found.end, Found::End::kFound);
    ASSERT_EQ(std::set(found.changes.begin(), found.changes.end()), needed);
    ASSERT_LE(found.testable, found.bound) << n << " " << key({needed.begin(), needed.end()});
    // Both ends; for each of k changes a halving of at most n, a test of what is kept alone, and a
    // test without it.
    ASSERT_LE(found.testable, 2 + k * (std::ceil(std::log2(n + 1)) + 2)) << n << " " << k;
  }
}

// With tests that are not monotone and sets that cannot be tested, the result is still bad, and no
// single change can be left out of it.
TEST(BisectSmallestSet, IsMinimalWhateverTheTest) {
  std::mt19937 random(5);
  int several = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const int n = 1 + static_cast<int>(random() % 9);
    const unsigned salt = random();
    const auto answer = [&](const std::set<int>& set) {
      if (set.empty()) return Outcome::kGood;
      if (static_cast<int>(set.size()) == n) return Outcome::kBad;
      size_t hash = salt;
      for (const int i : set) hash = hash * 1000003 + static_cast<size_t>(i) * 77 + 1;
      hash ^= hash >> 17;
      return hash % 5 < 2 ? Outcome::kGood : hash % 5 < 4 ? Outcome::kSkip : Outcome::kBad;
    };
    Simulated s{[&](const std::string& c) { return answer(set_of(c)); }};
    Judge judge = s.judge();
    const SmallestSet found = must(smallest_set(n, key, judge));
    ASSERT_EQ(found.end, Found::End::kFound);
    const std::set<int> set(found.changes.begin(), found.changes.end());
    ASSERT_EQ(answer(set), Outcome::kBad);
    for (const int i : found.changes) {
      std::set<int> less = set;
      less.erase(i);
      ASSERT_NE(answer(less), Outcome::kBad) << key(found.changes) << " without " << i;
    }
    ASSERT_EQ(answer({found.neighbour.begin(), found.neighbour.end()}), Outcome::kGood);
    several += set.size() > 1;
  }
  EXPECT_GT(several, 100);
}

// ---- the session file

TEST(BisectSession, AnInterruptedSearchGoesOnWithoutAskingAgain) {
  const SessionHead head{"rev", R"({"good":"0","bad":"63"})", "twinrun bisect rev"};
  const auto bad_from_23 = [](const std::string& c) {
    return std::stoi(c) >= 23 ? Outcome::kBad : Outcome::kGood;
  };
  int whole = 0;
  for (int stop_after = 0; stop_after < 20; stop_after += 3) {
    const Folder folder;
    int asked = 0;
    StopFlag stop{false};
    Repeats repeats{.agree = 2};
    const auto oracle = [&](const std::string& c) -> Result<Execution> {
      if (++asked == stop_after) stop = true;
      return Execution{c, bad_from_23(c), "said so", 0.5, "logs/1.out"};
    };
    {
      const auto session = must(Session::open(folder / "out", head, false));
      Judge judge(oracle, repeats, *session, nullptr, &stop);
      const auto f = search(numbered(64), 0, 63, judge);
      if (stop_after > 0) {
        EXPECT_FALSE(f.ok());
      }
    }
    // A line that was only partly written when the power failed.
    std::ofstream(folder / "out/session.jsonl", std::ios::app) << R"({"execution":9,"cand)";
    stop = false;
    const auto session = must(Session::open(folder / "out", head, true));
    EXPECT_EQ(session->executions(), asked);
    Judge judge(oracle, repeats, *session, nullptr, &stop);
    const Found f = must(search(numbered(64), 0, 63, judge));
    EXPECT_EQ(f.first_bad, 23);
    if (stop_after == 0) whole = asked;
    EXPECT_EQ(asked, whole) << stop_after;
    must(session->finish(R"({"first_bad":"23"})"));
    const SessionRecord record = must(read_session(folder / "out/session.jsonl"));
    EXPECT_EQ(record.executions.size(), static_cast<size_t>(whole));
    EXPECT_EQ(record.executions[0].candidate, "63");
    EXPECT_EQ(record.executions[0].why, "said so");
    EXPECT_EQ(record.result, R"({"first_bad":"23"})");
  }
}

// Keeps what it is told.
struct Told : Progress {
  void note(const std::string& line) override { notes += line + "\n"; }
  std::string notes;
};

TEST(BisectSession, AChangedLineIsRefusedAndOneWithoutChecksumIsNoted) {
  const Folder folder;
  const SessionHead head{"rev", R"({"good":"0"})", "twinrun bisect rev --good 0"};
  must(must(Session::open(folder / "out", head, false))->add({"7", Outcome::kGood, "", 0, ""}));
  const std::string path = folder / "out/session.jsonl";
  std::stringstream whole;
  whole << std::ifstream(path).rdbuf();
  std::string text = whole.str();
  text.replace(text.find("\"good\",\"why\""), 6, "\"bad\" ");
  std::ofstream(path, std::ios::trunc) << text;
  const auto changed = Session::open(folder / "out", head, true);
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.error().where, path + ":2");
  EXPECT_NE(changed.error().what.find("changed after it was written"), std::string::npos);

  for (size_t at; (at = text.find(",\"checksum\"")) != std::string::npos;)
    text.erase(at, text.find('}', at) - at);
  std::ofstream(path, std::ios::trunc) << text;
  Told told;
  const auto older = must(Session::open(folder / "out", head, true, &told));
  EXPECT_EQ(older->known("7").at(0).outcome, Outcome::kBad);
  EXPECT_NE(told.notes.find("has no checksum"), std::string::npos) << told.notes;
}

TEST(BisectSession, RefusesWhatIsNoneOrAnothers) {
  const Folder folder;
  const SessionHead head{"rev", R"({"good":"0"})", "twinrun bisect rev --good 0"};
  must(must(Session::open(folder / "out", head, false))->add({"0", Outcome::kGood, "", 0, ""}));
  const auto other = Session::open(folder / "out", {"rev", R"({"good":"1"})", ""}, true);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().what.find("twinrun bisect rev --good 0"), std::string::npos);
  const std::pair<const char*, const char*> bad[] = {
      {"", "is empty"},
      {"{\"session\":", "no whole line"},
      {"no json\n", "not a JSON object"},
      {"{\"session\":\"x\"}\n", "not a session"},
      {"{\"session\":\"twinrun bisect\",\"schema\":9}\n", "schema 9"},
  };
  const std::string path = folder / "out/session.jsonl";
  for (const auto& [text, says] : bad) {
    std::ofstream(path, std::ios::trunc) << text;
    const auto read = read_session(path);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message().find(says), std::string::npos) << read.error().message();
    EXPECT_NE(read.error().where.find(path), std::string::npos);
  }
  std::ofstream(path, std::ios::trunc)
      << R"({"session":"twinrun bisect","schema":1,"axis":"rev","identity":{},"command":""})"
      << "\n"
      << R"({"execution":1,"candidate":"0","outcome":"maybe","why":"","seconds":0,"log":""})"
      << "\n";
  EXPECT_EQ(read_session(path).error().where, path + ":2");
  EXPECT_FALSE(read_session(folder / "none.jsonl").ok());
}

}  // namespace
}  // namespace twinrun::bisect
