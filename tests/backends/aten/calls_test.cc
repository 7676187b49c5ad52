// Tests of the definitions of PyTorch's calls against tables of small calls whose values were worked
// out by hand (calls*.txt in this folder, whose first lines describe their language). Each row is
// tried as it stands, and once more for every element of its results, changed: that must be found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "backends/aten/definitions.h"
#include "backends/aten/precision.h"
#include "program/base/bits.h"

namespace twinrun::aten {
namespace {

const std::map<std::string, Element> kElements = {
    {"bool", Element::kBool}, {"u8", Element::kU8},     {"i8", Element::kI8},
    {"i16", Element::kI16},   {"i32", Element::kI32},   {"i64", Element::kI64},
    {"f16", Element::kF16},   {"bf16", Element::kBF16}, {"f32", Element::kF32},
    {"f64", Element::kF64}};

void write(std::byte* to, Element element, const std::string& text) {
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

struct Outcome {
  std::vector<std::string> wrong;  // "result 0, element 3: ..."
  std::string problem, undefined;
};
bool is_inside(Estimate e, double x) {
  if (x == e.value || (x != x && e.value != e.value)) return true;
  return finite(x) && finite(e.value) && std::fabs(x - e.value) <= e.radius;
}
// `elements` gets the number of elements that were compared.
Outcome outcome_of(const Row& row, int64_t* elements = nullptr) {
  Outcome out;
  try {
    const Expected e = expected_of(row.call, row.arithmetic);
    out.problem = e.problem;
    std::vector<const TensorView*> given;
    if (row.call.result.kind == Value::Kind::kList) {
      for (const Value& v : row.call.result.items)
        given.push_back(v.kind == Value::Kind::kTensor ? &v.tensor : nullptr);
    } else {
      given.push_back(row.call.result.kind == Value::Kind::kTensor ? &row.call.result.tensor
                                                                   : nullptr);
    }
    for (size_t r = 0; r < given.size(); ++r) {
      const std::string name = "result " + std::to_string(r);
      if (given[r] == nullptr) continue;
      const bool defined = r < e.results.size() && e.results[r].has_value();
      if (defined == row.is_given(*given[r])) {
        out.wrong.push_back(name + (defined ? " is defined" : " is not defined"));
        continue;
      }
      if (!defined) continue;
      const Array& expected = *e.results[r];
      if (expected.dims != given[r]->dims) {
        out.wrong.push_back(name + " has other dimensions");
        continue;
      }
      const std::vector<bool>& open = row.open.at(given[r]->data);
      for (int64_t i = 0; i < expected.size(); ++i) {
        const Estimate x = stored(expected.at(i), given[r]->element);
        const bool known = x.radius < kInfinity;
        if (elements != nullptr) *elements += known ? 1 : 0;
        if (known == !open[static_cast<size_t>(i)] && (!known || is_inside(x, given[r]->at(i))))
          continue;
        std::ostringstream text;
        text << name << ", element " << i << ": " << given[r]->at(i) << ", expected " << x.value
             << " within " << x.radius;
        out.wrong.push_back(text.str());
      }
    }
  } catch (const Undefined& e) {
    out.undefined = e.what();
  }
  return out;
}

struct Line {
  int number;
  std::string text;
};
std::vector<Line> rows_of(const std::filesystem::path& file) {
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

// What a changed element is: `change` of its size away, of the largest size where it is 0; an
// integer by one.
double changed(double x, Element element, double change, double largest) {
  if (element == Element::kBool) return 1 - x;
  if (is_integer(element)) return x == 127 || x == 255 ? x - 1 : x + 1;
  if (x != x) return 0;
  if (!finite(x)) return 1;
  return x + change * (x != 0 ? x : largest > 0 ? largest : 1);
}

void try_row(const Line& line) {
  try {
    Row row(line.text);
    int64_t elements = 0;
    const Outcome right = outcome_of(row, &elements);
    if (!row.undefined.empty()) {
      EXPECT_NE(right.undefined.find(row.undefined), std::string::npos) << right.undefined;
      return;
    }
    EXPECT_EQ(right.undefined, "");
    if (row.wrong) {
      EXPECT_TRUE(!right.wrong.empty() || !right.problem.empty());
      return;
    }
    for (const std::string& wrong : right.wrong) ADD_FAILURE() << wrong;
    if (!right.undefined.empty() || !right.wrong.empty()) return;
    if (row.problem.empty()) {
      EXPECT_EQ(right.problem, "");
    } else {
      EXPECT_NE(right.problem.find(row.problem), std::string::npos) << right.problem;
      return;
    }
    std::vector<const TensorView*> given;
    collect(row.call.result, given);
    for (size_t r = 0; r < given.size(); ++r) {
      const TensorView& t = *given[r];
      const auto n = static_cast<size_t>(row.is_given(t) ? 0 : t.elements());
      double largest = 0;
      for (size_t i = 0; i < n; ++i)
        if (finite(t.at(static_cast<int64_t>(i))))
          largest = std::fmax(largest, std::fabs(t.at(static_cast<int64_t>(i))));
      for (size_t i = 0; i < n; ++i) {
        if (row.open.at(t.data)[i]) continue;
        std::byte* at =
            const_cast<std::byte*>(t.data) + i * static_cast<size_t>(size_of(t.element));
        std::byte kept[8];
        std::memcpy(kept, at, static_cast<size_t>(size_of(t.element)));
        std::ostringstream text;
        text.precision(17);
        if (t.element == Element::kI64) {
          int64_t whole;
          std::memcpy(&whole, at, sizeof whole);
          text << whole + (whole == INT64_MAX ? -1 : 1);
        } else {
          text << changed(t.at(static_cast<int64_t>(i)), t.element, row.change, largest);
        }
        write(at, t.element, text.str());
        const Outcome found = outcome_of(row);
        EXPECT_TRUE(!found.wrong.empty() || !found.problem.empty())
            << "result " << r << ", element " << i << " is not found wrong as " << text.str();
        std::memcpy(at, kept, static_cast<size_t>(size_of(t.element)));
      }
    }
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

TEST(CallsByHand, AreInsideTheirBoundsAndEachChangedElementIsOutside) {
  int rows = 0;
  const std::filesystem::path folder =
      std::filesystem::path(TWINRUN_SOURCE_DIR) / "tests/backends/aten";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    for (const Line& line : rows_of(entry.path())) {
      SCOPED_TRACE(entry.path().filename().string() + ":" + std::to_string(line.number) + "\n" +
                   line.text);
      try_row(line);
      ++rows;
    }
  }
  EXPECT_GT(rows, 50);
}

TEST(CallsByHand, SumsInHalfPrecisionLoseDigitsAndNotAll) {
  const auto digits = [](const std::string& result) {
    const Row row(
        "aten.sum.dim_IntList bf16[4]{1 0.00390625 0.00390625 0.00390625} [0] dtype=f32 -> " +
        result);
    return digits_with_narrow_sums(row.call, row.arithmetic, 0, row.call.result.tensor);
  };
  // 1 + 2^-8 is 1 in bfloat16: three times. The error is 0.0117 of 1.0117.
  ASSERT_TRUE(digits("f32[]{1}").has_value());
  EXPECT_NEAR(*digits("f32[]{1}"), 1.936, 0.001);
  EXPECT_FALSE(digits("f32[]{0.98}").has_value());
  // Terms that cancel: the bound is larger than the sum, but no digit of 0 is right.
  const Row zero("aten.sum.dim_IntList bf16[2]{1 -0.9921875} [0] dtype=f32 -> f32[]{0}");
  EXPECT_FALSE(
      digits_with_narrow_sums(zero.call, zero.arithmetic, 0, zero.call.result.tensor).has_value());
  // Of binary32 there is nothing to excuse.
  const Row single("aten.sum.dim_IntList f32[2]{1 0.001} [0] -> f32[]{1}");
  EXPECT_FALSE(digits_with_narrow_sums(single.call, single.arithmetic, 0, single.call.result.tensor)
                   .has_value());
}

}  // namespace
}  // namespace twinrun::aten
