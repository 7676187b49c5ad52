// Tests the checked HDF5 layer on files made directly with the HDF5 library: mainly what it must
// reject.
#include "checkpoints/container/hdf5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <functional>
#include <span>

#include "tests/checkpoints/samples.h"

namespace twinrun {
namespace {

// Makes a file with plain HDF5 calls.
void make(const std::string& path, const std::function<void(hid_t)>& fill) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  fill(file);
  ASSERT_GE(H5Fclose(file), 0);
}

void add_dataset(hid_t at, const char* name, hid_t type, std::vector<hsize_t> dims, hid_t how,
                 const void* data) {
  const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const hid_t set = H5Dcreate2(at, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
  ASSERT_GE(set, 0);
  if (data != nullptr) {
    ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
  }
  H5Dclose(set);
  H5Sclose(space);
}

// The message with which reading "x" as a tensor fails, or "" if it does not.
std::string refusal(const std::string& path) {
  auto file = Hdf5File::open(path);
  if (!file.ok()) return file.error().message();
  auto root = file->root();
  if (!root.ok()) return root.error().message();
  auto dataset = root->dataset("x");
  if (!dataset.ok()) return dataset.error().message();
  const auto tensor = dataset->read_tensor();
  return tensor.ok() ? "" : tensor.error().message();
}

void expect_refused(const std::string& why, const std::function<void(hid_t)>& fill) {
  const Folder folder;
  const std::string path = folder / "f.h5";
  make(path, fill);
  EXPECT_NE(refusal(path).find(why), std::string::npos) << "found: " << refusal(path);
}

// Above 64 MiB the file is built in a file without a name, which gets the path.
TEST(Hdf5File, LargeFilesAreBuiltOutsideOfMemory) {
  const Folder folder;
  const std::string path = folder / "f.h5";
  const Tensor small = Tensor::scalar_i32(7);
  Tensor large = Tensor::empty({DType::kI32, {5 << 20}});  // 20 MiB
  for (int32_t i = 0; int32_t & value : large.as<int32_t>()) value = i++;
  {
    auto file = Hdf5File::create(path);
    auto root = file->root();
    for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(root->write_tensor(name, large).ok());
    ASSERT_TRUE(root->write_tensor("x", small).ok());
    const auto image = file->image();
    ASSERT_TRUE(std::move(*file).save().ok());
    root = Hdf5File::create("other")->root();  // closes the file, which must not change it
    const std::string bytes = samples::read_bytes(path);
    EXPECT_TRUE(std::ranges::equal(*image, std::as_bytes(std::span(bytes))));
    EXPECT_EQ(folder.files(), 1u);
  }
  const auto file = Hdf5File::open(path);
  for (const char* name : {"a", "b", "c", "d"})
    EXPECT_TRUE(file->root()->dataset(name)->read_tensor()->same_bits(large)) << name;
  EXPECT_TRUE(file->root()->dataset("x")->read_tensor()->same_bits(small));
}

TEST(Hdf5File, ReadsPlainFilesOfOthers) {
  const Folder folder;
  const std::string path = folder / "f.h5";
  const float values[6] = {1, 2, 3, 4, 5, 6};
  make(path, [&](hid_t f) { add_dataset(f, "x", H5T_IEEE_F32LE, {2, 3}, H5P_DEFAULT, values); });
  EXPECT_EQ(refusal(path), "");
}

TEST(Hdf5File, RefusesSoftAndExternalLinks) {
  expect_refused("soft or external link", [](hid_t f) {
    const float value = 1;
    add_dataset(f, "y", H5T_IEEE_F32LE, {1}, H5P_DEFAULT, &value);
    H5Lcreate_soft("/y", f, "x", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused("soft or external link", [](hid_t f) {
    H5Lcreate_external("/etc/passwd", "/y", f, "x", H5P_DEFAULT, H5P_DEFAULT);
  });
}

TEST(Hdf5File, RefusesDataOutsideTheFile) {
  expect_refused("other files", [](hid_t f) {
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(how, "/etc/passwd", 0, 16);
    add_dataset(f, "x", H5T_IEEE_F32LE, {4}, how, nullptr);
    H5Pclose(how);
  });
}

TEST(Hdf5File, RefusesChunksAndFilters) {
  const std::vector<float> values(64, 1.0f);
  for (const bool filter : {false, true}) {
    expect_refused("chunked", [&](hid_t f) {
      const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
      const hsize_t chunk = 16;
      H5Pset_chunk(how, 1, &chunk);
      if (filter) H5Pset_shuffle(how);
      add_dataset(f, "x", H5T_IEEE_F32LE, {64}, how, values.data());
      H5Pclose(how);
    });
  }
}

// A file that declares a petabyte and stores nothing is rejected before memory is allocated.
TEST(Hdf5File, RefusesSizesThatTheFileDoesNotHold) {
  expect_refused("stores 0", [](hid_t f) {
    add_dataset(f, "x", H5T_IEEE_F32LE, {1u << 24, 1u << 24}, H5P_DEFAULT, nullptr);
  });
  expect_refused("more elements", [](hid_t f) {
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 3, std::vector<hsize_t>{1, 1, 1}.data());
    H5Pclose(how);
    add_dataset(f, "x", H5T_IEEE_F32LE, {0, hsize_t{1} << 40, hsize_t{1} << 40}, H5P_DEFAULT,
                nullptr);
  });
}

TEST(Hdf5File, RefusesOtherTypes) {
  const std::vector<uint64_t> values(4, 0);
  for (const hid_t type : {H5T_STD_I64LE, H5T_IEEE_F32BE, H5T_STD_U16LE, H5T_STD_U8LE}) {
    expect_refused("allowed: float32",
                   [&](hid_t f) { add_dataset(f, "x", type, {4}, H5P_DEFAULT, values.data()); });
  }
  expect_refused("is a group", [](hid_t f) {
    H5Gclose(H5Gcreate2(f, "x", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
  expect_refused("neither a group nor a dataset", [](hid_t f) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tcommit2(f, "x", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
  });
  expect_refused("'x' is missing", [](hid_t) {});
}

// Many links to the same bytes would multiply the memory that is read, so an open file returns no
// more bytes than it contains.
TEST(Hdf5File, HandsOutNoMoreThanTheFileHas) {
  const Folder folder;
  const std::string path = folder / "f.h5";
  const std::vector<float> values(100000, 1.0f);
  make(path, [&](hid_t f) {
    add_dataset(f, "x", H5T_IEEE_F32LE, {100000}, H5P_DEFAULT, values.data());
    H5Lcreate_hard(f, "x", f, "y", H5P_DEFAULT, H5P_DEFAULT);
  });
  auto file = Hdf5File::open(path);
  ASSERT_TRUE(file.ok());
  const auto root = file->root();
  ASSERT_TRUE(root.ok());
  const auto x = root->dataset("x"), y = root->dataset("y");
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_EQ(*x->address(), *y->address());
  EXPECT_TRUE(x->read_tensor().ok());
  EXPECT_FALSE(y->read_tensor().ok());
}

TEST(Hdf5File, AttributesRoundTrip) {
  const Folder folder;
  const std::string path = folder / "f.h5", long_text(200000, 'a');
  {
    auto file = Hdf5File::create(path);
    ASSERT_TRUE(file.ok());
    auto root = file->root();
    ASSERT_TRUE(root.ok());
    EXPECT_TRUE(root->set_text("text", "grün").ok());
    EXPECT_TRUE(root->set_text("empty", "").ok());
    EXPECT_TRUE(root->set_text("long", long_text).ok());
    EXPECT_TRUE(root->set_int("int", -5).ok());
    EXPECT_TRUE(root->set_uint("uint", ~uint64_t{0}).ok());
    EXPECT_TRUE(root->set_real("real", 0.1).ok());
    EXPECT_FALSE(root->set_int("int", 6).ok()) << "names are unique";
    EXPECT_FALSE(root->set_text("nul", std::string_view("a\0b", 3)).ok());
    EXPECT_FALSE(root->create_group("a/b").ok());
    EXPECT_FALSE(root->create_group("..").ok());
    EXPECT_FALSE(root->create_group("").ok());
    const std::vector<std::string> words = {"", "a", "longer"};
    EXPECT_TRUE(root->write_strings("words", words).ok());
    EXPECT_TRUE(root->write_strings("none", {}).ok());
    const std::vector<int64_t> numbers = {1, -1};
    EXPECT_TRUE(root->write_i64("numbers", numbers).ok());
    ASSERT_TRUE(std::move(*file).save().ok());
  }
  auto file = Hdf5File::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  auto root = file->root();
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(*root->text("text"), "grün");
  EXPECT_EQ(*root->text("empty"), "");
  EXPECT_EQ(*root->text("long"), long_text);
  EXPECT_EQ(*root->integer("int"), -5);
  EXPECT_EQ(*root->unsigned_integer("uint"), ~uint64_t{0});
  EXPECT_EQ(*root->real("real"), 0.1);
  EXPECT_FALSE(root->integer("text").ok());
  EXPECT_FALSE(root->integer("uint").ok());
  EXPECT_FALSE(root->text("int").ok());
  EXPECT_EQ(root->text("nowhere").error().message(),
            path + ":/: the attribute 'nowhere' is missing");
  EXPECT_EQ(*root->dataset("words")->read_strings(), (std::vector<std::string>{"", "a", "longer"}));
  EXPECT_TRUE(root->dataset("none")->read_strings()->empty());
  EXPECT_EQ(*root->dataset("numbers")->read_i64(), (std::vector<int64_t>{1, -1}));
  EXPECT_FALSE(root->dataset("words")->read_i64().ok());
  EXPECT_EQ(root->children()->size(), 3u);
}

TEST(Hdf5File, PrintsNothing) {
  const Folder folder;
  samples::write_bytes(folder / "text", "not an HDF5 file");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(Hdf5File::open(folder / "text").ok());
  EXPECT_FALSE(Hdf5File::open(folder / "nowhere").ok());
  EXPECT_FALSE(Hdf5File::open(folder.path()).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace twinrun
