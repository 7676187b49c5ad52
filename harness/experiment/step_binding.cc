// Parses the file beside an imported program that says which parameters are state and which are
// inputs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/experiment/imported.h"
#include "program/base/json_text.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxNames = 100'000;

Result<std::vector<std::string>> names_of(const Json& j, const char* key, const std::string& file) {
  std::vector<std::string> out;
  if (!j.contains(key)) return out;
  const Json& list = j[key];
  if (!list.is_array() || list.size() > kMaxNames)
    return Error{fmt::format("{}; allowed: a list of names", list.dump().substr(0, 60)),
                 file + ": " + key, ""};
  for (const Json& name : list) {
    if (!name.is_string())
      return Error{fmt::format("{}; allowed: a name", name.dump().substr(0, 60)), file + ": " + key,
                   ""};
    out.push_back(name.get<std::string>());
  }
  return out;
}

Result<int64_t> index_of(const Json& j, const std::string& where) {
  if (j.is_null()) return -1;
  if (!j.is_number_integer() || j.get<int64_t>() < 0 || j.get<int64_t>() > kMaxNames)
    return Error{fmt::format("{}; allowed: the index of a result", j.dump().substr(0, 60)), where,
                 ""};
  return j.get<int64_t>();
}

Result<StateRole> role_of(const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const StateRole role :
       {StateRole::kParameter, StateRole::kSlot, StateRole::kStatistic, StateRole::kCounter}) {
    if (to_string(role) == name) return role;
    known.emplace_back(to_string(role));
  }
  return Error{fmt::format("'{}' (allowed: {})", name, join(known, ", ")), where,
               did_you_mean(name, known)};
}

// The step.json of `twinrun convert --to stablehlo`: arguments and results by name, those of the state first.
Result<StepBinding> exported_binding(const Json& j, const std::string& file) {
  std::map<std::string, std::vector<std::string>> names;
  for (const char* key : {"arguments", "results"}) {
    const Json& list = j.contains(key) ? j[key] : Json::array();
    if (!list.is_array() || list.size() > kMaxNames)
      return Error{"expected a list", file + ": " + key, ""};
    for (const Json& value : list) {
      if (!value.is_object() || !value.contains("name") || !value["name"].is_string())
        return Error{fmt::format("{}; allowed: an object with a name", value.dump().substr(0, 60)),
                     file + ": " + key, ""};
      names[key].push_back(value["name"].get<std::string>());
    }
  }
  const auto result = [&](const std::string& name) {
    const auto at = std::ranges::find(names["results"], name);
    return at == names["results"].end() ? -1 : at - names["results"].begin();
  };
  StepBinding b;
  for (const std::string& name : names["arguments"]) {
    if (!name.starts_with("state/")) {
      b.inputs.push_back(name);
      continue;
    }
    b.state.push_back(name);
    b.roles.push_back(StateRole::kParameter);
    b.results.push_back(result(name));
  }
  b.loss = result("output/loss");
  if (b.state.empty() || b.loss < 0)
    return Error{"the argument 'state/..' or the result 'output/loss' is missing", file,
                 "docs/guides/import.md#binding has an example"};
  return b;
}

}  // namespace

Result<StepBinding> parse_binding(const std::string& text, const std::string& file) {
  const auto parsed = parse_json_text(text);
  if (!parsed || !parsed->is_object())
    return Error{"the file is not a JSON object" + (parsed ? "" : ": it " + parsed.error().what),
                 file, "docs/guides/import.md#binding has an example"};
  const Json& j = *parsed;
  if (j.contains("arguments")) return exported_binding(j, file);
  static const std::vector<std::string> known = {"schema_version", "state",  "roles",
                                                 "results",        "inputs", "loss"};
  for (const auto& [key, value] : j.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return Error{fmt::format("unknown key '{}' (allowed: {})", key, join(known, ", ")), file,
                   did_you_mean(key, known)};
  }
  if (j.value("schema_version", Json(1)) != 1)
    return Error{fmt::format("schema_version {}; allowed: 1", j["schema_version"].dump()), file,
                 ""};
  StepBinding b;
  TWINRUN_ASSIGN(b.state, names_of(j, "state", file));
  TWINRUN_ASSIGN(b.inputs, names_of(j, "inputs", file));
  if (b.state.empty())
    return Error{"state names no variable", file + ": state",
                 "the first parameters are the state, in order"};
  TWINRUN_ASSIGN(const std::vector<std::string> roles, names_of(j, "roles", file));
  for (size_t i = 0; i < b.state.size(); ++i) {
    b.results.push_back(static_cast<int64_t>(i));
    b.roles.push_back(StateRole::kParameter);
  }
  if (!roles.empty() && roles.size() != b.state.size())
    return Error{fmt::format("{} roles for {} state variables", roles.size(), b.state.size()),
                 file + ": roles", ""};
  for (size_t i = 0; i < roles.size(); ++i) {
    TWINRUN_ASSIGN(b.roles[i], role_of(roles[i], file + ": roles"));
  }
  if (j.contains("results")) {
    const Json& list = j["results"];
    if (!list.is_array() || list.size() != b.state.size())
      return Error{fmt::format("expected {} indices, one per state variable", b.state.size()),
                   file + ": results", ""};
    for (size_t i = 0; i < b.state.size(); ++i) {
      TWINRUN_ASSIGN(b.results[i], index_of(list[i], file + ": results"));
    }
  }
  b.loss = static_cast<int64_t>(b.state.size());
  if (j.contains("loss")) {
    TWINRUN_ASSIGN(b.loss, index_of(j["loss"], file + ": loss"));
  }
  return b;
}

}  // namespace twinrun
