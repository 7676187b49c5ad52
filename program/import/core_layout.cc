// Reads meshes, shardings and groups of devices from HLO's and Shardy's text.
// Sources: XLA's HloSharding and CollectiveDeviceList (xla/hlo/ir), the Shardy dialect
// (https://openxla.org/shardy/sdy_dialect), and the StableHLO specification of collectives.
#include "program/import/core_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

[[noreturn]] void refuse(std::string what) { throw Unsupported{std::move(what)}; }

// The product, or an error above kMaxImportedCores.
int64_t cores_in(const Dims& sizes, std::string_view where) {
  int64_t all = 1;
  for (int64_t size : sizes) {
    if (size < 1 || size > kMaxImportedCores / all)
      refuse(fmt::format("{}: {} cores; allowed: 1 to {}", where, fmt::join(sizes, " x "),
                         kMaxImportedCores));
    all *= size;
  }
  return all;
}

Dims numbers_in(TextCursor& at, char close, std::string_view where) {
  Dims out;
  const std::string closing(1, close);
  while (!at.take(closing)) {
    const auto n = number(at.word());
    if (!n || out.size() > static_cast<size_t>(kMaxImportedCores))
      refuse(fmt::format("{}; allowed: a list of numbers", shortened(where)));
    out.push_back(*n);
    if (!at.take(",") && (at.skip(), at.peek() != close))
      refuse(fmt::format("{}; allowed: a list of numbers", shortened(where)));
  }
  return out;
}

// The numbers 0, 1, ... laid out over `from`, transposed by `order`, and read row by row.
Dims iota_of(const Dims& from, const Dims& order, std::string_view where) {
  const int64_t all = cores_in(from, where);
  const size_t rank = from.size();
  Dims sorted = order;
  std::ranges::sort(sorted);
  for (size_t d = 0; d < sorted.size(); ++d) {
    if (sorted.size() != rank || sorted[d] != static_cast<int64_t>(d))
      refuse(
          fmt::format("{}: T({}) of {} dimensions", shortened(where), fmt::join(order, ","), rank));
  }
  Dims strides(rank, 1);
  for (size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * from[d];
  Dims out;
  Dims at(rank, 0);
  for (int64_t i = 0; i < all; ++i) {
    int64_t value = 0;
    for (size_t d = 0; d < rank; ++d) value += at[d] * strides[static_cast<size_t>(order[d])];
    out.push_back(value);
    for (size_t d = rank; d-- > 0;) {
      if (++at[d] < from[static_cast<size_t>(order[d])]) break;
      at[d] = 0;
    }
  }
  return out;
}

// "[8]" or "[4,2]T(1,0)", after "<=".
Dims iota_source(TextCursor& at, std::string_view where) {
  if (!at.take("[")) refuse(fmt::format("{}; allowed: as in [2,4]<=[8]", shortened(where)));
  const Dims from = numbers_in(at, ']', where);
  Dims order(from.size());
  std::iota(order.begin(), order.end(), 0);
  if (at.take("T")) {
    if (!at.take("(")) refuse(fmt::format("{}; allowed: as in T(1,0)", shortened(where)));
    order = numbers_in(at, ')', where);
  }
  return iota_of(from, order, where);
}

Grouping grouping_of(const DeviceLists& lists, int64_t cores, bool missing,
                     const std::string& where) {
  Grouping out;
  out.group.assign(static_cast<size_t>(cores), -1);
  out.place.assign(static_cast<size_t>(cores), -1);
  for (const auto& list : lists) {
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t core = list[i];
      if (core < 0 || core >= cores)
        refuse(fmt::format("{}: device {} of {}", shortened(where), core, cores));
      int32_t& group = out.group[static_cast<size_t>(core)];
      if (group >= 0) refuse(fmt::format("{}: device {} twice", shortened(where), core));
      group = out.groups;
      out.place[static_cast<size_t>(core)] = static_cast<int32_t>(i);
    }
    const auto size = static_cast<int32_t>(list.size());
    out.regular = out.regular && (out.groups == 0 || size == out.size);
    out.size = std::max(out.size, size);
    ++out.groups;
  }
  const auto absent = std::ranges::find(out.group, -1);
  if (absent != out.group.end() && !missing)
    refuse(fmt::format("{}: device {} of {} is in no group", shortened(where),
                       absent - out.group.begin(), cores));
  return out;
}

