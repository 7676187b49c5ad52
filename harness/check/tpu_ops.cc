// Reads the table of ops, and says what to do in place of those that are missing there.
#include "harness/check/tpu_ops.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "program/base/names.h"

namespace twinrun::check {
namespace {

constexpr std::string_view kOnHost =
    "do it in the input pipeline (tf.data), before the step: it runs on the host there";
constexpr std::string_view kAside =
    "leave it out of the step, or let the host do it: tf.compat.v1.tpu.outside_compilation, or "
    "tf.config.set_soft_device_placement(True)";
constexpr std::string_view kResource =
    "a resource variable: tf.Variable of TensorFlow 2, or tf.compat.v1.get_variable(..., "
    "use_resource=True)";
constexpr std::string_view kNoReader = "read on the host, through tf.data";

struct Instead {
  std::string_view pattern;  // the op's name; '*' stands for anything
  std::string_view advice;
};

// The first pattern that fits counts.
constexpr Instead kInstead[] = {
    {"*PyFunc*", "the same in TensorFlow's ops, or in the input pipeline (tf.data.Dataset.map)"},
    {"NumpyFunction", "the same in TensorFlow's ops, or in the input pipeline"},
    {"Print*", kAside},
    {"*Summary*", kAside},
    {"Audio*Summary*", kAside},
    {"Timestamp", kAside},
    {"*Lookup*", kOnHost},
    {"*HashTable*", kOnHost},
    {"InitializeTable*", kOnHost},
    {"*String*", kOnHost},
    {"*Unicode*", kOnHost},
    {"*Regex*", kOnHost},
    {"AsString", kOnHost},
    {"Decode*", kOnHost},
    {"Encode*", kOnHost},
    {"Parse*", kOnHost},
    {"Substr", kOnHost},
    {"ReduceJoin", kOnHost},
    {"*Queue*", kNoReader},
    {"*Reader*", kNoReader},
    {"ReadFile", kNoReader},
    {"WriteFile", kAside},
    {"Save*", "save between loops of steps, outside of what is compiled for the TPU"},
    {"Restore*", "restore before the first step, outside of what is compiled for the TPU"},
    {"Variable", kResource},
    {"VariableV2", kResource},
    {"Assign", kResource},
    {"AssignAdd", kResource},
    {"AssignSub", kResource},
    {"Apply*", kResource},
    {"Scatter*", "a resource variable (ResourceScatter*), or tf.tensor_scatter_nd_*"},
    {"SparseApply*", "a dense gradient: tf.convert_to_tensor(grad) of the IndexedSlices"},
    {"ResourceSparseApply*", "a dense gradient: tf.convert_to_tensor(grad) of the IndexedSlices"},
    {"Sparse*", "dense tensors: tf.sparse.to_dense in the input pipeline"},
    {"Ragged*", "padded tensors: ragged.to_tensor(shape=...) in the input pipeline"},
    {"Unique*", "work on all values with a mask, or tf.unique in the input pipeline"},
    {"Where", "tf.where(mask, x, 0) with three arguments keeps the shape"},
    {"DynamicPartition", "multiply by a mask for each part, which keeps the shape"},
    {"ListDiff", "a mask over all values, which keeps the shape"},
    {"NonMaxSuppression*", "tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)"},
    {"CombinedNonMaxSuppression",
     "tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)"},
    {"Cudnn*", "the layer without cuDNN: tf.keras.layers.LSTM(..., use_cudnn=False), or tf.scan"},
    {"ResizeBicubic", "ResizeBilinear: tf.image.resize(..., method=\"bilinear\")"},
    {"ResizeArea", "ResizeBilinear: tf.image.resize(..., method=\"bilinear\"), or average pooling"},
    {"CropAndResize*", "tf.gather and ResizeBilinear, or the crop in the input pipeline"},
    {"ExtractJpegShape", kOnHost},
    {"*Candidate*Sampler*", "draw the samples in the input pipeline"},
    {"*UniformCandidateSampler", "draw the samples in the input pipeline"},
    {"CTC*", "tf.nn.ctc_loss with dense labels, whose sums are ops of a TPU"},
    {"EditDistance", kOnHost},
    {"Quantized*", "float ops in bfloat16; FakeQuant* to train for quantisation"},
    {"TensorArrayV2*", "tf.TensorArray of TensorFlow 1.0 or later (TensorArrayV3)"},
};

bool fits(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  if (pattern.empty()) return true;
  for (size_t at = star; at <= name.size(); ++at) {
    if (fits(pattern, name.substr(at))) return true;
  }
  return false;
}

// The next word of a line, taken from it.
std::string_view word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view out = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return out;
}

struct OpTable {
  std::vector<std::string_view> versions;
  std::deque<std::vector<std::string_view>> sets;
  std::map<std::string_view, TpuOp> ops;

  OpTable() {
    std::string_view rest = tpu_op_files().front().text;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      add(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

  void add(std::string_view line) {
    const std::string_view kind = word(line);
    if (kind == "versions") {
      while (!line.empty()) versions.push_back(word(line));
    } else if (kind == "set") {
      word(line);  // its number, which is its place
      sets.emplace_back();
      while (!line.empty()) sets.back().push_back(word(line));
    } else if (kind == "constant") {
      std::vector<int>& inputs = ops.at(word(line)).constants;
      while (!line.empty()) inputs.push_back(std::stoi(std::string(word(line))));
    } else if (kind == "op" || kind == "out") {
      TpuOp op;
      op.name = word(line);
      if (kind == "out") {
        op.name.remove_suffix(1);  // the colon
      } else {
        op.first_version = word(line);
        while (!line.empty()) {
          const std::string_view attribute = word(line);
          const size_t equals = attribute.find('=');
          op.types.emplace_back(attribute.substr(0, equals),
                                &sets[std::stoul(std::string(attribute.substr(equals + 1)))]);
        }
      }
      ops.emplace(op.name, op);
    }
  }
};

const OpTable& table() {
  static const OpTable all;
  return all;
}

}  // namespace

std::span<const std::string_view> tpu_versions() { return table().versions; }

const TpuOp* find_tpu_op(std::string_view op) {
  const auto found = table().ops.find(op);
  return found == table().ops.end() ? nullptr : &found->second;
}

bool accepts(const TpuOp& op, std::string_view attribute, std::string_view type) {
  const auto at =
      std::ranges::find_if(op.types, [&](const auto& t) { return t.first == attribute; });
  return at == op.types.end() || std::ranges::find(*at->second, type) != at->second->end();
}

std::string instead_of(std::string_view op) {
  for (const Instead& one : kInstead) {
    if (fits(one.pattern, op)) return std::string(one.advice);
  }
  std::vector<std::string> known;
  for (const auto& [name, row] : table().ops) known.emplace_back(name);
  return "ops that a TPU has (the nearest by name is " + nearest(op, known) +
         "), or the input pipeline";
}

bool has_dynamic_result(std::string_view op) {
  // NonMaxSuppressionV4 pads its result where it is asked to, which its caller has to see.
  constexpr std::array kOps = {
      "Where", "Unique", "UniqueV2", "DynamicPartition", "ListDiff", "NonMaxSuppressionV3"};
  return std::ranges::find(kOps, op) != kOps.end();
}

}  // namespace twinrun::check
