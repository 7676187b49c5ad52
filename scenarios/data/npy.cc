// `npy` and `npz`: NumPy's files, with one array each, or a zip of named arrays.
// checkpoints/container/npy.h checks the format; arrays.h makes samples of the arrays.
#include "checkpoints/container/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scenarios/data/arrays.h"
#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

// Reads the files {features, labels} or {features, labels, weights}.
Result<Samples> read_files(const DataRequest& request, const std::vector<std::string>& files,
                           const char* key) {
  if (files.size() != 2 && files.size() != 3) {
    return Error{fmt::format("data.{} names {} files; allowed: 2 to 3", key, files.size()),
                 request.where,
                 fmt::format("set data.{} = [\"features.npy\", \"labels.npy\"]", key)};
  }
  std::vector<NamedArray> arrays;
  for (const std::string& file : files) {
    auto array = read_npy(path_of(request, file));
    if (!array) return placed(request, array.error());
    arrays.push_back(*std::move(array));
  }
  const auto at = [&](size_t i) { return PlacedArray{&arrays[i], path_of(request, files[i])}; };
  return array_samples(request, {at(0), at(1), files.size() == 3 ? at(2) : PlacedArray{}});
}

}  // namespace

Result<Pool> npy_pool(const DataRequest& request) {
  TWINRUN_ASSIGN(const Samples all, read_files(request, request.files, "files"));
  const std::string place = path_of(request, request.files[0]);
  Pool pool;
  if (request.eval_files.empty()) {
    TWINRUN_ASSIGN(pool, split_nine_to_one(all, request, place,
                                           fmt::format("npy ({} split 9:1)", request.files[0])));
  } else {
    pool.train = all;
    DataRequest held_out = request;
    held_out.shape.assign(all.features.dims().begin() + 1, all.features.dims().end());
    TWINRUN_ASSIGN(pool.eval, read_files(held_out, request.eval_files, "eval_files"));
    TWINRUN_RETURN_IF_ERROR(
        check_alike(request, all, pool.eval, path_of(request, request.eval_files[0])));
    pool.origin = fmt::format("npy ({})", request.files[0]);
  }
  pool.vocabulary = request.vocabulary;
  return pool;
}

Result<Pool> npz_pool(const DataRequest& request) {
  if (request.files.size() != 1) {
    return Error{fmt::format("data.files names {} files; allowed: 1", request.files.size()),
                 request.where, "set data.files = [\"data.npz\"]"};
  }
  const std::string path = path_of(request, request.files[0]);
  std::vector<std::string> names;
  for (const auto& [name, key] : wanted_arrays(request)) names.push_back(name);
  const auto file = read_npz(path, names);
  if (!file) return placed(request, file.error());
  return pool_of_file(request, *file, path);
}

}  // namespace twinrun::data
