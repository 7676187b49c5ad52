// `tfrecord`: TFRecord files of tf.train.Example. The feature data.feature is one of
//   bytes_list    one value: raw u8 of data.shape (no PNG, no JPEG), divided by 255
//   float_list    the numbers of data.shape
//   int64_list    with data.vocabulary, token ids; else the numbers of data.shape
// The feature data.label is an int64_list: one class, or one per token. With data.window, samples
// of fewer tokens are padded with token 0, label 0, weight 0.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/stubs/logging.h>
#include <tf_example.pb.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "program/base/names.h"
#include "scenarios/data/raw_samples.h"
#include "scenarios/data/record_reader.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

using tf_example::Feature;

const char* kind_of(const Feature& feature) {
  switch (feature.kind_case()) {
    case Feature::kBytesList:
      return "a bytes_list";
    case Feature::kFloatList:
      return "a float_list";
    case Feature::kInt64List:
      return "an int64_list";
    default:
      return "empty";
  }
}

// The image format by its first bytes: TFRecord files often hold encoded images instead of raw
// pixels.
std::string_view image_format(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG")) return "PNG";
  if (bytes.starts_with("\xff\xd8\xff")) return "JPEG";
  if (bytes.starts_with("GIF8")) return "GIF";
  return "";
}

// Collects the samples of several files.
class Collector {
 public:
  explicit Collector(const DataRequest& request) : request_(request) {
    raw_.sample = padded() ? Dims{request.window} : request.shape;
  }

  Status read(const std::string& path) {
    auto opened = RecordReader::open(path);
    if (!opened) return placed(request_, opened.error());
    firsts_.push_back({raw_.count, path});
    std::string record;
    while (true) {
      const auto more = opened->next(record);
      if (!more) return placed(request_, more.error());
      if (!*more) break;
      place_ = opened->place();
      TWINRUN_RETURN_IF_ERROR(add(record));
    }
    if (raw_.count == firsts_.back().sample) {
      return Error{"no records in this file", join_where(request_.where, path), ""};
    }
    return Ok{};
  }

  // The number of samples of each file.
  std::vector<int64_t> per_file() const {
    std::vector<int64_t> out;
    for (size_t i = 0; i < firsts_.size(); ++i) {
      const int64_t end = i + 1 < firsts_.size() ? firsts_[i + 1].sample : raw_.count;
      out.push_back(end - firsts_[i].sample);
    }
    return out;
  }

  Result<Samples> samples() {
    // For one label per sample, add_tokens() has filled the row of labels with zeros: keep the
    // first.
    if (request_.vocabulary > 0 && !per_token_.value_or(false)) {
      const size_t width = raw_.tokens.size() / static_cast<size_t>(raw_.count);
      for (size_t i = 0; i < raw_.labels.size() / width; ++i) {
        raw_.labels[i] = raw_.labels[i * width];
      }
      raw_.labels.resize(static_cast<size_t>(raw_.count));
    }
    return to_samples(request_, raw_, [this](Part, int64_t i) {
      const auto after = std::ranges::upper_bound(firsts_, i, {}, &First::sample);
      return fmt::format("{}: record {}", (after - 1)->path, i - (after - 1)->sample);
    });
  }

 private:
  struct First {
    int64_t sample;
    std::string path;
  };

  bool padded() const { return request_.vocabulary > 0 && request_.window > 0; }
  Error fail(std::string what, std::string fix = "") const {
    return {std::move(what), join_where(request_.where, place_), std::move(fix)};
  }

  Result<const Feature*> find(const tf_example::Example& example, const std::string& name,
                              const char* key) const {
    const auto& all = example.features().feature();
    const auto found = all.find(name);
    if (found != all.end()) return &found->second;
    std::vector<std::string> names;
    for (const auto& [other, feature] : all) names.push_back(other);
    std::sort(names.begin(), names.end());
    if (names.empty()) return fail("the record has no features");
    return fail(fmt::format("no feature \"{}\" (data.{}); the record has: {}", name, key,
                            fmt::join(names, ", ")),
                fmt::format("set data.{} = \"{}\"", key, nearest(name, names)));
  }

