// Parses and writes safetensors files.
#include "checkpoints/container/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

namespace twinrun {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // the reference's MAX_HEADER_SIZE
constexpr const char* kMetadata = "__metadata__";

// In the order of the reference's Dtype. Files are sorted by it, the last one first.
struct Name {
  std::string_view name;
  ElementType type;
};
constexpr Name kNames[] = {
    {"BOOL", ElementType::kBool}, {"U8", ElementType::kU8},   {"I8", ElementType::kI8},
    {"I16", ElementType::kI16},   {"U16", ElementType::kU16}, {"F16", ElementType::kF16},
    {"BF16", ElementType::kBF16}, {"I32", ElementType::kI32}, {"U32", ElementType::kU32},
    {"F32", ElementType::kF32},   {"F64", ElementType::kF64}, {"I64", ElementType::kI64},
    {"U64", ElementType::kU64}};

size_t rank_of(ElementType type) {
  return static_cast<size_t>(std::ranges::find(kNames, type, &Name::type) - std::begin(kNames));
}

struct Declared {
  std::string name, dtype;
  Dims shape;
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Reads the header token by token, so that a hostile one is refused at its first wrong token
// instead of being built in memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  std::vector<Declared> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> ignored;
  std::string wrong;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a fraction"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (skipping()) return true;
    if (place_ == Place::kShape) {
      if (number > (uint64_t{1} << 62)) return fail("has an impossibly large size in its shape");
      if (tensors.back().shape.size() == kMaxDims) return fail("has too many dimensions");
      tensors.back().shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (place_ == Place::kOffsets) {
      tensors.back().offsets.push_back(number);
      return tensors.back().offsets.size() <= 2 || fail("has more than two data_offsets");
    }
    return value("a number");
  }
  bool string(string_t& text) override {
    if (skipping()) return true;
    if (place_ == Place::kMetadata) {
      if (!metadata.emplace(key_, text).second)
        return fail("has the metadata '" + key_ + "' twice");
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      tensors.back().dtype = text;
      return true;
    }
    return value("text");
  }
  bool start_object(std::size_t) override {
    if (skip_ > 0 || unknown_) return ++skip_, true;
    if (place_ == Place::kStart) return place_ = Place::kNames, true;
    if (place_ != Place::kNames) return value("an object");
    place_ = key_ == kMetadata ? Place::kMetadata : Place::kTensor;
    if (place_ == Place::kTensor) tensors.push_back({.name = key_});
    return true;
  }
  bool end_object() override {
    if (skip_ > 0) return leave();
    place_ = place_ == Place::kNames ? Place::kEnd : Place::kNames;
    return true;
  }
  bool start_array(std::size_t) override {
    if (skip_ > 0 || unknown_) return ++skip_, true;
    if (place_ != Place::kTensor || key_ == "dtype") return value("a list");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }
  bool end_array() override {
    if (skip_ > 0) return leave();
    place_ = Place::kTensor;
    return true;
  }
  bool key(string_t& text) override {
    if (skip_ > 0) return true;
    key_ = text;
    if (place_ == Place::kNames) {
      return names_.insert(key_).second || fail("declares '" + key_ + "' twice");
    }
    if (place_ != Place::kTensor) return true;
    Declared& t = tensors.back();
    bool* seen = key_ == "dtype"          ? &t.has_dtype
                 : key_ == "shape"        ? &t.has_shape
                 : key_ == "data_offsets" ? &t.has_offsets
                                          : nullptr;
    unknown_ = seen == nullptr;
    if (unknown_) {
      ignored.push_back(fmt::format("key '{}' of '{}'", key_, t.name));
      return true;
    }
    if (*seen) return fail(fmt::format("declares '{}' of '{}' twice", key_, t.name));
    *seen = true;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    (void)error;
    return fail(fmt::format("is not JSON at byte {}", position));
  }

