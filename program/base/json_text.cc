// Counts what a JSON text would build, then builds it.
#include "program/base/json_text.h"

#include <string>

namespace twinrun {
namespace {

using nlohmann::json;

class Counter : public nlohmann::json_sax<json> {
 public:
  explicit Counter(const JsonLimits& limits) : limits_(limits) {}
  std::string wrong;

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t&) override {
    return ++members_ <= limits_.members || fail("has more than", limits_.members, "keys");
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    wrong = "is not JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool fail(const char* what, size_t limit, const char* of) {
    wrong = std::string(what) + " " + std::to_string(limit) + " " + of;
    return false;
  }
  bool value() {
    return ++values_ <= limits_.values || fail("has more than", limits_.values, "values");
  }
  bool enter() {
    if (++depth_ > limits_.depth) return fail("is nested deeper than", limits_.depth, "levels");
    return value();
  }

  const JsonLimits& limits_;
  size_t depth_ = 0, values_ = 0, members_ = 0;
};

Status within(std::string_view text, const JsonLimits& limits) {
  Counter counter(limits);
  if (json::sax_parse(text, &counter)) return Ok{};
  return Error{counter.wrong.empty() ? "is not JSON" : counter.wrong, "", ""};
}

}  // namespace

Result<json> parse_json_text(std::string_view text, const JsonLimits& limits) {
  if (const auto counted = within(text, limits); !counted) return counted.error();
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Result<nlohmann::ordered_json> parse_ordered_json_text(std::string_view text,
                                                       const JsonLimits& limits) {
  if (const auto counted = within(text, limits); !counted) return counted.error();
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace twinrun
