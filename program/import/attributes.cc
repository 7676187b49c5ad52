// Parsing of HLO attributes: lists, numbers, windows, convolution labels, padding, slices.
#include "program/import/attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace twinrun {
namespace {

// No size or index of a program that fits into memory is larger. Sums and products of a few such
// numbers do not overflow int64.
constexpr int64_t kMax = int64_t{1} << 31;

int64_t number_of(std::string_view text, const std::string& key) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > kMax || value < -kMax)
    throw Unsupported{fmt::format("'{}' in {}; allowed: a number", text, key)};
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Dims numbers(std::string_view text, char separator, const std::string& key) {
  Dims out;
  for (std::string_view part : split(text, separator)) out.push_back(number_of(part, key));
  return out;
}

std::string_view inside(std::string_view text, const std::string& key) {
  if (text.size() < 2 || text.front() != '{' || text.back() != '}')
    throw Unsupported{fmt::format("{}={}; allowed: a list in braces", key, text)};
  return text.substr(1, text.size() - 2);
}

}  // namespace

std::string text_attribute(const HloInstruction& in, const std::string& key,
                           const std::string& otherwise) {
  const auto found = in.attributes.find(key);
  return found == in.attributes.end() ? otherwise : found->second;
}

Dims list_attribute(const HloInstruction& in, const std::string& key, bool required) {
  const std::string text = text_attribute(in, key);
  if (text.empty() && required) throw Unsupported{fmt::format("{} without {}", in.opcode, key)};
  if (text.empty()) return {};
  const std::string_view list = inside(text, key);
  if (std::ranges::all_of(list, [](char c) { return c == ' '; })) return {};
  return numbers(list, ',', key);
}

int64_t number_attribute(const HloInstruction& in, const std::string& key,
                         std::optional<int64_t> otherwise) {
  const std::string text = text_attribute(in, key);
  if (!text.empty()) return number_of(text, key);
  if (!otherwise) throw Unsupported{fmt::format("{} without {}", in.opcode, key)};
  return *otherwise;
}

HloWindow window_attribute(const HloInstruction& in, size_t rank) {
  HloWindow w;
  const auto ones = Dims(rank, 1), zeros = Dims(rank, 0);
  w.size = w.stride = w.lhs_dilate = w.rhs_dilate = ones;
  w.pad_low = w.pad_high = w.reversal = zeros;
  const std::string text = text_attribute(in, "window", "{}");
  for (std::string_view item : split(inside(text, "window"), ' ')) {
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      throw Unsupported{fmt::format("window={}; allowed: size=3x3 stride=1x1 ...", text)};
    const std::string key(item.substr(0, equals));
    const std::string_view value = item.substr(equals + 1);
    if (key == "pad") {
      w.pad_low.clear();
      w.pad_high.clear();
      for (std::string_view pair : split(value, 'x')) {
        const Dims both = numbers(pair, '_', key);
        if (both.size() != 2) throw Unsupported{fmt::format("window={}: pad", text)};
        w.pad_low.push_back(both[0]);
        w.pad_high.push_back(both[1]);
      }
      continue;
    }
    Dims* const to = key == "size"           ? &w.size
                     : key == "stride"       ? &w.stride
                     : key == "lhs_dilate"   ? &w.lhs_dilate
                     : key == "rhs_dilate"   ? &w.rhs_dilate
                     : key == "rhs_reversal" ? &w.reversal
                                             : nullptr;
    if (to == nullptr) throw Unsupported{fmt::format("window={}: '{}'", text, key)};
    *to = numbers(value, 'x', key);
  }
  for (const Dims* d :
       {&w.size, &w.stride, &w.pad_low, &w.pad_high, &w.lhs_dilate, &w.rhs_dilate, &w.reversal}) {
    if (d->size() != rank)
      throw Unsupported{fmt::format("window={}; allowed: {} dimensions", text, rank)};
  }
  for (const Dims* d : {&w.size, &w.stride, &w.lhs_dilate, &w.rhs_dilate}) {
    if (std::ranges::any_of(*d, [](int64_t v) { return v < 1; }))
      throw Unsupported{fmt::format("window={}; allowed: sizes of at least 1", text)};
  }
  return w;
}

