// The TensorFlow ops that a TPU's compiler has kernels for, by version of TensorFlow: tpu_ops.txt,
// which says where it is from; and what to do in place of the others.
//
//   find_tpu_op("MatMul")->first_version;        // "2.16.2"
//   accepts(*find_tpu_op("MatMul"), "T", "uint8") == false;
//   instead_of("PyFunc");                        // "the same in TensorFlow's ops, or ..."
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinrun::check {

struct TpuOp {
  std::string_view name;
  std::string_view first_version;  // of those known; "" for what needs no kernel
  std::vector<std::pair<std::string_view, const std::vector<std::string_view>*>> types;
  std::vector<int> constants;  // inputs that must be known when the step is compiled; -1: the last
};

std::span<const std::string_view> tpu_versions();  // "2.16.2", .. the last is the newest
const TpuOp* find_tpu_op(std::string_view op);     // nullptr: there is none
// Whether an attribute of the op may be this type. Attributes that the table does not name may.
bool accepts(const TpuOp& op, std::string_view attribute, std::string_view type);
// What to do in place of an op that a TPU does not have.
std::string instead_of(std::string_view op);
// Whether the sizes of the op's results depend on data: Where, Unique, ...
bool has_dynamic_result(std::string_view op);

}  // namespace twinrun::check

namespace twinrun {

// The table as the build embeds it.
struct TpuOpFile {
  std::string_view name, text;
};
std::span<const TpuOpFile> tpu_op_files();

}  // namespace twinrun