 private:
  enum class Place { kStart, kNames, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail(std::string what) {
    if (wrong.empty()) wrong = std::move(what);
    return false;
  }
  // Whether the current value belongs to an unknown key. A scalar is such a key's whole value, so
  // it ends the skipping; lists and objects end it in leave().
  bool skipping() {
    if (skip_ > 0) return true;
    const bool skipped = unknown_;
    unknown_ = false;
    return skipped;
  }
  bool leave() {
    if (--skip_ == 0) unknown_ = false;
    return true;
  }
  bool value(const char* what) {
    if (skipping()) return true;
    return fail(place_ == Place::kStart
                    ? fmt::format("is {}; expected an object", what)
                    : fmt::format("has {} for '{}', which is not allowed there", what, key_));
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_;
  size_t skip_ = 0;       // depth inside the value of an unknown key
  bool unknown_ = false;  // the next value belongs to an unknown key
};

Error damaged_safetensors(const std::string& what, const std::string& where) {
  return {what, where, "the file is damaged, cut short or not a safetensors file: write it again"};
}

}  // namespace

Result<ArrayFile> parse_safetensors(std::span<const std::byte> bytes, const std::string& where) {
  uint64_t length = 0;
  if (bytes.size() < sizeof length)
    return damaged_safetensors("is too short for a safetensors file", where);
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxSafetensorsHeader || length > bytes.size() - sizeof length) {
    return damaged_safetensors(
        fmt::format("declares a header of {} bytes; the file has {}", length, bytes.size()), where);
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof length,
                                length);
  if (!header.starts_with('{'))
    return damaged_safetensors("its header does not begin with '{'", where);
  HeaderReader reader;
  if (!Json::sax_parse(header.begin(), header.end(), &reader)) {
    return damaged_safetensors(
        "its header " + (reader.wrong.empty() ? "is not JSON" : reader.wrong), where);
  }
  const auto buffer = bytes.subspan(sizeof length + length);

  for (const Declared& t : reader.tensors) {
    if (t.has_dtype && t.has_shape && t.offsets.size() == 2) continue;
    return damaged_safetensors(fmt::format("'{}' lacks dtype, shape or two data_offsets", t.name),
                               where);
  }
  std::ranges::sort(reader.tensors, [](const Declared& a, const Declared& b) {
    return std::tie(a.offsets, a.name) < std::tie(b.offsets, b.name);
  });
  ArrayFile file{{}, std::move(reader.metadata), std::move(reader.ignored)};
  uint64_t end = 0;
  for (Declared& t : reader.tensors) {
    const auto* known = std::ranges::find(kNames, t.dtype, &Name::name);
    if (known == std::end(kNames)) {
      return Error{fmt::format("'{}' has the dtype '{}'; allowed: BOOL, U8 to U64, I8 to I64, "
                               "F16, BF16, F32, F64",
                               t.name, t.dtype),
                   where, "convert it to F32 where it was made"};
    }
    NamedArray array{std::move(t.name), known->type, std::move(t.shape), {}};
    if (t.offsets[0] != end || t.offsets[1] < end || t.offsets[1] > buffer.size()) {
      return damaged_safetensors(
          fmt::format("'{}' has data_offsets [{}, {}): the next byte is {} and the buffer "
                      "has {}; holes and overlaps are not allowed",
                      array.name, t.offsets[0], t.offsets[1], end, buffer.size()),
          where);
    }
    const auto size = checked_bytes(array.type, array.dims);
    if (!size || *size != t.offsets[1] - t.offsets[0]) {
      return damaged_safetensors(
          fmt::format("'{}' is {}, which does not match its {} bytes", array.name, describe(array),
                      t.offsets[1] - t.offsets[0]),
          where);
    }
    const auto content = buffer.subspan(end, *size);
    array.bytes.assign(content.begin(), content.end());
    end = t.offsets[1];
    file.arrays.push_back(std::move(array));
  }
  if (end != buffer.size()) {
    return damaged_safetensors(
        fmt::format("{} bytes after the last tensor belong to no tensor", buffer.size() - end),
        where);
  }
  return file;
}

Result<std::vector<std::byte>> to_safetensors(const ArrayFile& file, const std::string& where) {
  std::vector<const NamedArray*> order;
  std::set<std::string> names;
  for (const NamedArray& array : file.arrays) {
    if (!names.insert(array.name).second || array.name == kMetadata) {
      return Error{fmt::format("'{}' cannot name {}", array.name,
                               array.name == kMetadata ? "a tensor" : "two tensors"),
                   where, "rename it with --map"};
    }
    order.push_back(&array);
  }
  std::ranges::sort(order, [](const NamedArray* a, const NamedArray* b) {
    const size_t x = rank_of(a->type), y = rank_of(b->type);
    return std::tie(y, a->name) < std::tie(x, b->name);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  uint64_t end = 0;
  for (const NamedArray* array : order) {
    const uint64_t begin = end;
    end += array->bytes.size();
    header[array->name] = {{"dtype", kNames[rank_of(array->type)].name},
                           {"shape", array->dims},
                           {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    return Error{"a name is not UTF-8 text", where, "rename it with --map"};
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::vector<std::byte> out(sizeof length + length + end);
  std::memcpy(out.data(), &length, sizeof length);
  std::memcpy(out.data() + sizeof length, text.data(), length);
  size_t at = sizeof length + length;
  for (const NamedArray* array : order) {
    if (!array->bytes.empty()) std::memcpy(&out[at], array->bytes.data(), array->bytes.size());
    at += array->bytes.size();
  }
  return out;
}

}  // namespace twinrun
