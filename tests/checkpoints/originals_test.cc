// Tests that the original Keras and safetensors load the files that we write. They are not packages
// of Debian, so the test runs only where TWINRUN_KERAS_PYTHON names an interpreter that has keras,
// tf_keras and safetensors.
#include <cstdlib>

#include "tests/checkpoints/python.h"
#include "tests/checkpoints/small_model.h"

namespace twinrun {
namespace {

TEST(SlowOriginals, LoadWhatWasWritten) {
  const char* python = std::getenv("TWINRUN_KERAS_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TWINRUN_KERAS_PYTHON names no interpreter with Keras";
  const Folder folder;
  const auto model = samples::small_model(true);
  Checkpoint c = model.initial;
  uint64_t salt = 9;
  for (auto& [name, tensor] : c.tensors)
    tensor.value = samples::pattern(tensor.value.type(), ++salt);
  for (const auto& [format, file] : {std::pair(WeightsFormat::kNpz, "w.npz"),
                                     {WeightsFormat::kSafetensors, "w.safetensors"},
                                     {WeightsFormat::kKerasH5, "w.h5"},
                                     {WeightsFormat::kKeras3, "w.weights.h5"}}) {
    Conversion report;
    const auto weights = export_weights(c, model.outline, format, {}, report);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    const auto bytes = foreign_bytes(*weights, file);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message();
    samples::write_bytes(folder / file, samples::text_of(*bytes));
  }
  const auto seen =
      samples::run_python(python, folder,
                          "import sys\nsys.path.insert(0, '" + samples::fixture("") +
                              "')\nsys.dont_write_bytecode = True\nimport check_originals\n"
                              "check_originals.main('.')\n");
  EXPECT_EQ(seen.code, 0) << seen.text;
  EXPECT_NE(seen.text.find("ok: tf_keras w.h5 by name"), std::string::npos) << seen.text;
  RecordProperty("printed", seen.text);
}

}  // namespace
}  // namespace twinrun
