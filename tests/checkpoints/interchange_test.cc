// Tests the matching of names: the rules, the maps that a user may write, and the errors when
// nothing fits.
#include <algorithm>

#include "tests/checkpoints/python.h"
#include "tests/checkpoints/small_model.h"

namespace twinrun {
namespace {

using samples::fixture;
using samples::text_of;

NameMap map_of(const std::string& text) {
  auto map = parse_name_map(text, "map.toml");
  EXPECT_TRUE(map.ok()) << map.error().message();
  return map ? *map : NameMap();
}

std::string map_error(const std::string& text, const std::string& path = "map.toml") {
  const auto map = parse_name_map(text, path);
  return map ? "" : map.error().message();
}

TEST(NameMap, ErrorsNameThePlace) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(map_error(text).find(part), std::string::npos) << text << "\n" << map_error(text);
  };
  EXPECT_EQ(map_error("\"a/b\" = \"c\"\n"), "");
  EXPECT_EQ(map_error("{\"a/b\": {\"name\": \"c\", \"transpose\": [1, 0]}}", "map.json"), "");
  says("a = \n", "map.toml:1");
  says("a = 3\n", "neither a name nor a table");
  says("a = { transpose = [0] }\n", "no 'name'");
  says("a = { name = \"b\", transpos = [0] }\n", "did you mean 'transpose'?");
  says("a = { name = \"b\", transpose = [0, 0] }\n", "not a permutation of 0 to 1");
  says("a = { name = \"b\", transpose = [1, 2] }\n", "not a permutation");
  says("a = { name = \"b\", reshape = [] }\n", "integers");
  says("a = { name = \"b\", reshape = [-1] }\n", "integers");
  says("a = { name = \"b\", reshape = [1.5] }\n", "integers");
  says("a = \"x\"\nb = \"x\"\n", "'x' is also named by 'a'");
  EXPECT_NE(map_error("[1]", "map.json").find("is not a JSON object"), std::string::npos);
  EXPECT_NE(map_error("{\"a\":", "map.json").find("is not a JSON object"), std::string::npos);
}

// NumPy computes the expected transpose of a reshape; the way back must restore the bits.
TEST(NameMap, LayoutsAreNumpys) {
  const std::string python = samples::python_with("numpy");
  if (python.empty()) GTEST_SKIP() << "needs python3-numpy";
  const Folder folder;
  const auto theirs = to_array("fc", samples::pattern({DType::kF32, {10, 24}}));
  samples::write_bytes(folder / "theirs", text_of(theirs.bytes));
  const auto seen = samples::run_python(python, folder, R"(
import numpy as np
a = np.frombuffer(open('theirs', 'rb').read(), 'u4').reshape(10, 24)
open('ours', 'wb').write(a.reshape(10, 2, 3, 4).transpose(2, 3, 1, 0).reshape(24, 10).tobytes())
)");
  ASSERT_EQ(seen.code, 0) << seen.text;
  const NameMapEntry entry{"fc", {2, 3, 1, 0}, {10, 2, 3, 4}, {10, 24}};
  const auto ours = to_our_layout(theirs, entry, {24, 10}, "w");
  ASSERT_TRUE(ours.ok()) << ours.error().message();
  EXPECT_EQ(ours->dims, (Dims{24, 10}));
  EXPECT_EQ(text_of(ours->bytes), samples::read_bytes(folder / "ours"));
  const auto back = to_their_layout(*ours, entry, "w");
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(back->dims, theirs.dims);
  EXPECT_EQ(back->bytes, theirs.bytes);

  EXPECT_FALSE(to_our_layout(theirs, {"fc", {1, 0, 2}, {}, {}}, {24, 10}, "w").ok());
  EXPECT_FALSE(to_our_layout(theirs, {"fc", {}, {7, 7}, {}}, {24, 10}, "w").ok());
  EXPECT_FALSE(to_our_layout(theirs, {"fc", {}, {240}, {}}, {24, 11}, "w").ok());
  EXPECT_FALSE(to_their_layout(theirs, {"fc", {0, 1, 2}, {}, {}}, "w").ok());
}

Result<Checkpoint> import(const samples::SmallModel& model, const std::string& file,
                          const NameMap& map, Conversion& report) {
  auto theirs = read_foreign_weights(fixture(file));
  if (!theirs) return theirs.error();
  return import_weights(model.initial, model.outline, *std::move(theirs), map, file, report);
}

