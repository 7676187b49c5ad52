// Parses and writes .npy files; .npz archives of them through zip.h.
#include "checkpoints/container/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "checkpoints/container/zip.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 65536;  // the header of an array of numbers has about 100 bytes

// The content of the header's Python dict.
struct Header {
  std::string descr;
  bool fortran = false;
  Dims dims;
};

// Parses the subset of Python literals that numpy.lib.format writes: a dict of a string, a bool and
// a tuple.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  // Returns "" or what is wrong.
  std::string parse(Header& out) {
    bool descr = false, order = false, shape = false;
    if (!take('{')) return "is no dict";
    while (!take('}')) {
      std::string key;
      if (!string(key) || !take(':')) return "has no 'key': value pairs";
      bool* seen = key == "descr" ? &descr : key == "fortran_order" ? &order : &shape;
      if (seen == &shape && key != "shape") return fmt::format("has the unknown key '{}'", key);
      if (*seen) return fmt::format("has the key '{}' twice", key);
      *seen = true;
      if (seen == &descr) {
        if (peek() == '[')
          return "describes a structured type (fields); expected one number per element";
        if (!string(out.descr)) return "has a 'descr' that is not a string";
      } else if (seen == &order) {
        if (!boolean(out.fortran)) return "has a 'fortran_order' other than True and False";
      } else if (!tuple(out.dims)) {
        return fmt::format("has a 'shape' that is not a tuple of at most {} sizes", kMaxDims);
      }
      if (!take(',') && peek() != '}') return "is no dict";
    }
    blanks();
    if (at_ != text_.size()) return "continues after its dict";
    if (!descr || !order || !shape) return "lacks 'descr', 'fortran_order' or 'shape'";
    return "";
  }

 private:
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool string(std::string& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out.find('\\') == std::string::npos;
  }
  bool boolean(bool& out) {
    blanks();
    out = text_.substr(at_).starts_with("True");
    if (!out && !text_.substr(at_).starts_with("False")) return false;
    at_ += out ? 4 : 5;
    return true;
  }
  bool tuple(Dims& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      int64_t size = 0;
      blanks();
      const char* begin = text_.data() + at_;
      const auto [end, code] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (code != std::errc() || size < 0 || out.size() == kMaxDims) return false;
      at_ += static_cast<size_t>(end - begin);
      out.push_back(size);
      if (!take(',') && (peek() != ')' || out.size() == 1)) return false;  // (3) is no tuple
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

struct Descr {
  std::string_view code;  // without the byte order
  ElementType type;
};
constexpr Descr kDescrs[] = {
    {"b1", ElementType::kBool}, {"i1", ElementType::kI8},  {"i2", ElementType::kI16},
    {"i4", ElementType::kI32},  {"i8", ElementType::kI64}, {"u1", ElementType::kU8},
    {"u2", ElementType::kU16},  {"u4", ElementType::kU32}, {"u8", ElementType::kU64},
    {"f2", ElementType::kF16},  {"f4", ElementType::kF32}, {"f8", ElementType::kF64}};

Result<ElementType> type_of(const std::string& descr, const std::string& where) {
  const std::string_view code = std::string_view(descr).substr(descr.empty() ? 0 : 1);
  const bool order = !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string::npos;
  for (const Descr& known : kDescrs) {
    if (!order || code != known.code) continue;
    if (descr[0] == '|' && size_of(known.type) != 1) break;
    return known.type;
  }
  if (order && code.starts_with('O')) {
    return Error{"holds Python objects (a pickle), which could run code and are therefore refused",
                 where, "save arrays of numbers, with allow_pickle=False"};
  }
  std::string fix = "save it as float32, float64, float16, an integer type or bool";
  if (order && code == "V2") fix = "bfloat16 has no npy type: save float32, or safetensors";
  return Error{fmt::format("has the dtype '{}'; allowed: numbers and bool", descr), where, fix};
}

// Reverses the byte order of elements of `size` bytes, in place.
void swap_bytes(std::vector<std::byte>& bytes, size_t size) {
  for (size_t i = 0; i + size <= bytes.size(); i += size) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + size));
  }
}

// From Fortran order (first index fastest) to C order (last index fastest).
std::vector<std::byte> row_major(std::span<const std::byte> from, const Dims& dims, size_t size) {
  std::vector<std::byte> to(from.size());
  std::vector<int64_t> stride(dims.size()), index(dims.size(), 0);
  int64_t step = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    stride[d] = step;
    step *= dims[d];
  }
  int64_t at = 0;
  for (size_t i = 0; i < from.size() / size; ++i) {
    std::memcpy(&to[i * size], &from[static_cast<size_t>(at) * size], size);
    for (size_t d = dims.size(); d-- > 0;) {
      at += stride[d];
      if (++index[d] < dims[d]) break;
      at -= stride[d] * dims[d];
      index[d] = 0;
    }
  }
  return to;
}

Error damaged(const std::string& what, const std::string& where) {
  return {what, where, "the file is damaged, cut short or not a .npy file: write it again"};
}

}  // namespace

