// Parses name maps and changes array layouts as they say.
#include "checkpoints/interchange/name_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "program/base/json_text.h"
#include "program/base/names.h"
#include "program/base/toml_text.h"

namespace twinrun {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxMapBytes = size_t{16} << 20;

const std::vector<std::string>& entry_keys() {
  static const std::vector<std::string> keys = {"name", "transpose", "reshape", "shape"};
  return keys;
}

// Converts TOML to JSON. Types that a map may not contain become null.
Json as_json(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = as_json(value);
    return out;
  }
  if (const auto* array = node.as_array()) {
    Json out = Json::array();
    for (const auto& value : *array) out.push_back(as_json(value));
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  return nullptr;
}

Result<Json> parse(const std::string& text, const std::string& path) {
  if (path.ends_with(".json")) {
    auto json = parse_json_text(text);
    if (json && json->is_object()) return json;
    return Error{"is not a JSON object" + (json ? "" : ": it " + json.error().what), path,
                 "write {\"ours\": \"theirs\", ...}"};
  }
  TWINRUN_ASSIGN(const toml::table table, parse_toml_text(text, path));
  return as_json(table);
}

Result<std::vector<int64_t>> integers(const Json& json, const std::string& key,
                                      const std::string& where) {
  std::vector<int64_t> out;
  const auto wrong = [&] {
    return Error{fmt::format("'{}' is not a list of 1 to {} integers from 0", key, kMaxDims), where,
                 "write for example [3, 2, 0, 1]"};
  };
  if (!json.is_array() || json.empty() || json.size() > kMaxDims) return wrong();
  for (const Json& item : json) {
    if (!item.is_number_integer() || item.get<int64_t>() < 0) return wrong();
    out.push_back(item.get<int64_t>());
  }
  return out;
}

Result<NameMapEntry> entry_of(const Json& json, const std::string& where) {
  if (json.is_string()) return NameMapEntry{json.get<std::string>(), {}, {}, {}};
  if (!json.is_object()) {
    return Error{"is neither a name nor a table", where,
                 "write \"theirs\" or { name = \"theirs\" }"};
  }
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::count(entry_keys(), key) != 0) continue;
    return Error{fmt::format("unknown key '{}' (known: {})", key, join(entry_keys(), ", ")), where,
                 did_you_mean(key, entry_keys())};
  }
  NameMapEntry entry;
  if (!json.contains("name") || !json["name"].is_string()) {
    return Error{"has no 'name'", where, "write { name = \"theirs\", ... }"};
  }
  entry.theirs = json["name"];
  if (json.contains("reshape")) {
    TWINRUN_ASSIGN(entry.reshape, integers(json["reshape"], "reshape", where));
  }
  if (json.contains("shape")) {
    TWINRUN_ASSIGN(entry.shape, integers(json["shape"], "shape", where));
  }
  if (json.contains("transpose")) {
    TWINRUN_ASSIGN(entry.transpose, integers(json["transpose"], "transpose", where));
    auto sorted = entry.transpose;
    std::ranges::sort(sorted);
    std::vector<int64_t> expected(sorted.size());
    std::iota(expected.begin(), expected.end(), 0);
    if (sorted != expected) {
      return Error{fmt::format("'transpose' = {} is not a permutation of 0 to {}",
                               to_string(entry.transpose), sorted.size() - 1),
                   where, "name every dimension once"};
    }
  }
  return entry;
}

// Dimension i of the result is dimension perm[i] of `array`.
NamedArray transposed(NamedArray array, const std::vector<int64_t>& perm) {
  const size_t rank = perm.size(), size = size_of(array.type);
  std::vector<int64_t> stride(rank, 1), step(rank), index(rank, 0);
  for (size_t d = rank; d-- > 1;) stride[d - 1] = stride[d] * array.dims[d];
  Dims dims(rank);
  for (size_t d = 0; d < rank; ++d) {
    dims[d] = array.dims[static_cast<size_t>(perm[d])];
    step[d] = stride[static_cast<size_t>(perm[d])];
  }
  std::vector<std::byte> out(array.bytes.size());
  int64_t at = 0;
  for (size_t i = 0; i < out.size() / size; ++i) {
    std::memcpy(&out[i * size], &array.bytes[static_cast<size_t>(at) * size], size);
    for (size_t d = rank; d-- > 0;) {
      at += step[d];
      if (++index[d] < dims[d]) break;
      at -= step[d] * dims[d];
      index[d] = 0;
    }
  }
  return {std::move(array.name), array.type, std::move(dims), std::move(out)};
}

