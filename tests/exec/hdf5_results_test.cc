// Tests step results in HDF5: they are read in a process of their own, links out of the file are
// rejected, and a mutated file gives a value or an error.
#include <hdf5.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "backends/exec/arrays.h"
#include "checkpoints/container/hdf5_tree.h"
#include "tests/exec/script.h"

namespace twinrun {
namespace {

using exec_tests::expect_says;
using exec_tests::good_result;
using exec_tests::Script;

constexpr const char* kResult = "result-0.h5";
const float kW[] = {1, 2, 3};
const float kLoss = 6;

class Hdf5Results : public Script {
 protected:
  void SetUp() override {
    Script::SetUp();
    read_hdf5_with({TWINRUN_HDF5_READER});
  }
  void TearDown() override {
    read_hdf5_with({});
    Script::TearDown();
  }

  // The outcome of a step whose result file has a group "state" that `fill` writes, as a
  // framework's own HDF5 code would.
  Outcome outcome(const std::function<void(hid_t state)>& fill) {
    const std::string path = folder_ + "/made.h5";
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t state = H5Gcreate2(file, "state", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    fill(state);
    H5Gclose(state);
    const hid_t output = H5Gcreate2(file, "output", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    dataset(output, "loss", {}, H5P_DEFAULT, &kLoss);
    H5Gclose(output);
    EXPECT_GE(H5Fclose(file), 0);
    return run(answers_with("'" + path + "'", kResult));
  }
  static void dataset(hid_t at, const char* name, const std::vector<hsize_t>& dims, hid_t how,
                      const float* data) {
    const hid_t space = dims.empty()
                            ? H5Screate(H5S_SCALAR)
                            : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const hid_t set = H5Dcreate2(at, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
    ASSERT_GE(set, 0);
    if (data != nullptr) {
      ASSERT_GE(H5Dwrite(set, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
    }
    H5Dclose(set);
    H5Sclose(space);
  }
  static hid_t chunks(std::vector<hsize_t> sizes) {
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, static_cast<int>(sizes.size()), sizes.data());
    return how;
  }
  void expect_refused(std::initializer_list<const char*> parts,
                      const std::function<void(hid_t state)>& fill) {
    expect_says(outcome(fill).error, parts);
  }
};

TEST_F(Hdf5Results, AreTaken) {
  const auto plain = outcome([&](hid_t state) { dataset(state, "w", {3}, H5P_DEFAULT, kW); });
  EXPECT_EQ(plain.error, "");
  EXPECT_EQ(plain.states[0].vars[0].as<float>()[2], 3);
  const auto gzip = outcome([&](hid_t state) {
    const hid_t how = chunks({2});
    H5Pset_shuffle(how);
    H5Pset_deflate(how, 6);
    dataset(state, "w", {3}, how, kW);
  });
  EXPECT_EQ(gzip.error, "");
  EXPECT_EQ(gzip.states[0].vars[0].as<float>()[1], 2);
}

TEST_F(Hdf5Results, ThatLeadElsewhere) {
  expect_refused({"result-0.h5:/state/w", "link"}, [&](hid_t state) {
    H5Lcreate_soft("/output/loss", state, "w", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused({"link"}, [&](hid_t state) {
    H5Lcreate_external("/etc/passwd", "/", state, "w", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused({"keeps its data in other files"}, [&](hid_t state) {
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(how, "/etc/passwd", 0, 12);
    dataset(state, "w", {3}, how, nullptr);
  });
  expect_refused({"virtually"}, [&](hid_t state) {
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t three = 3;
    const hid_t space = H5Screate_simple(1, &three, nullptr);
    H5Pset_virtual(how, space, "/etc/passwd", "/x", space);
    dataset(state, "w", {3}, how, nullptr);
  });
  expect_refused({"linked from two places"}, [&](hid_t state) {
    H5Lcreate_hard(state, ".", state, "w", H5P_DEFAULT, H5P_DEFAULT);
  });
}

TEST_F(Hdf5Results, ThatUnpackToMoreThanExpected) {
  // These files declare a gigabyte of zeros in a few kilobytes.
  expect_refused({"state/w", "declares 1073741824 bytes"}, [&](hid_t state) {
    const hid_t how = chunks({1024});
    H5Pset_deflate(how, 9);
    dataset(state, "w", {1 << 28}, how, nullptr);
  });
  expect_refused({"chunks larger"}, [&](hid_t state) {
    const hid_t how = chunks({1 << 28});
    H5Pset_deflate(how, 9);
    dataset(state, "w", {1 << 28}, how, nullptr);
  });
  expect_refused({"filtered by", "gzip and shuffle"}, [&](hid_t state) {
    const hid_t how = chunks({3});
    H5Pset_fletcher32(how);
    dataset(state, "w", {3}, how, kW);
  });
  expect_refused({"is float32[3,3]; expected f32[3]"}, [&](hid_t state) {
    const float nine[9] = {};
    dataset(state, "w", {3, 3}, H5P_DEFAULT, nine);
  });
}

TEST_F(Hdf5Results, AReaderThatIsNotThereOrHangs) {
  Hdf5Tree tree;
  tree.arrays = good_result().arrays;
  const auto bytes = to_hdf5(tree, {}, "good");
  ASSERT_TRUE(bytes.ok());
  const std::string good = keep("good.h5", *bytes);
  read_hdf5_with({"/no/such/reader"});
  expect_says(run(answers_with(good, kResult)).error, {"cannot start '/no/such/reader'"});
  read_hdf5_with({"sh", "-c", "kill -SEGV $$"});
  expect_says(run(answers_with(good, kResult)).error, {"result-0.h5", "it crashed"});
  read_hdf5_with({"sh", "-c", "echo nonsense"});
  expect_says(run(answers_with(good, kResult)).error, {"cannot be read"});
}

// Reads `count` seeded mutations of a good result. Each gives a value or an error. Returns how many
// made the reader process crash.
int mutate(const std::string& folder, const std::string& good, int count) {
  int taken = 0, refused = 0, died = 0;
  std::string bad;
  for (int i = 0; i < count; ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(i));
    bad = good;
    if (i % 16 == 0) bad.resize(random() % bad.size());
    for (uint64_t n = 1 + random() % 4; n > 0 && !bad.empty(); --n) {
      static constexpr unsigned char kBytes[] = {0, 1, 0x7F, 0x80, 0xFF};
      char& byte = bad[random() % bad.size()];
      byte = static_cast<char>(random() % 2 ? byte ^ (1 << random() % 8) : kBytes[random() % 5]);
    }
    std::filesystem::remove(folder + "/" + kResult);
    std::ofstream(folder + "/" + kResult, std::ios::binary) << bad;
    const auto read = exec::read_result(folder, kResult, 4 * good.size(), "exec:e: r");
    ++(read ? taken : refused);
    if (read) continue;
    EXPECT_TRUE(read.error().where.starts_with("exec:e: r")) << read.error().message();
    died += read.error().what.find("the library that reads it failed") != std::string::npos;
  }
  EXPECT_GT(taken, count / 50);
  EXPECT_GT(refused, count / 20);
  return died;
}

// Mutations of a small result with contiguous data.
TEST_F(Hdf5Results, Mutated) {
  ASSERT_EQ(outcome([&](hid_t state) { dataset(state, "w", {3}, H5P_DEFAULT, kW); }).error, "");
  std::ifstream in(folder_ + "/made.h5", std::ios::binary);
  mutate(folder_, std::string(std::istreambuf_iterator<char>(in), {}), 60);
}

// Mutations of a result with every structure that a result may have: contiguous, chunked by a
// B-tree, deflated, attributes. TWINRUN_MUTATIONS sets their number (2000 by default).
TEST_F(Hdf5Results, SlowMutations) {
  const char* wanted = std::getenv("TWINRUN_MUTATIONS");
  const int count = wanted != nullptr ? std::atoi(wanted) : 2000;
  std::vector<float> many(1000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i);
  outcome([&](hid_t state) {
    dataset(state, "w", {3}, H5P_DEFAULT, kW);
    const hid_t how = chunks({64});
    H5Pset_shuffle(how);
    H5Pset_deflate(how, 1);
    dataset(state, "v", {1000}, how, many.data());
    const hid_t group = H5Gcreate2(state, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int i = 0; i < 8; ++i)
      dataset(group, ("x" + std::to_string(i)).c_str(), {2, 2}, H5P_DEFAULT, many.data());
    const hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(group, "note", text, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* note = "of variable length";
    H5Awrite(attribute, text, &note);
    H5Aclose(attribute);
    H5Gclose(group);
  });
  std::ifstream in(folder_ + "/made.h5", std::ios::binary);
  RecordProperty("died",
                 mutate(folder_, std::string(std::istreambuf_iterator<char>(in), {}), count));
}

}  // namespace
}  // namespace twinrun
