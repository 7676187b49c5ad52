// The language of calls.txt, whose first lines describe it: calls of PyTorch's operations with their
// results.
//
//   for (const Line& line : rows_of("calls.txt")) Row(line.text).call;
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/aten/definitions.h"
#include "program/base/bits.h"

namespace twinrun::aten {

inline const std::map<std::string, Element> kElements = {
    {"bool", Element::kBool}, {"u8", Element::kU8},     {"i8", Element::kI8},
    {"i16", Element::kI16},   {"i32", Element::kI32},   {"i64", Element::kI64},
    {"f16", Element::kF16},   {"bf16", Element::kBF16}, {"f32", Element::kF32},
    {"f64", Element::kF64}};

inline void write(std::byte* to, Element element, const std::string& text) {
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  const auto whole = [&] { return static_cast<int64_t>(std::stoll(text)); };
  const double x = is_integer(element) ? 0 : std::stod(text);
  switch (element) {
    case Element::kBool:
    case Element::kU8:
      return put(static_cast<uint8_t>(whole()));
    case Element::kI8:
      return put(static_cast<int8_t>(whole()));
    case Element::kI16:
      return put(static_cast<int16_t>(whole()));
    case Element::kI32:
      return put(static_cast<int32_t>(whole()));
    case Element::kI64:
      return put(whole());
    case Element::kF16: {  // by search: the table's numbers are few
      uint16_t best = 0;
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const double d = std::fabs(f16_to_double(static_cast<uint16_t>(bits)) - x);
        if (d < std::fabs(f16_to_double(best) - x)) best = static_cast<uint16_t>(bits);
      }
      return put(best);
    }
    case Element::kBF16:
      return put(bf16_round(static_cast<float>(x)));
    case Element::kF32:
      return put(static_cast<float>(x));
    default:
      return put(x);
  }
}

