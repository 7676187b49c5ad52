// Readers of array files, and of what is built of them: npy, npz, zip, safetensors, step results.
#include <fmt/format.h>

#include <cstring>

#include "backends/exec/arrays.h"
#include "checkpoints/container/npy.h"
#include "checkpoints/container/safetensors.h"
#include "checkpoints/container/zip.h"
#include "tests/fuzz/reader.h"

namespace twinrun::fuzz {
namespace {

NamedArray array(std::string name, ElementType type, Dims dims) {
  NamedArray out{std::move(name), type, std::move(dims), {}};
  out.bytes.resize(*checked_bytes(type, out.dims), std::byte{1});
  return out;
}

ArrayFile arrays() {
  return {{array("a", ElementType::kF32, {3}), array("b/c", ElementType::kI64, {2, 2}),
           array("none", ElementType::kBool, {0, 4}), array("one", ElementType::kF16, {})},
          {{"format", "pt"}},
          {}};
}

bool same(const NamedArray& a, const NamedArray& b) {
  return a.name == b.name && a.type == b.type && a.dims == b.dims && a.bytes == b.bytes;
}

void require_sound(const NamedArray& array) {
  require(checked_bytes(array.type, array.dims) == array.bytes.size(),
          "bytes do not fit the shape");
}

void check_npy(std::string_view bytes) {
  const auto array = parse_npy(bytes_of(bytes), "x", "x.npy");
  if (!accepted(array)) return;
  require_sound(*array);
  const auto written = must(to_npy(*array, "y.npy"), "an array cannot be written");
  require(same(*array, must(parse_npy(written, "x", "y.npy"), "a written npy is refused")),
          "an npy file changes when written and read");
  (void)accepted(to_tensor(*array, DType::kF32, "x"));
}

void check_npz(std::string_view bytes) {
  const auto file = parse_npz(bytes_of(bytes), "x.npz");
  if (!accepted(file)) return;
  for (const NamedArray& array : file->arrays) require_sound(array);
  const auto written = to_npz(file->arrays, "y.npz");
  if (!accepted(written)) return;  // names that NumPy would not find again
  const auto again = must(parse_npz(*written, "y.npz"), "a written npz is refused");
  require(again.arrays.size() == file->arrays.size(), "a written npz has other arrays");
  for (size_t i = 0; i < again.arrays.size(); ++i)
    require(same(again.arrays[i], file->arrays[i]), "an npz file changes when written and read");
}

void check_zip(std::string_view bytes) {
  constexpr uint64_t kMost = 1 << 20;
  const auto members = read_zip(
      bytes_of(bytes), "x.zip", [](const std::string&) { return true; }, kMost);
  if (!accepted(members)) return;
  uint64_t total = 0;
  for (const ZipMember& member : *members) {
    total += member.bytes.size();
    require(!member.name.starts_with('/') && member.name.find("..") != 0 &&
                member.name.find("/../") == std::string::npos,
            "a member leaves its folder: " + member.name);
  }
  require(total <= bytes.size() + kMost, "unpacks to more than allowed");
  const auto written = must(to_zip(*members, "y.zip"), "members cannot be written");
  const auto again = must(read_zip(written, "y.zip", [](const std::string&) { return true; }),
                          "a written zip is refused");
  require(again.size() == members->size(), "a written zip has other members");
  for (size_t i = 0; i < again.size(); ++i) {
    require_same(again[i].name, (*members)[i].name, "the name of a member");
    require(again[i].bytes == (*members)[i].bytes, "a member changes when written and read");
  }
}

void check_safetensors(std::string_view bytes) {
  const auto file = parse_safetensors(bytes_of(bytes), "x");
  if (!accepted(file)) return;
  for (const NamedArray& array : file->arrays) require_sound(array);
  const auto written = to_safetensors(*file, "y");
  if (!accepted(written)) return;
  const auto again = must(parse_safetensors(*written, "y"), "a written safetensors is refused");
  require(again.arrays.size() == file->arrays.size() && again.metadata == file->metadata,
          "a written safetensors has other arrays or metadata");
  require(must(to_safetensors(again, "y"), "cannot be written again") == *written,
          "a safetensors file changes when written and read");
}

const TensorType kKernel{DType::kF32, {5, 3}}, kCount{DType::kI32, {}}, kMask{DType::kPred, {4}},
    kLoss{DType::kF32, {}};
constexpr size_t kReplicas = 4;

// A result as a served engine writes it, for replicas that differ only in the loss.
std::string step_result() {
  ArrayFile file;
  exec::add_arrays(file, "state/kernel", std::vector<Tensor>(kReplicas, Tensor::zeros(kKernel)));
  exec::add_arrays(file, "state/count", std::vector<Tensor>(kReplicas, Tensor::zeros(kCount)));
  exec::add_arrays(file, "state/mask", std::vector<Tensor>(kReplicas, Tensor::zeros(kMask)));
  std::vector<Tensor> losses;
  for (size_t r = 0; r < kReplicas; ++r) {
    losses.push_back(Tensor::zeros(kLoss));
    losses.back().as<float>()[0] = static_cast<float>(r);
  }
  exec::add_arrays(file, "output/loss", losses);
  return text_of(*to_safetensors(file, "result"));
}

void check_step_result(std::string_view bytes) {
  constexpr const char* kWhere = "exec:e: r";
  (void)as_file("r.safetensors", bytes);
  auto read = exec::read_result(folder_path(), "r.safetensors", 4096, kWhere);
  const auto names_it = [&](const auto& result) {
    if (!accepted(result)) {
      require(result.error().where.starts_with(kWhere), "an error without its place");
    }
  };
  names_it(read);
  if (!read) return;
  const exec::ResultArrays arrays(*std::move(read), kWhere);
  for (const auto& [name, type] : {std::pair("state/kernel", kKernel),
                                   {"state/count", kCount},
                                   {"state/mask", kMask},
                                   {"output/loss", kLoss}}) {
    const auto values = arrays.take(name, type, kReplicas);
    names_it(values);
    if (!values) continue;
    require(values->size() == kReplicas, "not one value for each replica");
    for (const Tensor& value : *values) require(value.type() == type, "a value of another type");
  }
  names_it(arrays.only("output/", {"output/loss"}));
}

}  // namespace

std::vector<Reader> array_readers() {
  const auto zipped = [] {
    return std::vector<std::string>{
        text_of(*to_npz(arrays().arrays, "w.npz")), fixture("scenarios/fixtures/pixels.npz"),
        text_of(
            *to_zip({{"a/b.txt", std::vector<std::byte>(300), true}}, "", ZipPacking::kDeflated))};
  };
  return {
      {"npy", Kind::kBinary, "NumPy arrays (.npy)", 4096,
       [] {
         std::vector<std::string> out{fixture("scenarios/fixtures/numbers_f64_fortran.npy")};
         for (const NamedArray& array : arrays().arrays) out.push_back(text_of(*to_npy(array, "")));
         return out;
       },
       &check_npy},
      {"npz", Kind::kBinary, "NumPy archives (.npz)", 4096, zipped, &check_npz},
      {"zip", Kind::kBinary, "zip archives", 4096, zipped, &check_zip},
      {"safetensors", Kind::kBinary, "safetensors", 4096,
       [] {
         return std::vector<std::string>{fixture("checkpoints/fixtures/types.safetensors"),
                                         text_of(*to_safetensors(arrays(), ""))};
       },
       &check_safetensors},
      {"step_result", Kind::kBinary, "results of a foreign engine's step", 4096,
       [] { return std::vector<std::string>{step_result()}; }, &check_step_result},
  };
}

}  // namespace twinrun::fuzz