std::optional<Error> shape_error(const NamedArray& array, const Dims& to, const std::string& key,
                                 const std::string& where) {
  if (checked_bytes(array.type, to) == checked_bytes(array.type, array.dims)) return std::nullopt;
  return Error{fmt::format("'{}' has the shape {}, which {} {} does not fit", array.name,
                           to_string(array.dims), key, to_string(to)),
               where, "give sizes whose product is that of its own"};
}

}  // namespace

const NameMapEntry* NameMap::find(const std::string& ours) const {
  const auto it = entries.find(ours);
  return it == entries.end() ? nullptr : &it->second;
}

Result<NameMap> parse_name_map(const std::string& text, const std::string& path) {
  TWINRUN_ASSIGN(const Json json, parse(text, path));
  NameMap map;
  map.file = path;
  std::map<std::string, std::string> users;
  for (const auto& [ours, value] : json.items()) {
    const std::string where = fmt::format("{}: \"{}\"", path, ours);
    TWINRUN_ASSIGN(NameMapEntry entry, entry_of(value, where));
    const auto [it, fresh] = users.emplace(entry.theirs, ours);
    if (!fresh) {
      return Error{fmt::format("'{}' is also named by '{}'", entry.theirs, it->second), where,
                   "name each array of the file once"};
    }
    map.entries.emplace(ours, std::move(entry));
  }
  return map;
}

Result<NameMap> read_name_map(const std::string& path) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path, kMaxMapBytes + 1));
  if (bytes.size() > kMaxMapBytes) return Error{"is longer than 16 MiB", path, "give a map file"};
  return parse_name_map({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<NamedArray> to_our_layout(NamedArray theirs, const NameMapEntry& entry, const Dims& ours,
                                 const std::string& where) {
  if (!entry.reshape.empty()) {
    if (auto error = shape_error(theirs, entry.reshape, "reshape", where)) return *error;
    theirs.dims = entry.reshape;
  }
  if (!entry.transpose.empty()) {
    if (entry.transpose.size() != theirs.dims.size()) {
      return Error{
          fmt::format("'{}' has the shape {}; transpose {} is for {} dimensions", theirs.name,
                      to_string(theirs.dims), to_string(entry.transpose), entry.transpose.size()),
          where, "name each of its dimensions once"};
    }
    theirs = transposed(std::move(theirs), entry.transpose);
  }
  if (!entry.reshape.empty() && theirs.dims != ours) {
    if (auto error = shape_error(theirs, ours, "ours,", where)) return *error;
    theirs.dims = ours;
  }
  return theirs;
}

Result<NamedArray> to_their_layout(NamedArray ours, const NameMapEntry& entry,
                                   const std::string& where) {
  ours.name = entry.theirs;
  std::vector<int64_t> perm = entry.transpose;
  if (perm.empty()) {
    perm.resize(entry.reshape.empty() ? ours.dims.size() : entry.reshape.size());
    std::iota(perm.begin(), perm.end(), 0);
  }
  if (!entry.reshape.empty()) {  // the shape after the transpose on reading
    if (perm.size() != entry.reshape.size()) {
      return Error{fmt::format("transpose {} and reshape {} differ in rank", to_string(perm),
                               to_string(entry.reshape)),
                   where, ""};
    }
    Dims before(perm.size());
    for (size_t d = 0; d < perm.size(); ++d) {
      before[d] = entry.reshape[static_cast<size_t>(perm[d])];
    }
    if (auto error = shape_error(ours, before, "reshape", where)) return *error;
    ours.dims = before;
  }
  if (perm.size() != ours.dims.size()) {
    return Error{fmt::format("'{}' has the shape {}; transpose {} is for {} dimensions", ours.name,
                             to_string(ours.dims), to_string(perm), perm.size()),
                 where, "name each of its dimensions once"};
  }
  std::vector<int64_t> inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d)
    inverse[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  ours = transposed(std::move(ours), inverse);
  if (!entry.shape.empty()) {
    if (auto error = shape_error(ours, entry.shape, "shape", where)) return *error;
    ours.dims = entry.shape;
  }
  return ours;
}

}  // namespace twinrun
