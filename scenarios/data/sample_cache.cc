// Reads, checks and writes the cache file of samples.
#include "scenarios/data/sample_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/safetensors.h"

namespace twinrun::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "twinrun samples, format 1";
constexpr size_t kHeaderStart = 4096;     // a cache file has kMark within its first bytes
constexpr int64_t kMaxClasses = 1 << 24;  // also the limit for a vocabulary

// A line "file train.tfrecord: 1234 bytes, time 5678, changed 9012" for each file that the source
// may read. Times are nanoseconds. Files of one archive may have the same size and the same time of
// their content; renaming one to another's name sets the time of change, which nothing can set back.
std::string files_of(const DataRequest& request) {
  std::vector<std::string> names = request.files;
  names.insert(names.end(), request.eval_files.begin(), request.eval_files.end());
  std::error_code ignored;
  if (names.empty() && !request.dir.empty()) {  // idx, cifar10: files of known names
    for (const auto& entry : fs::directory_iterator(request.dir, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.find(request.source == "idx" ? "ubyte" : "_batch") != std::string::npos)
        names.push_back(name);
    }
    std::ranges::sort(names);
  }
  std::string out;
  for (const std::string& name : names) {
    const std::string path = path_of(request, name);
    struct stat info {};
    static_cast<void>(::stat(path.c_str(), &info));  // reading a missing file gives the error
    const auto nanoseconds = [](const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; };
    out += fmt::format("file {}: {} bytes, time {}, changed {}\n", name, info.st_size,
                       nanoseconds(info.st_mtim), nanoseconds(info.st_ctim));
  }
  return out;
}

// Everything that decides which samples a source gives, as lines of text.
std::string identity(const DataRequest& r) {
  const bool drawn = r.files.empty() && r.dir.empty();
  return fmt::format(
             "source {}\nfiles {}\neval_files {}\nfeature {}\nlabel {}\nweight {}\n"
             "eval_feature {}\neval_label {}\neval_weight {}\ntokens {}\nwindow {}\n"
             "vocabulary {}\nshape {}\nclasses {}\ntrain {}\neval {}\nseed {}\ncycle_length {}\n",
             r.source, r.files, r.eval_files, r.feature, r.label, r.weight, r.eval_feature,
             r.eval_label, r.eval_weight, r.tokens, r.window, r.vocabulary, to_string(r.shape),
             r.classes, r.train, r.eval, drawn ? r.seed : 0, r.cycle_length) +
         files_of(r);
}

// The first line that differs, both versions of it: "train 100", now "train 200".
std::string difference(std::string_view was, std::string_view now) {
  while (!was.empty() || !now.empty()) {
    const std::string_view a = was.substr(0, was.find('\n')), b = now.substr(0, now.find('\n'));
    if (a != b) return fmt::format("\"{}\", now \"{}\"", a, b);
    was.remove_prefix(std::min(was.size(), a.size() + 1));
    now.remove_prefix(std::min(now.size(), b.size() + 1));
  }
  return "";
}

bool below(const Tensor& integers, int64_t limit) {
  return std::ranges::all_of(integers.as<int32_t>(),
                             [&](int32_t v) { return v >= 0 && v < limit; });
}

// Whether the samples are valid, by the rules for all sources. They are checked again here because
// the file may have been written or changed by anything.
bool sound(const Samples& s, int64_t classes, int64_t vocabulary) {
  const Tensor &x = s.features, &y = s.labels;
  if (!x.valid() || !y.valid() || x.dims().size() < 2 || x.elements() == 0) return false;
  if (x.dtype() != (vocabulary > 0 ? DType::kI32 : DType::kF32) || y.dtype() != DType::kI32)
    return false;
  if (y.dims() != Dims{x.dims()[0]} && (vocabulary == 0 || y.dims() != x.dims())) return false;
  if (!below(y, classes)) return false;
  if (s.weights.valid()) {
    if (s.weights.type() != TensorType{DType::kF32, x.dims()}) return false;
    if (!std::ranges::all_of(s.weights.as<float>(), [](float w) { return w == 0 || w == 1; }))
      return false;
  }
  if (vocabulary > 0) return below(x, vocabulary);
  return std::ranges::all_of(x.as<float>(), [](float v) { return std::isfinite(v); });
}

std::optional<int64_t> number_of(const ArrayFile& file, const char* key) {
  const auto found = file.metadata.find(key);
  int64_t value = -1;
  if (found == file.metadata.end()) return std::nullopt;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (value < 0 || value > kMaxClasses) return std::nullopt;
  return value;
}

