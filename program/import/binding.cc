// The default binding: which parameters are state, and which result is the loss, from the shapes
// alone.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "program/import/import.h"

namespace twinrun {
namespace {

// "opt_state[0].mu['w']" -> "opt_state/0/mu/w"
std::string parameter_name(const HloInstruction& p, size_t i) {
  std::string out;
  const std::string& text = p.op_name.empty() ? p.name : p.op_name;
  for (char c : text) {
    const bool word =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
    const bool attribute = c == '.' && (out.empty() || out.back() == '/');
    if (word && !attribute)
      out += c;
    else if (!out.empty() && out.back() != '/')
      out += '/';
  }
  while (out.ends_with('/')) out.pop_back();
  return out.empty() ? fmt::format("parameter{}", i) : out;
}

}  // namespace

Result<StepBinding> default_binding(const HloModule& module) {
  const HloComputation& entry = module.entry();
  const HloShape& root = entry.instructions[static_cast<size_t>(entry.root)].shape;
  const auto parameter = [&](size_t i) -> const HloInstruction& {
    return entry.instructions[static_cast<size_t>(entry.parameters[i])];
  };
  const auto scalar = [](const HloShape& s) {
    return (s.dtype == "f32" || s.dtype == "bf16") && s.dims.empty();
  };
  const auto& results = root.parts;
  size_t best = 0, first = 0;
  for (const size_t offset : {size_t{0}, size_t{1}}) {  // (state, loss) or (loss, state)
    if (offset == 1 && (results.empty() || !scalar(results[0]))) continue;
    size_t n = 0;
    while (n < entry.parameters.size() && offset + n < results.size() &&
           results[offset + n].dtype == parameter(n).shape.dtype &&
           results[offset + n].dims == parameter(n).shape.dims && !results[offset + n].is_tuple())
      ++n;
    if (offset == 0) {
      while (n > 0 &&
             std::none_of(results.begin() + static_cast<std::ptrdiff_t>(n), results.end(), scalar))
        --n;
    }
    if (n > best) best = n, first = offset;
  }
  if (best == 0)
    return Error{"no result looks like the next value of the first parameter", module.file,
                 "say which parameters are state, which inputs, and which result is the loss: "
                 "docs/guides/import.md#binding"};
  StepBinding b;
  std::set<std::string> seen;
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    std::string name = parameter_name(parameter(i), i);
    while (!seen.insert(name).second) name += "'";
    if (i >= best) {
      b.inputs.push_back(name);
      continue;
    }
    b.state.push_back(name);
    b.roles.push_back(parameter(i).shape.dtype == "s32" ? StateRole::kCounter
                                                        : StateRole::kParameter);
    b.results.push_back(static_cast<int64_t>(first + i));
  }
  const auto loss = std::find_if(
      results.begin() + static_cast<std::ptrdiff_t>(first == 1 ? 0 : best), results.end(), scalar);
  b.loss = loss - results.begin();
  return b;
}

}  // namespace twinrun
