// `idx`: MNIST's IDX files (yann.lecun.com/exdb/mnist, "The IDX file format"): two zero bytes, the
// element type (8: u8), the rank, the dimensions as big-endian u32, then the elements.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "scenarios/data/byte_reader.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 31;  // MNIST has 47 MB

struct Idx {
  Dims dims;
  std::vector<uint8_t> elements;
};

std::string_view type_name(uint8_t code) {
  switch (code) {
    case 0x08:
      return "u8";
    case 0x09:
      return "i8";
    case 0x0B:
      return "i16";
    case 0x0C:
      return "i32";
    case 0x0D:
      return "f32";
    case 0x0E:
      return "f64";
    default:
      return "an unknown type";
  }
}

class IdxReader {
 public:
  IdxReader(const std::string& prefix, const std::string& path) : prefix_(prefix), path_(path) {}

  // `labels`: rank 1; otherwise images: rank 3 (n, h, w) or 4 (n, h, w, c).
  Result<Idx> read(bool labels) {
    auto opened = ByteReader::open(path_);
    if (!opened) return placed(opened.error());
    reader_ = *std::move(opened);
    Idx idx;
    TWINRUN_ASSIGN(idx.dims, header(labels));
    TWINRUN_ASSIGN(const int64_t size, bytes_of(idx.dims));
    TWINRUN_RETURN_IF_ERROR(body(size, idx.elements));
    return idx;
  }

 private:
  Error fail(std::string what, std::string fix = "download the file again") const {
    return {std::move(what), join_where(prefix_, path_), std::move(fix)};
  }
  Error placed(Error error) const {
    error.where = join_where(prefix_, error.where);
    return error;
  }
  Result<size_t> take(uint8_t* out, size_t size) {
    auto got = reader_->read(out, size);
    if (!got) return placed(got.error());
    return got;
  }

  Result<Dims> header(bool labels) {
    uint8_t magic[4];
    TWINRUN_ASSIGN(const size_t got, take(magic, 4));
    if (got < 4) return fail(fmt::format("truncated: {} bytes, an IDX header has at least 8", got));
    if (magic[0] != 0 || magic[1] != 0 || type_name(magic[2]) == "an unknown type") {
      return fail(fmt::format("not an IDX file: it begins with {:02x} {:02x} {:02x} {:02x}; "
                              "images begin with 00 00 08 03, labels with 00 00 08 01",
                              magic[0], magic[1], magic[2], magic[3]),
                  "give the MNIST IDX files, raw or gzip");
    }
    if (magic[2] != 0x08) {
      return fail(fmt::format("the elements are {} (type {:02x}); allowed: u8 (08)",
                              type_name(magic[2]), magic[2]),
                  "convert the file to u8");
    }
    const int rank = magic[3];
    if (!labels && rank == 1) {
      return fail("this file holds labels; expected images (magic 00 00 08 01, not 00 00 08 03)",
                  "swap the two: data.files = [\"IMAGES\", \"LABELS\"]");
    }
    if (labels && (rank == 3 || rank == 4)) {
      return fail(fmt::format("this file holds images; expected labels (magic 00 00 08 {:02x}, "
                              "not 00 00 08 01)",
                              rank),
                  "swap the two: data.files = [\"IMAGES\", \"LABELS\"]");
    }
    if (labels ? rank != 1 : (rank != 3 && rank != 4)) {
      return fail(fmt::format("the array has {} dimensions; allowed: {}", rank,
                              labels ? "1 (labels)" : "3 or 4 (images)"),
                  "");
    }
    uint8_t raw[16];
    const size_t size = 4 * static_cast<size_t>(rank);
    TWINRUN_ASSIGN(const size_t sizes, take(raw, size));
    if (sizes < size) {
      return fail(
          fmt::format("truncated in the header: found {} of {} bytes", 4 + sizes, 4 + size));
    }
    Dims dims;
    for (int d = 0; d < rank; ++d) {
      const uint8_t* b = raw + 4 * d;
      dims.push_back(int64_t{b[0]} << 24 | int64_t{b[1]} << 16 | int64_t{b[2]} << 8 | b[3]);
    }
    return dims;
  }

  Result<int64_t> bytes_of(const Dims& dims) const {
    int64_t size = 1;
    for (int64_t d : dims) {
      if (d == 0) return fail(fmt::format("the header declares {}: no samples", to_string(dims)));
      if (d > kMaxBytes / size) {
        return fail(fmt::format("the header declares {}; allowed: at most {} bytes",
                                to_string(dims), kMaxBytes));
      }
      size *= d;
    }
    return size;
  }

  // Read in pieces, so that a header with a false size does not allocate that much memory.
  Status body(int64_t size, std::vector<uint8_t>& out) {
    constexpr int64_t kPiece = 1 << 20;
    while (static_cast<int64_t>(out.size()) < size) {
      const size_t have = out.size();
      const auto piece = static_cast<size_t>(std::min(kPiece, size - static_cast<int64_t>(have)));
      out.resize(have + piece);
      TWINRUN_ASSIGN(const size_t got, take(out.data() + have, piece));
      if (got < piece) {
        return fail(
            fmt::format("truncated: the header declares {} bytes of elements; the file has {}",
                        size, have + got));
      }
    }
    uint8_t extra;
    TWINRUN_ASSIGN(const size_t more, take(&extra, 1));
    if (more > 0) {
      return fail(fmt::format("trailing bytes after the {} that the header declares", size));
    }
    return Ok{};
  }