  Status add(const std::string& record) {
    tf_example::Example example;
    // The library would print what is wrong with a record to standard error.
    [[maybe_unused]] static auto* const printing = google::protobuf::SetLogHandler(nullptr);
    if (!example.ParseFromString(record)) {
      return fail("the record is not a tf.train.Example",
                  "give TFRecord files of tf.train.Example");
    }
    TWINRUN_ASSIGN(const Feature* feature, find(example, request_.feature, "feature"));
    TWINRUN_ASSIGN(const Feature* label, find(example, request_.label, "label"));
    if (static_cast<int64_t>(raw_.numbers.size() + raw_.pixels.size() + raw_.tokens.size()) >
        kMaxElements) {
      return fail(fmt::format("more than {} numbers", kMaxElements), "give fewer files");
    }
    if (request_.vocabulary > 0) {
      TWINRUN_RETURN_IF_ERROR(add_tokens(*feature, *label));
    } else {
      TWINRUN_RETURN_IF_ERROR(add_numbers(*feature));
      if (label->int64_list().value_size() != 1) return wrong_label(*label, "one class");
      raw_.labels.push_back(label->int64_list().value(0));
    }
    ++raw_.count;
    return Ok{};
  }

  Error wrong_label(const Feature& label, std::string_view expected) const {
    const int values = label.int64_list().value_size();
    return fail(fmt::format(
        "label \"{}\" is {}{}; allowed: an int64_list with {}", request_.label, kind_of(label),
        label.has_int64_list() ? fmt::format(" of {} values", values) : "", expected));
  }

  // Checks the number of elements against data.shape, or else against the first record.
  Status fit(int64_t elements, const char* of_what) {
    if (raw_.sample.empty()) raw_.sample = {elements};
    const int64_t expected = TensorType{DType::kF32, raw_.sample}.elements();
    if (elements == expected && elements > 0) return Ok{};
    return fail(fmt::format("feature \"{}\" has {} {}; allowed: {}, because a sample is {}{}",
                            request_.feature, elements, of_what, expected, to_string(raw_.sample),
                            request_.shape.empty() ? " like record 0" : " (data.shape)"),
                elements > 0 && !request_.shape.empty() ? "set data.shape" : "");
  }

  Status add_numbers(const Feature& feature) {
    if (feature.has_bytes_list()) {
      if (feature.bytes_list().value_size() != 1) {
        return fail(fmt::format("feature \"{}\" is a bytes_list of {} values; allowed: 1",
                                request_.feature, feature.bytes_list().value_size()));
      }
      const std::string& bytes = feature.bytes_list().value(0);
      if (request_.shape.empty()) {
        return fail("data.shape is not set, and raw bytes have no shape",
                    "set data.shape = [HEIGHT, WIDTH, CHANNELS]");
      }
      const std::string_view format = image_format(bytes);
      if (!format.empty() && static_cast<int64_t>(bytes.size()) !=
                                 TensorType{DType::kPred, request_.shape}.elements()) {
        return fail(
            fmt::format("feature \"{}\" is a {} image; allowed: raw u8", request_.feature, format),
            "decode it when writing: tf.io.decode_image(x).numpy().tobytes()");
      }
      TWINRUN_RETURN_IF_ERROR(fit(static_cast<int64_t>(bytes.size()), "bytes"));
      raw_.pixels.insert(raw_.pixels.end(), bytes.begin(), bytes.end());
      if (!raw_.numbers.empty()) numbers_from_pixels();
    } else if (feature.has_float_list()) {
      const auto& values = feature.float_list().value();
      TWINRUN_RETURN_IF_ERROR(fit(values.size(), "numbers"));
      if (!raw_.pixels.empty()) numbers_from_pixels();
      raw_.numbers.insert(raw_.numbers.end(), values.begin(), values.end());
    } else {
      const auto& values = feature.int64_list().value();
      TWINRUN_RETURN_IF_ERROR(fit(values.size(), "numbers"));
      if (!raw_.pixels.empty()) numbers_from_pixels();
      for (const int64_t value : values) {
        if (value < -kMaxExact || value > kMaxExact) {
          return fail(fmt::format("{} is not exactly representable in float32; allowed: -{} to {}",
                                  value, kMaxExact, kMaxExact),
                      "write it as a float_list");
        }
        raw_.numbers.push_back(static_cast<float>(value));
      }
    }
    return Ok{};
  }

