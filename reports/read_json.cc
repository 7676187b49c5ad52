// Reads report.json. The input is untrusted: errors name the key, what was found and what is
// allowed. Keys that a newer twinrun added are ignored; keys that an older one did not write keep
// their defaults.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "program/base/json_checksum.h"
#include "program/base/json_text.h"
#include "program/base/names.h"
#include "reports/json_keys.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using AnyJson = nlohmann::json;

std::string shown(const AnyJson& found) {
  if (found.is_object()) return "an object";
  if (found.is_array()) return fmt::format("an array of {}", found.size());
  const std::string text =
      found.dump(-1, ' ', false, AnyJson::error_handler_t::replace).substr(0, 400);
  return text::clip(text::clean(text), 60);
}

class Reader {
 public:
  static constexpr bool kReads = true;

  Reader(const AnyJson& object, std::string place, std::optional<Error>& error)
      : object_(object), place_(std::move(place)), error_(error) {
    if (!object.is_object()) refuse(object, place_, "an object");
  }

  template <typename T>
  void operator()(const char* key, T& value) {
    if (const AnyJson* found = find(key)) read(*found, below(key), value);
  }
  void measured(const char* key, double& x) {
    const AnyJson* found = find(key);
    if (found == nullptr) return;
    if (found->is_null()) {
      x = -1;
    } else {
      read(*found, below(key), x);
    }
  }
  template <typename T>
  void present(const char* key, bool& there, T& value) {
    const AnyJson* found = find(key);
    if (found == nullptr) return;
    there = !found->is_null();
    if (there) read(*found, below(key), value);
  }
  template <typename T>
  void derived(const char*, const T&, bool = true) {}
  template <typename F>
  void group(const char* key, F&& fill) {
    const AnyJson* found = find(key);
    if (found == nullptr) return;
    Reader in(*found, below(key), error_);
    fill(in);
  }

 private:
  const AnyJson* find(const char* key) const {
    if (error_ || !object_.is_object()) return nullptr;
    const auto at = object_.find(key);
    return at == object_.end() ? nullptr : &*at;
  }
  std::string below(const std::string& key) const {
    return place_.empty() ? key : fmt::format("{}.{}", place_, key);
  }
  void refuse(const AnyJson& found, const std::string& place, std::string_view allowed,
              std::string fix = "") {
    if (!error_)
      error_ = Error{fmt::format("found {}; allowed: {}", shown(found), allowed), place, fix};
  }