  std::string prefix_, path_;
  std::unique_ptr<ByteReader> reader_;
};

Result<Samples> read_pair(const DataRequest& request, const std::string& images_path,
                          const std::string& labels_path) {
  TWINRUN_ASSIGN(Idx images, IdxReader(request.where, images_path).read(false));
  TWINRUN_ASSIGN(Idx labels, IdxReader(request.where, labels_path).read(true));
  const Dims& found = images.dims;
  const Dims dims = {found[0], found[1], found[2], found.size() == 4 ? found[3] : 1};
  if (dims[0] != labels.dims[0]) {
    return Error{
        fmt::format("{} images in {}, but {} labels", dims[0], images_path, labels.dims[0]),
        join_where(request.where, labels_path), "give the two files of one set"};
  }
  const Dims shape(dims.begin() + 1, dims.end());
  if (!request.shape.empty() && request.shape != shape) {
    return Error{fmt::format("the images are {}, but data.shape is {}", to_string(shape),
                             to_string(request.shape)),
                 join_where(request.where, images_path),
                 fmt::format("set data.shape = [{}]", fmt::join(shape, ", "))};
  }
  Samples samples{
      pixel_features(request, images.elements, dims), Tensor::empty({DType::kI32, {dims[0]}}), {}};
  for (size_t i = 0; i < labels.elements.size(); ++i) {
    if (labels.elements[i] >= request.classes) {
      const int most = *std::max_element(labels.elements.begin(), labels.elements.end());
      return Error{fmt::format("label {}; allowed: 0 to {} (data.classes is {})",
                               labels.elements[i], request.classes - 1, request.classes),
                   join_where(request.where, fmt::format("{}: record {}", labels_path, i)),
                   fmt::format("set data.classes = {} or correct the file", most + 1)};
    }
    samples.labels.as<int32_t>()[i] = labels.elements[i];
  }
  return samples;
}

Result<Pool> split(const Samples& all, const DataRequest& request, const std::string& path) {
  return split_nine_to_one(
      all, request, path,
      fmt::format("idx ({} split 9:1)", std::filesystem::path(path).filename().string()));
}

struct Pair {
  std::string images, labels;
};

// The files "SET-images-idx3-ubyte" and its labels, in the spellings in use ('-' or '.', raw or
// gzip).
std::optional<Pair> find_pair(const std::string& dir, const std::string& set) {
  const auto find = [&](const char* what, int rank) -> std::string {
    for (const char* dash : {"-", "."}) {
      for (const char* packed : {"", ".gz"}) {
        const auto path = std::filesystem::path(dir) /
                          fmt::format("{}-{}{}idx{}-ubyte{}", set, what, dash, rank, packed);
        std::error_code ignored;
        if (std::filesystem::exists(path, ignored)) return path.string();
      }
    }
    return "";
  };
  Pair pair{find("images", 3), find("labels", 1)};
  if (pair.images.empty() || pair.labels.empty()) return std::nullopt;
  return pair;
}

}  // namespace

Result<Pool> idx_pool(const DataRequest& request) {
  TWINRUN_RETURN_IF_ERROR(check_classes(request, 2, 256));
  if (!request.files.empty()) {
    if (request.files.size() != 2) {
      return Error{fmt::format("data.files names {} files; allowed: 2", request.files.size()),
                   request.where, "data.files = [\"IMAGES\", \"LABELS\"]"};
    }
    std::string paths[2];
    for (int i = 0; i < 2; ++i) {
      paths[i] =
          (std::filesystem::path(request.dir) / request.files[static_cast<size_t>(i)]).string();
    }
    TWINRUN_ASSIGN(Samples all, read_pair(request, paths[0], paths[1]));
    return split(all, request, paths[0]);
  }

  const auto train = find_pair(request.dir, "train"), held_out = find_pair(request.dir, "t10k");
  if (!train && !held_out) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(request.dir, ignored);
    return Error{
        fmt::format("{}; looked for train-images-idx3-ubyte[.gz] with train-labels-idx1-ubyte"
                    "[.gz], then t10k-images-idx3-ubyte[.gz] with t10k-labels-idx1-ubyte[.gz]",
                    request.dir.empty() ? "data.dir is not set"
                    : folder            ? "no pair of IDX files in this folder"
                                        : "no such folder"),
        join_where(request.where, request.dir),
        "set data.dir to the folder of the MNIST files (--set data.dir=PATH)"};
  }
  if (!train || !held_out) {
    const Pair& only = train ? *train : *held_out;
    TWINRUN_ASSIGN(Samples all, read_pair(request, only.images, only.labels));
    return split(all, request, only.images);
  }
  Pool pool;
  TWINRUN_ASSIGN(pool.train, read_pair(request, train->images, train->labels));
  TWINRUN_ASSIGN(pool.eval, read_pair(request, held_out->images, held_out->labels));
  const auto shape = [](const Samples& s) {
    return Dims(s.features.dims().begin() + 1, s.features.dims().end());
  };
  if (shape(pool.train) != shape(pool.eval)) {
    return Error{fmt::format("the held-out images are {}, the training images {}",
                             to_string(shape(pool.eval)), to_string(shape(pool.train))),
                 join_where(request.where, held_out->images), "give the files of one set"};
  }
  pool.origin = "idx (train and t10k files)";
  return pool;
}

}  // namespace twinrun::data
