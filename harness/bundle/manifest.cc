// Writes manifest.json, and reads it with checks of every key and type.
#include "harness/bundle/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "program/base/bits.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

// Reads keys of a JSON object. If a key is missing or of another type, throws an Error, which
// manifest_from_json catches and returns.
class Reader {
 public:
  Reader(const Json& json, std::string path, const std::string& where)
      : json_(json), path_(std::move(path)), where_(where) {
    if (!json_.is_object()) fail("is not an object");
  }
  template <typename T>
  T get(const char* key) const {
    const Json& value = at(key);
    bool fits = true;
    if constexpr (std::is_same_v<T, bool>) {
      fits = value.is_boolean();
    } else if constexpr (std::is_integral_v<T>) {
      fits = value.is_number_integer() && value.get<int64_t>() >= 0 &&
             value.get<int64_t>() <= int64_t{std::numeric_limits<T>::max()};
    } else {
      fits = value.is_string();
    }
    if (!fits)
      Reader(*this).fail(
          fmt::format("'{}' has the wrong type: {}", key, value.dump().substr(0, 60)));
    return value.get<T>();
  }
  template <typename T>
  std::optional<T> maybe(const char* key) const {
    return at(key).is_null() ? std::nullopt : std::optional<T>(get<T>(key));
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    for (const Json& item : list(key)) {
      if (!item.is_string()) fail(fmt::format("'{}' holds more than strings", key));
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  std::map<std::string, std::string> all_texts() const {
    std::map<std::string, std::string> out;
    for (const auto& [key, value] : json_.items()) {
      if (!value.is_string()) fail("holds more than strings");
      out[key] = value.get<std::string>();
    }
    return out;
  }
  bool has(const char* key) const { return json_.contains(key); }
  Reader object(const char* key) const { return {at(key), path_ + key + ".", where_}; }
  template <typename F>
  void each(const char* key, F&& one) const {
    size_t i = 0;
    for (const Json& item : list(key))
      one(Reader(item, fmt::format("{}{}[{}].", path_, key, i++), where_));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error{fmt::format("{}: {}", kManifest, path_ + what), where_,
                "the bundle is damaged, or was not made by twinrun"};
  }

 private:
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(fmt::format("'{}' is missing", key));
    return *found;
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(fmt::format("'{}' is not a list", key));
    return value;
  }

  const Json& json_;
  std::string path_;
  const std::string& where_;
};

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

VerdictClass verdict_of(const Reader& r) {
  const auto name = r.get<std::string>("class");
  for (int v = 0; v <= static_cast<int>(VerdictClass::kInconclusive); ++v) {
    if (to_string(static_cast<VerdictClass>(v)) == name) return static_cast<VerdictClass>(v);
  }
  r.fail(fmt::format("unknown class '{}'", name.substr(0, 60)));
}

Manifest read(const Json& json, const std::string& where) {
  const Reader r(json, "", where);
  const auto schema = r.get<int>("schema");
  if (schema != kBundleSchema)
    throw Error{
        fmt::format("is a bundle of schema {}; this twinrun reads {}", schema, kBundleSchema),
        where, "replay it with the twinrun that made it"};
  Manifest m;
  if (r.has("kind")) m.kind = r.get<std::string>("kind");
  m.twinrun = r.get<std::string>("twinrun");
  m.headline = r.get<std::string>("headline");
  const Reader asked = r.object("asked");
  m.asked = {asked.get<std::string>("baseline"), asked.get<std::string>("subject"),
             asked.texts("faults"), asked.get<bool>("quick")};
  m.own_data = r.get<bool>("own_data");
  const Reader expected = r.object("expected");
  m.verdict = verdict_of(expected);
  const Reader f = expected.object("finding");
  m.finding.verdict = verdict_of(f);
  m.finding.cause = f.get<std::string>("cause");
  m.finding.op = f.get<std::string>("op");
  m.finding.phase = f.get<std::string>("phase");
  m.finding.step = f.maybe<int64_t>("step");
  m.finding.core = f.maybe<int>("core");
  if (f.has("elements")) m.finding.elements = f.get<std::string>("elements");
  const auto level = f.get<std::string>("level");
  if (level.size() != 1) f.fail(fmt::format("level '{}' is not a letter", level.substr(0, 60)));
  m.finding.level = level[0];
  expected.each("runs", [&](const Reader& run) {
    m.runs.push_back({run.get<std::string>("name"), run.get<std::string>("root_digest"),
                      run.get<int64_t>("steps"), run.get<std::string>("loss")});
  });
  if (r.has("settings")) m.settings = r.object("settings").all_texts();
  m.reduction = r.texts("reduction");
  const auto engine_file = [&](const Reader& file) {
    m.engine_files.push_back({file.get<std::string>("word"), file.get<std::string>("member")});
    if (!is_engine_member(m.engine_files.back().member))
      file.fail("'member' is not a file of an engine");
  };
  if (r.has("engine_files")) r.each("engine_files", engine_file);
  r.each("files", [&](const Reader& file) {
    const auto digest = Digest::parse(file.get<std::string>("xxh3_128"));
    if (!digest) file.fail("'xxh3_128' is not a digest of 32 hex digits");
    m.files.push_back({file.get<std::string>("name"),
                       static_cast<uint64_t>(file.get<int64_t>("bytes")), *digest});
  });
  return m;
}

}  // namespace