  template <typename T>
  void read(const AnyJson& found, const std::string& place, T& value) {
    if constexpr (json::Described<Reader, T>) {
      Reader in(found, place, error_);
      json::keys(in, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!found.is_string()) return refuse(found, place, "a string");
      value = found.get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!found.is_boolean()) return refuse(found, place, "true or false");
      value = found.get<bool>();
    } else if constexpr (std::is_same_v<T, char>) {
      character(found, place, value);
    } else if constexpr (std::is_same_v<T, VerdictClass>) {
      using enum VerdictClass;
      word(found, place, value,
           {kIdentical, kNoise, kSharding, kProgram, kEngineBug, kNondeterministic, kInconclusive});
    } else if constexpr (std::is_same_v<T, Answer::Outcome>) {
      using enum Answer::Outcome;
      word(found, place, value, {kYes, kNo, kOpen, kPartly, kNotAsked, kNotApplicable});
    } else if constexpr (std::is_same_v<T, DetailValue>) {
      if (found.is_number_integer()) {
        read(found, place, value.template emplace<int64_t>());
      } else if (found.is_number() || found == "nan" || found == "inf" || found == "-inf") {
        read(found, place, value.template emplace<double>());
      } else {
        read(found, place, value.template emplace<std::string>());
      }
    } else if constexpr (std::is_same_v<T, Effect>) {
      using enum Effect;
      word(found, place, value,
           {kNoneDetected, kSeedNoise, kWithinMargin, kHarmful, kBeneficial, kUndecided});
    } else if constexpr (std::is_same_v<T, PairedOutcome>) {
      using enum PairedOutcome;
      word(found, place, value,
           {kIdentical, kNoneDetected, kWithinMargin, kHarmful, kBeneficial, kUndecided,
            kEquivalent, kOutside, kUndetermined});
    } else if constexpr (std::is_same_v<T, CureOutcome>) {
      using enum CureOutcome;
      word(found, place, value, {kWithinNoise, kOutsideNoise, kUndecided});
    } else if constexpr (std::is_same_v<T, EnsembleOutcome>) {
      word(found, place, value, {EnsembleOutcome::kInside, EnsembleOutcome::kOutside});
    } else if constexpr (std::is_same_v<T, RunEnd>) {
      run_end(found, place, value);
    } else if constexpr (std::is_floating_point_v<T>) {
      number(found, place, value);
    } else {
      integer(found, place, value);
    }
  }
  template <typename T>
  void read(const AnyJson& found, const std::string& place, std::optional<T>& value) {
    value.reset();
    if (!found.is_null()) read(found, place, value.emplace());
  }
  template <typename T>
  void read(const AnyJson& found, const std::string& place, std::vector<T>& items) {
    if (!found.is_array()) return refuse(found, place, "an array");
    items.assign(found.size(), T());
    for (size_t i = 0; i < items.size() && !error_; ++i)
      read(found[i], fmt::format("{}[{}]", place, i), items[i]);
  }
  template <typename T>
  void read(const AnyJson& found, const std::string& place, std::map<std::string, T>& items) {
    if (!found.is_object()) return refuse(found, place, "an object");
    items.clear();
    for (const auto& [key, value] : found.items())
      read(value, fmt::format("{}.{}", place, key), items[key]);
  }

  template <typename T>
  void integer(const AnyJson& found, const std::string& place, T& value) {
    using Limits = std::numeric_limits<T>;
    const bool fits =
        found.is_number_unsigned()
            ? found.get<uint64_t>() <= static_cast<uint64_t>(Limits::max())
            : found.is_number_integer() && found.get<int64_t>() >= int64_t{Limits::min()};
    if (!fits)
      return refuse(found, place,
                    fmt::format("an integer from {} to {}", Limits::min(), Limits::max()));
    value = static_cast<T>(found.get<int64_t>());
  }

  template <typename T>
  void number(const AnyJson& found, const std::string& place, T& value) {
    using Limits = std::numeric_limits<T>;
    if (found == "nan") {
      value = Limits::quiet_NaN();
    } else if (found == "inf") {
      value = Limits::infinity();
    } else if (found == "-inf") {
      value = -Limits::infinity();
    } else if (!found.is_number()) {
      refuse(found, place, R"(a number, "nan", "inf" or "-inf")");
    } else if (const auto x = found.get<double>(); std::abs(x) > double{Limits::max()}) {
      refuse(found, place, fmt::format("a number of at most {:g}", Limits::max()));
    } else {
      value = static_cast<T>(x);
    }
  }

  void run_end(const AnyJson& found, const std::string& place, RunEnd& value) {
    const auto end = parse_run_end(found.is_string() ? found.get<std::string>() : "");
    if (!end) return refuse(found, place, R"(completed, interrupted or "diverged: REASON")");
    value = *end;
  }

  // The writer replaces a byte that is not a character by U+FFFD.
  void character(const AnyJson& found, const std::string& place, char& value) {
    const std::string text = found.is_string() ? found.get<std::string>() : "";
    if (text == "\xEF\xBF\xBD") {
      value = '\xFF';
    } else if (text.size() == 1) {
      value = text[0];
    } else {
      refuse(found, place, "one character: A, B or C");
    }
  }

  template <typename T>
  void word(const AnyJson& found, const std::string& place, T& value,
            std::initializer_list<T> all) {
    std::vector<std::string> known;
    for (const T v : all) {
      if (found == std::string(to_string(v))) {
        value = v;
        return;
      }
      known.emplace_back(to_string(v));
    }
    refuse(found, place, join(known, ", "),
           found.is_string() ? did_you_mean(found.get<std::string>().substr(0, 40), known) : "");
  }

  const AnyJson& object_;
  std::string place_;
  std::optional<Error>& error_;
};

}  // namespace

Result<Report> report_from_json(std::string_view text, const std::string& file) {
  const auto at = [&](const std::string& key) { return key.empty() ? file : file + ": " + key; };
  const auto parsed = parse_json_text(text);
  if (!parsed)
    return Error{"not a JSON document: it " + parsed.error().what, file,
                 "give the report.json of a diagnosis"};
  const AnyJson& all = *parsed;
  if (!all.is_object() || !all.contains("schema") || !all.contains("verdict"))
    return Error{"not a report: keys `schema` and `verdict` are missing", file,
                 "give the report.json of a diagnosis, or its folder"};
  const AnyJson& schema = all["schema"];
  if (!schema.is_number_integer() || schema.get<int64_t>() < 1)
    return Error{fmt::format("found {}; allowed: {}", shown(schema), kReportSchema), at("schema"),
                 ""};
  if (schema > kReportSchema)
    return Error{fmt::format("schema {} is of a later twinrun; this one reads up to {}",
                             shown(schema), kReportSchema),
                 at("schema"),
                 "use the twinrun that wrote it; environment.twinrun names its version"};
  if (!all["verdict"].is_object())
    return Error{"this is the judgement of a trace or module by an older twinrun", file,
                 "diagnose it again"};
  TWINRUN_ASSIGN(const bool has_checksum, check_checksum(text, file));
  Report report;
  std::optional<Error> error;
  Reader reader(all, "", error);
  json::keys(reader, report);
  if (error) return Error{error->what, at(error->where), error->fix};
  for (const DetailTable& t : report.details) {
    // It names a file and an anchor.
    if (t.id.empty() || t.id.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
      return Error{fmt::format("found {}; allowed: small letters and _", shown(t.id)),
                   at("details"), ""};
    for (const auto& row : t.rows) {
      if (row.size() != t.columns.size())
        return Error{fmt::format("a row of {} values; the table has {} columns", row.size(),
                                 t.columns.size()),
                     at("details"), ""};
    }
  }
  if (!has_checksum) report.notes.push_back(fmt::format("report.json {}", kNoChecksum));
  return report;
}

}  // namespace twinrun
