// The values of a recorded trace: what each call computed, with digests, and what came into the
// step from outside: batches, initial weights and random draws. Views of memory that a call was
// given compute nothing and are left out.
//
//   const TraceValues v = values_of(trace);
//   v.results[v.of_call[7].first].digest
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/trace/trace_file.h"
#include "program/base/digest.h"

namespace twinrun {

// The digest of a view's elements in row-major order, whatever its strides are.
Digest digest_of(const aten::TensorView& view);

struct TraceResult {
  const aten::Call* call = nullptr;
  const aten::TensorView* view = nullptr;
  size_t which = 0;  // of the call's results
  Digest digest;
  bool draw = false;  // made by a random number generator
};

struct TraceInput {
  const aten::Call* call = nullptr;  // the first that reads it
  const aten::TensorView* view = nullptr;
  size_t argument = 0;  // its number among the tensors of the call
  bool copied = false;  // put there by aten.set_: a worker's batch, or a copy of what was computed
  Digest digest;
};

struct TraceValues {
  std::vector<TraceResult> results;  // in the order of the calls
  // For each call: the range of its results; the digests of the tensors that it reads, in order.
  std::vector<std::pair<size_t, size_t>> of_call;
  std::vector<std::vector<Digest>> reads;
  // What no recorded call computed, in the order of first use.
  std::vector<TraceInput> inputs;
  bool has_nodes = false;  // the recorder knew which calls belong to the backward pass
};
TraceValues values_of(const TraceFile& trace);

// What the results of a definition, of which there are so many, are compared with: the call's
// results in order, then what it wrote; of a call in place, what it wrote. nullptr: no tensor.
std::vector<const aten::TensorView*> compared_views(const aten::Call& call, size_t results);

// What a call computed: what it wrote, then what it returned elsewhere. `read`: what it was given.
std::vector<const aten::TensorView*> computed_by(const aten::Call& call,
                                                 const std::vector<const aten::TensorView*>& read);

// An argument that a call is given by name; nullptr if it is not.
const aten::Value* named(const aten::Call& call, std::string_view name);
// The tensors in it.
std::vector<const aten::TensorView*> named_tensors(const aten::Call& call, std::string_view name);
// Whether autograd follows a call, which reads these: what is recorded of its results is from below
// autograd.
bool is_followed(const aten::Call& call, const std::vector<const aten::TensorView*>& read);
// How many elements of its storage there are up to a view's last one.
int64_t reach_of(const aten::TensorView& view);
// All tensors that a call is given, in order.
std::vector<const aten::TensorView*> read_by(const aten::Call& call);
// "aten.add" for "aten.add_.Tensor": without the overload and the mark of a write in place.
std::string base_name(std::string_view op);
// Of a base name: memory without values, as aten.empty gives it.
bool gives_no_values(const std::string& name);
bool draws_at_random(std::string_view op);

}  // namespace twinrun