struct Mesh {
  std::vector<std::string> names;
  Dims sizes;
  Dims ids;  // the device at each position, row by row; empty: in order
  int64_t axis(std::string_view name) const {
    const auto at = std::ranges::find(names, name);
    return at == names.end() ? -1 : at - names.begin();
  }
};

// <["data"=4, "model"=2], device_ids=[...]>
Mesh mesh_of(const std::string& text) {
  Mesh m;
  TextCursor at(text);
  at.take("#sdy.mesh");
  at.take("mesh");
  const auto malformed = [&] {
    refuse(fmt::format("mesh {}; allowed: as in <[\"data\"=4, \"model\"=2]>", shortened(text)));
  };
  if (!at.take("<") || !at.take("[")) malformed();
  while (!at.take("]")) {
    at.skip();
    if (at.peek() != '"') malformed();
    m.names.emplace_back(at.string());
    const auto size = at.take("=") ? number(at.word()) : std::nullopt;
    if (!size || std::ranges::count(m.names, m.names.back()) > 1) malformed();
    m.sizes.push_back(*size);
    if (!at.take(",") && (at.skip(), at.peek() != ']')) malformed();
  }
  const int64_t cores = cores_in(m.sizes, "mesh " + text);
  if (at.take(",") && at.take("device_ids=[")) {
    m.ids = numbers_in(at, ']', text);
    Dims sorted = m.ids;
    std::ranges::sort(sorted);
    const bool maximal = m.names.empty() && sorted.size() == 1;
    for (int64_t i = 0; i < static_cast<int64_t>(sorted.size()) && !maximal; ++i) {
      if (sorted[static_cast<size_t>(i)] != i || static_cast<int64_t>(sorted.size()) != cores)
        refuse(fmt::format("mesh {}: device_ids; allowed: 0 to {}, each once", shortened(text),
                           cores - 1));
    }
  }
  return m;
}

// The largest number of a device that an attribute names, plus one; 1 if it is malformed or names
// none.
int64_t devices_in(const HloInstruction& in) {
  int64_t most = 1;
  for (const char* key : {"replica_groups", "source_target_pairs"}) {
    const std::string text = text_attribute(in, key);
    if (text.empty()) continue;
    for (const auto& list : device_lists(text, key)) {
      for (int64_t id : list) {
        if (id < std::numeric_limits<int64_t>::max()) most = std::max(most, id + 1);
      }
    }
  }
  const std::string sharding = text_attribute(in, "sharding");
  const size_t tiles = sharding.find("devices=[");
  if (tiles != std::string::npos) {
    TextCursor at(std::string_view(sharding).substr(tiles + 9));
    most = std::max(most, cores_in(numbers_in(at, ']', sharding), sharding));
  }
  return most;
}

}  // namespace

bool is_across_cores(const HloInstruction& in) {
  static const std::set<std::string_view> opcodes = {"all-reduce",
                                                     "all-gather",
                                                     "reduce-scatter",
                                                     "collective-permute",
                                                     "all-to-all",
                                                     "partition-id",
                                                     "replica-id",
                                                     "collective-broadcast",
                                                     "all-reduce-start",
                                                     "all-gather-start",
                                                     "collective-permute-start"};
  static const std::set<std::string_view> targets = {"SPMDFullToShardShape", "SPMDShardToFullShape",
                                                     "xla.sdy.GlobalToLocalShape",
                                                     "xla.sdy.LocalToGlobalShape"};
  return opcodes.contains(in.opcode) ||
         (in.opcode == "custom-call" && targets.contains(target_of(in)));
}

std::string target_of(const HloInstruction& in) {
  std::string target = text_attribute(in, "custom_call_target");
  std::erase(target, '"');
  return target;
}

std::string frontend_attribute(const HloInstruction& in, const std::string& key) {
  const std::string all = text_attribute(in, "frontend_attributes");
  const size_t found = all.find(key + "=\"");
  if (found == std::string::npos) return "";
  std::string out;
  for (size_t i = found + key.size() + 2; i < all.size() && all[i] != '"'; ++i) {
    if (all[i] == '\\') ++i;
    if (i < all.size()) out += all[i];
  }
  return out;
}

bool is_mark(const HloInstruction& in) {
  static const std::set<std::string_view> marks = {"Sharding", "annotate_device_placement",
                                                   "xla.sdy.FuncResultSharding",
                                                   "xla.sdy.PropagationBarrier"};
  return in.opcode == "custom-call" && marks.contains(target_of(in));
}

