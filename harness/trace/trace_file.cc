// Parses the records of a trace, and checks every tensor against the bytes that it refers to.
#include "harness/trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>

#include "backends/aten/graph.h"
#include "harness/trace/records.h"
#include "program/base/json_text.h"

namespace twinrun {
namespace {

using namespace trace;  // the kinds of records

using aten::Call;
using aten::Element;
using aten::Graph;
using aten::GraphNode;
using aten::TensorView;
using aten::Value;
using Json = nlohmann::json;
using Bytes = std::span<const std::byte>;

// Products of sizes and strides, which may exceed 64 bits.
__extension__ using Wide = __int128;

// The first form, in which checksums do not cover headers, and data has none.
constexpr std::string_view kFirstMagic = "TWINTRC1";
constexpr int kMaxDepth = 16;                        // of lists in lists
constexpr int64_t kMaxElements = int64_t{1} << 31;   // of one tensor whose values are looked at
constexpr int64_t kMaxReach = int64_t{1} << 40;      // of a tensor's elements, and of a stride
constexpr int64_t kMaxArguments = int64_t{1} << 22;  // of all calls: a GiB of memory
constexpr size_t kMaxText = size_t{1} << 28;  // bytes of all strings, as often as they are used

constexpr std::string_view kRegion = "torch.compile.inductor";
constexpr uint32_t kMaxGraphValues = 1U << 20;  // of one graph

struct Malformed {
  std::string what;
};

// The number of elements of these sizes. Where some are 0, the others are limited too, so that no
// product of some of them overflows.
int64_t checked_count(const aten::Dims& dims, std::string_view what, int64_t most) {
  const bool none = std::ranges::find(dims, 0) != dims.end();
  int64_t others = 1;
  for (const int64_t n : dims) {
    if (n < 0 || __builtin_mul_overflow(others, std::max<int64_t>(n, 1), &others) ||
        others > (none ? kMaxReach : most)) {
      throw Malformed{fmt::format("a {} of more than {} elements", what, most)};
    }
  }
  return none ? 0 : others;
}

// Reads little-endian values from a payload; throws Malformed past its end.
class Cursor {
 public:
  explicit Cursor(Bytes bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    if (bytes_.size() - at_ < sizeof(T)) throw Malformed{"the record ends within a value"};
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  Bytes bytes_;
  size_t at_ = 0;
};

class Reader {
 public:
  Reader(TraceFile& trace, Bytes file) : trace_(trace), file_(file) {}

  Status read(bool partial) {
    const auto begins_with = [this](std::string_view magic) {
      return file_.size() >= kFileHeader &&
             std::memcmp(file_.data(), magic.data(), magic.size()) == 0;
    };
    const bool first_form = begins_with(kFirstMagic);
    if (!first_form && !begins_with(kMagic)) {
      return error(0, fmt::format("this is not a trace: it does not begin with {}", kMagic),
                   "write one with `python -m twinrun watch SCRIPT`");
    }
    size_t at = kFileHeader;
    while (!ended_ && at < file_.size()) {
      if (file_.size() - at < kRecordHeader) return cut(at, partial);
      uint32_t kind, crc;
      uint64_t size, id;
      std::memcpy(&kind, file_.data() + at, 4);
      std::memcpy(&crc, file_.data() + at + 4, 4);
      std::memcpy(&size, file_.data() + at + 8, 8);
      std::memcpy(&id, file_.data() + at + 16, 8);
      if (size > file_.size() - at - kRecordHeader) return cut(at, partial);
      const Bytes payload = file_.subspan(at + kRecordHeader, size);
      const bool has_checksum = !first_form || (kind != kPadding && kind != kData);
      const auto of_header = [&] { return checksum_of_header(file_.subspan(at, kRecordHeader)); };
      if (has_checksum && checksum(payload, first_form ? 0 : of_header()) != crc)
        return error(at, fmt::format("the checksum of this record (kind {}) is wrong", kind),
                     "the file is damaged: record it again");
      try {
        record(kind, id, payload);
      } catch (const Malformed& m) {
        return error(at, m.what, "the file is damaged: record it again");
      } catch (const Json::exception& e) {
        return error(at, fmt::format("its JSON cannot be read: {}", e.what()),
                     "the file is damaged: record it again");
      }
      at += kRecordHeader + (size + 7) / 8 * 8;
    }
    if (ended_ && at < file_.size())
      return error(at, fmt::format("{} bytes follow the end record", file_.size() - at),
                   "the file is damaged: record it again");
    return ended_ ? Status(Ok{}) : cut(file_.size(), partial);
  }

