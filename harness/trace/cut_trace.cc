// Copies the records that some calls of a trace use.
#include "harness/trace/cut_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "harness/trace/records.h"
#include "program/base/json_text.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;
using Bytes = std::span<const std::byte>;

using namespace trace;  // the kinds of records

constexpr size_t kAlignment = 64;                // of data in the file
constexpr size_t kForwardAt = 16, kStepAt = 24;  // in the payload of a call

struct Used {
  std::set<std::string> texts;
  std::set<const std::byte*> data;
  bool region = false;

  void add(const TensorView& view) {
    if (view.data != nullptr) data.insert(view.data);
  }
  void add(const Value& value) {
    texts.insert(value.text);
    std::vector<const TensorView*> views;
    collect(value, views);
    for (const TensorView* view : views) add(*view);
    for (const Value& item : value.items) add(item);
  }
  void add(const Call& call) {
    for (const std::string* text : {&call.op, &call.place, &call.module, &call.node})
      texts.insert(*text);
    for (const Value& argument : call.args) add(argument);
    for (const auto& [name, value] : call.kwargs) {
      texts.insert(name);
      add(value);
    }
    add(call.result);
    for (const TensorView& written : call.written) add(written);
    region = region || call.graph != nullptr;
  }
  bool holds(Bytes block) const {
    const auto at = data.lower_bound(block.data());
    return at != data.end() && *at < block.data() + std::max<size_t>(block.size(), 1);
  }
};

class Writer {
 public:
  Writer() { out_ = std::string(kMagic) + std::string(kFileHeader - kMagic.size(), '\0'); }

  void record(uint32_t kind, uint64_t id, std::string_view payload) {
    const size_t begin = out_.size() + kRecordHeader;
    if (kind == kData && begin % kAlignment != 0) {
      // A record of padding takes a header, too.
      const size_t size = (2 * kAlignment - (begin + kRecordHeader) % kAlignment) % kAlignment;
      plain(kPadding, 0, std::string(size, '\0'));
    }
    plain(kind, id, payload);
  }
  std::string take() { return std::move(out_); }

 private:
  void plain(uint32_t kind, uint64_t id, std::string_view payload) {
    char header[kRecordHeader] = {};
    const uint64_t size = payload.size();
    std::memcpy(header, &kind, 4);
    std::memcpy(header + 8, &size, 8);
    std::memcpy(header + 16, &id, 8);
    const uint32_t crc = checksum(std::as_bytes(std::span(payload)),
                                  checksum_of_header(std::as_bytes(std::span(header))));
    std::memcpy(header + 4, &crc, 4);
    out_.append(header, kRecordHeader).append(payload);
    out_.append((8 - out_.size() % 8) % 8, '\0');
  }
  std::string out_;
};

// The end record of the cut trace: the settings of the whole one.
Result<std::string> end_of(std::string_view payload, size_t calls) {
  TWINRUN_ASSIGN(auto end, parse_json_text(payload));
  nlohmann::json out = {{"calls", calls},
                        {"steps", 1},
                        {"exception", nullptr},
                        {"left_out", {{"budget", 0}, {"error", 0}}}};
  if (end.contains("settings")) out["settings"] = end["settings"];
  return out.dump();
}

}  // namespace

Result<std::string> cut_trace(const TraceFile& trace, const std::vector<int64_t>& calls) {
  Used used;
  for (const int64_t number : calls) {
    if (number < 0 || number >= static_cast<int64_t>(trace.calls.size()))
      return Error{fmt::format("has no call {}", number), trace.path, "diagnose the trace again"};
    const Call& call = trace.calls[static_cast<size_t>(number)];
    if (call.left_out)
      return Error{fmt::format("bytes of call {} were left out of the trace", number), trace.path,
                   "record with a larger --budget"};
    used.add(call);
  }
  const Bytes file = trace.file->bytes();
  Writer out;
  uint64_t number = 0, kept = 0;
  std::string end = R"({"calls": 0, "steps": 1})";
  for (size_t at = kFileHeader; at + kRecordHeader <= file.size();) {
    uint32_t kind;
    uint64_t size, id;
    std::memcpy(&kind, file.data() + at, 4);
    std::memcpy(&size, file.data() + at + 8, 8);
    std::memcpy(&id, file.data() + at + 16, 8);
    if (size > file.size() - at - kRecordHeader) break;  // it was cut short
    const Bytes bytes = file.subspan(at + kRecordHeader, size);
    const std::string_view payload(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    at += kRecordHeader + (size + 7) / 8 * 8;
    if (kind == kMeta || (kind == kGraph && used.region) ||
        (kind == kString && (used.region || used.texts.contains(std::string(payload)))) ||
        (kind == kData && used.holds(bytes))) {
      out.record(kind, id, payload);
    } else if (kind == kCall) {
      if (!std::ranges::binary_search(calls, static_cast<int64_t>(number++))) continue;
      std::string call(payload);
      constexpr int64_t kNone = -1;
      constexpr int32_t kFirst = 0;
      std::memcpy(call.data() + kForwardAt, &kNone, sizeof kNone);
      std::memcpy(call.data() + kStepAt, &kFirst, sizeof kFirst);
      out.record(kCall, kept++, call);
    } else if (kind == kEnd) {
      end = payload;
    }
  }
  out.record(kStep, 1, "");
  TWINRUN_ASSIGN(end, end_of(end, calls.size()));
  out.record(kEnd, 0, end);
  return out.take();
}

}  // namespace twinrun
