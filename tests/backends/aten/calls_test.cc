// Tests of the definitions of PyTorch's calls against tables of small calls whose values were
// worked out by hand (calls*.txt in this folder, whose first lines describe their language). Each
// row is tried as it stands, and once more for every element of its results, changed: that must be
// found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "backends/aten/precision.h"
#include "tests/backends/aten/rows.h"

namespace twinrun::aten {
namespace {

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

// oneDNN's LSTM flushes a sigmoid of -87.03, 1.59e-38, which is a normal number.
TEST(CallsByHand, FunctionsMayFlushWhatIsBelowTwiceTheLeastNormalNumber) {
  const Arithmetic m;
  const Estimate low = m.sigmoid({-87.03, 0}), near = m.sigmoid({-86.0, 0});
  EXPECT_GE(low.radius, low.value);
  EXPECT_LT(near.radius, 1e-3 * near.value);
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
