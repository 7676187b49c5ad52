// Reads a module and its values, replays it, and describes what is outside.
#include "harness/module/judge_module.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "checkpoints/container/safetensors.h"
#include "harness/tensors/pattern.h"
#include "program/import/import.h"

namespace twinrun {
namespace {

using Arrays = std::map<std::string, NamedArray>;

Result<Arrays> read_values(const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path));
  TWINRUN_ASSIGN(ArrayFile file, parse_safetensors(bytes, path));
  Arrays out;
  for (NamedArray& array : file.arrays) out[array.name] = std::move(array);
  return out;
}

Result<ImportedStep> read_module(const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path, kMaxHloBytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  TWINRUN_ASSIGN(const HloModule module, parse_program(text, path));
  return import_module(module);
}

Result<Tensor> tensor_of(const NamedArray& array, const TensorType& type, const std::string& file) {
  if (array.dims != type.dims)
    return Error{
        fmt::format("'{}' is {}; the module has {}", array.name, describe(array), to_string(type)),
        file, ""};
  if (array.type != ElementType::kU32 || type.dtype != DType::kI32)
    return to_tensor(array, type.dtype, file);
  Tensor bits = Tensor::empty(type);  // programs hold the bits of u32 as i32
  std::memcpy(bits.raw(), array.bytes.data(), bits.bytes());
  return bits;
}

std::vector<int64_t> index_of(const Dims& dims, int64_t flat) {
  std::vector<int64_t> out(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    out[d] = flat % dims[d];
    flat /= dims[d];
  }
  return out;
}

ModuleResult described(int64_t index, const Bounded& expected, const FoundVerdict& v) {
  ModuleResult r;
  r.index = index;
  r.type = to_string(expected.type);
  r.elements = v.elements, r.outside = v.outside, r.unknown = v.unknown;
  if (v.unknown > 0) r.why = expected.why.empty() ? "the result may overflow" : expected.why;
  if (v.worst)
    r.worst = ModuleResult::Worst{index_of(expected.type.dims, v.worst->at), v.worst->found,
                                  v.worst->expected, v.worst->radius};
  r.largest_ratio = v.largest_ratio;
  r.median_relative_radius = v.median_relative_radius;
  r.pattern = element_pattern(expected.type.dims, v.wrong);
  return r;
}

}  // namespace

Result<ModuleVerdict> judge_module(const ModuleRequest& request, ThreadPool* pool) {
  ModuleVerdict out;
  out.module = request.module;
  TWINRUN_ASSIGN(const Arrays values, read_values(request.values));
  Result<ImportedStep> step = read_module(request.module);
  if (!step) {
    out.refused = step.error().message();
    return out;
  }
  const Program& program = step->program;
  out.notes = step->notes;
  ReplayArguments given;
  given.literals = step->literals;
  for (const Input& input : program.inputs) {
    const auto found = values.find(input.name);
    Tensor tensor;
    if (found != values.end()) {
      TWINRUN_ASSIGN(tensor,
                     tensor_of(found->second, program.graph.type(input.id), request.values));
    }
    given.inputs.push_back(std::move(tensor));
  }
  std::vector<ValueId> wanted;
  std::vector<int64_t> indices;
  std::vector<Tensor> found;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Output& output = program.outputs[i];
    const auto result = values.find(output.name);
    if (result == values.end()) continue;
    TWINRUN_ASSIGN(Tensor tensor,
                   tensor_of(result->second, program.graph.type(output.id), request.values));
    wanted.push_back(output.id);
    indices.push_back(static_cast<int64_t>(i));
    found.push_back(std::move(tensor));
  }
  if (wanted.empty())
    return Error{"no 'result/0', 'result/1', ...", request.values,
                 "write what the module returned beside its arguments"};
  auto replayed = replay_values(program, given, wanted, request.may, pool);
  if (!replayed) {
    Error e = replayed.error();
    if (e.where.empty()) e.where = request.values;
    return e;
  }
  std::vector<ValueId> blunt;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const FoundVerdict v = compare((*replayed)[i], found[i]);
    out.results.push_back(described(indices[i], (*replayed)[i], v));
    out.results.back().likely = request.samples > 0 && v.outside == 0 &&
                                (v.median_relative_radius > kBlunt || v.unknown * 2 > v.elements);
    if (out.results.back().likely) blunt.push_back(wanted[i]);
  }
  if (blunt.empty()) return out;
  replayed->clear();
  TWINRUN_ASSIGN(const std::vector<Bounded> likely,
                 likely_values(program, given, blunt, request.may, pool, request.samples));
  std::string which;
  for (size_t i = 0, next = 0; i < wanted.size(); ++i) {
    if (!out.results[i].likely) continue;
    const Bounded& b = likely[next++];
    out.results[i] = described(indices[i], b, compare(b, found[i]));
    out.results[i].likely = true;
    which += fmt::format("{}{}", which.empty() ? "" : ", ", indices[i]);
  }
  out.notes.push_back(fmt::format(
      "no proof: the proven radii of the results {} are too wide to decide anything, so they are "
      "held against likely values, 32 standard deviations of errors that are drawn at random",
      which));
  return out;
}

}  // namespace twinrun
