// What joins cores: collectives, the numbers of cores, and the borders between global arrays and
// their shards. All of it is built from all-reduces. Each core puts its value into its row of a
// table of zeros; the sum of the tables holds the values of all cores, or of each group. Which row
// is a core's own follows from replica_id by a table of numbers, one for each core.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "program/import/site.h"

namespace twinrun {
namespace {

constexpr const char* kPlaced =
    "values that cores exchange are placed in tables of zeros, which are summed: -0 arrives as +0";

// table[core] on each core, i32[1].
ValueId number_of(Site& s, const std::vector<int32_t>& table) {
  Cores& cores = s.cores();
  const auto [at, fresh] = cores.tables.try_emplace(table, kNoValue);
  if (!fresh) return at->second;
  const bool same = std::ranges::all_of(table, [&](int32_t n) { return n == table[0]; });
  bool own = true;
  for (size_t core = 0; core < table.size(); ++core)
    own = own && table[core] == static_cast<int32_t>(core);
  if (same) return at->second = s.splat(table[0], {DType::kI32, {1}}, "number");
  const ValueId core = s.b.reshape(cores.replica_id, {1}, s.name("core"));
  if (own) return at->second = core;
  Tensor t = Tensor::zeros({DType::kI32, {static_cast<int64_t>(table.size())}});
  std::ranges::copy(table, t.as<int32_t>().begin());
  const ValueId numbers = cores.literal("numbers_of_cores", std::move(t));
  return at->second = s.b.gather(numbers, core, s.name("number"));
}

Dims behind(int64_t first, Dims rest) {
  rest.insert(rest.begin(), first);
  return rest;
}

// The sum over the cores of tables of zeros in which each core's x is row table[core].
ValueId summed_rows(Site& s, ValueId x, int64_t rows, const std::vector<int32_t>& table) {
  const Dims dims = s.b.type(x).dims;
  s.check_size(behind(rows, dims));
  const ValueId row = s.b.reshape(x, behind(1, dims), s.name("row"));
  const ValueId placed =
      s.b.scatter_add(number_of(s, table), row, behind(rows, dims), s.name("placed"));
  return s.b.all_reduce(placed, s.name("all_reduce"));
}

ValueId own_row(Site& s, ValueId rows, const std::vector<int32_t>& table) {
  const Dims dims = s.b.type(rows).dims;
  const ValueId row = s.b.gather(rows, number_of(s, table), s.name("own"));
  return s.b.reshape(row, Dims(dims.begin() + 1, dims.end()), s.name("of_group"));
}

// Predicates travel as 0 and 1.
ValueId numbers_of(Site& s, ValueId x) {
  return s.b.type(x).dtype == DType::kPred ? s.convert(x, DType::kF32, "as_f32") : x;
}
ValueId as_before(Site& s, ValueId x, DType dtype) {
  if (dtype != DType::kPred) return x;
  return s.b.compare(CompareKind::kNe, x, s.scalar_like(x, 0, "zero"), s.name("as_pred"));
}

// The values of the members of this core's group, in order: [size, ...]. `sum`: gets the name of
// the all-reduce.
ValueId gathered(Site& s, ValueId x, const Grouping& g, std::string* sum = nullptr) {
  const TensorType t = s.b.type(x);
  if (g.size == 1) return s.b.reshape(x, behind(1, t.dims), s.name("row"));
  if (!g.regular) s.refuse(s.in.opcode + " of groups of different sizes");
  s.note(kPlaced);
  std::vector<int32_t> row(g.group.size());
  for (size_t core = 0; core < row.size(); ++core)
    row[core] = g.group[core] * g.size + g.place[core];
  ValueId all = summed_rows(s, numbers_of(s, x), int64_t{g.groups} * g.size, row);
  if (sum != nullptr) *sum = s.b.graph().op(all).name;
  if (g.groups > 1) {
    const Dims groups = behind(g.groups, behind(g.size, t.dims));
    all = own_row(s, s.b.reshape(all, groups, s.name("groups")), g.group);
  }
  return as_before(s, all, t.dtype);
}

// The value of core source[core]; zeros where that is -1.
ValueId received(Site& s, ValueId x, const std::vector<int32_t>& source) {
  const TensorType t = s.b.type(x);
  s.note(kPlaced);
  const auto cores = static_cast<int32_t>(source.size());
  std::vector<int32_t> own(source.size()), from = source;
  std::iota(own.begin(), own.end(), 0);
  const bool zeros = std::ranges::find(source, -1) != source.end();
  std::ranges::replace(from, -1, cores);
  const ValueId all = summed_rows(s, numbers_of(s, x), cores + (zeros ? 1 : 0), own);
  s.cores().exchanges.push_back({Exchange::kPermute, s.b.graph().op(all).name, source, {}, {}});
  return as_before(s, own_row(s, all, from), t.dtype);
}

ValueId reduced(Site& s, ValueId x, const Grouping& g, const std::string& region) {
  const DType dtype = s.b.type(x).dtype;
  if (g.size == 1) return x;
  // Integers are stored as i32, whose sums wrap as those of s32 and u32 do.
  const std::string_view hlo = s.hlo_type(0);
  const bool extreme = region == "maximum" || region == "minimum";
  if (dtype == DType::kI32 && hlo != "s32" && (extreme ? hlo.starts_with('u') : hlo != "u32"))
    s.refuse(fmt::format("{} of {} by '{}'; allowed: s32", s.in.opcode, hlo, region));
  const bool any = region == "or" || (dtype == DType::kPred && region == "add");
  const bool all = region == "and" || (dtype == DType::kPred && region == "multiply");
  if (region == "add" && dtype != DType::kPred) {
    if (g.groups == 1) return s.b.all_reduce(x, s.name());
    return own_row(s, summed_rows(s, x, g.groups, g.group), g.group);
  }
  if (!extreme && region != "multiply" && !((any || all) && dtype == DType::kPred))
    s.refuse(fmt::format("{} of {} by '{}'; allowed: add, multiply, maximum, minimum, and, or",
                         s.in.opcode, to_string(s.b.type(x)), region));
  const OpKind kind = any || region == "maximum"   ? OpKind::kMaximum
                      : all || region == "minimum" ? OpKind::kMinimum
                                                   : OpKind::kMultiply;
  return as_before(s, s.fold(kind, gathered(s, numbers_of(s, x), g)), dtype);
}

std::string region_of(Site& s) {
  const std::string region = s.region();
  if (region.empty())
    s.refuse(fmt::format("{} by '{}'; allowed: add, multiply, maximum, minimum, and, or",
                         s.in.opcode, text_attribute(s.in, "to_apply")));
  return region;
}

int64_t axis_of(Site& s, ValueId x, const char* key) {
  const Dims axes = list_attribute(s.in, key);
  if (axes.size() != 1 || axes[0] < 0 || axes[0] >= s.b.type(x).rank())
    s.refuse(fmt::format("{} with {}={} of {}", s.in.opcode, key, to_string(axes),
                         to_string(s.b.type(x))));
  return axes[0];
}

// x with dimension `axis` cut into `blocks`, which become a dimension of their own in front of it.
ValueId cut_into(Site& s, ValueId x, int64_t axis, int64_t blocks) {
  Dims dims = s.b.type(x).dims;
  int64_t& size = dims[static_cast<size_t>(axis)];
  if (size % blocks != 0)
    s.refuse(fmt::format("{}: dimension {} of {} does not divide into {}", s.in.opcode, axis,
                         to_string(s.b.type(x)), blocks));
  size /= blocks;
  dims.insert(dims.begin() + axis, blocks);
  return s.b.reshape(x, dims, s.name("blocks"));
}

// Block table[core] of `blocks` along a dimension.
ValueId own_block(Site& s, ValueId x, int64_t axis, int64_t blocks,
                  const std::vector<int32_t>& table) {
  if (blocks == 1) return x;
  const ValueId all = cut_into(s, x, axis, blocks);
  Dims dims = s.b.type(all).dims;
  dims.erase(dims.begin() + axis);
  return s.b.reshape(s.take(all, axis, number_of(s, table)), dims, s.name("own_block"));
}

// [n, ...] -> [...] with the n parts one after another along dimension `axis`.
ValueId joined(Site& s, ValueId parts, int64_t axis) {
  const Dims from = s.b.type(parts).dims;
  Dims order(from.size()), to(from.begin() + 1, from.end());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + 1, order.begin() + axis + 1);
  to[static_cast<size_t>(axis)] *= from[0];
  return s.b.reshape(s.transpose(parts, order), to, s.name("joined"));
}

std::vector<ValueId> each(Site& s, const std::function<ValueId(ValueId)>& rule) {
  if (s.x.empty()) s.refuse(s.in.opcode + " without operands");
  std::vector<ValueId> out;
  for (const ValueId x : s.x) out.push_back(rule(x));
  return out;
}

std::vector<ValueId> all_reduce(Site& s) {
  const Grouping g = groups_of(s.in, s.cores().count);
  const std::string region = region_of(s);
  return each(s, [&](ValueId x) { return reduced(s, x, g, region); });
}

std::vector<ValueId> all_gather(Site& s) {
  const Grouping g = groups_of(s.in, s.cores().count);
  return each(s, [&](ValueId x) {
    const int64_t axis = axis_of(s, x, "dimensions");
    return g.size == 1 ? x : joined(s, gathered(s, x, g), axis);
  });
}

std::vector<ValueId> reduce_scatter(Site& s) {
  const Grouping g = groups_of(s.in, s.cores().count);
  if (!g.regular) s.refuse("reduce-scatter of groups of different sizes");
  const std::string region = region_of(s);
  return each(s, [&](ValueId x) {
    return own_block(s, reduced(s, x, g, region), axis_of(s, x, "dimensions"), g.size, g.place);
  });
}

std::vector<ValueId> collective_permute(Site& s) {
  const std::vector<int32_t> source = sources_of(s.in, s.cores().count);
  return each(s, [&](ValueId x) { return received(s, x, source); });
}

// The first core of each group sends to the others; cores in no group get zeros.
std::vector<ValueId> collective_broadcast(Site& s) {
  const Grouping g = groups_of(s.in, s.cores().count, true);
  std::vector<int32_t> first(static_cast<size_t>(g.groups), -1), source;
  for (size_t core = 0; core < g.group.size(); ++core) {
    if (g.place[core] == 0) first[static_cast<size_t>(g.group[core])] = static_cast<int32_t>(core);
  }
  for (const int32_t group : g.group)
    source.push_back(group < 0 ? -1 : first[static_cast<size_t>(group)]);
  return each(s, [&](ValueId x) { return received(s, x, source); });
}

std::vector<ValueId> all_to_all(Site& s) {
  const Grouping g = groups_of(s.in, s.cores().count);
  if (!g.regular) s.refuse("all-to-all of groups of different sizes");
  if (s.in.attributes.contains("dimensions")) {
    return each(s, [&](ValueId x) {
      const int64_t split = axis_of(s, x, "dimensions");
      const int64_t join = s.in.attributes.contains("concat_dimensions")
                               ? axis_of(s, x, "concat_dimensions")
                               : split;
      if (g.size == 1) return x;
      std::string sum;
      const ValueId all = gathered(s, x, g, &sum);
      s.cores().exchanges.push_back(
          {Exchange::kAllToAll, sum, {}, g.group, g.place, g.size, split, join});
      return joined(s, own_block(s, all, split + 1, g.size, g.place), join);
    });
  }
  // As a tuple: operand i goes to member i of the group, and result i comes from it.
  if (s.x.size() != static_cast<size_t>(g.size))
    s.refuse(fmt::format("all-to-all of {} operands in groups of {}", s.x.size(), g.size));
  if (g.size == 1) return s.x;
  ValueId stack = kNoValue;
  const Dims dims = s.b.type(s.x[0]).dims;
  for (const ValueId x : s.x) {
    if (s.b.type(x) != s.b.type(s.x[0])) s.refuse("all-to-all of different types");
    const ValueId row = s.b.reshape(x, behind(1, dims), s.name("operand"));
    stack = stack == kNoValue ? row : s.b.concatenate(stack, row, 0, s.name("operands"));
  }
  const ValueId own = own_block(s, gathered(s, stack, g), 1, g.size, g.place);  // [from, 1, ...]
  std::vector<ValueId> out;
  for (int64_t from = 0; from < g.size; ++from)
    out.push_back(s.b.reshape(s.b.slice(own, 0, from, from + 1, s.name("from")), dims, s.name()));
  return out;
}

// The first half of an asynchronous collective: its result, beside its operand where the text
// declares a tuple. Further elements of the tuple, which say how far it is, are zeros.
template <std::vector<ValueId> (*kRule)(Site&)>
std::vector<ValueId> started(Site& s) {
  std::vector<ValueId> out = kRule(s);
  if (!s.in.shape.is_tuple()) return out;
  s.expect(1);
  out.insert(out.begin(), s.x[0]);
  while (out.size() < s.in.shape.parts.size())
    out.push_back(s.b.constant(0, DType::kI32, s.name("context")));
  return out;
}

std::vector<ValueId> core_number(Site& s) {
  const CoreCount& count = s.cores().count;
  std::vector<int32_t> table;
  for (int64_t core = 0; core < count.cores(); ++core)
    table.push_back(static_cast<int32_t>(s.in.opcode == "replica-id" ? core / count.partitions
                                                                     : core % count.partitions));
  const ValueId number = s.b.reshape(number_of(s, table), {}, s.name());
  s.cores().known[number].assign(table.begin(), table.end());
  return {number};
}

// The core's own block of a global array.
ValueId to_shard(Site& s, ValueId x, const Blocks& blocks) {
  if (static_cast<int64_t>(blocks.grid.size()) != s.b.type(x).rank())
    s.refuse(fmt::format("a sharding of {} dimensions of {}", blocks.grid.size(),
                         to_string(s.b.type(x))));
  int64_t inner = blocks.cores.size;
  for (size_t d = 0; d < blocks.grid.size(); ++d) {
    inner /= blocks.grid[d];
    std::vector<int32_t> table;
    for (const int32_t place : blocks.cores.place)
      table.push_back(static_cast<int32_t>(place / inner % blocks.grid[d]));
    x = own_block(s, x, static_cast<int64_t>(d), blocks.grid[d], table);
  }
  return x;
}

// The global array, from the blocks of this core's group. Cores that have the same block keep their
// own, as devices do: whether they agree is not assumed.
ValueId from_shards(Site& s, ValueId x, const Blocks& blocks) {
  const Dims dims = s.b.type(x).dims;
  if (blocks.grid.size() != dims.size())
    s.refuse(
        fmt::format("a sharding of {} dimensions of {}", blocks.grid.size(), to_string(s.type(0))));
  if (blocks.whole()) return x;
  Dims grid = blocks.grid, order, whole;
  grid.insert(grid.end(), dims.begin(), dims.end());
  const auto rank = static_cast<int64_t>(dims.size());
  for (int64_t d = 0; d < rank; ++d) {
    order.insert(order.end(), {d, rank + d});
    whole.push_back(blocks.grid[static_cast<size_t>(d)] * dims[static_cast<size_t>(d)]);
  }
  const ValueId all = s.b.reshape(gathered(s, x, blocks.cores), grid, s.name("grid"));
  return s.b.reshape(s.transpose(all, order), whole, s.name());
}

std::vector<ValueId> border(Site& s) {
  const std::string target = target_of(s.in);
  const bool shardy = target.starts_with("xla.sdy.");
  const bool in = target == "SPMDFullToShardShape" || target == "xla.sdy.GlobalToLocalShape";
  std::vector<Blocks> blocks;
  if (shardy) {
    const auto text = [&](const std::string& key) {
      const std::string own = text_attribute(s.in, key);
      return own.empty() ? frontend_attribute(s.in, "xla.sdy." + key) : own;
    };
    blocks = blocks_of_axes(text(in ? "in_shardings" : "out_shardings"), text("manual_axes"),
                            s.module, s.cores().count);
  } else {
    s.expect(1);
    // What a core cuts from a global array is said by the mark on the array.
    const HloInstruction& said =
        in ? s.computation.instructions[static_cast<size_t>(s.in.operands[0])] : s.in;
    blocks.push_back(blocks_of_tiles(text_attribute(said, "sharding"),
                                     static_cast<size_t>(s.type(0).rank()),
                                     s.cores().count.cores()));
  }
  if (blocks.size() != s.x.size())
    s.refuse(fmt::format("{} shardings of {} values", blocks.size(), s.x.size()));
  std::vector<ValueId> out;
  for (size_t i = 0; i < blocks.size(); ++i)
    out.push_back(in ? to_shard(s, s.x[i], blocks[i]) : from_shards(s, s.x[i], blocks[i]));
  return out;
}

// Integers and predicates that follow from the core's number and constants alone, such as an axis
// index, are computed here for each core.
std::optional<int64_t> evaluate(const std::string& opcode, const std::string& direction,
                                const std::string& dtype, const std::vector<int64_t>& x) {
  const auto wrap = [&](int64_t v) -> int64_t {
    if (dtype == "pred") return v & 1;
    return dtype == "u32" ? static_cast<int64_t>(static_cast<uint32_t>(v))
                          : static_cast<int64_t>(static_cast<int32_t>(v));
  };
  if (x.size() == 1) {
    if (opcode == "convert") return dtype == "pred" ? x[0] != 0 : wrap(x[0]);
    if (opcode == "not" && dtype == "pred") return 1 - x[0];
    if (opcode == "negate") return wrap(-x[0]);
  }
  if (x.size() == 3 && opcode == "select") return x[0] != 0 ? x[1] : x[2];
  if (x.size() != 2) return std::nullopt;
  const int64_t a = x[0], b = x[1];
  if (opcode == "add") return wrap(a + b);
  if (opcode == "subtract") return wrap(a - b);
  if (opcode == "multiply") return wrap(a * b);
  if (opcode == "divide" && b != 0) return wrap(a / b);
  if (opcode == "remainder" && b != 0) return wrap(a % b);
  if (opcode == "maximum") return std::max(a, b);
  if (opcode == "minimum") return std::min(a, b);
  if (dtype == "pred" && opcode == "and") return a & b;
  if (dtype == "pred" && opcode == "or") return a | b;
  if (opcode != "compare") return std::nullopt;
  if (direction == "EQ") return a == b;
  if (direction == "NE") return a != b;
  if (direction == "LT") return a < b;
  if (direction == "LE") return a <= b;
  if (direction == "GT") return a > b;
  if (direction == "GE") return a >= b;
  return std::nullopt;
}

std::vector<ValueId> of_known(Site& s) {
  const std::string& dtype = s.in.shape.dtype;
  if ((dtype != "s32" && dtype != "u32" && dtype != "pred") || !s.in.shape.dims.empty()) return {};
  Cores& cores = s.cores();
  if (s.x.empty()) return {};
  std::vector<int32_t> table;
  std::vector<int64_t> exact;
  for (size_t core = 0; core < static_cast<size_t>(cores.count.cores()); ++core) {
    std::vector<int64_t> values;
    for (const ValueId x : s.x) {
      const auto found = cores.known.find(x);
      const DType type = s.b.type(x).dtype;
      const auto constant = type == DType::kI32 || type == DType::kPred ? splat_of(s.b.graph(), x)
                                                                        : std::optional<double>();
      if (found == cores.known.end() && !constant) return {};
      values.push_back(found != cores.known.end() ? found->second[core]
                                                  : static_cast<int64_t>(*constant));
    }
    const auto value = evaluate(s.in.opcode, text_attribute(s.in, "direction"), dtype, values);
    if (!value) return {};
    exact.push_back(*value);
    table.push_back(static_cast<int32_t>(*value));
  }
  ValueId number = s.b.reshape(number_of(s, table), {}, s.name("number"));
  if (dtype == "pred") number = as_before(s, number, DType::kPred);
  cores.known[number] = std::move(exact);
  return {number};
}

}  // namespace

std::vector<ValueId> lower_across_cores(Site& s) {
  static const std::map<std::string_view, std::vector<ValueId> (*)(Site&)> rules = {
      {"all-reduce", all_reduce},
      {"all-reduce-start", all_reduce},
      {"all-gather", all_gather},
      {"all-gather-start", started<all_gather>},
      {"collective-permute-start", started<collective_permute>},
      {"reduce-scatter", reduce_scatter},
      {"collective-permute", collective_permute},
      {"collective-broadcast", collective_broadcast},
      {"all-to-all", all_to_all},
      {"partition-id", core_number},
      {"replica-id", core_number},
      {"SPMDFullToShardShape", border},
      {"SPMDShardToFullShape", border},
      {"xla.sdy.GlobalToLocalShape", border},
      {"xla.sdy.LocalToGlobalShape", border}};
  const auto rule =
      rules.find(s.in.opcode == "custom-call" ? target_of(s.in) : std::string(s.in.opcode));
  if (rule != rules.end()) return rule->second(s);
  return s.cores().known.empty() ? std::vector<ValueId>() : of_known(s);
}

}  // namespace twinrun
