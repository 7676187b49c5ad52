// The search by halving over a lineage, with repeated executions and statistics for flaky tests.
#include "harness/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>

#include "program/base/distributions.h"

namespace twinrun::bisect {
namespace {

using Mask = std::vector<char>;
constexpr int kSharpen = 10;  // executions of the bad end from which its rate is estimated

// Marks the candidate and all its ancestors in the lineage.
Mask ancestors(const Lineage& lineage, int of) {
  Mask mask(lineage.names.size(), 0);
  mask[static_cast<size_t>(of)] = 1;
  for (int i = of; i >= 0; --i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    for (const int j : lineage.before[static_cast<size_t>(i)]) mask[static_cast<size_t>(j)] = 1;
  }
  return mask;
}

// For each candidate, the number of counted ones among itself and its ancestors. The sets are bit
// sets of 512 counted candidates at a time.
std::vector<int64_t> weights(const Lineage& lineage, const Mask& counted) {
  constexpr size_t kWords = 8, kColumns = 64 * kWords;
  const size_t n = lineage.names.size();
  std::vector<size_t> columns;
  for (size_t i = 0; i < n; ++i) {
    if (counted[i] != 0) columns.push_back(i);
  }
  std::vector<int64_t> weight(n, 0);
  std::vector<std::array<uint64_t, kWords>> reach(n);
  for (size_t begin = 0; begin < columns.size(); begin += kColumns) {
    size_t next = begin;
    for (size_t i = 0; i < n; ++i) {
      auto& bits = reach[i];
      bits.fill(0);
      for (const int j : lineage.before[i]) {
        for (size_t w = 0; w < kWords; ++w) bits[w] |= reach[static_cast<size_t>(j)][w];
      }
      if (next < std::min(columns.size(), begin + kColumns) && columns[next] == i) {
        const size_t column = next++ - begin;
        bits[column / 64] |= uint64_t{1} << (column % 64);
      }
      for (const uint64_t word : bits) weight[i] += std::popcount(word);
    }
  }
  return weight;
}

class Search {
 public:
  Search(const Lineage& lineage, int good, int bad, Judge& judge)
      : lineage_(lineage), good_(good), bad_(bad), judge_(judge) {}

  Result<Found> run() {
    TWINRUN_ASSIGN(const bool both, prove_ends());
    if (both) {
      bool settled = false;
      while (!settled) {
        TWINRUN_ASSIGN(settled, advance());
      }
    }
    found_.executions = judge_.executions();
    found_.testable = judge_.testable();
    found_.untestable = judge_.untestable();
    if (found_.last_good >= 0) found_.good_tally = tally(found_.last_good);
    if (found_.first_bad >= 0) found_.bad_tally = tally(found_.first_bad);
    if (both && found_.end != Found::End::kNotReproducible) say_confidence();
    return found_;
  }

 private:
  const std::string& name(int i) const { return lineage_.names[static_cast<size_t>(i)]; }
  std::string shown(int i) const { return judge_.shown(name(i)); }
  Tally tally(int i) const { return judge_.of(name(i)); }
  const Repeats& repeats() const { return judge_.repeats(); }

  bool is_line() const {
    for (int i = 1; i < lineage_.size(); ++i) {
      if (lineage_.before[static_cast<size_t>(i)] != std::vector<int>{i - 1}) return false;
    }
    return true;
  }

  bool not_reproducible(std::string why) {
    found_.end = Found::End::kNotReproducible;
    found_.why = std::move(why);
    return true;
  }

  // Checks that both ends answer as required. False: one does not, and the search ends.
  Result<bool> prove_ends() {
    for (const int end : {bad_, good_}) {
      judge_.say_left(end == good_ ? "the good end" : "the bad end");
      TWINRUN_ASSIGN(const Tally t, judge_.until(name(end), {repeats().agree, repeats().agree}));
      const Outcome expected = end == good_ ? Outcome::kGood : Outcome::kBad;
      if (t.outcome() == expected) continue;
      not_reproducible(fmt::format("the {} end, {}, is {}{}", to_string(expected), shown(end),
                                   t.text(),
                                   t.mixed()       ? ": the test is flaky there"
                                   : !t.testable() ? ": it cannot be tested"
                                   : end == good_  ? ": what is looked for was there before it"
                                                   : ": what is looked for does not show"));
      return false;
    }
    const int between = survey();
    if (is_line()) found_.bound = 2 + tries_left(between);
    alpha_ = (1 - repeats().confidence) / std::max(1, tries_left(between));
    TWINRUN_RETURN_IF_ERROR(sharpen(tally(bad_)));
    return true;
  }

