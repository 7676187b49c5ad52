// Tests .npy and .npz: files of NumPy are read, NumPy reads our files, and anything else is
// rejected.
#include "checkpoints/container/npy.h"

#include <cstring>

#include "checkpoints/container/zip.h"
#include "tests/checkpoints/fixtures.h"
#include "tests/checkpoints/mutations.h"
#include "tests/checkpoints/python.h"

namespace twinrun {
namespace {

using samples::bytes_of;
using samples::text_of;

NamedArray floats(std::string name, Dims dims) {
  return to_array(std::move(name), samples::pattern({DType::kF32, std::move(dims)}));
}

// A version 1.0 file with this content and with this header as it is, padded or not.
std::string npy(const std::string& header, const std::string& content) {
  std::string text = "\x93NUMPY";
  text += {'\x01', '\x00', static_cast<char>(header.size() & 255),
           static_cast<char>(header.size() >> 8)};
  return text + header + content;
}

std::string error_of(const std::string& file) {
  const auto array = parse_npy(bytes_of(file), "x", "x.npy");
  return array ? "" : array.error().message();
}

TEST(Npy, WritesWhatNumpyWrites) {
  // The bytes that numpy.save of NumPy 1.24 writes for numpy.arange(3, dtype='<f4').
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  const std::string expected =
      npy(header + "\n", std::string("\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 12));
  NamedArray array{"x", ElementType::kF32, {3}, {}};
  const float values[] = {0, 1, 2};
  const auto raw = std::as_bytes(std::span(values));
  array.bytes.assign(raw.begin(), raw.end());
  const auto written = to_npy(array, "x.npy");
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->size() % 4, 0u);
  const auto back = parse_npy(*written, "x", "x.npy");
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(back->bytes, array.bytes);
  const auto theirs = parse_npy(bytes_of(expected), "x", "x.npy");
  ASSERT_TRUE(theirs.ok()) << theirs.error().message();
  EXPECT_EQ(theirs->bytes, array.bytes);
}

constexpr const char* kMake = R"(
import numpy as np
a = {}
for t in ['?', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8', '>i2', '>u4', '>f4', '>f8']:
    a['t_' + t.replace('?', 'b').replace('>', 'be_')] = np.arange(24).reshape(2, 3, 4).astype(t)
a['fortran'] = np.asfortranarray(np.arange(24, dtype='f4').reshape(2, 3, 4))
a['big_fortran'] = np.asfortranarray(np.arange(6, dtype='>i8').reshape(2, 3))
a['scalar'] = np.float32(2.5)
a['empty'] = np.zeros((0, 4), 'f4')
a['layer/kernel'] = np.arange(3, dtype='f8')
np.savez('plain.npz', **a)
np.savez_compressed('packed.npz', **a)
np.save('one.npy', a['fortran'])
for v in [(1, 0), (2, 0), (3, 0)]:
    with open('v%d.npy' % v[0], 'wb') as f:
        np.lib.format.write_array(f, a['t_i4'], version=v)
np.save('object.npy', np.array([{}, 1], dtype=object), allow_pickle=True)
np.save('struct.npy', np.zeros(2, dtype=[('a', 'f4')]))
np.save('text.npy', np.array(['a']))
np.save('complex.npy', np.zeros(2, 'c8'))
)";

TEST(Npy, ReadsWhatNumpyWrote) {
  const std::string python = samples::python_with("numpy");
  if (python.empty()) GTEST_SKIP() << "needs python3-numpy";
  const Folder folder;
  const auto made = samples::run_python(python, folder, kMake);
  ASSERT_EQ(made.code, 0) << made.text;
  for (const char* name : {"plain.npz", "packed.npz"}) {
    const auto file = read_npz(folder / name);
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_EQ(file->arrays.size(), 21u);
    for (const NamedArray& array : file->arrays) {
      if (!array.name.starts_with("t_")) continue;
      SCOPED_TRACE(array.name);
      EXPECT_EQ(array.dims, (Dims{2, 3, 4}));
      const bool real = describe(array).starts_with("float");
      if (array.type == ElementType::kBool) continue;
      const auto t = to_tensor(array, real ? DType::kF64 : DType::kI32, name);
      ASSERT_TRUE(t.ok()) << t.error().message();
      for (int i = 0; i < 24; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(real ? t->as<double>()[at] : t->as<int32_t>()[at], i);
      }
    }
  }
  const auto some = read_npz(folder / "packed.npz", {"layer/kernel", "fortran", "big_fortran"});
  ASSERT_TRUE(some.ok());
  ASSERT_EQ(some->arrays.size(), 3u);
  const auto fortran = to_tensor(some->arrays[0], DType::kF32, "");
  ASSERT_TRUE(fortran.ok());
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(fortran->as<float>()[i], static_cast<float>(i));
  const auto big = to_tensor(some->arrays[1], DType::kI32, "");
  ASSERT_TRUE(big.ok());
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(big->as<int32_t>()[i], static_cast<int32_t>(i));

  const auto missing = read_npz(folder / "plain.npz", {"scaler"});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().fix.find("did you mean 'scalar'?"), std::string::npos);

  const auto one = read_npy(folder / "one.npy");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->name, "one");
  EXPECT_EQ(describe(*one), "float32[2,3,4]");
  for (const char* name : {"v1.npy", "v2.npy", "v3.npy"}) {
    const auto array = read_npy(folder / name);
    ASSERT_TRUE(array.ok()) << array.error().message();
    EXPECT_EQ(describe(*array), "int32[2,3,4]");
  }
  EXPECT_NE(read_npy(folder / "object.npy").error().what.find("pickle"), std::string::npos);
  EXPECT_NE(read_npy(folder / "struct.npy").error().what.find("structured"), std::string::npos);
  EXPECT_NE(read_npy(folder / "text.npy").error().what.find("'<U1'"), std::string::npos);
  EXPECT_NE(read_npy(folder / "complex.npy").error().what.find("'<c8'"), std::string::npos);
}

TEST(Npy, NumpyReadsWhatWasWritten) {
  const std::string python = samples::python_with("numpy");
  if (python.empty()) GTEST_SKIP() << "needs python3-numpy";
  const Folder folder;
  std::vector<NamedArray> arrays = {floats("conv1/kernel", {3, 3, 1, 2}), floats("empty", {0, 3}),
                                    floats("scalar", {})};
  arrays.push_back(to_array("count", Tensor::scalar_i32(-7)));
  arrays.push_back(to_array("mask", samples::pattern({DType::kPred, {5}})));
  const auto npz = to_npz(arrays, "w.npz");
  ASSERT_TRUE(npz.ok());
  EXPECT_EQ(*npz, *to_npz(arrays, "w.npz")) << "equal content makes equal bytes";
  samples::write_bytes(folder / "w.npz", text_of(*npz));
  samples::write_bytes(folder / "raw", text_of(arrays[0].bytes));
  const auto seen = samples::run_python(python, folder, R"(
import numpy as np, zipfile
assert zipfile.ZipFile('w.npz').testzip() is None
z = np.load('w.npz')
assert z.files == ['conv1/kernel', 'empty', 'scalar', 'count', 'mask'], z.files
k = z['conv1/kernel']
assert k.shape == (3, 3, 1, 2) and k.dtype == '<f4' and k.tobytes() == open('raw', 'rb').read()
assert z['empty'].shape == (0, 3) and z['scalar'].shape == () and z['count'] == -7
assert z['mask'].dtype == bool and z['mask'].shape == (5,)
)");
  EXPECT_EQ(seen.code, 0) << seen.text;
}

TEST(Npy, RefusesWhatItDoesNotKnow) {
  const std::string content(12, '\0');
  const auto header = [](const std::string& descr, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
  };
  EXPECT_EQ(error_of(npy(header("'<f4'", "(3,)"), content)), "");
  EXPECT_EQ(error_of(npy(header("\"<f4\"", "(1, 3)"), content)), "");
  EXPECT_NE(error_of(npy(header("'<f4'", "(3)"), content)).find("not a tuple"), std::string::npos);
  EXPECT_NE(error_of(npy(header("'<f4'", "(-3,)"), content)).find("not a tuple"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'<f4'", "(4,)"), content)).find("of 16 bytes but holds 12"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'<f4'", "(2,)"), content)).find("of 8 bytes but holds 12"),
            std::string::npos);
  // Dimensions whose product wraps around 2^64 to a valid number, and a huge dimension beside an
  // empty one.
  EXPECT_NE(error_of(npy(header("'<f4'", "(4611686018427387904, 4)"), "")).find("shape"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'<f4'", "(0, 4611686018427387904, 4)"), "")).find("shape"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'<f4'", "(99999999999999999999,)"), "")).find("not a tuple"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'|f4'", "(3,)"), content)).find("'|f4'"), std::string::npos);
  EXPECT_NE(error_of(npy(header("'|V2'", "(6,)"), content)).find("bfloat16 has no npy type"),
            std::string::npos);
  EXPECT_NE(error_of(npy(header("'|O'", "(3,)"), content)).find("pickle"), std::string::npos);
  EXPECT_NE(error_of(npy(header("''", "(3,)"), content)).find("dtype ''"), std::string::npos);
  EXPECT_NE(error_of(npy("{'descr': '<f4', 'shape': (3,)}", content)).find("lacks"),
            std::string::npos);
  EXPECT_NE(error_of(npy("{'descr': '<f4', 'descr': '<f4'}", content)).find("twice"),
            std::string::npos);
  EXPECT_NE(error_of(npy("{'evil': 1}", content)).find("unknown key 'evil'"), std::string::npos);
  EXPECT_NE(error_of(npy("__import__('os')", content)).find("no dict"), std::string::npos);
  EXPECT_NE(error_of("PK\x03\x04 no array").find("not a .npy file"), std::string::npos);
}