Result<NamedArray> parse_npy(std::span<const std::byte> bytes, std::string name,
                             const std::string& where) {
  const auto byte = [&](size_t i) { return static_cast<size_t>(bytes[i]); };
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return damaged("is not a .npy file: it does not begin with \\x93NUMPY", where);
  }
  const size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    return Error{
        fmt::format("has npy format version {}.{}; supported: 1.0, 2.0 and 3.0", major, minor),
        where, "save it with NumPy's default version"};
  }
  const size_t begin = major == 1 ? 10 : 12;
  if (bytes.size() < begin) return damaged("ends inside its header", where);
  size_t length = byte(8) | byte(9) << 8;
  if (major != 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kMaxHeader) {
    return damaged(
        fmt::format("declares a header of {} bytes; allowed: up to {}", length, kMaxHeader), where);
  }
  if (length > bytes.size() - begin) return damaged("ends inside its header", where);
  Header header;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + begin, length);
  if (const std::string wrong = HeaderParser(text).parse(header); !wrong.empty()) {
    return damaged("its header " + wrong, where);
  }
  NamedArray array{std::move(name), ElementType::kF32, std::move(header.dims), {}};
  TWINRUN_ASSIGN(array.type, type_of(header.descr, where));
  const auto content = bytes.subspan(begin + length);
  const auto declared = checked_bytes(array.type, array.dims);
  if (!declared) return damaged(fmt::format("declares the shape {}", to_string(array.dims)), where);
  if (*declared != content.size()) {
    return damaged(fmt::format("declares {} of {} bytes but holds {} bytes", describe(array),
                               *declared, content.size()),
                   where);
  }
  if (header.fortran && array.dims.size() > 1) {
    array.bytes = row_major(content, array.dims, size_of(array.type));
  } else {
    array.bytes.assign(content.begin(), content.end());
  }
  if (header.descr[0] == '>') swap_bytes(array.bytes, size_of(array.type));
  return array;
}

Result<ArrayFile> parse_npz(std::span<const std::byte> bytes, const std::string& where,
                            const std::vector<std::string>& only) {
  const std::string_view suffix = ".npy";
  const auto stem = [&](const std::string& name) {
    return name.substr(0, name.size() - suffix.size());
  };
  const auto asked = [&](const std::string& name) {
    return name.ends_with(suffix) && (only.empty() || std::ranges::count(only, stem(name)) != 0);
  };
  TWINRUN_ASSIGN(auto members, read_zip(bytes, where, asked));
  ArrayFile file;
  std::vector<std::string> names;
  for (ZipMember& member : members) {
    if (!member.name.ends_with(suffix)) {
      file.ignored.push_back(fmt::format("member '{}'", member.name));
      continue;
    }
    names.push_back(stem(member.name));
    if (!member.read) continue;
    TWINRUN_ASSIGN(NamedArray array,
                   parse_npy(member.bytes, names.back(), where + ":" + member.name));
    member.bytes = {};
    file.arrays.push_back(std::move(array));
  }
  for (const std::string& name : only) {
    if (std::ranges::count(names, name) != 0) continue;
    return Error{fmt::format("has no array '{}' (found: {})", name, join(names, ", ")), where,
                 did_you_mean(name, names)};
  }
  return file;
}

Result<NamedArray> read_npy(const std::string& path) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  return parse_npy(bytes, std::filesystem::path(path).stem().string(), path);
}

Result<ArrayFile> read_npz(const std::string& path, const std::vector<std::string>& only) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  return parse_npz(bytes, path, only);
}

Result<std::vector<std::byte>> to_npy(const NamedArray& array, const std::string& where) {
  const auto* descr = std::ranges::find(kDescrs, array.type, &Descr::type);
  if (descr == std::end(kDescrs)) {
    return Error{fmt::format("'{}' is {}, which has no npy type", array.name, describe(array)),
                 where, "convert it to float32, which is exact"};
  }
  std::string shape;
  for (const int64_t size : array.dims)
    shape += fmt::format("{}{}", shape.empty() ? "" : ", ", size);
  if (array.dims.size() == 1) shape += ",";
  std::string header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                   size_of(array.type) == 1 ? '|' : '<', descr->code, shape);
  constexpr size_t kBefore = 10, kAlign = 64;
  header.append(kAlign - 1 - (kBefore + header.size()) % kAlign, ' ');
  header += '\n';
  std::string head(kMagic);
  head += {'\x01', '\x00', static_cast<char>(header.size() & 255),
           static_cast<char>(header.size() >> 8)};
  head += header;
  const auto* begin = reinterpret_cast<const std::byte*>(head.data());
  std::vector<std::byte> out(begin, begin + head.size());
  out.insert(out.end(), array.bytes.begin(), array.bytes.end());
  return out;
}

Result<std::vector<std::byte>> to_npz(const std::vector<NamedArray>& arrays,
                                      const std::string& where) {
  std::vector<ZipMember> members;
  for (const NamedArray& array : arrays) {
    TWINRUN_ASSIGN(auto bytes, to_npy(array, where));
    members.push_back({array.name + ".npy", std::move(bytes), true});
  }
  return to_zip(members, where);
}

}  // namespace twinrun