 private:
  Error error(size_t at, std::string what, std::string fix) const {
    return {std::move(what), fmt::format("{}: byte {}", trace_.path, at), std::move(fix)};
  }
  Status cut(size_t at, bool partial) {
    trace_.cut_short = true;
    if (partial && seen_meta_) return Ok{};
    // A call of step n shows that n steps were over before it.
    int64_t whole = steps_;
    for (const Call& call : trace_.calls) whole = std::max<int64_t>(whole, call.step);
    if (whole > 0) {
      std::erase_if(trace_.calls, [&](const Call& call) { return call.step >= whole; });
      trace_.steps = whole;
      return Ok{};
    }
    return error(
        at,
        fmt::format("the trace was cut short within its first step: it has no end record ({} calls "
                    "are complete)",
                    trace_.calls.size()),
        "record it again, or judge what is complete with --partial");
  }
  static Json json(Bytes payload) {
    auto parsed = parse_json_text({reinterpret_cast<const char*>(payload.data()), payload.size()});
    if (!parsed) throw Malformed{"its JSON " + parsed.error().what};
    return *std::move(parsed);
  }
  // 0 if the key is missing.
  static int64_t count(const Json& json, const char* key) {
    return json.contains(key) ? json_integer<int64_t>(json[key]) : 0;
  }

  static ScriptFunction function_of(const Json& f) {
    return {f.value("name", ""), f.value("place", ""), count(f, "calls"),
            f.value("compiled", false)};
  }