TEST(Interchange, PyTorchsNamesAndLayoutsByAMap) {
  const auto model = samples::small_model();
  const auto map = read_name_map(fixture("torch_names.toml"));
  ASSERT_TRUE(map.ok()) << map.error().message();
  Conversion report;
  const auto c = import(model, "torch_names.safetensors", *map, report);
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_TRUE(samples::has_patterns(*c, model.outline));
  ASSERT_EQ(report.unused.size(), 1u);
  EXPECT_EQ(report.unused[0].theirs, "features.1.num_batches_tracked");
  // The export gives back the bits that were read.
  Conversion out;
  const auto written = export_weights(*c, model.outline, WeightsFormat::kSafetensors, *map, out);
  ASSERT_TRUE(written.ok()) << written.error().message();
  const auto theirs = read_foreign_weights(fixture("torch_names.safetensors"));
  for (const NamedArray& array : written->arrays) {
    const auto it = std::ranges::find(theirs->arrays, array.name, &NamedArray::name);
    ASSERT_NE(it, theirs->arrays.end()) << array.name;
    EXPECT_EQ(it->dims, array.dims);
    EXPECT_EQ(it->bytes, array.bytes);
  }
}

TEST(Interchange, WhatIsMissingIsListedWithTheNearest) {
  Conversion report;
  const auto error =
      import(samples::small_model(), "torch_names.safetensors", {}, report).error().message();
  EXPECT_NE(error.find("lacks 8 of the model's weights: 'conv1/kernel' f32[3,3,1,2] (nearest"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("--map"), std::string::npos);
}

TEST(Interchange, AMapNamesWhatIsThere) {
  Conversion report;
  const auto error_of = [&](const std::string& map) {
    return import(samples::small_model(), "keras2_weights.h5", map_of(map), report)
        .error()
        .message();
  };
  EXPECT_NE(error_of("\"conv1/kernal\" = \"conv1/kernel:0\"").find("did you mean 'conv1/kernel'?"),
            std::string::npos);
  EXPECT_NE(
      error_of("\"conv1/kernel\" = \"conv1/kernel:1\"").find("did you mean 'conv1/kernel:0'?"),
      std::string::npos);
}

TEST(Interchange, AShapeThatDiffersNamesBoth) {
  auto model = samples::small_model();
  Conversion report;
  model.initial.tensors.at("dense1/kernel").value = Tensor::zeros({DType::kF32, {10, 32}});
  const auto error = import(model, "keras2_weights.h5", {}, report).error().message();
  EXPECT_NE(error.find("'dense1/kernel:0' is float32[32,10] in the file; "
                       "'dense1/kernel' is f32[10,32] in the model"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("transpose = [1,0]"), std::string::npos) << error;
  model.initial.tensors.at("dense1/kernel").value = Tensor::zeros({DType::kF32, {33, 10}});
  EXPECT_NE(import(model, "keras2_weights.h5", {}, report).error().message().find("f32[33,10]"),
            std::string::npos);
}

TEST(Interchange, AnotherNumberOfLayersIsNoMatch) {
  auto model = samples::small_model(false, {"a", "b", "c"});
  samples::add_tensor(model, "d/kernel", {10, 10}, "parameter");
  model.outline.classes["d"] = "dense";
  Conversion report;
  EXPECT_NE(import(model, "keras2_weights.h5", {}, report).error().what.find("has 3 layers"),
            std::string::npos);
  EXPECT_NE(import(model, "keras3.weights.h5", {}, report)
                .error()
                .what.find("has 1 layers with weights of the class dense; the model has 2"),
            std::string::npos);
  samples::add_tensor(model, "c/extra", {1}, "parameter");
  model.outline.classes.erase("d");
  model.outline.names.erase(std::ranges::find(model.outline.names, "d/kernel"));
  EXPECT_NE(import(model, "keras2_weights.h5", {}, report)
                .error()
                .what.find("its layer 'dense1' has 2 weights; the model's 'c' has 3"),
            std::string::npos);
}

// Written weights are read back bit for bit, including slots and counters where the format has
// them.
TEST(Interchange, RoundTrips) {
  const Folder folder;
  const auto model = samples::small_model(true);
  Checkpoint c = model.initial;
  uint64_t salt = 9;
  for (auto& [name, tensor] : c.tensors)
    tensor.value = samples::pattern(tensor.value.type(), ++salt);
  for (const auto format : {WeightsFormat::kNpz, WeightsFormat::kSafetensors,
                            WeightsFormat::kKerasH5, WeightsFormat::kKeras3}) {
    SCOPED_TRACE(to_string(format));
    const bool keras = format >= WeightsFormat::kKerasH5;
    Conversion out, in;
    const auto weights = export_weights(c, model.outline, format, {}, out);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    const auto bytes = foreign_bytes(*weights, "w");
    ASSERT_TRUE(bytes.ok()) << bytes.error().message();
    samples::write_bytes(folder / "w", text_of(*bytes));
    auto theirs = read_foreign_weights(folder / "w");
    ASSERT_TRUE(theirs.ok()) << theirs.error().message();
    EXPECT_EQ(theirs->format, format);
    const auto back = import_weights(model.initial, model.outline, *std::move(theirs), {}, "w", in);
    ASSERT_TRUE(back.ok()) << back.error().message();
    EXPECT_EQ(in.rows.size(), keras ? 8u : 22u);
    EXPECT_EQ(in.initial.size(), keras ? 14u : 0u);
    for (const auto& [name, tensor] : c.tensors) {
      if (keras && (tensor.role == "slot" || tensor.role == "counter")) continue;
      EXPECT_TRUE(tensor.value.same_bits(back->tensors.at(name).value)) << name;
    }
  }
}

TEST(Interchange, ReplicasAndOneArray) {
  samples::SmallModel model;
  samples::add_tensor(model, "bn1/moving_mean", {4, 3}, "statistic");
  auto& tensor = model.initial.tensors.at("bn1/moving_mean");
  tensor.value = samples::pattern({DType::kF32, {4, 3}});
  tensor.replica_axis = true;
  Conversion report;
  const auto w = export_weights(model.initial, model.outline, WeightsFormat::kNpy, {}, report);
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(describe(w->arrays[0]), "float32[3]");
  EXPECT_EQ(report.rows[0].change, "replica 0 of 4");
  const Tensor first = tensor.value.rows(0, 1).reshaped({3});
  EXPECT_TRUE(to_tensor(w->arrays[0], DType::kF32, "")->same_bits(first));
  EXPECT_TRUE(foreign_bytes(*w, "w.npy").ok());
  const auto two = export_weights(samples::small_model().initial, samples::small_model().outline,
                                  WeightsFormat::kNpy, {}, report);
  EXPECT_NE(foreign_bytes(*two, "w.npy").error().message().find("write .npz"), std::string::npos);
}

TEST(Interchange, FilesThatAreNoWeights) {
  const Folder folder;
  const auto error_of = [&](const std::string& bytes) {
    samples::write_bytes(folder / "w", bytes);
    return read_foreign_weights(folder / "w").error().message();
  };
  EXPECT_NE(error_of("").find("not a weights file of a known format"), std::string::npos);
  EXPECT_NE(error_of("hello, this is text").find("allowed: "), std::string::npos);
  const std::string escape = R"({"a\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  const std::string length = {static_cast<char>(escape.size()), 0, 0, 0, 0, 0, 0, 0};
  EXPECT_NE(error_of(length + escape).find("control characters"), std::string::npos);
  EXPECT_NE(error_of("PK\x05\x06 and no more").find("zip"), std::string::npos);
  EXPECT_NE(read_foreign_weights(folder.path()).error().message().find("not a regular file"),
            std::string::npos);
  EXPECT_NE(read_foreign_weights("/dev/zero").error().message().find("not a regular file"),
            std::string::npos);
  ASSERT_TRUE(write_checkpoint(folder / "c.h5", samples::checkpoint()).ok());
  EXPECT_NE(read_foreign_weights(folder / "c.h5").error().message().find("twinrun's own"),
            std::string::npos);
  EXPECT_TRUE(*is_twinrun_file(folder / "c.h5"));
  EXPECT_FALSE(*is_twinrun_file(fixture("keras2_weights.h5")));
  EXPECT_FALSE(*is_twinrun_file(fixture("types.safetensors")));
}

}  // namespace
}  // namespace twinrun
