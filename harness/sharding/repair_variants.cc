// Tables of rows are what the import makes of exchanges and of sums within groups (Exchange). A
// other gives each core a table of which it takes what the other collective would have given it.
#include "harness/sharding/repair_variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace twinrun {
namespace {

constexpr size_t kMaxAxes = 4;     // of a mesh, whose sets are tried
constexpr size_t kMaxOthers = 64;  // each is a walk through the program

using Values = ReplicaWalk::Values;

// Copies block `i` of `count` along a dimension out of a tensor, or into it.
template <typename Whole, typename Part>
void copy_block(Whole& whole, size_t dim, int64_t count, int64_t i, Part& part, bool into) {
  const Dims& dims = whole.dims();
  int64_t outer = 1;
  for (size_t d = 0; d < dim; ++d) outer *= dims[d];
  const size_t run = part.bytes() / static_cast<size_t>(outer);
  for (int64_t o = 0; o < outer; ++o) {
    auto* in_whole = whole.raw() + static_cast<size_t>(o * count + i) * run;
    auto* in_part = part.raw() + static_cast<size_t>(o) * run;
    if constexpr (!std::is_const_v<Whole>) {
      if (into) std::memcpy(in_whole, in_part, run);
    }
    if constexpr (!std::is_const_v<Part>) {
      if (!into) std::memcpy(in_part, in_whole, run);
    }
  }
}
Tensor block_of(const Tensor& whole, size_t dim, int64_t count, int64_t i) {
  Dims dims = whole.dims();
  dims[dim] /= count;
  Tensor part = Tensor::empty({whole.dtype(), dims});
  copy_block(whole, dim, count, i, part, false);
  return part;
}

// A row of what a core places in a table, without the dimension of rows.
Tensor row_of(const Tensor& table, int64_t row) {
  return table.rows(row, row + 1).reshaped(Dims(table.dims().begin() + 1, table.dims().end()));
}

// Each core gets the value of sources[core]; zeros where that is -1. It takes row own[core].
OtherCollective::Call permuted(std::vector<int32_t> own, std::vector<int32_t> sources) {
  return [own, sources](const Values& tables) {
    std::vector<Tensor> out;
    for (size_t core = 0; core < tables.size(); ++core) {
      const auto rows = static_cast<int32_t>(tables[core][0].dims()[0]);
      Tensor table = Tensor::zeros(tables[core][0].type());
      const int32_t from = sources[core], to = own[core] < 0 ? rows - 1 : own[core];
      if (from >= 0) {
        const Tensor value = row_of(tables[static_cast<size_t>(from)][0], from);
        copy_block(table, 0, rows, to, value, true);
      }
      out.push_back(std::move(table));
    }
    return out;
  };
}

// The dimensions of the result of an all_to_all; none if they do not divide.
Dims result_dims(Dims dims, int64_t size, int64_t split, int64_t join) {
  const auto s = static_cast<size_t>(split), j = static_cast<size_t>(join);
  if (dims[s] % size != 0) return {};
  dims[s] /= size;
  dims[j] *= size;
  return dims;
}

OtherCollective::Call all_to_all(const Exchange& as, int64_t split, int64_t join) {
  return [as, split, join](const Values& tables) {
    const auto cores = tables.size();
    std::vector<Tensor> own;
    for (size_t core = 0; core < cores; ++core)
      own.push_back(row_of(tables[core][0], as.group[core] * as.size + as.place[core]));
    std::vector<Tensor> out;
    for (size_t core = 0; core < cores; ++core) {
      Tensor result =
          Tensor::empty({own[core].dtype(), result_dims(own[core].dims(), as.size, split, join)});
      for (size_t other = 0; other < cores; ++other)
        if (as.group[other] == as.group[core]) {
          const Tensor piece =
              block_of(own[other], static_cast<size_t>(split), as.size, as.place[core]);
          copy_block(result, static_cast<size_t>(join), as.size, as.place[other], piece, true);
        }
      Tensor table = Tensor::zeros(tables[core][0].type());
      for (int64_t from = 0; from < as.size; ++from) {
        const Tensor piece = block_of(result, static_cast<size_t>(as.join), as.size, from);
        Tensor row = Tensor::zeros(own[core].type());
        copy_block(row, static_cast<size_t>(as.split), as.size, as.place[core], piece, true);
        copy_block(table, 0, table.dims()[0], as.group[core] * as.size + from, row, true);
      }
      out.push_back(std::move(table));
    }
    return out;
  };
}

// The sum over other groups, times a number. rows: of the tables; none: the values are no tables.
OtherCollective::Call summed(JoinedCores groups, JoinedCores rows, double scale) {
  return [groups, rows, scale](const Values& given) {
    const auto value = [&](size_t core) {
      return rows.empty() ? given[core][0] : row_of(given[core][0], rows[core]);
    };
    std::vector<Tensor> out;
    for (size_t core = 0; core < given.size(); ++core) {
      Tensor sum = Tensor::zeros(value(core).type());
      for (size_t other = 0; other < given.size(); ++other) {
        if (groups[other] != groups[core]) continue;
        const Tensor x = value(other);
        for (size_t e = 0; e < sum.as<double>().size(); ++e)
          sum.as<double>()[e] += scale * x.as<const double>()[e];
      }
      if (!rows.empty()) {
        Tensor table = Tensor::zeros(given[core][0].type());
        copy_block(table, 0, table.dims()[0], rows[core], sum, true);
        sum = std::move(table);
      }
      out.push_back(std::move(sum));
    }
    return out;
  };
}

struct Found {
  ValueId id;
  const Exchange* exchange;
  Dims dims;  // of a core's value
};

class OtherCollectives {
 public:
  OtherCollectives(const Program& program, const RepairFlow& flow, std::span<const MeshAxis> axes)
      : graph_(program.graph), flow_(flow), axes_(axes) {}