// Reads one row; keeps the bytes of its tensors.
class Row {
 public:
  explicit Row(const std::string& text) : text_(text) {
    while (peek() == '@') setting();
    call.op = word();
    while (!done() && !take("->")) {
      const std::string name = keyword();
      Value v = value();
      if (name.empty()) {
        call.args.push_back(std::move(v));
      } else {
        call.kwargs.emplace_back(name, std::move(v));
      }
    }
    if (take("undefined")) {
      undefined = quoted();
      return;
    }
    if (take("problem")) problem = quoted();
    wrong = take("wrong ");
    if (!done() && peek() != '~') {
      call.result = result();
      if (peek() == ';') {
        Value list;
        list.kind = Value::Kind::kList;
        list.items.push_back(std::move(call.result));
        while (take(";")) list.items.push_back(result());
        call.result = std::move(list);
      }
    }
    if (take("~")) change = std::stod(word());
    if (!done()) fail("the end of the row");
  }
  Call call;
  Arithmetic arithmetic;
  std::string undefined, problem;
  bool wrong = false;
  double change = 1e-4;  // that must be found, relative to the element
  // Where "?" stands for an element, its bound must not be finite.
  std::map<const std::byte*, std::vector<bool>> open;
  std::vector<const std::byte*> taken_as_given;  // results without a definition, such as draws
  bool is_given(const TensorView& t) const {
    return std::ranges::count(taken_as_given, t.data) > 0;
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error("expected " + what + " at: " + text_.substr(at_, 60));
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool done() { return skip(), at_ >= text_.size(); }
  char peek() { return done() ? '\0' : text_[at_]; }
  bool take(const std::string& s) {
    skip();
    if (text_.compare(at_, s.size(), s) != 0) return false;
    at_ += s.size();
    return true;
  }
  std::string word() {
    skip();
    size_t end = at_;
    while (end < text_.size() && std::strchr(" \n\t,;[]{}'", text_[end]) == nullptr) ++end;
    if (end == at_) fail("a word");
    const size_t begin = at_;
    at_ = end;
    return text_.substr(begin, end - begin);
  }
  std::string keyword() {
    skip();
    size_t end = at_;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '_'))
      ++end;
    if (end == at_ || end >= text_.size() || text_[end] != '=') return "";
    std::string name = text_.substr(at_, end - at_);
    at_ = end + 1;
    return name;
  }
  std::string quoted() {
    if (!take("'")) fail("a text in quotes");
    const size_t end = text_.find('\'', at_);
    if (end == std::string::npos) fail("the end of a text");
    std::string out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return out;
  }
  void setting() {
    take("@");
    const std::string name = word();
    if (name == "gpu") {
      arithmetic.gpu = true;
    } else if (name == "nnpack") {
      arithmetic.nnpack = true;
    } else if (name == "binary64") {
      arithmetic.unit = 0x1p-52, arithmetic.smallest = 0x1p-1022;
      arithmetic.overflow = std::numeric_limits<double>::max();
    } else if (name == "narrow_bf16") {
      arithmetic = arithmetic.with_narrow_sums(Element::kBF16);
    } else if (name == "narrow_f16") {
      arithmetic = arithmetic.with_narrow_sums(Element::kF16);
    } else {
      fail("a setting");
    }
  }
  Value result() {
    const bool given = take("given ");
    Value v = value();
    if (given) taken_as_given.push_back(v.tensor.data);
    return v;
  }
  Value value() {
    Value v;
    if (peek() == '[') {
      take("[");
      v.kind = Value::Kind::kList;
      while (!take("]")) v.items.push_back(value()), take(",");
      return v;
    }
    if (peek() == '\'') {
      v.kind = Value::Kind::kText, v.text = quoted();
      return v;
    }
    const std::string first = word();
    if (first == "none" || first == "_") return v;
    if (first == "true" || first == "false") {
      v.kind = Value::Kind::kBool, v.integer = first == "true";
    } else if (kElements.count(first) > 0) {
      if (peek() == '[') return tensor(kElements.at(first));
      v.kind = Value::Kind::kElement, v.integer = static_cast<int64_t>(kElements.at(first));
    } else if (first.find_first_not_of("-0123456789") == std::string::npos) {
      v.kind = Value::Kind::kInteger, v.integer = std::stoll(first);
    } else {
      v.kind = Value::Kind::kNumber, v.number = std::stod(first);
    }
    return v;
  }
  // f32[2, 3]{1 2 3 4 5 6}; {1} for many, too; {1 2 ..} goes on by the same step.
  Value tensor(Element element) {
    Value v;
    v.kind = Value::Kind::kTensor;
    TensorView& t = v.tensor;
    t.element = element, t.storage = ++storages_;
    take("[");
    while (!take("]")) t.dims.push_back(std::stoll(word())), take(",");
    t.strides = Dims(t.dims.size(), 1);
    for (size_t d = t.dims.size(); d-- > 1;) t.strides[d - 1] = t.strides[d] * t.dims[d];
    const auto n = static_cast<size_t>(t.elements());
    const auto each = static_cast<size_t>(size_of(element));
    bytes_.push_back(std::make_unique<std::vector<std::byte>>(n * each + 8));
    std::byte* to = bytes_.back()->data();
    t.data = to, t.on_device = arithmetic.gpu;
    if (!take("{")) fail("the elements of a tensor");
    std::vector<std::string> given;
    bool counts = false;
    while (!take("}")) {
      if (take("..")) {
        counts = true;
        continue;
      }
      given.push_back(word());
      take(",");
    }
    std::vector<bool> unknown(n, false);
    for (size_t i = 0; i < n; ++i) {
      std::string text = given.size() == 1 && !counts ? given[0] : i < given.size() ? given[i] : "";
      if (counts && i >= given.size()) {
        const double first = std::stod(given[0]), step = std::stod(given[1]) - first;
        std::ostringstream out;
        out.precision(17);
        out << first + step * static_cast<double>(i);
        text = out.str();
      }
      if (text.empty()) fail("one element, or as many as the tensor has");
      unknown[i] = text == "?";
      write(to + i * each, element, unknown[i] ? "0" : text);
    }
    if (given.size() > n && n > 0) fail("no more elements than the tensor has");
    open[to] = std::move(unknown);
    return v;
  }

  const std::string text_;
  size_t at_ = 0;
  uint64_t storages_ = 0;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
};

struct Line {
  int number;
  std::string text;
};
inline std::vector<Line> rows_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<Line> rows;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(' ') == std::string::npos) continue;
    if (line.starts_with("  ") && !rows.empty()) {
      rows.back().text += "\n" + line;
    } else {
      rows.push_back({number, line});
    }
  }
  return rows;
}

}  // namespace twinrun::aten
