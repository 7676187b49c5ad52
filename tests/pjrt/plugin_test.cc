// Tests the loader of PJRT plugins with a fake plugin that fails in a chosen way (fake_plugin.cc).
#include "backends/pjrt/plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/pjrt/pjrt_backend.h"
#include "tests/support/folder.h"

namespace twinrun::pjrt {
namespace {

namespace fs = std::filesystem;

// A copy of the fake plugin that fails in the way `wrong` once it is loaded. A copy, so that each
// one is a library with state of its own.
class Fake {
 public:
  explicit Fake(const std::string& wrong) {
    fs::copy_file(FAKE_PJRT_PLUGIN, path_);
    setenv("FAKE_PJRT", wrong.c_str(), 1);
  }
  const std::string& path() const { return path_; }
  // The number of objects that were created and not destroyed; -1 if the library is not loaded.
  int live() const {
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr ? -1 : reinterpret_cast<int (*)()>(dlsym(library, "FakeLive"))();
  }

 private:
  const Folder folder_;
  const std::string path_ = folder_ / "plugin.so";
};

std::string load_error(const std::string& path) {
  const auto plugin = Plugin::load(path);
  return plugin.ok() ? "loaded" : plugin.error().message();
}
std::string error_of(const Status& status) {
  return status.ok() ? "fine" : status.error().message();
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PjrtPlugin, SaysWhatIsNoPlugin) {
  EXPECT_TRUE(has(load_error("/nowhere/plugin.so"), "/nowhere/plugin.so: cannot be read"));
  EXPECT_TRUE(has(load_error("/"), "is not a file"));
  const Folder folder;
  const std::string text = folder / "not-a-library.so";
  std::ofstream(text) << "not a library\n";
  EXPECT_TRUE(has(load_error(text), "cannot be loaded")) << load_error(text);
  EXPECT_TRUE(has(load_error(FAKE_NO_PLUGIN), "has no function GetPjrtApi"));
}

TEST(PjrtPlugin, SaysWhatItsTableLacks) {
  const std::pair<const char*, const char*> cases[] = {
      {"nothing", "GetPjrtApi returned null"},
      {"version", "implements PJRT 1.81; this engine needs 0.x"},
      {"old", "its table of 200 bytes lacks functions"},
      {"hole", "function 20 of its table is missing"},
      {"initialise", "could not initialise (internal): no driver of version 7"}};
  for (const auto& [wrong, says] : cases) {
    const Fake fake(wrong);
    EXPECT_TRUE(has(load_error(fake.path()), says)) << wrong << ": " << load_error(fake.path());
    EXPECT_TRUE(has(load_error(fake.path()), fake.path())) << wrong;
    EXPECT_EQ(fake.live(), 0) << wrong;
  }
}

std::vector<DeviceFacts> facts(const Fake& fake, int devices) {
  const auto plugin = Plugin::load(fake.path());
  return facts_of_devices(**Client::open(*plugin, devices));
}

TEST(PjrtPlugin, TellsOfItsDevices) {
  const Fake fake("");
  const std::vector<DeviceFacts> all = facts(fake, 2);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].name, "FAKE_1");
  EXPECT_EQ(all[1].kind, "fake one");
  EXPECT_EQ(all[1].used, 1000);
  EXPECT_EQ(all[1].memory, 1 << 20);
  EXPECT_EQ(all[1].trouble, "");
  EXPECT_EQ(fake.live(), 0);
  const Fake busy("device 1");
  const std::vector<DeviceFacts> held = facts(busy, 3);
  EXPECT_EQ(held[0].trouble, "");
  EXPECT_TRUE(has(held[1].trouble, "the device is held by process 17")) << held[1].trouble;
  EXPECT_EQ(held[2].trouble, "");
  EXPECT_EQ(busy.live(), 0);
  const Fake link("copy");
  EXPECT_TRUE(has(facts(link, 1)[0].trouble, "the link is down"));
  EXPECT_EQ(link.live(), 0);
}

// A plugin may lack the functions that name a device and tell of its memory, or refuse them.
TEST(PjrtPlugin, ADeviceMayTellLittle) {
  for (const char* wrong : {"nameless", "options"}) {
    const Fake fake(wrong);
    const std::vector<DeviceFacts> all = facts(fake, 2);
    ASSERT_EQ(all.size(), 2U) << wrong;
    EXPECT_EQ(all[0].name, std::string_view(wrong) == "nameless" ? "device 100" : "FAKE_0");
    EXPECT_EQ(all[0].memory, std::nullopt) << wrong;
    EXPECT_EQ(all[0].used, std::nullopt) << wrong;
    EXPECT_EQ(fake.live(), 0) << wrong;
  }
}

