// Tests 10,000 seeded mutations of an engine's answers, both result files and lines. Each gives a
// value or an error, never a crash; the preset asan-ubsan adds the sanitizers' checks.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "backends/exec/arrays.h"
#include "backends/exec/messages.h"
#include "tests/exec/script.h"

namespace twinrun {
namespace {

using nlohmann::json;
using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

// Changes bits, bytes, lengths and positions, without knowledge of the format.
void scramble(std::string& bytes, Random& random) {
  switch (below(random, 5)) {
    case 0:
      for (size_t n = 1 + below(random, 8); n > 0 && !bytes.empty(); --n)
        bytes[below(random, bytes.size())] ^= static_cast<char>(1 << below(random, 8));
      break;
    case 1:
      bytes.resize(below(random, bytes.size() + 1));
      break;
    case 2:
      bytes.append(1 + below(random, 64), static_cast<char>(random()));
      break;
    case 3: {
      const size_t from = below(random, bytes.size()), n = below(random, bytes.size() - from);
      bytes.insert(below(random, bytes.size()), bytes.substr(from, n));
      break;
    }
    default: {
      const size_t from = below(random, bytes.size());
      bytes.erase(from, below(random, bytes.size() - from));
    }
  }
}

json hostile_number(Random& random) {
  static const json numbers[] = {0,
                                 1,
                                 -1,
                                 3,
                                 1e300,
                                 0.5,
                                 (uint64_t{1} << 31),
                                 (uint64_t{1} << 62),
                                 (uint64_t{1} << 62) + 1,
                                 (uint64_t{1} << 63),
                                 ~uint64_t{0},
                                 INT64_MIN};
  return numbers[below(random, std::size(numbers))];
}

json hostile_value(Random& random) {
  switch (below(random, 8)) {
    case 0:
      return nullptr;
    case 1:
      return std::string(below(random, 3000), 'x');
    case 2:
      return json::array({1, {{"a", json::array()}}});
    case 3:
      return json::object();
    case 4:
      return random() % 2 == 0;
    case 5:
      return "F64";
    case 6:
      return "\x1b[2J\n\xEF\xBF\xBD";
    default:
      return hostile_number(random);
  }
}

// A random value inside `value`, or `value` itself.
json& somewhere(json& value, Random& random) {
  json* at = &value;
  while (at->is_structured() && !at->empty() && below(random, 4) != 0) {
    auto it = at->begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(random, at->size())));
    at = &*it;
  }
  return *at;
}

std::string nested(Random& random) {
  const size_t depth = 1 + below(random, 2000);
  return random() % 2 == 0 ? std::string(depth, '[') + std::string(depth, ']')
                           : std::string(depth, '[');
}

// Edits the header and keeps the rest of the file as it was; the length is usually adjusted.
void edit_header(std::string& file, Random& random) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  json header = json::parse(file.substr(8, length));
  std::string text;
  auto tensor = header.begin();
  std::advance(tensor, static_cast<std::ptrdiff_t>(below(random, header.size())));
  const auto dims = [&] {
    return json(std::vector<json>(below(random, 40), hostile_number(random)));
  };
  switch (below(random, 9)) {
    case 0:
      (*tensor)["shape"] = dims();
      break;
    case 1:
      (*tensor)["data_offsets"] = {hostile_number(random), hostile_number(random)};
      break;
    case 2: {  // two tensors overlap
      (*tensor)["data_offsets"] = header.front()["data_offsets"];
      break;
    }
    case 3: {
      static const char* types[] = {"F64", "I32", "BOOL", "BF16", "F16", "I64", "C64", "", "f32"};
      (*tensor)["dtype"] = types[below(random, std::size(types))];
      break;
    }
    case 4:  // the same name twice
      text = header.dump();
      text.insert(1, json(tensor.key()).dump() + ":" + tensor->dump() + ",");
      break;
    case 5: {
      const json moved = *tensor;
      const std::string name = tensor.key();
      header.erase(name);
      static const char* names[] = {
          "", "@0", "state/w@-1", "state/w@99999999999999999999", "\n", "__metadata__"};
      header[names[below(random, std::size(names))]] = moved;
      break;
    }
    case 6:
      header.erase(tensor.key());
      break;
    case 7:  // deep nesting under an unknown or a known key
      text = header.dump();
      text.insert(1, std::string(random() % 2 == 0 ? "\"deep\":" : "\"__metadata__\":") +
                         nested(random) + ",");
      break;
    default:
      somewhere(header, random) = hostile_value(random);
  }
  if (text.empty()) text = header.dump();
  length = below(random, 10) == 0 ? hostile_number(random).get<uint64_t>() : text.size();
  uint64_t old = 0;
  std::memcpy(&old, file.data(), sizeof old);
  const std::string data = file.substr(8 + old);
  file.assign(reinterpret_cast<const char*>(&length), sizeof length);
  file += text + data;
}

constexpr int kMutations = 10000;

using exec_tests::Script;