TEST(Npy, Truncations) {
  const auto array = to_npy(floats("x", {3, 2}), "x.npy");
  ASSERT_TRUE(array.ok());
  const auto read = [](const std::string& bytes) {
    return parse_npy(bytes_of(bytes), "x", "x.npy").ok();
  };
  EXPECT_EQ(samples::truncations_taken(text_of(*array), read), 0);
}

TEST(Npz, Truncations) {
  const auto npz = to_npz({floats("a", {3}), floats("b/c", {2, 2})}, "w.npz");
  ASSERT_TRUE(npz.ok());
  const auto read = [](const std::string& bytes) {
    return parse_npz(bytes_of(bytes), "w.npz").ok();
  };
  ASSERT_TRUE(read(text_of(*npz)));
  EXPECT_EQ(samples::truncations_taken(text_of(*npz), read), 0);
}

TEST(Npz, HostileMembers) {
  const auto error_of_members = [](const std::vector<ZipMember>& members) {
    const auto zip = to_zip(members, "z");
    EXPECT_TRUE(zip.ok());
    const auto file = parse_npz(*zip, "w.npz");
    return file ? "" : file.error().message();
  };
  const auto good = *to_npy(floats("x", {3}), "");
  EXPECT_EQ(error_of_members({{"a.npy", good}, {"b.npy", good}}), "");
  for (const char* name : {"../a.npy", "/etc/a.npy", "a/../../b.npy"}) {
    EXPECT_NE(error_of_members({{name, good}}).find("plain relative path"), std::string::npos)
        << name;
  }
  EXPECT_NE(error_of_members({{"a.npy", good}, {"a.npy", good}}).find("two members named 'a.npy'"),
            std::string::npos);
  const auto other = parse_npz(*to_zip({{"a.npy", good}, {"readme.txt", good}}, "z"), "w.npz");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->ignored, std::vector<std::string>{"member 'readme.txt'"});
}

