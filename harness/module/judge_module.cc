// Reads a module and its values, replays it, and describes what is outside.
#include "harness/module/judge_module.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "checkpoints/container/safetensors.h"
#include "harness/tensors/pattern.h"
#include "program/import/import.h"

namespace twinrun {
namespace {

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

ModuleResult described(int64_t index, int64_t replaces, const Bounded& expected,
                       const FoundVerdict& v) {
  ModuleResult r;
  r.replaces = replaces;
  r.moved = v.moved, r.undecided = v.undecided;
  r.index = index;
  r.type = to_string(expected.type);
  r.elements = v.elements, r.outside = v.outside, r.unknown = v.untestable;
  if (v.untestable > 0) r.why = expected.why.empty() ? "the result may overflow" : expected.why;
  if (v.worst_element >= 0)
    r.worst = ModuleResult::Worst{index_of(expected.type.dims, v.worst_element), v.subject, v.value,
                                  v.radius};
  r.largest_ratio = v.worst;
  r.median_relative_radius = v.median_relative_radius;
  r.pattern = element_pattern(expected.type.dims, v.wrong);
  return r;
}

// The argument that a result is the new value of; -1: none.
int64_t replaced_by(int64_t result, const std::vector<int64_t>& next) {
  const auto at = std::ranges::find(next, result);
  return at == next.end() ? -1 : at - next.begin();
}

}  // namespace

void set_products(const std::string& precision, FusedArithmetic& may) {
  may.tf32 = precision == "tf32";
  may.dots = may.tf32 ? DotPrecision::kBf16 : DotPrecision::kF32;
  for (const auto p : {DotPrecision::kBf16, DotPrecision::kBf16x3, DotPrecision::kBf16x6}) {
    if (to_string(p) == precision) may.dots = p;
  }
}

std::map<std::string, std::string> settings_of(const ModuleRequest& request) {
  std::vector<std::string> next;
  for (const int64_t result : request.next)
    next.push_back(result < 0 ? "-" : std::to_string(result));
  std::map<std::string, std::string> out = {
      {"elementary_ulps", fmt::format("{}", request.may.elementary_ulps)},
      {"flush", request.may.flush ? "yes" : "no"},
      {"precision", request.precision},
      {"samples", std::to_string(request.samples)}};
  if (!next.empty()) out["next"] = fmt::format("{}", fmt::join(next, ","));
  return out;
}

Result<ModuleRequest> request_of(const std::map<std::string, std::string>& settings) {
  ModuleRequest out;
  const auto word = [&](const char* key) {
    const auto at = settings.find(key);
    return at == settings.end() ? std::string() : at->second;
  };
  // False: no number, or none.
  const auto read = [](const std::string& text, auto& to) {
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), to);
    return failed == std::errc{} && end == text.data() + text.size();
  };
  if (const std::string text = word("elementary_ulps"); !text.empty()) {
    double& ulps = out.may.elementary_ulps;
    if (!read(text, ulps) || !(ulps >= 0) || ulps > 1e6)
      return Error{"--elementary-ulps: allowed: 0 to 1000000", text, ""};
  }
  if (const std::string text = word("samples"); !text.empty()) {
    if (!read(text, out.samples) ||
        (out.samples != 0 && (out.samples < kSamples || out.samples > 1000)))
      return Error{fmt::format("--samples: allowed: 0, and {} to 1000", kSamples), text, ""};
  }
  if (const std::string text = word("flush"); !text.empty()) out.may.flush = text == "yes";
  if (const std::string text = word("precision"); !text.empty()) out.precision = text;
  set_products(out.precision, out.may);
  const std::string next = word("next");
  for (size_t at = 0; !next.empty() && at <= next.size();) {
    const size_t end = std::min(next.find(',', at), next.size());
    const std::string item = next.substr(at, end - at);
    int64_t result = -1;
    if (item != "-" && (!read(item, result) || result < 0))
      return Error{"--next: a comma-separated list of indices of results, or -", item,
                   "--next 0,1,- for results that are the new values of arguments 0 and 1"};
    out.next.push_back(item == "-" ? -1 : result);
    at = end + 1;
  }
  return out;
}

Result<Arrays> read_arrays(const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path));
  TWINRUN_ASSIGN(ArrayFile file, parse_safetensors(bytes, path));
  Arrays out;
  for (NamedArray& array : file.arrays) out[array.name] = std::move(array);
  return out;
}

Result<ModuleVerdict> judge_module(const ModuleRequest& request, ThreadPool* pool) {
  TWINRUN_ASSIGN(const Arrays values, read_arrays(request.values));
  return judge_arrays(request, values, pool);
}

Result<ModuleVerdict> judge_arrays(const ModuleRequest& request, const Arrays& values,
                                   ThreadPool* pool, std::map<int64_t, Tensor>* meant) {
  ModuleVerdict out;
  out.module = request.module;
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
  std::vector<Tensor> found, before;
  std::vector<int64_t> replaces;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Output& output = program.outputs[i];
    const auto result = values.find(output.name);
    if (result == values.end()) {
      out.notes.push_back(fmt::format("{} was not given, so it was not judged", output.name));
      out.left_out.push_back(output.name);
      continue;
    }
    TWINRUN_ASSIGN(Tensor tensor,
                   tensor_of(result->second, program.graph.type(output.id), request.values));
    wanted.push_back(output.id);
    indices.push_back(static_cast<int64_t>(i));
    found.push_back(std::move(tensor));
    const int64_t argument = replaced_by(static_cast<int64_t>(i), request.next);
    const auto old = values.find(fmt::format("argument/{}", argument));
    Tensor was;
    if (argument >= 0 && old != values.end()) {
      TWINRUN_ASSIGN(was, tensor_of(old->second, program.graph.type(output.id), request.values));
    }
    replaces.push_back(was.valid() ? argument : -1);
    before.push_back(std::move(was));
  }
  const auto held = [&](const Bounded& expected, size_t i) {
    const FoundVerdict v = compare(expected, found[i], before[i].valid() ? &before[i] : nullptr);
    return described(indices[i], replaces[i], expected, v);
  };
  for (const auto& [name, array] : values) {
    if (name.starts_with("result/") &&
        std::ranges::find(program.outputs, name, &Output::name) == program.outputs.end())
      return Error{fmt::format("{} is no result of the module", name), request.values,
                   fmt::format("it has {}: result/0, ..", program.outputs.size())};
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
    ModuleResult r = held((*replayed)[i], i);
    if (meant != nullptr) (*meant)[indices[i]] = (*replayed)[i].value;
    r.likely = request.samples > 0 && r.outside == 0 &&
               (r.median_relative_radius > kBlunt || r.unknown * 2 > r.elements ||
                (r.replaces >= 0 && r.is_open()));
    if (r.likely) blunt.push_back(wanted[i]);
    out.results.push_back(std::move(r));
  }
  if (blunt.empty()) return out;
  replayed->clear();
  TWINRUN_ASSIGN(const std::vector<Bounded> likely,
                 likely_values(program, given, blunt, request.may, pool, request.samples));
  std::string which;
  for (size_t i = 0, next = 0; i < wanted.size(); ++i) {
    if (!out.results[i].likely) continue;
    out.results[i] = held(likely[next++], i);
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