std::optional<CorePart> part_of_parameter(const HloModule& module, const HloInstruction& parameter,
                                          const Dims& dims, const CoreCount& count) {
  CorePart part;
  if (count.replicas > 1) {
    part.whole = dims;
    part.whole.insert(part.whole.begin(), count.replicas);
    for (int64_t core = 0; core < count.cores(); ++core) {
      part.begin.emplace_back(part.whole.size(), 0);
      part.begin.back()[0] = core / count.partitions;
    }
    return part;
  }
  const std::string sharding = text_attribute(parameter, "sharding");
  if (!is_partitioned(module) || sharding.empty()) return std::nullopt;
  const Blocks blocks = blocks_of_tiles(sharding, dims.size(), count.cores());
  if (blocks.whole()) return std::nullopt;
  for (size_t d = 0; d < dims.size(); ++d) part.whole.push_back(dims[d] * blocks.grid[d]);
  for (int64_t place : blocks.cores.place) {
    Dims& begin = part.begin.emplace_back(dims.size(), 0);
    for (size_t d = dims.size(); d-- > 0; place /= blocks.grid[d])
      begin[d] = place % blocks.grid[d] * dims[d];
  }
  return part;
}

bool is_partitioned(const HloModule& module) {
  return module.partitions > 1 && module.entry().name.find("_spmd") != std::string::npos;
}

CoreCount cores_of(const HloModule& module) {
  const auto any = [&](const HloComputation& c) {
    return std::ranges::any_of(c.instructions, is_across_cores);
  };
  if (module.replicas == 1 && !is_partitioned(module) &&
      std::ranges::none_of(module.computations, any))
    return {};
  CoreCount out{module.replicas, module.partitions};
  if (cores_in({out.replicas, out.partitions}, "the module's header") > 1) return out;
  for (const auto& [name, text] : module.meshes)
    out.partitions = std::max(out.partitions, cores_in(mesh_of(text).sizes, "mesh @" + name));
  if (out.partitions > 1) return out;
  // Collectives without a channel join replicas.
  bool channel = true;
  int64_t named = 1;
  for (const HloComputation& c : module.computations) {
    for (const HloInstruction& in : c.instructions) {
      const int64_t devices = devices_in(in);
      named = std::max(named, devices);
      const bool groups =
          in.attributes.contains("replica_groups") || in.attributes.contains("source_target_pairs");
      channel = channel && (!groups || devices == 1 || in.attributes.contains("channel_id"));
    }
  }
  (channel ? out.partitions : out.replicas) = cores_in({named}, "the devices that the text names");
  return out;
}

std::vector<MeshAxis> mesh_axes(const HloModule& module, const CoreCount& count) {
  std::vector<MeshAxis> out;
  for (const auto& [name, text] : module.meshes) {
    const Mesh mesh = mesh_of(text);
    const int64_t cores = cores_in(mesh.sizes, "mesh @" + name);
    int64_t inner = cores;
    for (size_t a = 0; a < mesh.names.size(); ++a) {
      inner /= mesh.sizes[a];
      if (std::ranges::find(out, mesh.names[a], &MeshAxis::name) != out.end()) continue;
      MeshAxis axis{mesh.names[a], mesh.sizes[a], {}};
      if (cores == count.cores()) axis.place.resize(static_cast<size_t>(cores));
      for (size_t at = 0; at < axis.place.size(); ++at)
        axis.place[mesh.ids.empty() ? at : static_cast<size_t>(mesh.ids[at])] =
            static_cast<int64_t>(at) / inner % axis.size;
      out.push_back(std::move(axis));
    }
  }
  return out;
}