  // Updates first_bad_, goods_, skipped_ and unasked_ from the answers so far. Returns the number
  // of candidates that may be the first bad one and were not executed yet.
  int survey() {
    Mask open = ancestors(lineage_, bad_);
    first_bad_ = bad_;
    goods_ = {good_};
    for (int i = 0; i < lineage_.size(); ++i) {
      if (i != good_ && tally(i).outcome() == Outcome::kGood) goods_.push_back(i);
    }
    for (const int g : goods_) {
      const Mask before = ancestors(lineage_, g);
      for (size_t i = 0; i < open.size(); ++i) open[i] = open[i] != 0 && before[i] == 0;
    }
    // Narrow down to the ancestors of the earliest bad candidate. Each bad one was chosen among the
    // ancestors of the bad one before it.
    for (int i = lineage_.size() - 1; i >= 0; --i) {
      if (i == bad_ || open[static_cast<size_t>(i)] == 0 || tally(i).bad == 0) continue;
      const Mask before = ancestors(lineage_, i);
      for (size_t k = 0; k < open.size(); ++k) open[k] = open[k] != 0 && before[k] != 0;
      first_bad_ = i;
    }
    unasked_.assign(open.size(), 0);
    skipped_.clear();
    int count = 0;
    for (int i = 0; i < lineage_.size(); ++i) {
      if (open[static_cast<size_t>(i)] == 0 || i == first_bad_) continue;
      if (tally(i).skip > 0) {
        skipped_.push_back(i);
      } else {
        unasked_[static_cast<size_t>(i)] = 1;
        ++count;
      }
    }
    return count;
  }

  // The good candidate nearest to the first bad one: a parent of it, unless all parents were
  // skipped.
  int last_good() const {
    const Mask before = ancestors(lineage_, first_bad_);
    for (const int parent : lineage_.before[static_cast<size_t>(first_bad_)]) {
      if (std::ranges::find(skipped_, parent) == skipped_.end()) return parent;
    }
    int nearest = good_;
    for (const int g : goods_) {
      if (before[static_cast<size_t>(g)] != 0) nearest = std::max(nearest, g);
    }
    return nearest;
  }

  // True when the search is over.
  Result<bool> advance() {
    const int count = survey();
    TWINRUN_ASSIGN(const bool changed, settle_goods());
    if (found_.end == Found::End::kNotReproducible) return true;
    if (changed) return false;
    if (count == 0) return prove_pair();
    const std::vector<int64_t> weight = weights(lineage_, unasked_);
    int best = -1;
    int64_t least = INT64_MAX;
    for (int i = 0; i < lineage_.size(); ++i) {
      const size_t at = static_cast<size_t>(i);
      if (unasked_[at] == 0) continue;
      const int64_t worse = std::max(weight[at] - 1, count - weight[at]);
      if (worse < least) least = worse, best = i;
    }
    const int left = tries_left(count);
    judge_.say_left(fmt::format("{} of {} left, about {} {}", count, lineage_.size(), left,
                                left == 1 ? "try" : "tries"));
    TWINRUN_ASSIGN(const Tally t,
                   judge_.until(name(best), {needed_, rate_ < 1 ? 1 : repeats().agree}));
    TWINRUN_RETURN_IF_ERROR(sharpen(t));
    return false;
  }

  // After a candidate has answered both ways: estimates how often the bad end is bad, and from that
  // how many answers a good candidate needs (needed_).
  Status sharpen(const Tally& t) {
    if (!t.mixed() || rate_ < 1) return Ok{};
    judge_.say_left("how often does it show?");
    const Tally so_far = tally(bad_);
    const int more = std::max(1, kSharpen - so_far.good - so_far.bad);
    TWINRUN_ASSIGN(const Tally end, judge_.more(name(bad_), more));
    const int n = end.good + end.bad;
    rate_ = std::min(0.999, static_cast<double>(end.bad) / n);
    low_rate_ = std::min(0.999, binomial_low_rate(n, end.bad, 1 - repeats().confidence));
    const double wanted = std::log(alpha_) / std::log1p(-low_rate_);
    needed_ = static_cast<int>(std::clamp<double>(std::ceil(wanted), repeats().agree,
                                                  std::max(repeats().agree, repeats().most)));
    return Ok{};
  }