// Digest of everything in the file except what it was made from.
Digest seal_of(const Dataset& data) {
  DigestBuilder builder;
  builder.add(data.digest);
  builder.add(fmt::format("{} classes, vocabulary {}", data.classes, data.vocabulary));
  builder.add(data.description);
  return builder.finish();
}

// Reads the tensors of one part ("train" or "eval"); absent ones are not valid().
Result<Samples> samples_of(const ArrayFile& file, const std::string& part,
                           const std::string& path) {
  Samples out;
  for (const auto& [name, to] :
       {std::pair{"features", &out.features}, {"labels", &out.labels}, {"weights", &out.weights}}) {
    const auto found = std::ranges::find(file.arrays, part + "/" + name, &NamedArray::name);
    if (found == file.arrays.end()) continue;
    const DType type = found->type == ElementType::kI32 ? DType::kI32 : DType::kF32;
    TWINRUN_ASSIGN(*to, to_tensor(*found, type, path));
  }
  return out;
}

// The data set in the file; nothing if the content is invalid or does not match its digest.
std::optional<Dataset> dataset_of(const ArrayFile& file, const std::string& path) {
  auto train = samples_of(file, "train", path), eval = samples_of(file, "eval", path);
  const auto classes = number_of(file, "classes"), vocabulary = number_of(file, "vocabulary");
  const auto digest = file.metadata.find("digest"), text = file.metadata.find("description");
  if (!train || !eval || !classes || !vocabulary || digest == file.metadata.end() ||
      text == file.metadata.end())
    return std::nullopt;
  Dataset out{*std::move(train), *std::move(eval), *classes, *vocabulary, text->second, {}, {}, {}};
  for (const Samples* s : {&out.train, &out.eval}) {
    if (!sound(*s, out.classes, out.vocabulary)) return std::nullopt;
  }
  const Dims &a = out.train.features.dims(), &b = out.eval.features.dims();
  if (!std::equal(a.begin() + 1, a.end(), b.begin() + 1, b.end())) return std::nullopt;
  if (out.train.weights.valid() != out.eval.weights.valid()) return std::nullopt;
  out.digest = digest_of(out);
  if (seal_of(out).hex() != digest->second) return std::nullopt;
  return out;
}

bool has_mark(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min(bytes.size(), kHeaderStart));
  return text.find(kMark) != std::string_view::npos;
}

void add(const Samples& s, const std::string& part, ArrayFile& file) {
  file.arrays.push_back(to_array(part + "/features", s.features));
  file.arrays.push_back(to_array(part + "/labels", s.labels));
  if (s.weights.valid()) file.arrays.push_back(to_array(part + "/weights", s.weights));
}

}  // namespace

Result<Cached> read_cache(const DataRequest& request) {
  const std::string& path = request.cache;
  Cached out;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    out.note = fmt::format("data.cache: {} does not exist yet", path);
    return out;
  }
  const auto bytes = read_whole_file(path);
  if (!bytes) return placed(request, bytes.error());
  if (!has_mark(*bytes)) {
    return Error{"data.cache names a file that is not a cache of samples",
                 join_where(request.where, path),
                 "name another file, or remove this one; it is not overwritten"};
  }
  const auto again = [&](const std::string& why) {
    out.note = fmt::format("data.cache: {} is written again: {}", path, why);
    return out;
  };
  const auto file = parse_safetensors(*bytes, path);
  if (!file) return again("it is damaged (" + file.error().what + ")");
  const auto made_from = file->metadata.find("made_from");
  const std::string now = identity(request);
  if (made_from == file->metadata.end())
    return again("it does not name the data that it was made from");
  if (made_from->second != now) {
    return again("it was made from other data: " + difference(made_from->second, now));
  }
  out.data = dataset_of(*file, path);
  if (!out.data) return again("its content does not match its digest and keys");
  out.note = fmt::format("data.cache: samples read from {}", path);
  return out;
}

Status write_cache(const DataRequest& request, const Dataset& data) {
  ArrayFile file;
  add(data.train, "train", file);
  add(data.eval, "eval", file);
  file.metadata = {{"cache", kMark},  // first in name order, so it lies near the file's beginning
                   {"classes", fmt::format("{}", data.classes)},
                   {"description", data.description},
                   {"digest", seal_of(data).hex()},
                   {"made_from", identity(request)},
                   {"vocabulary", fmt::format("{}", data.vocabulary)}};
  const auto bytes = to_safetensors(file, request.cache);
  if (!bytes) return placed(request, bytes.error());
  const Status written = write_file_atomically(request.cache, *bytes);
  if (written) return Ok{};
  Error error = placed(request, written.error());
  error.fix = "set data.cache to a file that can be written, or to \"memory\"";
  return error;
}

}  // namespace twinrun::data