  // Called when records of bytes and of numbers occur together: converts the bytes to numbers.
  void numbers_from_pixels() {
    const size_t at = raw_.numbers.size();
    raw_.numbers.resize(at + raw_.pixels.size());
    normalize(raw_.pixels.data(), static_cast<int64_t>(raw_.pixels.size()),
              raw_.numbers.data() + at);
    raw_.pixels.clear();
  }

  Status add_tokens(const Feature& feature, const Feature& label) {
    const auto& tokens = feature.int64_list().value();
    const auto& labels = label.int64_list().value();
    if (!feature.has_int64_list() || tokens.empty()) {
      return fail(fmt::format(
          "feature \"{}\" is {}{}; expected token ids, an int64_list of at least one, because "
          "data.vocabulary is set",
          request_.feature, kind_of(feature), feature.has_int64_list() ? " of no values" : ""));
    }
    // For a sample of a single token, one label can be either kind, so a longer one must decide.
    if (!per_token_ && tokens.size() > 1) per_token_ = labels.size() > 1;
    const bool each = per_token_.value_or(false);
    if (labels.size() != (each ? tokens.size() : 1)) {
      return wrong_label(
          label, each ? fmt::format("{}, one per token", tokens.size()) : std::string("one class"));
    }
    if (padded() && tokens.size() > request_.window) {
      return fail(
          fmt::format("{} tokens; allowed: up to {} (data.window)", tokens.size(), request_.window),
          "raise data.window");
    }
    if (!padded()) TWINRUN_RETURN_IF_ERROR(fit(tokens.size(), "tokens"));
    const auto width = static_cast<size_t>(raw_.sample[0]);
    const size_t room = width - static_cast<size_t>(tokens.size());
    raw_.tokens.insert(raw_.tokens.end(), tokens.begin(), tokens.end());
    raw_.tokens.insert(raw_.tokens.end(), room, 0);
    raw_.labels.insert(raw_.labels.end(), labels.begin(), labels.end());
    raw_.labels.resize(raw_.tokens.size(), 0);  // samples() drops the excess
    if (padded()) {
      raw_.weights.insert(raw_.weights.end(), static_cast<size_t>(tokens.size()), 1.0f);
      raw_.weights.insert(raw_.weights.end(), room, 0.0f);
    }
    return Ok{};
  }

  const DataRequest& request_;
  RawSamples raw_;
  std::vector<First> firsts_;
  std::string place_;              // location of the record that is being added
  std::optional<bool> per_token_;  // whether labels are per token, once a record shows it
};

// Sets `per_file`, if given, to the number of samples of each file.
Result<Samples> read_files(const DataRequest& request, const std::vector<std::string>& files,
                           std::vector<int64_t>* per_file = nullptr) {
  Collector collector(request);
  for (const std::string& file : files) {
    TWINRUN_RETURN_IF_ERROR(collector.read(path_of(request, file)));
  }
  if (per_file != nullptr) *per_file = collector.per_file();
  return collector.samples();
}

}  // namespace

Result<Pool> tfrecord_pool(const DataRequest& request) {
  if (request.files.empty()) {
    return Error{"data.files names no file", request.where,
                 "set data.files = [\"train.tfrecord\"]"};
  }
  std::vector<int64_t> per_file;
  TWINRUN_ASSIGN(const Samples all, read_files(request, request.files, &per_file));
  Pool pool;
  if (request.eval_files.empty()) {
    TWINRUN_ASSIGN(pool, split_nine_to_one(
                             all, request, path_of(request, request.files[0]),
                             fmt::format("tfrecord ({} split 9:1)", fmt::join(request.files, ", ")),
                             std::move(per_file)));
  } else {
    pool.train = all;
    pool.train_files = std::move(per_file);
    DataRequest held_out = request;
    held_out.shape.assign(all.features.dims().begin() + 1, all.features.dims().end());
    TWINRUN_ASSIGN(pool.eval, read_files(held_out, request.eval_files));
    TWINRUN_RETURN_IF_ERROR(
        check_alike(request, all, pool.eval, path_of(request, request.eval_files[0])));
    pool.origin = fmt::format("tfrecord ({})", fmt::join(request.files, ", "));
  }
  pool.vocabulary = request.vocabulary;
  return pool;
}

}  // namespace twinrun::data
