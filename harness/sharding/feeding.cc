// Compares what the cores read with what each sharding cause, or another deal of rows, feeds them.
#include "harness/sharding/feeding.h"

#include <algorithm>
#include <cstring>

namespace twinrun {
namespace {

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return x.same_bits(y); });
}

// One input, core by core.
std::vector<Tensor> column(const StepInputs& inputs, size_t input) {
  std::vector<Tensor> out;
  for (const auto& core : inputs) out.push_back(core[input]);
  return out;
}

bool same_row(const std::vector<Tensor>& a, size_t row, const std::vector<Tensor>& b,
              size_t other) {
  const auto n = static_cast<size_t>(a[0].dims()[0]);
  const size_t bytes = a[0].bytes() / n;
  return std::memcmp(a[row / n].raw() + row % n * bytes, b[other / n].raw() + other % n * bytes,
                     bytes) == 0;
}

bool all_read(const std::vector<Tensor>& read, const std::vector<Tensor>& expected,
              const DealtRows& rows) {
  for (size_t at = 0; at < rows.size(); ++at) {
    if (!same_row(read, at, expected, static_cast<size_t>(rows[at]))) return false;
  }
  return true;
}

// For each position of what was read, the row of `due` that it holds; nullopt if a position holds
// no row of it. `like` is tried first. Labels repeat, so that whole arrangements are tried before
// single rows.
std::optional<DealtRows> rows_read(const std::vector<Tensor>& read,
                                   const std::vector<Tensor>& expected, const DealtRows& like) {
  const auto cores = static_cast<int64_t>(expected.size());
  const int64_t n = expected[0].dims()[0];
  if (!like.empty() && all_read(read, expected, like)) return like;
  for (int64_t roll = 0; roll < cores * n; ++roll) {
    DealtRows rows = rows_in_blocks(cores, n, n, roll);
    if (all_read(read, expected, rows)) return rows;
  }
  DealtRows rows;
  std::vector<bool> used(static_cast<size_t>(cores * n));
  for (size_t at = 0; at < used.size(); ++at) {
    std::optional<size_t> found;
    for (size_t row = 0; row < used.size(); ++row) {
      if ((!found || used[*found]) && (!found || !used[row]) && same_row(read, at, expected, row))
        found = row;
    }
    if (!found) return std::nullopt;
    used[*found] = true;
    rows.push_back(static_cast<int32_t>(*found));
  }
  return rows;
}

}  // namespace

Result<std::vector<std::string>> feeding_causes(const Experiment& e, const Program& asked,
                                                const std::vector<Violation>& violations) {
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  std::vector<std::string> causes;
  for (const std::string& cause : possible_causes(e)) {
    Program fed = asked;
    fed.sharding = introduce(e, asked.sharding, cause);
    if (fed.sharding.feeding == asked.sharding.feeding) continue;
    bool explains = true;
    for (const Violation& v : violations) {
      if (v.what != Violation::What::kFeed || !explains) continue;
      TWINRUN_ASSIGN(const Batch batch, feed.batch(v.step + e.scenario.data.batch_offset));
      TWINRUN_ASSIGN(const StepInputs expected, step_inputs(asked, e.scenario, batch, v.step));
      TWINRUN_ASSIGN(const StepInputs theirs, step_inputs(fed, e.scenario, batch, v.step));
      for (size_t i = 0; i < asked.inputs.size(); ++i) {
        const std::string& name = asked.inputs[i].name;
        const auto reported = std::ranges::find_if(violations, [&](const Violation& w) {
          return w.what == Violation::What::kFeed && w.step == v.step && w.input == name;
        });
        // Violations do not report an input that no op reads.
        if (reported == violations.end()) {
          const bool read = std::ranges::any_of(asked.graph.ops(), [&](const Op& op) {
            return std::ranges::find(op.operands, asked.inputs[i].id) != op.operands.end();
          });
          explains = explains && (!read || same(column(expected, i), column(theirs, i)));
        } else {
          explains = explains && same(reported->read, column(theirs, i));
        }
      }
    }
    if (explains) causes.push_back(cause);
  }
  return causes;
}

Result<std::optional<ShardingChange>> deal_that_was_read(const Experiment& e, const Program& asked,
                                                         const std::vector<Violation>& violations) {
  std::optional<ShardingChange> none;
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  std::map<int64_t, Deal> deals;
  const auto input_named = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find_if(asked.inputs, [&](const Input& input) {
      return std::ranges::find(names, input.name) != names.end();
    });
  };
  for (const Violation& v : violations) {
    if (v.what != Violation::What::kFeed || deals.contains(v.step)) continue;
    TWINRUN_ASSIGN(const Batch batch, feed.batch(v.step + e.scenario.data.batch_offset));
    TWINRUN_ASSIGN(const StepInputs expected, step_inputs(asked, e.scenario, batch, v.step));
    // The rows of one input; empty (each core's own) if no violation reports it.
    bool rows_all = true;
    const auto rows_of = [&](std::initializer_list<std::string_view> names, const DealtRows& like) {
      const auto input = input_named(names);
      if (input == asked.inputs.end()) return DealtRows();
      const auto reported = std::ranges::find_if(violations, [&](const Violation& w) {
        return w.what == Violation::What::kFeed && w.step == v.step && w.input == input->name;
      });
      const auto at = static_cast<size_t>(input - asked.inputs.begin());
      if (reported == violations.end()) {  // the rows of `like` may hold the same labels
        const std::vector<Tensor> own = column(expected, at);
        return !like.empty() && all_read(own, own, like) ? like : DealtRows();
      }
      std::optional<DealtRows> rows = rows_read(reported->read, column(expected, at), like);
      rows_all = rows_all && rows;
      return rows && !is_own(*rows) ? *rows : DealtRows();
    };
    Deal deal;
    deal.features = rows_of({"images", "tokens"}, {});
    deal.labels = rows_of({"labels"}, deal.features);
    deal.draws = rows_of({"sample_ids"}, deal.features);
    // A deal explains no other input.
    for (const Violation& w : violations) {
      const auto is = [&](std::string_view name) { return w.input == name; };
      if (w.what != Violation::What::kFeed || w.step != v.step) continue;
      rows_all = rows_all && (is("images") || is("tokens") || is("labels") || is("sample_ids"));
    }
    if (!rows_all || deal == Deal{}) return none;
    deals[v.step] = deal;
  }
  if (deals.empty()) return none;
  const Deal first = deals.begin()->second;
  const bool one = std::ranges::all_of(deals, [&](const auto& d) { return d.second == first; });
  return std::optional(one ? dealt_otherwise(e, first) : dealt_by_steps(e, std::move(deals)));
}

}  // namespace twinrun