TEST_F(Script, MutatedResultFiles) {
  // A result as a served engine writes it, for four replicas that differ only in the loss.
  const TensorType kernel{DType::kF32, {5, 3}}, count{DType::kI32, {}}, mask{DType::kPred, {4}},
      loss{DType::kF32, {}};
  ArrayFile file;
  exec::add_arrays(file, "state/kernel", std::vector<Tensor>(4, Tensor::zeros(kernel)));
  exec::add_arrays(file, "state/count", std::vector<Tensor>(4, Tensor::zeros(count)));
  exec::add_arrays(file, "state/mask", std::vector<Tensor>(4, Tensor::zeros(mask)));
  std::vector<Tensor> losses;
  for (int r = 0; r < 4; ++r) {
    Tensor t = Tensor::empty(loss);
    t.as<float>()[0] = static_cast<float>(r);
    losses.push_back(t);
  }
  exec::add_arrays(file, "output/loss", losses);
  const auto bytes = to_safetensors(file, "good");
  const std::string good(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const std::pair<const char*, TensorType> expected[] = {{"state/kernel", kernel},
                                                         {"state/count", count},
                                                         {"state/mask", mask},
                                                         {"output/loss", loss}};

  int taken = 0, refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    Random random(static_cast<uint64_t>(i));
    std::string bad = good;
    if (i % 2 == 0) edit_header(bad, random);
    if (i % 4 != 0) scramble(bad, random);
    keep("r.safetensors", std::as_bytes(std::span(bad)));
    const uint64_t most = 4 * good.size();
    auto read = exec::read_result(folder_, "r.safetensors", most, "exec:e: r");
    bool good_one = read.ok();
    if (!read) {
      EXPECT_TRUE(read.error().where.starts_with("exec:e: r")) << read.error().message();
    }
    const exec::ResultArrays arrays(good_one ? *std::move(read) : ArrayFile{}, "exec:e: r");
    for (const auto& [name, type] : expected) {
      const auto values = arrays.take(name, type, 4);
      good_one = good_one && values.ok();
      if (!values) {
        EXPECT_TRUE(values.error().where.starts_with("exec:e: r")) << values.error().message();
        continue;
      }
      ASSERT_EQ(values->size(), 4u);
      for (const Tensor& value : *values) ASSERT_EQ(value.type(), type) << i;
    }
    ++(good_one ? taken : refused);
  }
  // A file with changed numbers may be accepted, as values are judged later. Most edits are
  // rejected.
  EXPECT_GT(taken, kMutations / 200);
  EXPECT_GT(refused, kMutations / 2);
}

TEST(Mutations, OfTheLinesOfASession) {
  const std::string lines[] = {
      R"({"hello":{"protocol":1,"name":"e","version":"1","settings":"threads=1","max_cores":8,"precision":"high",)"
      R"("elementary_ulps":2,"flush":true,"contracts":false,"deterministic":true}})",
      R"({"prepared":"program-1.json"})", R"({"stepped":0,"result":"result-0.safetensors"})",
      R"({"alive":"compiling"})", R"({"error":"no layer kind 'gather'"})"};
  int hellos = 0, answers = 0, refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    Random random(static_cast<uint64_t>(i) + (uint64_t{1} << 32));
    std::string line = lines[below(random, std::size(lines))];
    if (i % 2 == 0) {
      json message = json::parse(line);
      somewhere(message, random) = hostile_value(random);
      line = message.dump();
      if (i % 16 == 0)
        line.insert(line.find(':') + 1, nested(random) + (random() % 2 ? "," : ",\"x\":"));
    }
    if (i % 4 != 0) scramble(line, random);
    for (const auto& [key, is] :
         {std::pair("hello", ""), std::pair("prepared", "\"program-1.json\""),
          std::pair("stepped", "0")}) {
      const auto reply = exec::parse_reply(line, key, is, "exec:e");
      if (!reply) {
        EXPECT_EQ(reply.error().where, "exec:e");
      }
      ++(reply ? answers : refused);
    }
    const auto hello = exec::parse_hello(line, "exec:e");
    if (!hello) continue;
    ++hellos;
    EXPECT_FALSE(hello->name.empty());
    EXPECT_GE(hello->max_cores, 1);
    EXPECT_LE(hello->max_cores, 1 << 20);
    EXPECT_GE(hello->elementary_ulps, 0.5);
    EXPECT_FALSE(hello->op_trace);
  }
  EXPECT_GT(hellos, kMutations / 100);
  EXPECT_GT(answers, kMutations / 20);
  EXPECT_GT(refused, kMutations);
}

// Nesting as deep as a line allows: printing such a value recursively needs a stack of that depth.
TEST(Mutations, LinesAsDeepAsTheyAreLong) {
  const std::string deep = std::string(400000, '[') + std::string(400000, ']');
  for (const std::string key : {"prepared", "alive", "error"}) {
    const auto reply =
        exec::parse_reply("{\"" + key + "\":" + deep + "}", "prepared", "0", "exec:e");
    if (!reply) {
      EXPECT_LT(reply.error().message().size(), 10000u);
    }
  }
  EXPECT_FALSE(exec::parse_hello("{\"hello\":{\"protocol\":" + deep + "}}", "exec:e").ok());
}

}  // namespace
}  // namespace twinrun