ConvolutionLabels labels_attribute(const HloInstruction& in) {
  const std::string text = text_attribute(in, "dim_labels");
  const size_t first = text.find('_'), second = text.find("->");
  const auto malformed = [&] {
    return Unsupported{fmt::format("dim_labels={}; allowed: as in b01f_01io->b01f", text)};
  };
  if (first == std::string::npos || second == std::string::npos || second < first)
    throw malformed();
  ConvolutionLabels l;
  const auto read = [&](std::string_view part, char a, char b, int64_t& at_a, int64_t& at_b,
                        Dims& spatial) {
    if (part.size() < 2 || part.size() > 8) throw malformed();
    spatial.assign(part.size() - 2, -1);
    for (size_t i = 0; i < part.size(); ++i) {
      const char c = part[i];
      int64_t* const to = c == a   ? &at_a
                          : c == b ? &at_b
                          : c >= '0' && static_cast<size_t>(c - '0') < spatial.size()
                              ? &spatial[static_cast<size_t>(c - '0')]
                              : nullptr;
      if (to == nullptr || *to >= 0) throw malformed();
      *to = static_cast<int64_t>(i);
    }
  };
  const std::string_view all = text;
  read(all.substr(0, first), 'b', 'f', l.lhs_batch, l.lhs_feature, l.lhs_spatial);
  read(all.substr(first + 1, second - first - 1), 'i', 'o', l.rhs_input, l.rhs_output,
       l.rhs_spatial);
  read(all.substr(second + 2), 'b', 'f', l.out_batch, l.out_feature, l.out_spatial);
  if (l.lhs_spatial.size() != l.rhs_spatial.size() || l.lhs_spatial.size() != l.out_spatial.size())
    throw malformed();
  return l;
}

HloPadding padding_attribute(const HloInstruction& in, size_t rank) {
  HloPadding p;
  const std::string text = text_attribute(in, "padding");
  if (rank > 0) {
    for (std::string_view one : split(text, 'x')) {
      const Dims n = numbers(one, '_', "padding");
      if (n.size() < 2 || n.size() > 3) throw Unsupported{fmt::format("padding={}", text)};
      p.low.push_back(n[0]);
      p.high.push_back(n[1]);
      p.interior.push_back(n.size() == 3 ? n[2] : 0);
      if (p.interior.back() < 0)
        throw Unsupported{fmt::format("padding={}: negative between elements", text)};
    }
  }
  if (p.low.size() != rank)
    throw Unsupported{fmt::format("padding={}; allowed: {} dimensions", text, rank)};
  return p;
}

HloSlice slice_attribute(const HloInstruction& in, size_t rank) {
  HloSlice s;
  const std::string text = text_attribute(in, "slice");
  const std::string_view list = inside(text, "slice");
  for (size_t at = list.find('['); at != std::string_view::npos; at = list.find('[', at + 1)) {
    const size_t end = list.find(']', at);
    if (end == std::string_view::npos) throw Unsupported{fmt::format("slice={}", text)};
    const Dims n = numbers(list.substr(at + 1, end - at - 1), ':', "slice");
    if (n.size() < 2 || n.size() > 3 || (n.size() == 3 && n[2] < 1) || n[0] < 0 || n[1] < n[0])
      throw Unsupported{fmt::format("slice={}", text)};
    s.start.push_back(n[0]);
    s.limit.push_back(n[1]);
    s.stride.push_back(n.size() == 3 ? n[2] : 1);
  }
  if (s.start.size() != rank)
    throw Unsupported{fmt::format("slice={}; allowed: {} dimensions", text, rank)};
  return s;
}

}  // namespace twinrun