TEST(Npz, BombsYieldLittle) {
  const std::string python = samples::python_with("numpy");
  if (python.empty()) GTEST_SKIP() << "needs python3-numpy";
  const Folder folder;
  // One archive with a member of all zeros, and one whose central directory lists that member 300
  // times.
  const auto made = samples::run_python(python, folder, R"(
import io, struct, zipfile
b = io.BytesIO()
with zipfile.ZipFile(b, 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('aaa.npy', bytes(10 << 20))
raw = b.getvalue()
open('zeros.npz', 'wb').write(raw)
with zipfile.ZipFile('large.npz', 'w', zipfile.ZIP_DEFLATED) as z:
    with z.open('a.npy', 'w') as member:
        for _ in range(400): member.write(bytes(1 << 20))
start = raw.index(b'PK\1\2'); end = raw.index(b'PK\5\6')
entry = raw[start:end]
n = 300
central = b''.join(entry.replace(b'aaa.npy', ('%03d.npy' % i).encode()) for i in range(n))
tail = struct.pack('<4s4H2LH', b'PK\5\6', 0, 0, n, n, len(central), start, 0)
open('overlap.npz', 'wb').write(raw[:start] + central + tail)
)");
  ASSERT_EQ(made.code, 0) << made.text;
  const auto all = [](const std::string&) { return true; };
  const auto zeros = samples::read_bytes(folder / "zeros.npz");
  EXPECT_TRUE(read_zip(bytes_of(zeros), "z", all).ok());
  const auto bomb = read_zip(bytes_of(zeros), "z", all, /*max_unpacked=*/1 << 20);
  ASSERT_FALSE(bomb.ok());
  EXPECT_NE(bomb.error().message().find("bomb"), std::string::npos) << bomb.error().message();
  // 400 MB of zeros are more than weights are packed to, and are refused before they are unpacked.
  const auto large = samples::read_bytes(folder / "large.npz");
  const auto refused = parse_npz(bytes_of(large), "large.npz");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("bomb"), std::string::npos);
  const auto bytes = samples::read_bytes(folder / "overlap.npz");
  const auto overlap = read_zip(bytes_of(bytes), "o", all);
  if (overlap) {  // libarchive reads a local header once, however often it is listed
    size_t unpacked = 0;
    for (const ZipMember& member : *overlap) unpacked += member.bytes.size();
    EXPECT_LE(unpacked, bytes.size() * 1032);
  }
}

