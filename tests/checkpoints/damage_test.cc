// Tests that reading a damaged file gives an error or the original content, never a crash or other
// content.
#include <hdf5.h>

#include <cstring>

#include "tests/checkpoints/samples.h"

// libhdf5 1.10 itself leaks memory when it fails on a damaged file, so its leaks are suppressed.
// Our own leaks are still reported, and a check below makes sure that no HDF5 object stays open.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the sanitizer's name.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace twinrun {
namespace {

using samples::read_bytes;
using samples::write_bytes;

// The offset of a tensor's bytes in the file.
size_t place_of(const std::string& bytes, const Tensor& tensor) {
  const std::string data(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
  const size_t place = bytes.find(data);
  EXPECT_NE(place, std::string::npos);
  return place;
}

TEST(Damage, AFlippedByteOfATensorNamesIt) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  const Checkpoint c = samples::checkpoint();
  ASSERT_TRUE(write_checkpoint(path, c).ok());
  const std::string good = read_bytes(path);
  for (const std::string name : {"conv1/kernel", "conv1/norm/mean", "embed", "odd"}) {
    std::string bad = good;
    bad[place_of(good, c.tensors.at(name).value) + 3] ^= 1;
    write_bytes(path, bad);
    const auto back = read_checkpoint(path);
    ASSERT_FALSE(back.ok()) << name;
    EXPECT_EQ(back.error().what.find(name + ": digest "), 0u) << back.error().message();
    EXPECT_NE(back.error().what.find("does not match the stored"), std::string::npos);
    EXPECT_TRUE(back.error().where.ends_with("/c.h5:/state/" + name)) << back.error().where;
  }
}

// Flips bits of a few hundred bytes spread over the file and calls `read` for each change; `read`
// returns false for an error.
template <typename Read>
void flip_all_over(const std::string& path, const Read& read) {
  const std::string good = read_bytes(path);
  const size_t stride = std::max<size_t>(1, good.size() / 400);
  size_t errors = 0, same = 0;
  for (size_t i = 0; i < good.size(); i += stride) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ mask);
      write_bytes(path, bad);
      SCOPED_TRACE("byte " + std::to_string(i));
      read() ? ++same : ++errors;
      ASSERT_EQ(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL), 0);
    }
  }
  EXPECT_GT(errors, 200u);
  testing::Test::RecordProperty("errors", static_cast<int>(errors));
  testing::Test::RecordProperty("same", static_cast<int>(same));
}

TEST(Damage, FlippedBytesOfACheckpoint) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  const Checkpoint c = samples::checkpoint();
  ASSERT_TRUE(write_checkpoint(path, c).ok());
  flip_all_over(path, [&] {
    const auto back = read_checkpoint(path);
    if (!back.ok()) return false;
    samples::expect_same(c, *back);
    return true;
  });
}

TEST(Damage, FlippedBytesOfARun) {
  const Folder folder;
  const std::string path = folder / "r.h5";
  const RunFile run = samples::run();
  ASSERT_TRUE(write_run(path, run).ok());
  flip_all_over(path, [&] {
    const auto back = read_run(path);
    if (!back.ok()) return false;
    EXPECT_EQ(back->root_digest(), run.root_digest());
    EXPECT_EQ(back->environment, run.environment);
    EXPECT_EQ(back->scenario, run.scenario);
    return true;
  });
}

TEST(Damage, TruncatedFiles) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  ASSERT_TRUE(write_checkpoint(path, samples::checkpoint()).ok());
  const std::string good = read_bytes(path);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{48}, good.size() / 2, good.size() - 1}) {
    write_bytes(path, good.substr(0, size));
    const auto back = read_checkpoint(path);
    ASSERT_FALSE(back.ok()) << size;
    EXPECT_NE(back.error().fix.find("damaged"), std::string::npos) << back.error().message();
  }
  write_bytes(path, std::string(10000, 'x'));
  EXPECT_FALSE(read_checkpoint(path).ok());
  EXPECT_FALSE(read_checkpoint("/dev/zero").ok());
  EXPECT_FALSE(read_checkpoint(folder.path()).ok());
  EXPECT_FALSE(read_checkpoint(folder / "nowhere.h5").ok());
}

// Changes a good file with plain HDF5 calls, and returns the error that reading it then gives.
template <typename Change>
std::string error_after(const Change& change) {
  const Folder folder;
  const std::string path = folder / "c.h5";
  EXPECT_TRUE(write_checkpoint(path, samples::checkpoint()).ok());
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  EXPECT_GE(file, 0);
  EXPECT_GE(change(file), 0);
  H5Fclose(file);
  const auto back = read_checkpoint(path);
  return back.ok() ? "" : back.error().message();
}

TEST(Damage, MissingParts) {
  for (const char* name : {"format", "schema", "contract", "step", "seed", "scenario", "engine",
                           "cores", "root_digest", "header_digest", "scenario_digest"}) {
    const std::string error = error_after([&](hid_t f) { return H5Adelete(f, name); });
    EXPECT_NE(error.find("attribute '" + std::string(name) + "' is missing"), std::string::npos);
  }
  EXPECT_NE(error_after([](hid_t f) {
              return H5Adelete_by_name(f, "state/embed", "xxh3_128", H5P_DEFAULT);
            }).find("'xxh3_128' is missing"),
            std::string::npos);
  EXPECT_NE(error_after([](hid_t f) {
              return H5Ldelete(f, "state", H5P_DEFAULT);
            }).find("'state' is missing"),
            std::string::npos);
  EXPECT_NE(error_after([](hid_t f) {
              return H5Ldelete(f, "state/embed", H5P_DEFAULT);
            }).find("root_digest: digest"),
            std::string::npos);
}

// Edits that leave HDF5's own checksums valid, as a person with h5py could make them.
TEST(Damage, EditedAttributesAndLinks) {
  const auto set_int = [](hid_t f, const char* name, int64_t value) {
    const hid_t attribute = H5Aopen(f, name, H5P_DEFAULT);
    const herr_t code = H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    return code;
  };
  EXPECT_NE(error_after([&](hid_t f) { return set_int(f, "step", 8); }).find("root_digest: digest"),
            std::string::npos);
  EXPECT_NE(error_after([&](hid_t f) { return set_int(f, "cores", 4); }).find("header_digest: "),
            std::string::npos);
  EXPECT_NE(error_after([&](hid_t f) { return set_int(f, "cores", 0); }).find("at least 1"),
            std::string::npos);
  EXPECT_NE(error_after([&](hid_t f) {
              return set_int(f, "cores", int64_t{1} << 40);
            }).find("expected an int of at least"),
            std::string::npos);
  EXPECT_NE(error_after([&](hid_t f) {
              return set_int(f, "schema", 2);
            }).find("found schema 2; expected schema 1"),
            std::string::npos);
  EXPECT_NE(error_after([](hid_t f) {
              return H5Lcreate_hard(f, "state", f, "state/conv1/again", H5P_DEFAULT, H5P_DEFAULT);
            }).find("linked from two places"),
            std::string::npos);
  EXPECT_NE(error_after([](hid_t f) {
              return H5Lcreate_soft("/state/embed", f, "state/soft", H5P_DEFAULT, H5P_DEFAULT);
            }).find("soft or external link"),
            std::string::npos);
}

}  // namespace
}  // namespace twinrun
