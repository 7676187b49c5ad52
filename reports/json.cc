// Writes report.json, which contains everything a Report holds. Keys: json_keys.h; types and units:
// docs/reference/report-schema.md.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "program/base/json_checksum.h"
#include "reports/json_keys.h"
#include "reports/json_number.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

using json::number;

class Writer {
 public:
  static constexpr bool kReads = false;

  template <typename T>
  void operator()(const char* key, const T& value) {
    out_[key] = json_of(value);
  }
  void measured(const char* key, double x) { out_[key] = x < 0 ? Json(nullptr) : number(x); }
  template <typename T>
  void present(const char* key, bool there, const T& value) {
    out_[key] = there ? json_of(value) : Json(nullptr);
  }
  template <typename T>
  void derived(const char* key, const T& value, bool there = true) {
    present(key, there, value);
  }
  template <typename F>
  void group(const char* key, F&& fill) {
    Writer in;
    fill(in);
    out_[key] = std::move(in.out_);
  }
  Json take() { return std::move(out_); }

  template <typename T>
  static Json json_of(const T& value) {
    if constexpr (json::Described<Writer, const T>) {
      Writer in;
      json::keys(in, value);
      return in.take();
    } else if constexpr (std::is_same_v<T, DetailValue>) {
      return std::visit([](const auto& one) { return json_of(one); }, value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return number(value);
    } else if constexpr (std::is_same_v<T, char>) {
      return std::string(1, value);
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, RunEnd>) {
      return to_string(value);
    } else {
      return value;
    }
  }
  template <typename T>
  static Json json_of(const std::optional<T>& value) {
    return value ? json_of(*value) : Json(nullptr);
  }
  template <typename T>
  static Json json_of(const std::vector<T>& items) {
    Json out = Json::array();
    for (const T& item : items) out.push_back(json_of(item));
    return out;
  }
  template <typename T>
  static Json json_of(const std::map<std::string, T>& items) {
    Json out = Json::object();
    for (const auto& [key, value] : items) out[key] = json_of(value);
    return out;
  }

 private:
  Json out_ = Json::object();
};

}  // namespace

std::string to_json(const Report& report) {
  Writer all;
  all("schema", kReportSchema);
  json::keys(all, report);
  return with_checksum(all.take().dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace twinrun