  static std::string shown(const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  // What the script's settings permit its kernels, at any time. The defaults of PyTorch where the
  // trace does not say.
  void permit(const Json& settings) {
    Permitted& p = trace_.permitted;
    const std::string products = settings.value("float32_matmul_precision", "highest");
    p.tf32_products =
        p.tf32_products || products != "highest" || settings.value("allow_tf32", false);
    p.bfloat16_products = p.bfloat16_products || products == "medium";
    p.tf32_convolutions = p.tf32_convolutions || settings.value("convolution_tf32", true);
    p.bfloat16_parts = p.bfloat16_parts || settings.value("bf16_reduced_precision_reduction", true);
    p.float16_parts = p.float16_parts || settings.value("fp16_reduced_precision_reduction", true);
    p.nnpack = p.nnpack || settings.value("nnpack_convolutions", false);
    trace_.onednn_bfloat16 = settings.value("onednn_bfloat16", false);
  }
  // A setting at the end of the trace, which may be another than at its beginning.
  void changed(const std::string& key, std::string value) {
    for (auto& [name, first] : trace_.settings) {
      if (name != key) continue;
      if (first != value) first += ", later " + std::move(value);
      return;
    }
    trace_.settings.emplace_back(key, std::move(value));
  }

  void record(uint32_t kind, uint64_t id, Bytes payload) {
    if (kind != kMeta && !seen_meta_) throw Malformed{"the first record is not the meta record"};
    switch (kind) {
      case kPadding:
        return;
      case kMeta: {
        if (seen_meta_) throw Malformed{"a second meta record"};
        seen_meta_ = true;
        const Json meta = json(payload);
        trace_.framework = meta.value("framework", "");
        trace_.version = meta.value("version", "");
        trace_.script = meta.value("script", "");
        trace_.rank = std::max<int64_t>(count(meta, "rank"), 0);
        trace_.ranks = std::max<int64_t>(count(meta, "world"), 1);
        for (const char* key : {"python", "threads"})
          if (meta.contains(key)) trace_.settings.emplace_back(key, shown(meta[key]));
        if (!meta.contains("settings") || !meta["settings"].is_object()) return;
        for (const auto& [key, value] : meta["settings"].items())
          trace_.settings.emplace_back(key, shown(value));
        permit(meta["settings"]);
        return;
      }
      case kString:
        strings_[id] = std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
        return;
      case kData:
        data_[id] = payload;
        return;
      case kPlace: {
        Cursor c(payload);
        begins_[id] = c.take<int64_t>();
        if (begins_[id] < 0 || begins_[id] > kMaxReach)
          throw Malformed{fmt::format("block {} begins before its storage", id)};
        return;
      }
      case kCall:
        trace_.calls.push_back(call(payload));
        return;
      case kUpdate:
        trace_.updates.push_back(call(payload));
        return;
      case kFunction:
        trace_.uses.push_back(call(payload));
        return;
      case kGraph:
        return graph(id, payload);
      case kStep:
        if (id != static_cast<uint64_t>(steps_) + 1)
          throw Malformed{fmt::format("the end of step {} after {} steps", id, steps_)};
        ++steps_;
        return;
      case kEnd: {
        ended_ = true;
        const Json end = json(payload);
        trace_.steps = count(end, "steps");
        if (end.contains("settings") && end["settings"].is_object()) {
          for (const auto& [key, value] : end["settings"].items()) changed(key, shown(value));
          permit(end["settings"]);
        }
        if (end.contains("exception") && end["exception"].is_string())
          trace_.exception = end["exception"].get<std::string>();
        if (end.contains("left_out") && end["left_out"].is_object()) {
          const Json& lost = end["left_out"];
          trace_.errors = count(lost, "error");
          if (lost.contains("first_error") && lost["first_error"].is_string())
            trace_.first_error = lost["first_error"].get<std::string>();
        }
        trace_.skipped_evaluation = count(end, "skipped_evaluation");
        trace_.skipped_evaluation_used = count(end, "skipped_evaluation_used");
        trace_.steps_elsewhere = count(end, "steps_elsewhere");
        trace_.steps_asked = count(end, "steps_asked");
        trace_.steps_made = count(end, "steps_made");
        if (end.contains("functions") && end["functions"].is_array()) {
          for (const Json& f : end["functions"]) trace_.functions.push_back(function_of(f));
        }
        if (end.contains("parameters") && end["parameters"].is_object()) {
          for (const auto& [storage, name] : end["parameters"].items())
            trace_.parameters[std::strtoull(storage.c_str(), nullptr, 10)] = shown(name);
        }
        if (end.contains("dropout_off") && end["dropout_off"].is_array()) {
          for (const Json& module : end["dropout_off"]) trace_.dropout_off.push_back(shown(module));
        }
        if (end.contains("observer") && end["observer"].is_object()) {
          const Json& found = end["observer"];
          trace_.observer =
              fmt::format("{}: {} without recording", found.value("what", "the parameters"),
                          found.value("same", false) ? "the same bits as" : "other bits than");
          if (found.contains("repeats"))
            trace_.observer += found.value("repeats", false)
                                   ? ", where the script repeats itself"
                                   : ", where the script does not repeat itself either";
        }
        return;
      }
      default:
        throw Malformed{fmt::format("a record of unknown kind {} (known: 0 to 10)", kind)};
    }
  }

  std::string text(uint32_t id) {
    if (id == 0) return "";
    const auto at = strings_.find(id);
    if (at == strings_.end()) throw Malformed{fmt::format("string {} is not in the file", id)};
    text_ += at->second.size();
    if (text_ > kMaxText)
      throw Malformed{
          fmt::format("the names that its calls use take more than {} MiB", kMaxText >> 20)};
    return at->second;
  }

  Call call(Bytes payload) {
    Cursor c(payload);
    Call call;
    call.index = static_cast<int64_t>(trace_.calls.size());
    call.op = text(c.take<uint32_t>());
    call.place = text(c.take<uint32_t>());
    call.module = text(c.take<uint32_t>());
    call.node = text(c.take<uint32_t>());
    call.forward = c.take<int64_t>();
    if (call.forward >= call.index) call.forward = -1;
    call.step = c.take<int32_t>();
    const auto flags = c.take<uint32_t>();
    call.left_out = (flags & 1) != 0;
    call.failed = (flags & 2) != 0;
    call.optimizer = (flags & 4) != 0;
    call.composed = (flags & 8) != 0;
    call.without_gradient = (flags & 16) != 0;
    call.args = list(c, 0);
    const auto named = c.take<uint32_t>();
    for (uint32_t i = 0; i < named; ++i) {
      std::string name = text(c.take<uint32_t>());
      call.kwargs.emplace_back(std::move(name), value(c, 0));
    }
    call.result = value(c, 0);
    for (const Value& v : list(c, 0)) {
      if (v.kind == Value::Kind::kTensor) call.written.push_back(v.tensor);
    }
    if (call.op == kRegion) attach(call);
    return call;
  }

  void graph(uint64_t id, Bytes payload) {
    Cursor c(payload);
    auto g = std::make_shared<Graph>();
    g->inputs = c.take<uint32_t>();
    const auto nodes = c.take<uint32_t>();
    if (g->inputs > kMaxGraphValues || nodes > c.left())
      throw Malformed{fmt::format("a graph of {} inputs and {} nodes", g->inputs, nodes)};
    values_ = g->inputs;
    for (uint32_t i = 0; i < nodes; ++i) {
      GraphNode node;
      node.op = text(c.take<uint32_t>());
      node.place = text(c.take<uint32_t>());
      node.args = list(c, 0);
      const auto named = c.take<uint32_t>();
      for (uint32_t k = 0; k < named; ++k) {
        std::string name = text(c.take<uint32_t>());
        node.kwargs.emplace_back(std::move(name), value(c, 0));
      }
      const auto results = c.take<uint32_t>();
      if (results > c.left() || (values_ += results) > kMaxGraphValues)
        throw Malformed{fmt::format("a graph of more than {} values", kMaxGraphValues)};
      for (uint32_t k = 0; k < results; ++k) node.results.push_back(result(c));
      g->nodes.push_back(std::move(node));
    }
    const auto known = [&](uint32_t value) {
      if (value >= values_) throw Malformed{fmt::format("value {} of {} values", value, values_)};
      return value;
    };
    const auto outputs = c.take<uint32_t>();
    if (outputs > c.left()) throw Malformed{fmt::format("a graph of {} outputs", outputs)};
    for (uint32_t i = 0; i < outputs; ++i) {
      const auto value = c.take<uint32_t>();
      g->outputs.push_back(value == Graph::kNothing ? value : known(value));
    }
    const auto written = c.take<uint32_t>();
    for (uint32_t i = 0; i < written; ++i) {
      const auto input = c.take<uint32_t>(), from = known(c.take<uint32_t>());
      if (input >= g->inputs)
        throw Malformed{fmt::format("input {} of {} is written", input, g->inputs)};
      g->written.emplace_back(input, from);
    }
    values_ = 0;
    graphs_[id] = std::move(g);
  }
  static aten::GraphResult result(Cursor& c) {
    aten::GraphResult r;
    const auto element = c.take<uint8_t>(), rank = c.take<uint8_t>();
    if (element != 255 && element > static_cast<uint8_t>(Element::kOther))
      throw Malformed{fmt::format("a value of unknown dtype {}", element)};
    r.is_tensor = element != 255;
    r.element = r.is_tensor ? static_cast<Element>(element) : Element::kOther;
    for (int d = 0; d < rank; ++d) r.dims.push_back(c.take<int64_t>());
    checked_count(r.dims, "value", kMaxElements);
    return r;
  }
  // Gives a region's call its graph, if that is known.
  void attach(Call& call) const {
    for (const auto& [name, v] : call.kwargs) {
      if (name != "graph" || v.kind != Value::Kind::kInteger) continue;
      const auto at = graphs_.find(static_cast<uint64_t>(v.integer));
      if (at == graphs_.end())
        throw Malformed{fmt::format("graph {} is not in the file", v.integer)};
      const Graph& g = *at->second;
      if (call.args.empty()) throw Malformed{"a region without the list of its inputs"};
      const size_t inputs = call.args[0].items.size();
      if (inputs != g.inputs || (!call.failed && (call.result.items.size() != g.outputs.size() ||
                                                  call.written.size() != g.written.size()))) {
        throw Malformed{fmt::format(
            "a region of {} inputs, {} results and {} written inputs; its graph has {}, {} and {}",
            inputs, call.result.items.size(), call.written.size(), g.inputs, g.outputs.size(),
            g.written.size())};
      }
      call.graph = at->second;
    }
  }

  [[noreturn]] static void too_many_arguments() {
    throw Malformed{
        fmt::format("its calls have more than {} arguments and results", kMaxArguments)};
  }
  std::vector<Value> list(Cursor& c, int depth) {
    if (depth > kMaxDepth) throw Malformed{"lists nested too deeply"};
    const auto n = c.take<uint32_t>();
    if (n > c.left()) throw Malformed{fmt::format("a list of {} values", n)};
    if (n > kMaxArguments - all_values_) too_many_arguments();
    std::vector<Value> out;
    out.reserve(n);  // growing would take the memory twice
    for (uint32_t i = 0; i < n; ++i) out.push_back(value(c, depth + 1));
    return out;
  }

  Value value(Cursor& c, int depth) {
    if (++all_values_ > kMaxArguments) too_many_arguments();
    Value v;
    const auto tag = c.take<uint8_t>();
    switch (tag) {
      case 0:
        break;
      case 1:
        v.kind = Value::Kind::kBool;
        v.integer = c.take<uint8_t>() != 0;
        break;
      case 2:
        v.kind = Value::Kind::kInteger;
        v.integer = c.take<int64_t>();
        break;
      case 3:
        v.kind = Value::Kind::kNumber;
        v.number = c.take<double>();
        break;
      case 4:
        v.kind = Value::Kind::kText;
        v.text = text(c.take<uint32_t>());
        break;
      case 5:
        v.kind = Value::Kind::kTensor;
        v.tensor = tensor(c);
        break;
      case 6:
        v.kind = Value::Kind::kList;
        v.items = list(c, depth);
        break;
      case 7:
        v.kind = Value::Kind::kElement;
        v.integer = std::min<int64_t>(c.take<uint8_t>(), static_cast<int64_t>(Element::kOther));
        break;
      case 8:
        v.kind = Value::Kind::kOther;
        v.text = text(c.take<uint32_t>());
        break;
      case 9:
        v.kind = Value::Kind::kComplex;
        v.number = c.take<double>();
        c.take<double>();
        break;
      case 10:
        v.kind = Value::Kind::kGraphValue;
        v.integer = c.take<uint32_t>();
        // Only what comes before: a graph has no cycles.
        if (v.integer >= values_)
          throw Malformed{fmt::format("value {} of {} values", v.integer, values_)};
        break;
      default:
        throw Malformed{
            fmt::format("a value of unknown kind {} (known: 0 to 9, in graphs 10)", tag)};
    }
    return v;
  }

  TensorView tensor(Cursor& c) {
    TensorView t;
    const auto block = c.take<uint64_t>();
    t.storage = c.take<uint64_t>();
    t.version = c.take<uint32_t>();
    const auto element = c.take<uint8_t>();
    if (element > static_cast<uint8_t>(Element::kOther))
      throw Malformed{fmt::format("a tensor of unknown dtype {}", element)};
    t.element = static_cast<Element>(element);
    t.on_device = c.take<uint8_t>() != 0;
    trace_.on_accelerator = t.on_device || trace_.on_accelerator;
    const auto flags = c.take<uint8_t>();
    t.requires_gradient = (flags & 1) != 0;
    t.parameter = (flags & 2) != 0;
    t.changed_unseen = (flags & 4) != 0;
    t.of_evaluation = (flags & 8) != 0;
    const auto rank = c.take<uint8_t>();
    const auto offset = c.take<int64_t>();
    for (int d = 0; d < rank; ++d) t.dims.push_back(c.take<int64_t>());
    for (int d = 0; d < rank; ++d) t.strides.push_back(c.take<int64_t>());
    check(t, block, offset);
    return t;
  }

  void check(TensorView& t, uint64_t block, int64_t offset) {
    const int64_t elements = checked_count(t.dims, "tensor", kMaxReach);
    Wide last = 0;
    for (size_t d = 0; d < t.dims.size(); ++d) {
      if (t.strides[d] < 0) throw Malformed{"a tensor with a negative stride"};
      last += static_cast<Wide>(std::max<int64_t>(t.dims[d] - 1, 0)) * t.strides[d];
      if (t.strides[d] > kMaxReach || last > kMaxReach)
        throw Malformed{fmt::format("a tensor that reaches over more than {} elements", kMaxReach)};
    }
    if (block == 0 || t.element == Element::kOther) return;
    const auto at = data_.find(block);
    if (at == data_.end()) throw Malformed{fmt::format("block {} is not in the file", block)};
    const Wide size = aten::size_of(t.element);
    if (offset < 0 ||
        (elements > 0 && offset + (last + 1) * size > static_cast<Wide>(at->second.size()))) {
      throw Malformed{fmt::format("a tensor {} reaches beyond its block of {} bytes", t.type(),
                                  at->second.size())};
    }
    if (elements > kMaxElements) return;  // one that is expanded: its values are not looked at
    t.data = at->second.data() + (elements > 0 ? offset : 0);
    const auto begin = begins_.find(block);
    t.first = offset + (begin == begins_.end() ? 0 : begin->second);
    if (elements == 0 && at->second.empty()) t.data = file_.data();
  }

  TraceFile& trace_;
  Bytes file_;
  bool seen_meta_ = false, ended_ = false;
  int64_t steps_ = 0;  // whose ends are in the file
  std::unordered_map<uint64_t, std::string> strings_;
  size_t text_ = 0;         // bytes of strings that calls hold
  int64_t all_values_ = 0;  // that calls hold
  std::unordered_map<uint64_t, Bytes> data_;
  std::unordered_map<uint64_t, int64_t> begins_;  // of blocks that do not begin with their storage
  std::unordered_map<uint64_t, std::shared_ptr<const Graph>> graphs_;
  uint32_t values_ = 0;  // of the graph that is read, so far; 0 outside of graphs
};

}  // namespace

bool is_trace(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::string begin(kMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == kMagic || begin == kFirstMagic;
}

Result<TraceFile> read_trace(const std::string& path, bool partial) {
  auto mapped = MappedFile::open(path);
  if (!mapped) {
    if (mapped.error().fix.empty())
      return Error{"this is not a trace: " + mapped.error().what, path,
                   "write one with `python -m twinrun watch SCRIPT`"};
    return mapped.error();
  }
  TraceFile trace;
  trace.path = path;
  trace.file = *std::move(mapped);
  trace.bytes = static_cast<int64_t>(trace.file->bytes().size());
  TWINRUN_RETURN_IF_ERROR(Reader(trace, trace.file->bytes()).read(partial));
  return trace;
}

Status unchanged(const TraceFile& trace) {
  // What is still recorded grows; its beginning stays.
  const bool bad = trace.cut_short ? trace.file->shortened() : trace.file->changed();
  if (!bad) return Ok{};
  return Error{"the trace was changed while it was read", trace.path,
               "judge it again when nothing writes it"};
}

}  // namespace twinrun
