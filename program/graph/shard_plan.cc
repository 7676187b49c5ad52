// Feeding the cores other rows than their own: deals, shards that repeat, remainders, random
// streams.
#include "program/graph/shard_plan.h"

#include <algorithm>
#include <cstring>

namespace twinrun {
namespace {

// The rows of `from` with these numbers; -1 gives a row of zeros.
Tensor rows_at(const Tensor& from, const std::vector<int64_t>& rows) {
  Dims dims = from.dims();
  dims[0] = static_cast<int64_t>(rows.size());
  Tensor out = Tensor::zeros({from.dtype(), dims});
  const size_t bytes = from.bytes() / static_cast<size_t>(from.dims()[0]);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    std::memcpy(out.raw() + i * bytes, from.raw() + static_cast<size_t>(rows[i]) * bytes, bytes);
  }
  return out;
}

// One input of each core, with rows[p] of the whole batch at position p, core after core.
std::vector<Tensor> dealt(const std::vector<std::vector<Tensor>>& inputs, size_t input,
                          const std::vector<int32_t>& rows) {
  std::vector<Tensor> out;
  const auto n = static_cast<size_t>(inputs[0][input].dims()[0]);
  for (size_t core = 0; core < inputs.size(); ++core) {
    const Tensor& own = inputs[core][input];
    const size_t bytes = own.bytes() / n;
    Tensor t = Tensor::zeros(own.type());
    for (size_t i = 0; i < n; ++i) {
      const auto row = static_cast<size_t>(rows[core * n + i]);
      std::memcpy(t.raw() + i * bytes, inputs[row / n][input].raw() + (row % n) * bytes, bytes);
    }
    out.push_back(std::move(t));
  }
  return out;
}

// The last core's rows of one input under a remainder; `first` are the first core's rows.
Tensor with_remainder(Feeding::Remainder how, const Tensor& last, const Tensor& first,
                      bool is_weights) {
  const int64_t n = last.dims()[0], real = real_rows(n);
  std::vector<int64_t> own(static_cast<size_t>(n), -1);
  for (int64_t i = 0; i < n; ++i) {
    const bool rest = i >= real;
    int64_t& row = own[static_cast<size_t>(i)];
    if (!rest || (how == Feeding::Remainder::kPadded && is_weights)) {
      row = i;  // weights stay, so padding counts
    } else if (how == Feeding::Remainder::kDropped) {
      row = real > 0 ? i % real : i;
    }
  }
  Tensor out = rows_at(last, own);
  if (how == Feeding::Remainder::kRepeated) {
    const size_t bytes = out.bytes() / static_cast<size_t>(n);
    std::memcpy(out.raw() + static_cast<size_t>(real) * bytes, first.raw(),
                static_cast<size_t>(n - real) * bytes);
  }
  return out;
}

// Other sample numbers for random ops. Those of the whole batch are 0 .. cores * n - 1.
Tensor stream_of(Feeding::Streams streams, const Tensor& ids, int64_t core, int64_t cores) {
  Tensor out = ids.clone();
  const auto n = static_cast<int64_t>(out.elements());
  for (int64_t i = 0; i < n; ++i) {
    const bool moved = streams == Feeding::Streams::kPerCore && core > 0;
    out.as<int32_t>()[static_cast<size_t>(i)] =
        static_cast<int32_t>(moved ? (cores + core) * n + i : i);
  }
  return out;
}

}  // namespace

int64_t real_rows(int64_t per_core) {
  for (int64_t p = 2; p <= per_core; ++p) {
    if (per_core % p == 0) return per_core / p;
  }
  return 0;
}

void deal_rows(const Program& program, const Deal& deal, std::vector<std::vector<Tensor>>& inputs) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string& name = program.inputs[i].name;
    const std::vector<int32_t>* rows = name == "images" || name == "tokens"    ? &deal.features
                                       : name == "labels" || name == "weights" ? &deal.labels
                                       : name == "sample_ids"                  ? &deal.draws
                                                                               : nullptr;
    // A deal that was made for another batch size is not applied.
    if (rows == nullptr ||
        rows->size() != inputs.size() * static_cast<size_t>(inputs[0][i].dims()[0]))
      continue;
    const std::vector<Tensor> theirs = dealt(inputs, i, *rows);
    for (size_t core = 0; core < inputs.size(); ++core) inputs[core][i] = theirs[core];
  }
}

void misfeed(const Program& program, std::vector<std::vector<Tensor>>& inputs) {
  const Feeding& how = program.sharding.feeding;
  const auto cores = static_cast<int64_t>(inputs.size());
  if (how == Feeding{} || cores < 2) return;
  deal_rows(program, how.deal, inputs);
  const auto all = static_cast<double>(cores);
  // Core 0's inputs, which other cores may be fed.
  const std::vector<Tensor> first = inputs.front();
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string& name = program.inputs[i].name;
    const bool data = name == "images" || name == "tokens" || name == "labels" || name == "weights";
    for (int64_t core = 0; core < cores; ++core) {
      Tensor& t = inputs[static_cast<size_t>(core)][i];
      if (data && (how.shards == Feeding::Shards::kFirst ||
                   (how.shards == Feeding::Shards::kFirstTwice && core == 1)))
        t = first[i];
      if (data && how.remainder != Feeding::Remainder::kReal && core + 1 == cores)
        t = with_remainder(how.remainder, t, first[i], name == "weights");
      if (name == "sample_ids" && how.streams != Feeding::Streams::kGlobal)
        t = stream_of(how.streams, t, core, cores);
      if (name == "learning_rate" && how.rate != Feeding::Rate::kAsGiven) {
        const double rate = static_cast<double>(t.as<float>()[0]);
        t = Tensor::scalar(
            static_cast<float>(how.rate == Feeding::Rate::kTimesCores ? rate * all : rate / all));
      }
    }
  }
}

}  // namespace twinrun