// "mesh = <["data"=4, "model"=2]>, axes = [#stablehlo.axis_ref<name = "data">]>": the devices that
// differ along the axes alone, the first axis slowest.
DeviceLists lists_of_axes(std::string_view text, const std::string& where) {
  const auto malformed = [&] {
    refuse(
        shortened(where) +
        "; allowed: as in mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = \"data\">]>");
  };
  const size_t begin = text.find("mesh = <"), axes = text.find(", axes = [");
  if (begin == text.npos || axes == text.npos || axes < begin) malformed();
  const Mesh mesh = mesh_of(std::string(text.substr(begin + 7, axes - begin - 7)));
  std::vector<int64_t> along;
  TextCursor at(text.substr(axes + 10));
  while (!at.take("]")) {
    if (!at.take("#stablehlo.axis_ref<name =")) malformed();
    at.skip();
    if (at.peek() != '"') malformed();
    along.push_back(mesh.axis(at.string()));
    // A part of an axis, "sub_axis_info = (2)4", is none of what JAX writes.
    if (along.back() < 0 || std::ranges::count(along, along.back()) > 1 || !at.take(">"))
      malformed();
    at.take(",");
  }
  const int64_t cores = cores_in(mesh.sizes, where);
  std::map<int64_t, std::map<int64_t, int64_t>> groups;  // by the place along the other axes
  for (int64_t core = 0; core < cores; ++core) {
    Dims place(mesh.sizes.size());
    for (int64_t left = core, d = static_cast<int64_t>(place.size()); d-- > 0;) {
      place[static_cast<size_t>(d)] = left % mesh.sizes[static_cast<size_t>(d)];
      left /= mesh.sizes[static_cast<size_t>(d)];
    }
    int64_t within = 0, other = 0;
    for (const int64_t a : along)
      within = within * mesh.sizes[static_cast<size_t>(a)] + place[static_cast<size_t>(a)];
    for (size_t d = 0; d < place.size(); ++d)
      if (std::ranges::find(along, static_cast<int64_t>(d)) == along.end())
        other = other * mesh.sizes[d] + place[d];
    groups[other][within] = mesh.ids.empty() ? core : mesh.ids[static_cast<size_t>(core)];
  }
  DeviceLists out;
  for (const auto& [other, members] : groups) {
    std::vector<int64_t>& list = out.emplace_back();
    for (const auto& [place, core] : members) list.push_back(core);
  }
  return out;
}

DeviceLists device_lists(std::string_view text, const std::string& key) {
  const std::string where = fmt::format("{}={}", key, text);
  if (text.starts_with("#stablehlo.replica_group_mesh_axes<")) return lists_of_axes(text, where);
  DeviceLists out;
  TextCursor at(text);
  if (at.take("{")) {
    while (!at.take("}")) {
      if (!at.take("{")) refuse(shortened(where) + "; allowed: as in {{0,1},{2,3}} or [2,4]<=[8]");
      std::vector<int64_t>& list = out.emplace_back(numbers_in(at, '}', where));
      std::erase(list, -1);  // StableHLO fills shorter groups up with -1
      if (out.size() > static_cast<size_t>(kMaxImportedCores))
        refuse(fmt::format("{}: more than {} lists", shortened(where), kMaxImportedCores));
      at.take(",");
    }
    return out;
  }
  if (!at.take("[")) refuse(shortened(where) + "; allowed: as in {{0,1},{2,3}} or [2,4]<=[8]");
  const Dims shape = numbers_in(at, ']', where);
  if (shape.size() != 2 || !at.take("<=")) refuse(shortened(where) + "; allowed: as in [2,4]<=[8]");
  const Dims ids = iota_source(at, where);
  if (cores_in(shape, where) != static_cast<int64_t>(ids.size()))
    refuse(fmt::format("{}: {} devices", shortened(where), ids.size()));
  for (int64_t g = 0; g < shape[0]; ++g)
    out.emplace_back(ids.begin() + g * shape[1], ids.begin() + (g + 1) * shape[1]);
  return out;
}

Grouping groups_of(const HloInstruction& in, const CoreCount& count, bool missing) {
  const std::string text = text_attribute(in, "replica_groups", "{}");
  const DeviceLists named = device_lists(text, "replica_groups");
  const bool channel = number_attribute(in, "channel_id", 0) > 0;
  const bool global = text_attribute(in, "use_global_device_ids") == "true";
  if (global && !channel) refuse(in.opcode + " with use_global_device_ids and without channel_id");
  // What the numbers stand for: devices, replicas, or partitions. With a channel and replicas, a
  // sum joins all partitions of the replicas, and what moves between partitions stays in a replica.
  const bool moves = in.opcode == "all-to-all" || in.opcode.starts_with("collective-");
  DeviceLists lists;
  if (global) {
    lists = named;
    if (lists.empty()) {
      lists.emplace_back(static_cast<size_t>(count.cores()));
      std::iota(lists[0].begin(), lists[0].end(), 0);
    }
  } else {
    const bool of_partitions = channel && moves;
    const int64_t ids = of_partitions ? count.partitions : count.replicas;
    const int64_t others = of_partitions ? count.replicas : count.partitions;
    DeviceLists groups = named;
    if (groups.empty()) {
      groups.emplace_back(static_cast<size_t>(ids));
      std::iota(groups[0].begin(), groups[0].end(), 0);
    }
    for (const auto& group : groups) {
      std::vector<int64_t> joined;
      for (int64_t other = 0; other < others; ++other) {
        if (!channel || moves) joined.clear();
        for (int64_t id : group) {
          if (id < 0 || id >= ids)
            refuse(fmt::format("replica_groups={}: {} {} of {}", shortened(text),
                               of_partitions ? "partition" : "replica", id, ids));
          joined.push_back(of_partitions ? other * count.partitions + id
                                         : id * count.partitions + other);
        }
        if (!channel || moves) lists.push_back(joined);
      }
      if (channel && !moves) lists.push_back(joined);
    }
  }
  return grouping_of(lists, count.cores(), missing, "replica_groups=" + text);
}

