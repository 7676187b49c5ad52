// Tests Keras files: those that Keras 3 and tf_keras (Keras 2) wrote, ours as h5py reads them, and
// hostile ones.
#include "checkpoints/interchange/keras.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>

#include "tests/checkpoints/python.h"
#include "tests/checkpoints/small_model.h"

namespace twinrun {
namespace {

using samples::bytes_of;
using samples::fixture;
using samples::text_of;

class KerasFiles : public testing::TestWithParam<const char*> {};

TEST_P(KerasFiles, EveryWeightFindsItsPlace) {
  const auto model = samples::small_model();
  auto theirs = read_foreign_weights(fixture(GetParam()));
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  EXPECT_EQ(theirs->arrays.size(), 8u);
  EXPECT_TRUE(theirs->ignored.empty()) << theirs->ignored.front();
  Conversion report;
  const auto c = import_weights(model.initial, model.outline, *std::move(theirs), {}, "f", report);
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_TRUE(samples::has_patterns(*c, model.outline));
  EXPECT_EQ(report.rows.size(), 8u);
  EXPECT_TRUE(report.unused.empty());
}

// If no file has the names of the model, layers are matched by position.
TEST_P(KerasFiles, ByPosition) {
  const auto model = samples::small_model(false, {"first", "second", "third"});
  auto theirs = read_foreign_weights(fixture(GetParam()));
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  Conversion report;
  const auto c = import_weights(model.initial, model.outline, *std::move(theirs), {}, "f", report);
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_TRUE(samples::has_patterns(*c, model.outline));
  for (const auto& row : report.rows) {
    EXPECT_NE(row.how.find("position"), std::string::npos) << row.ours << " by " << row.how;
  }
}

INSTANTIATE_TEST_SUITE_P(Keras, KerasFiles,
                         testing::Values("keras2_weights.h5", "keras2_whole.h5",
                                         "keras3_legacy_whole.h5", "keras3.weights.h5",
                                         "keras3_unnamed.weights.h5", "keras3_adam.keras"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

// Other classes of layers, imported and exported again. A depthwise kernel has the same elements in
// another shape.
TEST(Keras, OtherClassesAndShapes) {
  samples::SmallModel model;
  const auto layer = [&](const std::string& name, const char* kind,
                         const std::map<std::string, Dims>& variables) {
    for (const char* variable : {"kernel", "gamma", "bias", "beta"}) {
      const auto it = variables.find(variable);
      if (it != variables.end()) add_tensor(model, name + "/" + variable, it->second, "parameter");
    }
    model.outline.classes[name] = kind;
  };
  layer("conv1", "conv2d", {{"kernel", {1, 1, 1, 2}}, {"bias", {2}}});
  layer("dw1", "depthwise_conv2d", {{"kernel", {3, 3, 1, 4}}, {"bias", {4}}});
  layer("ct1", "conv2d_transpose", {{"kernel", {2, 2, 3, 4}}, {"bias", {3}}});
  layer("gn1", "group_normalization", {{"gamma", {3}}, {"beta", {3}}});
  layer("ln1", "layer_normalization", {{"gamma", {3}}, {"beta", {3}}});
  layer("dense1", "dense", {{"kernel", {48, 10}}, {"bias", {10}}});
  model.outline.keras_dims["dw1/kernel"] = {3, 3, 2, 2};
  auto theirs = read_foreign_weights(fixture("keras3_layers.weights.h5"));
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  Conversion report;
  const auto c = import_weights(model.initial, model.outline, *theirs, {}, "f", report);
  ASSERT_TRUE(c.ok()) << c.error().message();
  for (size_t v = 0; v < model.outline.names.size(); ++v) {
    const std::string& name = model.outline.names[v];
    EXPECT_TRUE(samples::is_pattern(c->tensors.at(name).value, static_cast<int>(v))) << name;
  }
  const auto back = export_weights(*c, model.outline, WeightsFormat::kKeras3, {}, report);
  ASSERT_TRUE(back.ok()) << back.error().message();
  for (const NamedArray& array : back->arrays) {
    const auto it = std::ranges::find(theirs->arrays, array.name, &NamedArray::name);
    ASSERT_NE(it, theirs->arrays.end()) << array.name;
    EXPECT_EQ(it->dims, array.dims) << array.name;
    EXPECT_EQ(it->bytes, array.bytes) << array.name;
  }
}

TEST(Keras, Bfloat16IsExact) {
  auto theirs = read_foreign_weights(fixture("keras3_bfloat16.weights.h5"));
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  ASSERT_EQ(theirs->arrays.size(), 2u);
  EXPECT_EQ(describe(theirs->arrays[0]), "bfloat16[2,3]");
  const auto kernel = to_tensor(theirs->arrays[0], DType::kF32, "");
  ASSERT_TRUE(kernel.ok());
  EXPECT_TRUE(samples::is_pattern(*kernel, 0));
}

TEST(Keras, AdamIsCarried) {
  const auto model = samples::small_model(true);
  auto theirs = read_foreign_weights(fixture("keras3_adam.keras"));
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  EXPECT_EQ(theirs->optimizer_name, "adam");
  EXPECT_EQ(theirs->iterations, 5);
  Conversion report;
  const auto c = import_weights(model.initial, model.outline, *std::move(theirs), {}, "f", report);
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_TRUE(report.initial.empty());
  // Element i of optimizer variable v is 100 + v + i / 64; variables 0 and 1 are iterations and
  // learning_rate.
  int v = 2;
  for (const char* name :
       {"conv1/kernel", "conv1/bias", "bn1/gamma", "bn1/beta", "dense1/kernel", "dense1/bias"}) {
    for (const char* slot : {".adam_m", ".adam_v"}) {
      EXPECT_TRUE(samples::is_pattern(c->tensors.at(std::string(name) + slot).value, 99 + v))
          << name;
      ++v;
    }
  }
  float power = 0.9f;
  for (int i = 0; i < 5; ++i) power = power * 0.9f;
  EXPECT_EQ(c->tensors.at("adam/beta1_power").value.as<float>()[0], power);
}

TEST(Keras, WithoutAdamsSlotsItsVariablesAreNamed) {
  const auto model = samples::small_model(false);
  auto theirs = read_foreign_weights(fixture("keras3_adam.keras"));
  ASSERT_TRUE(theirs.ok());
  Conversion report;
  ASSERT_TRUE(
      import_weights(model.initial, model.outline, *std::move(theirs), {}, "f", report).ok());
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("not converted: Keras's 14 optimizer variables"),
            std::string::npos);
}

Checkpoint filled(const samples::SmallModel& model) {
  Checkpoint c = model.initial;
  uint64_t salt = 1;
  for (auto& [name, tensor] : c.tensors)
    tensor.value = samples::pattern(tensor.value.type(), ++salt);
  return c;
}

TEST(Keras, H5pySeesWhatKerasWouldWrite) {
  const std::string python = samples::python_with("h5py, numpy");
  if (python.empty()) GTEST_SKIP() << "needs python3-h5py";
  const Folder folder;
  const auto model = samples::small_model();
  const Checkpoint c = filled(model);
  for (const auto format : {WeightsFormat::kKerasH5, WeightsFormat::kKeras3}) {
    Conversion report;
    auto w = export_weights(c, model.outline, format, {}, report);
    ASSERT_TRUE(w.ok()) << w.error().message();
    const auto bytes = foreign_bytes(*w, "w.h5");
    ASSERT_TRUE(bytes.ok()) << bytes.error().message();
    EXPECT_EQ(*bytes, *foreign_bytes(*w, "w.h5")) << "equal weights make equal bytes";
    samples::write_bytes(folder / (std::string(to_string(format)) + ".h5"), text_of(*bytes));
  }
  const auto array = to_array("x", c.tensors.at("dense1/kernel").value);
  samples::write_bytes(folder / "raw", text_of(array.bytes));
  const auto seen = samples::run_python(python, folder, R"(
import h5py
raw = open('raw', 'rb').read()
f = h5py.File('keras_h5.h5', 'r')
text = lambda a: [x.decode() for x in a]
assert text(f.attrs['layer_names']) == ['conv1', 'bn1', 'dense1'], f.attrs['layer_names']
assert f.attrs['backend'].decode() == 'tensorflow' and f.attrs['keras_version'].decode()[0] == '2'
assert text(f['bn1'].attrs['weight_names']) == ['bn1/gamma:0', 'bn1/beta:0', 'bn1/moving_mean:0', 'bn1/moving_variance:0']
d = f['dense1']['dense1/kernel:0']
assert d.shape == (32, 10) and d.dtype == '<f4' and d[()].tobytes() == raw
f = h5py.File('keras3.h5', 'r')
assert sorted(f['layers']) == ['batch_normalization', 'conv2d', 'dense'], list(f['layers'])
assert sorted(f['layers/batch_normalization/vars']) == ['0', '1', '2', '3']
assert f['layers/dense/vars/0'][()].tobytes() == raw
)");
  EXPECT_EQ(seen.code, 0) << seen.text;
}

TEST(Keras, LongListsOfNamesAreSplit) {
  samples::SmallModel model;
  const std::string tail(200, 'x');
  for (int i = 0; i < 1000; ++i) {
    samples::add_tensor(model, fmt::format("layer{}{}/bias", i, tail), {1}, "parameter");
  }
  const Checkpoint c = filled(model);
  Conversion report;
  auto w = export_weights(c, model.outline, WeightsFormat::kKerasH5, {}, report);
  ASSERT_TRUE(w.ok()) << w.error().message();
  const Folder folder;
  const auto bytes = foreign_bytes(*w, "w.h5");
  ASSERT_TRUE(bytes.ok()) << bytes.error().message();
  samples::write_bytes(folder / "w.h5", text_of(*bytes));
  auto back = read_foreign_weights(folder / "w.h5");
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(back->layers.size(), 1000u);
  const auto again =
      import_weights(model.initial, model.outline, *std::move(back), {}, "w", report);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->root_digest(), c.root_digest());
}

// Changes a good file with plain HDF5 calls, and returns the error that reading it then gives.
std::string error_after(const std::function<herr_t(hid_t)>& change) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  std::filesystem::copy_file(fixture("keras2_weights.h5"), path);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  EXPECT_GE(file, 0);
  EXPECT_GE(change(file), 0);
  H5Fclose(file);
  const auto back = read_foreign_weights(path);
  return back.ok() ? "" : back.error().message();
}

TEST(Keras, HostileTrees) {
  const auto expect = [](const std::string& part, const std::function<herr_t(hid_t)>& change) {
    const std::string error = error_after(change);
    EXPECT_NE(error.find(part), std::string::npos) << part << "\nin\n" << error;
  };
  expect("soft or external link", [](hid_t f) {
    return H5Lcreate_external("/etc/passwd", "/x", f, "dense1/out", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect("soft or external link", [](hid_t f) {
    return H5Lcreate_soft("/conv1", f, "dense1/soft", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect("linked from two places", [](hid_t f) {
    return H5Lcreate_hard(f, "/", f, "dense1/again", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect("names the weight 'dense1/bias:0'",
         [](hid_t f) { return H5Ldelete(f, "dense1/dense1/bias:0", H5P_DEFAULT); });
  expect("names the layer 'dense1'", [](hid_t f) { return H5Ldelete(f, "dense1", H5P_DEFAULT); });
  expect("chunked", [](hid_t f) {
    const hsize_t size = 8, chunk = 4;
    const hid_t space = H5Screate_simple(1, &size, nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 1, &chunk);
    const hid_t set = H5Dcreate2(f, "extra", H5T_IEEE_F32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
    H5Dclose(set), H5Pclose(how);
    return H5Sclose(space);
  });
  expect("compound", [](hid_t f) {
    const hid_t type = H5Tcreate(H5T_COMPOUND, 4), space = H5Screate(H5S_SCALAR);
    H5Tinsert(type, "x", 0, H5T_STD_I32LE);
    const hid_t set = H5Dcreate2(f, "extra", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dclose(set), H5Tclose(type);
    return H5Sclose(space);
  });
}

TEST(Keras, DamagedArchives) {
  const Folder folder;
  const std::string good = samples::read_bytes(fixture("keras3_adam.keras"));
  const std::string path = folder / "w.keras";
  for (size_t length = 0; length < good.size(); length += 2503) {
    samples::write_bytes(path, good.substr(0, length));
    EXPECT_FALSE(read_foreign_weights(path).ok()) << length;
  }
}

}  // namespace
}  // namespace twinrun