Result<DiagnoseOptions> asked_again(const AskedOf& asked, int threads) {
  DiagnoseOptions o;
  o.baseline = asked.baseline;
  o.subject = asked.subject;
  o.quick = asked.quick;
  o.threads = threads;
  for (const std::string& text : asked.faults) {
    TWINRUN_ASSIGN(FaultSpec fault, parse_fault(text));
    o.faults.push_back(std::move(fault));
  }
  return o;
}

std::vector<ExpectedRun> expected_runs(const Report& report) {
  std::vector<ExpectedRun> out;
  for (const RunSummary& run : report.runs) {
    // A replay tries no cure.
    const bool of_cure = std::ranges::any_of(report.cures, [&](const CureRow& cure) {
      return run.name == cure.run || (run.name == cure.reference && cure.reference != "R");
    });
    if (of_cure) continue;
    const float last = run.losses.empty() ? static_cast<float>(run.train_loss) : run.losses.back();
    out.push_back({run.name, run.root_digest, run.steps, fmt::format("0x{:08x}", to_bits(last))});
  }
  return out;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string to_json(const Manifest& m) {
  Json runs = Json::array(), files = Json::array();
  for (const ExpectedRun& run : m.runs)
    runs.push_back({{"name", run.name},
                    {"root_digest", run.root_digest},
                    {"steps", run.steps},
                    {"loss", run.loss}});
  for (const BundledFile& file : m.files)
    files.push_back({{"name", file.name}, {"bytes", file.size}, {"xxh3_128", file.digest.hex()}});
  Json engine_files = Json::array();
  for (const EngineFile& file : m.engine_files)
    engine_files.push_back({{"word", file.word}, {"member", file.member}});
  const Json json = {{"schema", kBundleSchema},
                     {"kind", m.kind},
                     {"twinrun", m.twinrun},
                     {"headline", m.headline},
                     {"asked",
                      {{"baseline", m.asked.baseline},
                       {"subject", m.asked.subject},
                       {"faults", m.asked.faults},
                       {"quick", m.asked.quick}}},
                     {"own_data", m.own_data},
                     {"expected",
                      {{"class", to_string(m.verdict)},
                       {"finding",
                        {{"class", to_string(m.finding.verdict)},
                         {"cause", m.finding.cause},
                         {"op", m.finding.op},
                         {"phase", m.finding.phase},
                         {"step", or_null(m.finding.step)},
                         {"core", or_null(m.finding.core)},
                         {"elements", m.finding.elements},
                         {"level", std::string(1, m.finding.level)}}},
                       {"runs", runs}}},
                     {"settings", m.settings},
                     {"reduction", m.reduction},
                     {"engine_files", engine_files},
                     {"files", files}};
  return with_checksum(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<Manifest> manifest_from_json(std::string_view text, const std::string& where) {
  const auto json = parse_ordered_json_text(text, {.members = 10'000});
  if (!json)
    return Error{fmt::format("{} {}", kManifest, json.error().what), where,
                 "the bundle is damaged, or was not made by twinrun"};
  TWINRUN_ASSIGN(const bool has_checksum,
                 check_checksum(text, where + ": " + std::string(kManifest)));
  try {
    Manifest manifest = read(*json, where);
    manifest.has_checksum = has_checksum;
    return manifest;
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace twinrun
