// Writes and parses the messages of the engine protocol. Replies are untrusted input.
#include "backends/exec/messages.h"

#include <nlohmann/json.hpp>

#include "program/base/json_text.h"
#include "program/graph/random_ops.h"
#include "program/ops/op_def.h"

namespace twinrun::exec {
namespace {

using nlohmann::json;

// The message, or null.
json parse_line(const std::string& line) {
  auto message = parse_json_text(line, {.depth = 8, .values = 10'000, .members = 10'000});
  return message ? *std::move(message) : json();
}

// A value of a message, for an error text.
std::string shown_value(const json& value) {
  const std::string text = value.dump();
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return "I32";
    case DType::kPred:
      return "BOOL";
    case DType::kBF16:
      return "BF16";
    case DType::kF64:
      return "F64";
    default:
      return "F32";
  }
}

json typed(const std::string& name, const TensorType& type) {
  return {{"name", name}, {"dtype", dtype_name(type.dtype)}, {"shape", type.dims}};
}

// The scenario's word for a scope (tpu.batchwise, tpu.token_mean).
const char* word_of(Scope scope, const char* global) {
  return scope == Scope::kPerCore ? "per_core" : global;
}

// What several replicas mean. A member that came later is there only where it says something else
// than older engines assume. What cores are fed is not told: it is in their inputs.
json sharding_json(const Sharding& s) {
  json all = {{"reduction", !s.reduce_gradients               ? "none"
                            : s.reduction == Reduction::kMean ? "mean"
                                                              : "sum"},
              {"batchnorm", s.batchnorm == BatchNormSync::kPerCore  ? "per_core"
                            : s.batchnorm == BatchNormSync::kSynced ? "synced"
                                                                    : "averaged"},
              {"batchnorm_group", s.batchnorm_group},
              {"batchwise", word_of(s.batchwise, "gathered")},
              {"token_mean", word_of(s.token_mean, "global")},
              {"clipping",
               s.clipping == Clipping::kAfterAllReduce ? "after_all_reduce" : "before_all_reduce"}};
  static constexpr const char* kStatistics[] = {"", "per_core", "global", "averaged", "from_first"};
  static constexpr const char* kScaling[] = {"", "once_more", "never", "by_group"};
  if (s.statistics != Statistics::kAsNormalised)
    all["statistics"] = kStatistics[static_cast<size_t>(s.statistics)];
  if (s.scaling != Scaling::kByReduction) all["scaling"] = kScaling[static_cast<size_t>(s.scaling)];
  if (s.l2_once || s.l2_every_core) all["l2_terms"] = s.l2_once ? "once" : "every_core";
  return all;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr size_t kMax = 200;
  std::string out(text.substr(0, kMax));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return "'" + out + (text.size() > kMax ? "...'" : "'");
}

bool is_asked_for(const Output& output) {
  return !output.of_layer && (output.name == "loss" || output.name.ends_with(".grad"));
}

std::string program_json(const Program& p, const std::string& scenario, const StepText& step) {
  json state = json::array(), inputs = json::array(), random = json::array(),
       outputs = json::array(), activations = json::array();
  for (const StateVar& var : p.state) {
    json one = typed(var.name, var.type);
    one["role"] = to_string(var.role);
    state.push_back(std::move(one));
  }
  for (const Input& input : p.inputs) {
    json one = typed(input.name, p.graph.type(input.id));
    one["per_core"] = input.per_core;
    inputs.push_back(std::move(one));
  }
  for (const ValueId id : random_ops(p))
    random.push_back(typed(p.graph.op(id).name, p.graph.type(id)));
  for (const Output& output : p.outputs) {
    json one = typed(output.name, p.graph.type(output.id));
    if (is_asked_for(output)) outputs.push_back(one);
    if (output.of_layer) activations.push_back(one);
  }
  json all = {{"protocol", kProtocol},
              {"scenario", scenario},
              {"cores", p.sharding.cores},
              {"batch", p.batch},
              {"algebra", p.optimizer.algebra == OptimizerSpec::Algebra::kCpu ? "cpu" : "xla"},
              {"sharding", sharding_json(p.sharding)},
              {"state", state},
              {"inputs", inputs},
              {"random", random},
              {"outputs", outputs},
              {"activations", activations}};
  if (step.text != nullptr) {
    const auto names = [](const std::vector<StableHlo::Value>& values) {
      json list = json::array();
      for (const StableHlo::Value& value : values) list.push_back(value.name);
      return list;
    };
    all["step"] = {{"stablehlo", step.file},
                   {"arguments", names(step.text->arguments)},
                   {"results", names(step.text->results)}};
  }
  return all.dump(1);
}

std::string hello() { return json{{"do", "hello"}, {"protocol", kProtocol}}.dump(); }
std::string prepare(const std::string& file) {
  return json{{"do", "prepare"}, {"program", file}}.dump();
}
std::string step(const std::string& program_file, int64_t step, const std::string& inputs_file,
                 const std::string& state_file, const std::string& result) {
  return json{{"do", "step"},
              {"program", program_file},
              {"step", step},
              {"inputs", inputs_file},
              {"state", state_file.empty() ? json(nullptr) : json(state_file)},
              {"result", result}}
      .dump();
}

Result<Reply> parse_reply(const std::string& line, const std::string& key, const std::string& is,
                          const std::string& engine) {
  const json reply = parse_line(line);
  if (!reply.is_object())
    return Error{"the line on standard output is not a message: " + shown(line), engine,
                 "print only messages there (docs/reference/engine-protocol.md)"};
  if (const auto said = reply.find("error"); said != reply.end()) {
    constexpr size_t kMax = 8000;
    const std::string text = said->is_string() ? said->get<std::string>() : said->dump();
    return Error{"the engine says: " + text.substr(0, kMax) + (text.size() > kMax ? "..." : ""),
                 engine, "",
                 // What it says of a program it declines; what it says of a step, it fails at.
                 key == "prepared" ? Error::Kind::kRefusal : Error::Kind::kForeignEngine};
  }
  Reply out;
  if (const auto alive = reply.find("alive"); alive != reply.end()) {
    constexpr size_t kMax = 200;
    out.alive = alive->is_string() ? alive->get<std::string>().substr(0, kMax) : "";
    if (out.alive.empty()) out.alive = "at work";
    return out;
  }
  const auto found = reply.find(key);
  if (found == reply.end() || (!is.empty() && found->dump() != is))
    return Error{"expected the answer '" + key + "'" + (is.empty() ? "" : " " + is) + "; found " +
                     shown(line),
                 engine, "docs/reference/engine-protocol.md"};
  if (const auto result = reply.find("result"); result != reply.end() && result->is_string())
    out.result = result->get<std::string>();
  out.line = line;
  return out;
}

Result<Capabilities> parse_hello(const std::string& line, const std::string& engine) {
  const json message = parse_line(line);
  const json h = message.is_object() ? message.value("hello", json()) : json();
  const auto bad = [&](const std::string& key, const std::string& expected) {
    return Error{"hello: '" + key + "' is " + (h.contains(key) ? shown_value(h[key]) : "missing") +
                     "; expected " + expected,
                 engine, "docs/reference/engine-protocol.md"};
  };
  if (!h.is_object())
    return Error{"hello is not an object", engine, "docs/reference/engine-protocol.md"};
  if (!h.contains("protocol") || h["protocol"] != kProtocol)
    return bad("protocol", std::to_string(kProtocol));
  Capabilities c;
  c.ours = c.op_trace = false;
  const auto text = [&](const char* key) -> std::string {
    return h.contains(key) && h[key].is_string() ? h[key].get<std::string>() : "";
  };
  c.name = text("name");
  if (c.name.empty() || c.name.size() > 200) return bad("name", "text of at most 200 bytes");
  for (const char* key : {"name", "version", "settings", "conventions"}) {
    if (text(key).size() > 2000) return bad(key, "text of at most 2000 bytes");
    // Run files hold these texts, and end them at a NUL.
    if (text(key).find('\0') != std::string::npos) return bad(key, "text without a NUL");
  }
  c.conventions = text("conventions");
  c.settings = text("version");
  if (const std::string more = text("settings"); !more.empty()) c.settings += " " + more;
  const auto take = [&](const char* key, auto& to, auto valid, const char* expected) -> Status {
    if (!h.contains(key)) return Ok{};
    using T = std::remove_reference_t<decltype(to)>;
    const bool is = std::is_same_v<T, bool> ? h[key].is_boolean() : h[key].is_number();
    if (!is || !valid(h[key])) return bad(key, expected);
    to = h[key].template get<T>();
    return Ok{};
  };
  const auto any = [](const json&) { return true; };
  c.elementary_ulps = 4;
  c.contracts = true;
  c.deterministic = false;
  TWINRUN_RETURN_IF_ERROR(take(
      "max_cores", c.max_cores,
      [](const json& v) { return v.is_number_integer() && v >= 1 && v <= 1 << 20; },
      "an integer of at least 1"));
  // As a double, because 2^64 - 1 is less than 2^20 to a comparison of JSON numbers.
  TWINRUN_RETURN_IF_ERROR(take(
      "elementary_ulps", c.elementary_ulps,
      [](const json& v) { return v.get<double>() >= 0.5 && v.get<double>() <= 1 << 20; },
      "a number of 0.5 to 1048576"));
  TWINRUN_RETURN_IF_ERROR(take("flush", c.flush, any, "true or false"));
  TWINRUN_RETURN_IF_ERROR(take("contracts", c.contracts, any, "true or false"));
  TWINRUN_RETURN_IF_ERROR(take("deterministic", c.deterministic, any, "true or false"));
  TWINRUN_RETURN_IF_ERROR(take("activations", c.activations, any, "true or false"));
  c.programs = false;
  TWINRUN_RETURN_IF_ERROR(take("programs", c.programs, any, "true or false"));
  c.declares_arithmetic = h.contains("precision") && !h["precision"].is_null();
  c.precision = DotPrecision::kBf16;
  if (c.declares_arithmetic) {
    const PrecisionRow* row =
        h["precision"].is_string() ? find_precision(h["precision"].get<std::string>()) : nullptr;
    if (row == nullptr) return bad("precision", precision_words() + " or null");
    c.precision = row->dots;
    c.vocabulary = row->precision;
  }
  if (h.contains("gradients") && !h["gradients"].is_null() && h["gradients"] != "f32") {
    if (h["gradients"] != "bf16" && h["gradients"] != "float16")
      return bad("gradients", "\"f32\", \"bf16\", \"float16\" or null");
    c.reduced_bits = h["gradients"] == "bf16" ? kBf16Bits : kF16Bits;
  }
  TWINRUN_RETURN_IF_ERROR(take("stochastic", c.stochastic, any, "true or false"));
  return c;
}

Result<std::vector<DeviceFacts>> parse_devices(const std::string& line, const std::string& engine) {
  const json message = parse_line(line);
  const json hello = message.is_object() ? message.value("hello", json()) : json();
  if (!hello.is_object() || !hello.contains("devices")) return std::vector<DeviceFacts>{};
  const json& listed = hello["devices"];
  const auto bad = [&](const std::string& what, const std::string& expected) {
    return Error{"hello: " + what + "; expected " + expected, engine,
                 "docs/reference/engine-protocol.md#hello"};
  };
  if (!listed.is_array() || listed.size() > kMaxDevices)
    return bad("'devices' is " + shown_value(listed),
               "a list of at most " + std::to_string(kMaxDevices) + " devices");
  std::vector<DeviceFacts> devices;
  for (const json& one : listed) {
    const std::string place = "device " + std::to_string(devices.size());
    if (!one.is_object()) return bad(place + " is " + shown_value(one), "an object");
    DeviceFacts& facts = devices.emplace_back();
    for (const auto& [key, text] : {std::pair{"name", &facts.name}, std::pair{"kind", &facts.kind},
                                    std::pair{"trouble", &facts.trouble}}) {
      const json value = one.value(key, json(""));
      if (!value.is_string() || value.get_ref<const std::string&>().size() > 2000)
        return bad("'" + std::string(key) + "' of " + place + " is " + shown_value(value),
                   "text of at most 2000 bytes");
      *text = value.get<std::string>();
    }
    for (const auto& [key, bytes] :
         {std::pair{"used", &facts.used}, std::pair{"memory", &facts.memory}}) {
      const json value = one.value(key, json());
      if (value.is_null()) continue;
      if (!value.is_number_integer() || value < 0 || value > int64_t{1} << 60)
        return bad("'" + std::string(key) + "' of " + place + " is " + shown_value(value),
                   "bytes, or null");
      *bytes = value.get<int64_t>();
    }
  }
  return devices;
}

}  // namespace twinrun::exec