// libarchive would unpack LZMA, whose header may demand 4 GiB for a dictionary.
TEST(Npz, OtherMethodsThanDeflateAreRefused) {
  std::string zip = text_of(*to_npz({floats("a", {3})}, "w.npz"));
  const size_t central = zip.find("PK\1\2");
  zip[8] = zip[central + 10] = 14;
  const auto lzma = parse_npz(bytes_of(zip), "w.npz");
  ASSERT_FALSE(lzma.ok());
  EXPECT_NE(lzma.error().message().find("another method than deflate"), std::string::npos)
      << lzma.error().message();
}

TEST(Array, Conversions) {
  const auto array = [](ElementType type, auto value) {
    NamedArray a{"x", type, {}, std::vector<std::byte>(sizeof value)};
    std::memcpy(a.bytes.data(), &value, sizeof value);
    return a;
  };
  const auto f32 = [](const NamedArray& a) {
    return to_bits(to_tensor(a, DType::kF32, "")->as<float>()[0]);
  };
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0x3C01})), to_bits(1.0009765625f));
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0x8001})), to_bits(-0x1p-24f));
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0x03FF})), to_bits(0x1.FF8p-15f));
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0x7BFF})), to_bits(65504.0f));
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0xFC00})), 0xFF800000u);
  EXPECT_EQ(f32(array(ElementType::kF16, uint16_t{0x8000})), 0x80000000u);
  EXPECT_EQ(f32(array(ElementType::kBF16, uint16_t{0x3F81})), 0x3F810000u);
  EXPECT_EQ(f32(array(ElementType::kF32, 0xFF800001u)), 0xFF800001u);    // bits are copied
  EXPECT_EQ(f32(array(ElementType::kF64, 1 + 0x1p-24)), to_bits(1.0f));  // ties to even
  EXPECT_EQ(f32(array(ElementType::kF64, 1 + 0x3p-24)), to_bits(1 + 0x1p-22f));
  EXPECT_EQ(f32(array(ElementType::kF64, std::numeric_limits<double>::infinity())), 0x7F800000u);
  const auto beyond = to_tensor(array(ElementType::kF64, 1e300), DType::kF32, "f");
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.error().what.find("beyond float32"), std::string::npos);
  EXPECT_EQ(to_tensor(array(ElementType::kI64, int64_t{-3}), DType::kI32, "")->as<int32_t>()[0],
            -3);
  EXPECT_FALSE(to_tensor(array(ElementType::kI64, int64_t{1} << 31), DType::kI32, "").ok());
  EXPECT_FALSE(to_tensor(array(ElementType::kU64, ~uint64_t{0}), DType::kI32, "").ok());
  EXPECT_FALSE(to_tensor(array(ElementType::kI32, 1), DType::kF32, "").ok());
  EXPECT_FALSE(to_tensor(array(ElementType::kBool, uint8_t{2}), DType::kPred, "").ok());
  EXPECT_FALSE(to_tensor(NamedArray{"x", ElementType::kF32, {2}, {}}, DType::kF32, "").ok());
  EXPECT_EQ(conversion(ElementType::kF64, DType::kF32), "float64 to float32, nearest");
  EXPECT_EQ(conversion(ElementType::kBF16, DType::kF32), "bfloat16 to float32, exact");
  EXPECT_EQ(conversion(ElementType::kF32, DType::kF32), "");
}

}  // namespace
}  // namespace twinrun