TEST(PjrtPlugin, SaysWhyThereIsNoClient) {
  for (const auto& [wrong, says] :
       {std::pair{"client", "could not make a client (unavailable): the device is in use"},
        std::pair{"no device", "has no device"}}) {
    const Fake fake(wrong);
    const auto backend = make_pjrt_backend({.plugin = fake.path()});
    ASSERT_FALSE(backend.ok());
    EXPECT_TRUE(has(backend.error().message(), says)) << backend.error().message();
    EXPECT_EQ(backend.error().kind, Error::Kind::kForeignEngine);
    EXPECT_EQ(fake.live(), 0) << wrong;
  }
}

TEST(PjrtPlugin, ACpuMakesTheDevicesThatAreAskedFor) {
  const Fake fake("");
  const auto plugin = Plugin::load(fake.path());
  ASSERT_TRUE(plugin.ok());
  {
    const auto client = Client::open(*plugin, 8);
    ASSERT_TRUE(client.ok());
    EXPECT_EQ((*client)->devices().size(), 8u);
    EXPECT_EQ((*client)->platform(), "cpu");
    EXPECT_EQ((*client)->kind(), "fake one");
    EXPECT_EQ((*client)->id(7), 107);
  }
  EXPECT_EQ(fake.live(), 0);
}

TEST(PjrtPlugin, ElsewhereDevicesAreThoseThatAreThere) {
  const Fake fake("options");
  const auto backend = make_pjrt_backend({.plugin = fake.path()});
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  const Capabilities declared = (*backend)->capabilities();
  EXPECT_EQ(declared.max_cores, 2);
  EXPECT_FALSE(declared.declares_arithmetic);  // platform "abacus" is unknown
  Program program;
  program.sharding.cores = 3;
  const auto engine = (*backend)->prepare(program);
  ASSERT_FALSE(engine.ok());
  EXPECT_TRUE(has(engine.error().message(), "has 2 devices; the program needs 3"));
  EXPECT_TRUE(engine.error().of_foreign_engine());
}

Tensor counted(float first) {
  Tensor t = Tensor::empty({DType::kF32, {2, 3}});
  for (float& x : t.as<float>()) x = first++;
  return t;
}

TEST(PjrtPlugin, ArgumentsGoToTheirReplicasAndComeBack) {
  const Fake fake("");
  const auto plugin = Plugin::load(fake.path());
  ASSERT_TRUE(plugin.ok());
  {
    const auto client = Client::open(*plugin, 2);
    ASSERT_TRUE(client.ok());
    const auto step = Executable::compile(*client, "identity 1", 2);
    ASSERT_TRUE(step.ok());
    const std::vector<std::vector<Tensor>> arguments = {{counted(1), Tensor::scalar_i32(7)},
                                                        {counted(100), Tensor::scalar_i32(8)}};
    std::vector<std::vector<Tensor>> results(2);
    for (auto& r : results) r.push_back(Tensor::empty({DType::kF32, {2, 3}}));
    EXPECT_EQ(error_of((*step)->run(arguments, results)), "fine");
    EXPECT_TRUE(results[0][0].same_bits(arguments[0][0]));
    EXPECT_TRUE(results[1][0].same_bits(arguments[1][0]));

    const auto unparsed = Executable::compile(*client, "module @step {}", 2);
    ASSERT_FALSE(unparsed.ok());
    EXPECT_TRUE(has(unparsed.error().message(),
                    "could not compile the program (invalid argument): cannot parse: module"));
  }
  EXPECT_EQ(fake.live(), 0);
}

TEST(PjrtPlugin, WhatFailsOnTheWayIsSaidAndNothingIsLeft) {
  for (const auto& [wrong, says] :
       {std::pair{"execute", "could not run the program (exhausted): out of memory"},
        std::pair{"run", "could not run the program (exhausted): a replica was lost"},
        std::pair{"copy", "could not give back a result (exhausted): the link is down"}}) {
    const Fake fake(wrong);
    const auto plugin = Plugin::load(fake.path());
    ASSERT_TRUE(plugin.ok());
    {
      const auto client = Client::open(*plugin, 2);
      const auto step = Executable::compile(*client, "identity 1", 2);
      ASSERT_TRUE(step.ok());
      std::vector<std::vector<Tensor>> results(2, {Tensor::scalar(0)});
      const std::string error =
          error_of((*step)->run({{Tensor::scalar(1)}, {Tensor::scalar(2)}}, results));
      EXPECT_TRUE(has(error, says)) << error;
    }
    EXPECT_EQ(fake.live(), 0) << wrong;
  }
}

// The expected bytes are those that jaxlib 0.10.2 serializes for two replicas on devices 0 and 300,
// without its debug options.
TEST(PjrtPlugin, CompileOptionsAreThoseOfJaxlib) {
  const std::string expected =
      std::string("\x1a\x1c\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x02\x28\x01", 17) +
      std::string("\x4a\x0b\x08\x02\x10\x01\x1a\x05\x0a\x03\x00\xac\x02", 13);
  EXPECT_EQ(compile_options({0, 300}), expected);
}

}  // namespace
}  // namespace twinrun::pjrt
