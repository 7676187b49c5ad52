// Reads and writes TensorBoard's event files.
#include "harness/foreign/event_file.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <tensorboard_event.pb.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "scenarios/data/record_reader.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// TensorBoard finds event files by this part of their name.
constexpr std::string_view kMark = "tfevents";
constexpr std::string_view kVersion = "brain.Event:2";
constexpr int32_t kFloat = 1, kDouble = 2;  // DT_FLOAT, DT_DOUBLE of types.proto

static_assert(std::endian::native == std::endian::little, "records are little-endian");
template <typename T>
void append(std::string& out, T number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof bytes);
}

void add_record(std::string& out, const tensorboard::Event& event) {
  const std::string record = event.SerializeAsString();
  std::string length;
  append(length, static_cast<uint64_t>(record.size()));
  out += length;
  append(out, data::masked_crc(length.data(), length.size()));
  out += record;
  append(out, data::masked_crc(record.data(), record.size()));
}

bool is_event_file(const fs::path& path) {
  return path.filename().string().find(kMark) != std::string::npos;
}

std::vector<fs::path> event_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_event_file(it->path())) files.push_back(it->path());
  }
  std::ranges::sort(files);
  return files;
}

// The value of a tensor with one element. Check its sizes, since protobuf does not.
std::optional<double> scalar_of(const tensorboard::Tensor& tensor) {
  for (const auto& dim : tensor.tensor_shape().dim()) {
    if (dim.size() != 1) return std::nullopt;
  }
  const std::string& content = tensor.tensor_content();
  const auto bits = [&](auto number) -> std::optional<double> {
    if (content.size() != sizeof number) return std::nullopt;
    std::memcpy(&number, content.data(), sizeof number);
    return number;
  };
  if (tensor.dtype() == kFloat)
    return tensor.float_val_size() == 1 ? tensor.float_val(0) : bits(float());
  if (tensor.dtype() == kDouble)
    return tensor.double_val_size() == 1 ? tensor.double_val(0) : bits(double());
  return std::nullopt;
}

struct Collected {
  std::string tag;
  std::map<int64_t, double> points;
  bool binary32 = true;
};

class Collector {
 public:
  Status read(const std::string& path) {
    TWINRUN_ASSIGN(data::RecordReader reader, data::RecordReader::open(path));
    std::string record;
    while (true) {
      auto more = reader.next(record);
      if (!more) {
        Error error = more.error();
        if (reader.index() == 0) {
          error.what = "not an event file: " + error.what;
          error.fix = "give what a SummaryWriter wrote: events.out.tfevents.*";
        }
        return error;
      }
      if (!*more) return Ok{};
      tensorboard::Event event;
      // The library would print what is wrong with a record to standard error.
      [[maybe_unused]] static auto* const printing = google::protobuf::SetLogHandler(nullptr);
      if (!event.ParseFromString(record))
        return Error{"a record is not an event", reader.place(),
                     "give what a SummaryWriter wrote: events.out.tfevents.*"};
      for (const auto& value : event.summary().value()) add(event.step(), value);
    }
  }

  EventCurves take() {
    for (const Collected& c : all_) {
      Curve curve{.name = c.tag, .binary32 = c.binary32};
      for (const auto& [step, value] : c.points) {
        curve.steps.push_back(step);
        curve.values.push_back(value);
      }
      out_.curves.push_back(std::move(curve));
    }
    return std::move(out_);
  }

 private:
  void add(int64_t step, const tensorboard::Summary::Value& value) {
    const bool is_tensor = value.value_case() == tensorboard::Summary::Value::kTensor;
    std::optional<double> number;
    if (is_tensor) number = scalar_of(value.tensor());
    if (value.value_case() == tensorboard::Summary::Value::kSimpleValue)
      number = value.simple_value();
    if (!number) return;
    const auto [at, fresh] = places_.emplace(value.tag(), all_.size());
    if (fresh) all_.push_back({value.tag(), {}});
    Collected& curve = all_[at->second];
    if (is_tensor && value.tensor().dtype() == kDouble) curve.binary32 = false;
    if (!curve.points.insert_or_assign(step, *number).second) ++out_.replaced;
  }

  EventCurves out_;
  std::vector<Collected> all_;
  std::map<std::string, size_t> places_;
};

}  // namespace

bool is_event_path(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return !event_files_in(path).empty();
  return is_event_file(path);
}

std::string event_file(const std::vector<Curve>& curves) {
  std::map<int64_t, tensorboard::Event> events;
  for (const Curve& curve : curves) {
    for (size_t i = 0; i < curve.steps.size(); ++i) {
      tensorboard::Event& event = events[curve.steps[i]];
      event.set_step(curve.steps[i]);
      event.set_wall_time(static_cast<double>(curve.steps[i]));
      auto* value = event.mutable_summary()->add_value();
      value->set_tag(curve.name);
      value->set_simple_value(static_cast<float>(curve.values[i]));
    }
  }
  tensorboard::Event version;
  version.set_file_version(std::string(kVersion));
  std::string out;
  add_record(out, version);
  for (const auto& [step, event] : events) add_record(out, event);
  return out;
}

Result<EventCurves> read_events(const std::string& path) {
  Collector collector;
  std::vector<fs::path> files = {path};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    files = event_files_in(path);
    if (files.empty())
      return Error{"holds no event files", path,
                   "give a folder that holds events.out.tfevents.* files"};
  }
  for (const fs::path& file : files) TWINRUN_RETURN_IF_ERROR(collector.read(file.string()));
  return collector.take();
}

}  // namespace twinrun