  void of_exchanges(std::span<const Exchange> exchanges) {
    std::map<std::string, std::vector<Found>> turns, swaps;  // by line
    std::vector<Found> every;
    for (const auto& [id, groups] : flow_.sums()) {
      const auto of = std::ranges::find(exchanges, graph_.op(id).name, &Exchange::sum);
      if (of == exchanges.end()) continue;
      const Dims& dims = graph_.op(id).type.dims;
      const Found found{id, &*of, Dims(dims.begin() + 1, dims.end())};
      (of->kind == Exchange::kPermute ? turns : swaps)[line_of(graph_.op(id).name)].push_back(
          found);
      if (of->kind == Exchange::kAllToAll) every.push_back(found);
    }
    for (const auto& [line, found] : turns) turn(found);
    for (const auto& [line, found] : swaps) swap(found);
    if (swaps.size() > 1) swap(every);
  }

  void of_sums() {
    const std::vector<std::vector<std::string>> sets = sets_of_axes(axes_);
    if (sets.size() < 2) return;
    std::map<std::pair<std::string, JoinedCores>, std::vector<ValueId>> lines;
    for (const auto& [id, groups] : flow_.sums())
      if (size_of_groups(groups) > 1 && is_floating(graph_.op(id).type.dtype))
        lines[{line_of(graph_.op(id).name), groups}].push_back(id);
    for (const auto& [key, ids] : lines) {
      const auto& [line, groups] = key;
      for (const std::vector<std::string>& names : sets) {
        const std::string own = axes_of(groups, axes_),
                          other = fmt::format("{}", fmt::join(names, ", "));
        if (own == other) continue;
        const JoinedCores along = groups_along(axes_, names);
        OtherCollective v{"wrong_axis", {{"axes", own}, {"words", other}}, ids.front(), {}};
        for (const ValueId id : ids) {
          const auto before = static_cast<double>(size_of_groups(groups));
          const auto after = static_cast<double>(size_of_groups(along));
          const double scale = flow_.is_mean(id) ? before / after : 1;
          v.instead[id] = summed(along, flow_.is_table(id) ? groups : JoinedCores(), scale);
        }
        add(std::move(v));
      }
    }
  }

  std::vector<OtherCollective> take() { return std::move(out_); }

 private:
  void add(OtherCollective v) {
    if (out_.size() < kMaxOthers) out_.push_back(std::move(v));
  }

