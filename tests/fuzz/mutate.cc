// The mutations, and the words that they insert.
#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

namespace twinrun::fuzz {
namespace {

using nlohmann::json;

json hostile_value(Random& random) {
  static const std::vector<json> values = {nullptr,
                                           true,
                                           0,
                                           -1,
                                           0.5,
                                           1e300,
                                           uint64_t{1} << 31,
                                           uint64_t{1} << 62,
                                           uint64_t{1} << 63,
                                           ~uint64_t{0},
                                           INT64_MIN,
                                           "",
                                           "F64",
                                           "../../etc/passwd",
                                           "\x1b[2J\n\xEF\xBF\xBD",
                                           std::string(3000, 'x'),
                                           json::object(),
                                           json::array(),
                                           json::array({1, {{"a", json::array()}}})};
  return values[below(random, values.size())];
}

// A random value inside `value`, or `value` itself.
json& somewhere(json& value, Random& random) {
  json* at = &value;
  while (at->is_structured() && !at->empty() && below(random, 4) != 0) {
    auto it = at->begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(random, at->size())));
    at = &*it;
  }
  return *at;
}

constexpr char kCallRecord = 4, kGraphRecord = 6, kUpdateRecord = 9, kFunctionRecord = 10;

// Where the values of a call, or of the graph of a region, stand in its record.
class Places {
 public:
  enum class What { kWord, kByte, kCount };
  struct Place {
    What what;
    size_t at;
  };
  // Of a payload that begins at `from` and ends at `end`; what is not as the format has it ends it.
  Places(const std::string& bytes, char record, size_t from, size_t end)
      : bytes_(bytes), at_(from), end_(end) {
    if (record == kGraphRecord) {
      graph();
      return;
    }
    at_ += 32;
    arguments();
    value(0);
    list(0);
  }
  std::vector<Place> all;

 private:
  bool good() const { return at_ < end_; }
  template <typename T>
  T take() {
    T value{};
    if (end_ >= sizeof value && at_ <= end_ - sizeof value)
      std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  void graph() {
    count();
    for (uint32_t nodes = count(); nodes > 0 && good(); --nodes) {
      at_ += 8;
      arguments();
      for (uint32_t results = count(); results > 0 && good(); --results) {
        byte();
        const auto rank = static_cast<unsigned char>(bytes_[std::min(at_, bytes_.size() - 1)]);
        byte();
        for (int i = 0; i < rank && good(); ++i) word();
      }
    }
    for (uint32_t outputs = count(); outputs > 0 && good(); --outputs) count();
    for (uint32_t written = count(); written > 0 && good(); --written) count(), count();
  }
  void arguments() {
    list(0);
    for (uint32_t named = take<uint32_t>(); named > 0 && good(); --named) at_ += 4, value(0);
  }
  uint32_t count() {
    all.push_back({What::kCount, at_});
    return take<uint32_t>();
  }
  void word() { all.push_back({What::kWord, at_}), at_ += 8; }
  void byte() { all.push_back({What::kByte, at_}), at_ += 1; }
  void list(int depth) {
    for (uint32_t n = count(); n > 0 && good() && depth < 16; --n) value(depth + 1);
  }
  void value(int depth) {
    if (!good()) return;
    const char tag = bytes_[at_];
    byte();
    switch (tag) {
      case 1:
      case 7:
        return byte();
      case 2:
      case 3:
        return word();
      case 4:
      case 8:
        at_ += 4;
        return;
      case 5: {
        at_ += 20;
        byte(), byte(), byte();
        const auto rank = take<uint8_t>();
        for (int i = 0; i < 1 + 2 * rank && good(); ++i) word();
        return;
      }
      case 6:
        return list(depth);
      case 10:
        count();
        return;
      default:
        return;
    }
  }

  const std::string& bytes_;
  size_t at_, end_;
};

}  // namespace

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {
      "[[", "]]", "\"\"\"", "'''", "1e300", "-1", "9223372036854775807", "18446744073709551616",
      "1000000000", "null", "NaN", "-Infinity", "true", "?", "\x1b[2J", "\xEF\xBB\xBF",
      std::string(4, '\0'), std::string(4, '\xFF'), std::string(7, '\xFF') + "\x7F",
      // Scenarios.
      "train.batch", "model.layers", "data.files", "tpu.cores", "seed = ",
      // HLO.
      "f32[4]{0}", "f32[<=8,4]", "replica_groups={{0,1}}", "[2,4]<=[4,2]T(1,0)", "channel_id=0",
      "all-gather", "all-to-all", "collective-permute", "while", "conditional", "partition-id()",
      "dimensions={9}", "devices=[2,4]<=[8]", "{replicated}", "custom-call",
      "metadata={op_name=\"a/b\"}",
      // StableHLO.
      "tensor<4xf32>", "tensor<?x8xf32>", "dense<[[0, 1], [2, 3]]>",
      "dense<\"0x0000000000000000\"> : tensor<1x1xi64>", "sdy.manual_computation(%arg0)",
      "in_shardings=[<@mesh, [{\"data\"}]>]", "sdy.mesh @mesh = <[\"data\"=8]>", "<@mesh, [{}]>",
      "manual_axes={\"data\"}", "sdy.return", "\"model\":(1)2", "stablehlo.all_gather",
      "@SPMDFullToShardShape", "stablehlo.while"};
  return all;
}

