// What a sharded text says of its mesh and of what its cores exchange. On the data's path: a text
// -> ImportedStep -> the search for what its sharding means (harness/sharding/repair.h), which
// tries other exchanges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twinrun {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  std::vector<int64_t> place;  // of each core along it; empty: the mesh is not of all cores
};

// Values that cores give each other. The import makes it of an all-reduce of tables, one row for
// each core, of which each core then takes what it is to have.
struct Exchange {
  enum Kind : uint8_t { kPermute, kAllToAll } kind = kPermute;
  std::string sum;                    // the name of that all-reduce
  std::vector<int32_t> source;        // of kPermute: whose value each core gets; -1: zeros
  std::vector<int32_t> group, place;  // of kAllToAll, of each core
  int32_t size = 1;                   // of a group
  int64_t split = 0, join = 0;        // dimensions
};

}  // namespace twinrun
