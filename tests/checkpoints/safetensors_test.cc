// Tests safetensors: a file of the reference library is read and written again byte for byte, and
// malformed files are rejected.
#include "checkpoints/container/safetensors.h"

#include <cstring>

#include "tests/checkpoints/fixtures.h"
#include "tests/checkpoints/mutations.h"

namespace twinrun {
namespace {

using samples::bytes_of;
using samples::text_of;

std::string with_header(const std::string& header, const std::string& buffer) {
  const uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + buffer;
}

std::string refusal_of(const std::string& file) {
  const auto parsed = parse_safetensors(bytes_of(file), "w.safetensors");
  return parsed ? "" : parsed.error().message();
}

// The entry of one tensor in the header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsAndRepeatsTheReferencesFile) {
  const std::string theirs = samples::read_bytes(samples::fixture("types.safetensors"));
  const auto file = parse_safetensors(bytes_of(theirs), "types.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->metadata, (std::map<std::string, std::string>{{"format", "np"}}));
  EXPECT_TRUE(file->ignored.empty());
  std::map<std::string, std::string> types;
  for (const NamedArray& array : file->arrays) {
    types[array.name] = describe(array);
    const bool real = types[array.name].find("float") != std::string::npos;
    if (!real || array.elements() != 12) continue;
    const auto t = to_tensor(array, DType::kF64, "");
    ASSERT_TRUE(t.ok());
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(t->as<double>()[i], static_cast<double>(i) / 8 - 0.5) << array.name;
    }
  }
  const std::map<std::string, std::string> expected = {
      {"a", "float32[4]"},     {"b/f32", "float32[3,4]"}, {"bf16", "bfloat16[3,4]"},
      {"bool", "bool[2]"},     {"empty", "float32[0,3]"}, {"f16", "float16[3,4]"},
      {"f64", "float64[3,4]"}, {"i64", "int64[3]"},       {"i8", "int8[3]"},
      {"scalar", "float32[]"}, {"u16", "uint16[3]"}};
  EXPECT_EQ(types, expected);
  const auto written = to_safetensors(*file, "types.safetensors");
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(text_of(*written), theirs);
}

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  const std::string eight(8, 'x');
  const auto says = [&](const std::string& header, const std::string& buffer,
                        const std::string& part) {
    const std::string error = refusal_of(with_header(header, buffer));
    EXPECT_NE(error.find(part), std::string::npos) << header << "\n" << error;
  };
  const auto object = [](const std::string& inner) { return "{" + inner + "}"; };
  EXPECT_EQ(refusal_of(with_header("{}", "")), "");
  EXPECT_EQ(refusal_of(with_header(object(entry("a", "F32", "[2]", "[0,8]")) + "   ", eight)), "");
  // Gaps, overlaps and offsets beyond the buffer.
  says(object(entry("a", "F32", "[1]", "[4,8]")), eight, "holes and overlaps");
  says(object(entry("a", "F32", "[1]", "[0,4]")), eight, "4 bytes after the last tensor");
  says(object(entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[1]", "[4,8]")), eight,
       "holes and overlaps");
  says(object(entry("a", "F32", "[3]", "[0,12]")), eight, "holes and overlaps");
  says(object(entry("a", "F32", "[1]", "[8,4]")), eight, "holes and overlaps");
  says(object(entry("a", "F32", "[2]", "[0,18446744073709551615]")), eight, "holes and overlaps");
  // Invalid sizes.
  says(object(entry("a", "F32", "[3]", "[0,8]")), eight, "does not match its 8 bytes");
  says(object(entry("a", "F32", "[4611686018427387904,4]", "[0,8]")), eight, "does not match");
  says(object(entry("a", "F32", "[18446744073709551615]", "[0,8]")), eight,
       "impossibly large size");
  says(object(entry("a", "F32", "[-1]", "[0,8]")), eight, "negative number");
  says(object(entry("a", "F32", "[2.0]", "[0,8]")), eight, "a fraction");
  // Invalid JSON.
  says(object(entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]")), eight,
       "'a' twice");
  says("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "", "'dtype' of 'a' twice");
  says("{\"a\":{\"dtype\":\"F32\"}}", "", "lacks dtype, shape or two data_offsets");
  says("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "", "lacks");
  says("{\"a\":[1]}", "", "a list for 'a'");
  says("{\"a\":3}", "", "a number for 'a'");
  says("{\"__metadata__\":{\"a\":3}}", "", "a number for 'a'");
  says("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", "", "'a' twice");
  says("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x", "'F8_E4M3'");
  says("[1]", "", "does not begin with '{'");
  says(" {}", "", "does not begin with '{'");
  says("{\"a\":", "", "is not JSON");
  says("{} {}", "", "is not JSON");
  says(std::string(100000, '{'), "", "header");  // parsed without recursion
  says("{\"a\":" + std::string(100000, '['), "", "a list for 'a'");
  EXPECT_NE(refusal_of("short").find("too short"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(8, '\xFF') + "{}").find("declares a header of"),
            std::string::npos);
}

TEST(Safetensors, UnknownKeysAreReported) {
  const auto file = parse_safetensors(
      bytes_of(with_header("{\"a\":{\"dtype\":\"U8\",\"extra\":{\"deep\":[1,{\"x\":null}]},"
                           "\"shape\":[1],\"note\":true,\"data_offsets\":[0,1]}}",
                           "x")),
      "w");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->ignored, (std::vector<std::string>{"key 'extra' of 'a'", "key 'note' of 'a'"}));
  EXPECT_EQ(describe(file->arrays.at(0)), "uint8[1]");
}

TEST(Safetensors, Truncations) {
  ArrayFile file;
  file.arrays.push_back(to_array("a", samples::pattern({DType::kF32, {2}})));
  file.arrays.push_back(to_array("b/c", samples::pattern({DType::kI32, {1, 3}})));
  file.metadata = {{"format", "np"}};
  const std::string good = text_of(*to_safetensors(file, "w"));
  const auto read = [](const std::string& bytes) {
    return parse_safetensors(bytes_of(bytes), "w").ok();
  };
  ASSERT_TRUE(read(good));
  EXPECT_EQ(samples::truncations_taken(good, read), 0);
}

TEST(Safetensors, NamesThatCannotBeWritten) {
  ArrayFile file;
  file.arrays.push_back(to_array("__metadata__", Tensor::scalar(1)));
  EXPECT_FALSE(to_safetensors(file, "w").ok());
  file.arrays[0].name = "a";
  file.arrays.push_back(file.arrays[0]);
  EXPECT_FALSE(to_safetensors(file, "w").ok());
  file.arrays[1].name = "\xFF";
  EXPECT_FALSE(to_safetensors(file, "w").ok());
}

}  // namespace
}  // namespace twinrun