  void turn(const std::vector<Found>& found) {
    OtherCollective back{"wrong_direction", {{"words", "the other direction"}}, found[0].id, {}};
    OtherCollective none{"wrong_direction", {{"words", "no exchange"}}, found[0].id, {}};
    for (const Found& f : found) {
      const std::vector<int32_t>& source = f.exchange->source;
      std::vector<int32_t> to(source.size(), -1), own(source.size());
      std::iota(own.begin(), own.end(), 0);
      for (size_t core = 0; core < source.size(); ++core)
        if (source[core] >= 0) to[static_cast<size_t>(source[core])] = static_cast<int32_t>(core);
      back.instead[f.id] = permuted(source, to);
      none.instead[f.id] = permuted(source, own);
    }
    add(std::move(back));
    add(std::move(none));
  }

  void swap(const std::vector<Found>& found) {
    const auto rank = std::ssize(found[0].dims);
    for (int64_t split = 0; split < rank; ++split)
      for (int64_t join = 0; join < rank; ++join) {
        OtherCollective v{"wrong_dimensions",
                          {{"words", fmt::format("split_axis={}, concat_axis={}", split, join)}},
                          found[0].id,
                          {}};
        for (const Found& f : found) {
          const Exchange& e = *f.exchange;
          if (std::ssize(f.dims) != rank) continue;
          const Dims dims = result_dims(f.dims, e.size, split, join);
          const bool same = e.split == split && e.join == join;
          if (!same && dims == result_dims(f.dims, e.size, e.split, e.join))
            v.instead[f.id] = all_to_all(e, split, join);
        }
        if (v.instead.size() == found.size()) add(std::move(v));
      }
  }

  const Graph& graph_;
  const RepairFlow& flow_;
  std::span<const MeshAxis> axes_;
  std::vector<OtherCollective> out_;
};

bool divides(const MeshAxis& axis) { return axis.size > 1 && !axis.place.empty(); }

}  // namespace

std::vector<OtherCollective> other_collectives(const Program& program, const RepairFlow& flow,
                                               std::span<const MeshAxis> axes,
                                               std::span<const Exchange> exchanges) {
  OtherCollectives others(program, flow, axes);
  others.of_exchanges(exchanges);
  others.of_sums();
  return others.take();
}

std::vector<std::vector<std::string>> sets_of_axes(std::span<const MeshAxis> axes) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes)
    if (divides(axis)) names.push_back(axis.name);
  if (names.size() > kMaxAxes) return {};
  std::vector<std::vector<std::string>> out;
  for (size_t count = 1; count <= names.size(); ++count)
    for (unsigned set = 1; set < (1U << names.size()); ++set) {
      if (static_cast<size_t>(__builtin_popcount(set)) != count) continue;
      std::vector<std::string>& some = out.emplace_back();
      for (size_t a = 0; a < names.size(); ++a)
        if ((set >> a & 1U) != 0) some.push_back(names[a]);
    }
  return out;
}

JoinedCores groups_along(std::span<const MeshAxis> axes, const std::vector<std::string>& names) {
  std::map<std::vector<int64_t>, int> groups;  // by the place along the other axes
  JoinedCores out;
  for (size_t core = 0;; ++core) {
    std::vector<int64_t> place;
    bool known = false;
    for (const MeshAxis& axis : axes) {
      if (core >= axis.place.size()) continue;
      known = true;
      if (std::ranges::find(names, axis.name) == names.end()) place.push_back(axis.place[core]);
    }
    if (!known) return out;
    out.push_back(groups.try_emplace(place, static_cast<int>(groups.size())).first->second);
  }
}

std::string axes_of(const JoinedCores& groups, std::span<const MeshAxis> axes) {
  std::vector<std::string> names;
  size_t along = 1;
  for (const MeshAxis& axis : axes) {
    if (axis.place.size() != groups.size() || axis.size == 1) continue;
    bool differs = false;
    for (size_t core = 0; core < groups.size(); ++core)
      differs = differs || (groups[core] == groups[0] && axis.place[core] != axis.place[0]);
    if (!differs) continue;
    names.push_back(axis.name);
    along *= static_cast<size_t>(axis.size);
  }
  const size_t size = size_of_groups(groups);
  if (!names.empty() && along == size) return fmt::format("{}", fmt::join(names, ", "));
  return size == groups.size() ? "all cores" : fmt::format("groups of {} cores", size);
}

}  // namespace twinrun