  // Executes again good candidates that were settled before `needed_` rose. True: one of them is
  // bad.
  Result<bool> settle_goods() {
    if (needed_ < repeats().agree) needed_ = repeats().agree;
    for (const int g : goods_) {
      if (g != good_ && !nearest(g)) continue;
      judge_.say_left("is it really good?");
      TWINRUN_ASSIGN(const Tally t, judge_.until(name(g), {needed_, 1}));
      if (t.bad == 0) continue;
      if (g == good_) {
        return not_reproducible(
            fmt::format("the good end, {}, is {}: the test is flaky there", shown(g), t.text()));
      }
      TWINRUN_RETURN_IF_ERROR(sharpen(t));
      return true;
    }
    return false;
  }

  // Whether no other good candidate descends from g; the answers of one that does imply g's.
  bool nearest(int g) const {
    return std::ranges::none_of(goods_, [&](int other) {
      return other > g && ancestors(lineage_, other)[static_cast<size_t>(g)] != 0;
    });
  }

  // Executes the last good and the first bad candidate once more. False: one has answered both
  // ways, so the search goes on. True: the search is over.
  Result<bool> prove_pair() {
    const int good = last_good();
    for (const int i : {good, first_bad_}) {
      if (!proven_.insert(i).second) continue;
      const Tally before = tally(i);
      judge_.say_left(i == good ? "the last good one again" : "the first bad one again");
      TWINRUN_ASSIGN(const Tally after, judge_.more(name(i), repeats().agree));
      TWINRUN_RETURN_IF_ERROR(sharpen(after));
      const int again = after.good + after.bad - before.good - before.bad;
      if (i == first_bad_ && !before.mixed() && again > 0 && after.bad == before.bad) {
        return not_reproducible(fmt::format(
            "{} was bad in {} of {}, and is good in {} of {} now: lost; something else has changed",
            shown(i), before.bad, before.bad, again, again));
      }
      if (after.mixed()) return false;
    }
    found_.last_good = good;
    found_.first_bad = first_bad_;
    found_.skipped = skipped_;
    found_.end = skipped_.empty() ? Found::End::kFound : Found::End::kUndecided;
    return true;
  }

  void say_confidence() {
    const double percent = 100 * repeats().confidence;
    if (rate_ < 1) {
      const int n = found_.good_tally.good;
      found_.notes.push_back(fmt::format(
          "flaky: the bad end shows it in {:.0f}% of executions (at least {:.0f}%, with {:g}% "
          "confidence); the last good one, {}, would show none with probability {:.2g} if it were "
          "bad",
          100 * rate_, 100 * low_rate_, percent, found_.good_tally.text(), std::pow(1 - rate_, n)));
      return;
    }
    const int k = std::min(found_.good_tally.good, found_.bad_tally.bad);
    if (k == 0) return;
    found_.notes.push_back(fmt::format(
        "not flaky: {} executions of either neighbour agree; one that answers otherwise in {:.0f}% "
        "of executions or more would have shown, with {:g}% confidence",
        k, 100 * excluded_rate(k, repeats().confidence), percent));
  }

  const Lineage& lineage_;
  const int good_, bad_;
  Judge& judge_;
  Found found_;
  // Set by survey().
  int first_bad_ = -1;
  std::vector<int> goods_, skipped_;
  Mask unasked_;
  std::set<int> proven_;  // neighbours that were executed once more
  // Share of executions in which the bad end is bad, and its lower confidence bound; 1: no
  // candidate has answered both ways.
  double rate_ = 1, low_rate_ = 1;
  // Allowed probability that a candidate taken for good is bad.
  double alpha_ = 0.05;
  int needed_ = 0;  // answers that settle a good candidate
};

}  // namespace

std::string_view to_string(Found::End end) {
  return end == Found::End::kFound       ? "found"
         : end == Found::End::kUndecided ? "undecided"
                                         : "not reproducible";
}

Lineage Lineage::line(std::vector<std::string> names) {
  Lineage lineage;
  lineage.before.resize(names.size());
  for (size_t i = 1; i < names.size(); ++i) lineage.before[i] = {static_cast<int>(i) - 1};
  lineage.names = std::move(names);
  return lineage;
}

int tries_left(int64_t count) {
  int tries = 0;
  while ((int64_t{1} << tries) < count + 1) ++tries;
  return tries;
}

double excluded_rate(int k, double confidence) { return 1 - std::pow(1 - confidence, 1.0 / k); }

Result<Found> search(const Lineage& lineage, int good, int bad, Judge& judge) {
  return Search(lineage, good, bad, judge).run();
}

}  // namespace twinrun::bisect
