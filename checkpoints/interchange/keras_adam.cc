// Copies Keras 3's Adam variables into the optimizer slots of a checkpoint.
#include "checkpoints/interchange/keras_adam.h"

namespace twinrun {
namespace {

constexpr size_t kBefore = 2;  // variables before the slots: iterations, learning_rate

// The power of beta that our optimizer holds after `steps` steps; it starts at beta itself. Once a
// product no longer changes, further ones do not either.
float power_after(float beta, int64_t steps) {
  float power = beta;
  for (int64_t i = 0; i < steps; ++i) {
    const float next = power * beta;
    if (next == power) break;
    power = next;
  }
  return power;
}

}  // namespace

bool import_adam(Checkpoint& checkpoint, const ModelOutline& outline, const ForeignWeights& theirs,
                 Conversion& report) {
  if ((theirs.optimizer_name != "adam" && theirs.optimizer_name != "adamw") || !theirs.iterations)
    return false;
  std::vector<std::string> slots;
  for (const std::string& name : outline.names) {
    const auto it = checkpoint.tensors.find(name);
    if (it == checkpoint.tensors.end() || it->second.role != "parameter") continue;
    for (const char* slot : {".adam_m", ".adam_v"}) slots.push_back(name + slot);
  }
  const auto powers = {"adam/beta1_power", "adam/beta2_power"};
  if (theirs.optimizer.size() != slots.size() + kBefore) return false;
  std::map<std::string, Tensor> values;
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto it = checkpoint.tensors.find(slots[i]);
    const NamedArray& array = theirs.optimizer[i + kBefore];
    if (it == checkpoint.tensors.end()) return false;
    const TensorType type = it->second.value.type();
    const auto keras = outline.keras_dims.find(slots[i].substr(0, slots[i].rfind('.')));
    if (array.dims != (keras == outline.keras_dims.end() ? type.dims : keras->second)) return false;
    auto value = to_tensor(array, type.dtype, "");
    if (!value) return false;
    values[slots[i]] = value->reshaped(type.dims);
  }
  for (const char* name : powers) {
    const auto it = checkpoint.tensors.find(name);
    if (it == checkpoint.tensors.end() || it->second.value.type() != TensorType{}) return false;
    values[name] = Tensor::scalar(power_after(it->second.value.as<float>()[0], *theirs.iterations));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const NamedArray& array = theirs.optimizer[i + kBefore];
    const TensorType type = values.at(slots[i]).type();
    report.rows.push_back({slots[i], array.name, describe(array), to_string(type), "Adam's order",
                           conversion(array.type, type.dtype)});
  }
  for (const char* name : powers) {
    report.rows.push_back({name, theirs.optimizer[0].name, describe(theirs.optimizer[0]), "f32[]",
                           "Adam's iterations", "as many products"});
  }
  for (auto& [name, value] : values) checkpoint.tensors.at(name).value = std::move(value);
  std::erase_if(report.initial, [&](const std::string& name) { return values.contains(name); });
  report.notes.push_back("not converted: Keras's learning_rate ('" + theirs.optimizer[1].name +
                         "'); the scenario's is used");
  return true;
}

}  // namespace twinrun