void scramble(std::string& bytes, Random& random) {
  switch (below(random, 8)) {
    case 0:
      for (size_t n = 1 + below(random, 8); n > 0 && !bytes.empty(); --n)
        bytes[below(random, bytes.size())] ^= static_cast<char>(1 << below(random, 8));
      break;
    case 1:
      bytes.resize(below(random, bytes.size() + 1));
      break;
    case 2:
      bytes.append(1 + below(random, 64), static_cast<char>(random()));
      break;
    case 3: {
      const size_t from = below(random, bytes.size()), n = below(random, bytes.size() - from);
      bytes.insert(below(random, bytes.size()), bytes.substr(from, n));
      break;
    }
    case 4: {
      static constexpr char kBytes[] = {'\0', '\xFF', '\x7F', '\x80', '"',
                                        '{',  '[',    '\n',   '=',    '.'};
      for (size_t n = 1 + below(random, 4); n > 0 && !bytes.empty(); --n)
        bytes[below(random, bytes.size())] = kBytes[below(random, std::size(kBytes))];
      break;
    }
    case 5:
    case 6:
      bytes.insert(below(random, bytes.size() + 1), words()[below(random, words().size())]);
      break;
    default: {
      const size_t from = below(random, bytes.size());
      bytes.erase(from, below(random, bytes.size() - from));
    }
  }
}

void edit_header(std::string& bytes, Random& random) {
  uint64_t length = 0;
  if (bytes.size() < 9 || bytes[8] != '{') return;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - 8) return;
  std::string header = bytes.substr(8, length);
  edit_json(header, random);
  const std::string data = bytes.substr(8 + length);
  length = header.size();
  bytes = std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

void edit_json(std::string& text, Random& random) {
  const size_t begin =
      text[0] == '{' || text.find("\n{") == std::string::npos ? 0 : text.find("\n{") + 1;
  size_t end = text.find("\n{", begin);  // one of several lines, or the whole
  if (end == std::string::npos) end = text.size();
  json document = json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
  if (document.is_discarded()) return;
  somewhere(document, random) = hostile_value(random);
  std::string edited = document.dump();
  if (below(random, 8) == 0) {
    const size_t depth = 1 + below(random, 2000), at = edited.find(':');
    const std::string nested = std::string(depth, '[') + std::string(below(random, 2) * depth, ']');
    if (at != std::string::npos) edited.insert(at + 1, nested + ",");
  }
  text.replace(begin, end - begin, edited);
}

void edit_calls(std::string& bytes, Random& random) {
  static constexpr int64_t kOdd[] = {0,
                                     1,
                                     -1,
                                     2,
                                     3,
                                     5,
                                     7,
                                     63,
                                     64,
                                     255,
                                     1 << 16,
                                     1 << 20,
                                     INT32_MAX,
                                     INT32_MIN,
                                     int64_t{1} << 32,
                                     int64_t{1} << 40,
                                     int64_t{1} << 62,
                                     INT64_MAX,
                                     INT64_MIN,
                                     0x7FF8000000000000,
                                     0x7FF0000000000000,
                                     0x7FEFFFFFFFFFFFFF};
  struct Record {
    char kind;
    size_t begin, end;  // of its payload
  };
  std::vector<Record> records;
  for (size_t at = 64; at + 24 <= bytes.size();) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at + 8, sizeof size);
    if (size > bytes.size() - at - 24) break;
    if (bytes[at] == kCallRecord || bytes[at] == kGraphRecord || bytes[at] == kUpdateRecord ||
        bytes[at] == kFunctionRecord)
      records.push_back({bytes[at], at + 24, at + 24 + size});
    at += 24 + (size + 7) / 8 * 8;
  }
  if (records.empty()) return;
  for (size_t n = 1 + below(random, 3); n > 0; --n) {
    const auto [kind, begin, end] = records[below(random, records.size())];
    const std::vector<Places::Place> places = Places(bytes, kind, begin, end).all;
    const auto [what, at] = places[below(random, places.size())];
    const size_t size = what == Places::What::kWord ? 8 : what == Places::What::kCount ? 4 : 1;
    if (at + size > end) continue;
    int64_t value = what == Places::What::kByte ? static_cast<int64_t>(below(random, 13))
                                                : kOdd[below(random, std::size(kOdd))];
    if (what == Places::What::kCount || below(random, 2) == 0) {  // near what it was
      int64_t before = 0;
      std::memcpy(&before, bytes.data() + at, size);
      value = static_cast<int64_t>(static_cast<uint64_t>(before) + below(random, 5) - 2);
    }
    std::memcpy(bytes.data() + at, &value, size);
  }
}

}  // namespace twinrun::fuzz