std::vector<int32_t> sources_of(const HloInstruction& in, const CoreCount& count) {
  const std::string text = text_attribute(in, "source_target_pairs", "{}");
  const bool of_partitions = number_attribute(in, "channel_id", 0) > 0;
  const int64_t ids = of_partitions ? count.partitions : count.replicas;
  std::vector<int32_t> from(static_cast<size_t>(count.cores()), -1);
  std::set<int64_t> sources;
  for (const auto& pair : device_lists(text, "source_target_pairs")) {
    const auto outside = [&](int64_t id) { return id < 0 || id >= ids; };
    if (pair.size() != 2 || outside(pair[0]) || outside(pair[1]))
      refuse(fmt::format("source_target_pairs={}; allowed: pairs of 0 to {}", shortened(text),
                         ids - 1));
    for (int64_t other = 0; other < count.cores() / ids; ++other) {
      const auto device = [&](int64_t id) {
        return of_partitions ? other * count.partitions + id : id * count.partitions + other;
      };
      int32_t& source = from[static_cast<size_t>(device(pair[1]))];
      if (source >= 0 || !sources.insert(device(pair[0])).second)
        refuse(fmt::format("source_target_pairs={}: a source or a target twice", shortened(text)));
      source = static_cast<int32_t>(device(pair[0]));
    }
  }
  return from;
}

Blocks blocks_of_tiles(std::string_view sharding, size_t rank, int64_t cores) {
  const std::string where = fmt::format("sharding={}", sharding);
  Blocks out{Dims(rank, 1), {}};
  DeviceLists copies;
  const size_t tiles = sharding.find("devices=[");
  if (tiles == std::string_view::npos) {
    for (const char* known : {"replicated", "manual", "maximal"}) {
      if (sharding.find(known) == std::string_view::npos) continue;
      for (int64_t core = 0; core < cores; ++core) copies.push_back({core});
      out.cores = grouping_of(copies, cores, false, where);
      return out;
    }
    refuse(shortened(where) + "; allowed: {replicated}, {manual}, or as in {devices=[4,2]<=[8]}");
  }
  TextCursor at(sharding.substr(tiles + 9));
  const Dims shape = numbers_in(at, ']', where);
  const int64_t all = cores_in(shape, where);
  Dims ids;
  if (at.take("<=")) {
    ids = iota_source(at, where);
  } else {
    do {
      const auto id = number(at.word());
      if (!id) refuse(shortened(where) + "; allowed: a list of devices");
      ids.push_back(*id);
    } while (at.take(",") && ids.size() <= static_cast<size_t>(kMaxImportedCores));
  }
  const bool last = sharding.find("last_tile_dim") != std::string_view::npos;
  if (static_cast<int64_t>(ids.size()) != all || shape.size() < rank ||
      (shape.size() > rank && !last))
    refuse(fmt::format("{} of {} dimensions and {} devices", shortened(where), rank, ids.size()));
  out.grid.assign(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(rank));
  const auto blocks = static_cast<size_t>(
      std::accumulate(out.grid.begin(), out.grid.end(), int64_t{1}, std::multiplies<>()));
  copies.assign(ids.size() / blocks, std::vector<int64_t>(blocks));
  for (size_t i = 0; i < ids.size(); ++i) copies[i % copies.size()][i / copies.size()] = ids[i];
  out.cores = grouping_of(copies, cores, false, where);
  return out;
}

