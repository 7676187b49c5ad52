// How a sharded text arranges its cores: how many there are, which of them a collective joins, and
// which block of an array each core has. Between the HLO module and lower_collective.cc. Cores are
// numbered as the text numbers devices: replica * partitions + partition. Malformed text throws
// Unsupported.
//
//   Grouping g = groups_of(in, CoreCount{1, 8});                   // replica_groups={{0,1},...}
//   Blocks b = blocks_of_tiles("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", 2, 8);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "program/import/attributes.h"
#include "program/import/import.h"

namespace twinrun {

struct CoreCount {
  int64_t replicas = 1, partitions = 1;
  int64_t cores() const { return replicas * partitions; }
};

// The cores that the text needs. One, if nothing in it depends on a core: annotations of sharding
// alone do not change what is computed. The number is that of the module's header, else of its
// meshes, else of the devices that its collectives and shardings name. Throws Unsupported above
// kMaxImportedCores.
CoreCount cores_of(const HloModule& module);

// The axes of all meshes, in their order.
std::vector<MeshAxis> mesh_axes(const HloModule& module, const CoreCount& count);

// Whether XLA's partitioner made the text: its parameters are then the blocks of single cores.
bool is_partitioned(const HloModule& module);

// Whether the instruction depends on the core or joins several.
bool is_across_cores(const HloInstruction& in);

// Groups of cores that exchange values.
struct Grouping {
  std::vector<int32_t> group, place;  // of each core, and its place in that group
  int32_t groups = 0, size = 0;       // size: of the largest group
  bool regular = true;                // all groups have that size
};

using DeviceLists = std::vector<std::vector<int64_t>>;

// {{0,1},{2,3}}, {}, the iota form [2,4]<=[4,2]T(1,0), or along axes of a mesh:
// #stablehlo.replica_group_mesh_axes<mesh = <["x"=2, "y"=4]>, axes = [#stablehlo.axis_ref<name = "x">]>.
DeviceLists device_lists(std::string_view text, const std::string& key);
// The groups of a collective, from replica_groups, channel_id and use_global_device_ids. `missing`:
// some cores may be in no group, which is then -1.
Grouping groups_of(const HloInstruction& in, const CoreCount& count, bool missing = false);
// The source of each core's value under collective-permute; -1: none.
std::vector<int32_t> sources_of(const HloInstruction& in, const CoreCount& count);

// An array cut into a grid of equal blocks. `cores.place` is the row-major position of a core's
// block in the grid; each group of cores has the whole array.
struct Blocks {
  Dims grid;  // blocks along each dimension
  Grouping cores;
  bool whole() const { return cores.size == 1; }
};

// Of XLA's "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "{replicated}", ...
Blocks blocks_of_tiles(std::string_view sharding, size_t rank, int64_t cores);
// Of each value in Shardy's "[<@mesh, [{"data"}, {}]>, <@mesh, [{}]>]"; axes that are not in
// `manual` do not count.
std::vector<Blocks> blocks_of_axes(std::string_view shardings, std::string_view manual,
                                   const HloModule& module, const CoreCount& count);

// The part of the user's array that each core's parameter of these dimensions is; nothing where
// every core has all of it. Under pmap the array has a leading axis over the replicas. A partitioned
// text has the parameters of single cores, with the sharding of the array.
std::optional<CorePart> part_of_parameter(const HloModule& module, const HloInstruction& parameter,
                                          const Dims& dims, const CoreCount& count);

// Whether the instruction is an annotation for a compiler, which does not change what is computed.
bool is_mark(const HloInstruction& in);

// The text of an attribute that XLA keeps among its frontend attributes, without escapes.
std::string frontend_attribute(const HloInstruction& in, const std::string& key);
// The target of a custom-call, without quotes.
std::string target_of(const HloInstruction& in);

}  // namespace twinrun