std::vector<Blocks> blocks_of_axes(std::string_view shardings, std::string_view manual,
                                   const HloModule& module, const CoreCount& count) {
  const std::string where(shardings);
  const auto malformed = [&] {
    refuse(fmt::format("shardings {}; allowed: as in [<@mesh, [{{\"data\"}}, {{}}]>]",
                       shortened(where)));
  };
  std::set<std::string, std::less<>> counted;
  for (size_t open = manual.find('"'); open != std::string_view::npos;) {
    const size_t close = manual.find('"', open + 1);
    if (close == std::string_view::npos) malformed();
    counted.emplace(manual.substr(open + 1, close - open - 1));
    open = manual.find('"', close + 1);
  }
  std::vector<Blocks> out;
  TextCursor at(shardings);
  at.take("#sdy.sharding_per_value");
  at.take("<[") || at.take("[");
  for (at.skip(); at.peek() == '<'; at.skip()) {
    at.take("<");
    std::string text, name;
    if (at.take("@")) {
      at.skip();
      name = at.peek() == '"' ? std::string(at.string()) : at.word();
      const auto found = module.meshes.find(name);
      if (found == module.meshes.end()) refuse(fmt::format("there is no mesh @{}", name));
      text = found->second;
    } else {
      name = "in place";
      text = at.until(",", TextCursor::Angles::kBrackets);
    }
    const Mesh mesh = mesh_of(text);
    if (cores_in(mesh.sizes, name) != count.cores())
      refuse(fmt::format("mesh {} of {} devices; the text has {}", shortened(text),
                         cores_in(mesh.sizes, name), count.cores()));
    if (!at.take(",") || !at.take("[")) malformed();
    std::vector<std::vector<size_t>> dims;  // the axes that split each dimension
    std::set<size_t> seen;
    while (!at.take("]")) {
      if (!at.take("{")) malformed();
      dims.emplace_back();
      while (!at.take("}")) {
        at.skip();
        if (at.take("?")) continue;
        if (at.take(",")) continue;
        if (at.peek() != '"') malformed();
        const std::string axis(at.string());
        const int64_t a = mesh.axis(axis);
        if (a < 0)
          refuse(fmt::format("axis '{}' does not exist; mesh {} has {}", axis, shortened(text),
                             fmt::join(mesh.names, ", ")));
        if (at.peek() == ':') refuse(fmt::format("a part of axis '{}'; allowed: whole axes", axis));
        if (!seen.insert(static_cast<size_t>(a)).second)
          refuse(fmt::format("axis '{}' splits an array twice", axis));
        if (counted.contains(axis)) dims.back().push_back(static_cast<size_t>(a));
      }
      at.word();  // a priority, p1
      at.take(",");
    }
    at.until("", TextCursor::Angles::kBrackets);
    if (!at.take(">")) malformed();
    at.take(",");
    Blocks b;
    for (const auto& axes : dims) {
      b.grid.push_back(1);
      for (size_t a : axes) b.grid.back() *= mesh.sizes[a];
    }
    const auto blocks = static_cast<size_t>(
        std::accumulate(b.grid.begin(), b.grid.end(), int64_t{1}, std::multiplies<>()));
    std::map<int64_t, std::vector<int64_t>> copies;  // by the position along the other axes
    for (int64_t position = 0; position < count.cores(); ++position) {
      Dims coordinates(mesh.sizes.size());
      int64_t rest = position;
      for (size_t a = mesh.sizes.size(); a-- > 0; rest /= mesh.sizes[a])
        coordinates[a] = rest % mesh.sizes[a];
      int64_t block = 0;
      Dims others = coordinates;
      for (const auto& axes : dims) {
        for (size_t a : axes) {
          block = block * mesh.sizes[a] + coordinates[a];
          others[a] = 0;
        }
      }
      int64_t copy = 0;
      for (size_t a = 0; a < others.size(); ++a) copy = copy * mesh.sizes[a] + others[a];
      auto& list = copies.try_emplace(copy, blocks, -1).first->second;
      list[static_cast<size_t>(block)] =
          mesh.ids.empty() ? position : mesh.ids[static_cast<size_t>(position)];
    }
    DeviceLists lists;
    for (auto& [copy, list] : copies) lists.push_back(std::move(list));
    b.cores = grouping_of(lists, count.cores(), false, where);
    out.push_back(std::move(b));
  }
  if (!at.take("]")) malformed();
  return out;
}

}  // namespace twinrun
