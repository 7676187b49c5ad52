// Writes a step as an HLO module with the buffers of its memory plan.
#include "harness/xplane/hlo_module.h"

#include <hlo.pb.h>

#include <algorithm>
#include <array>
#include <map>

#include "harness/xplane/hlo_names.h"
#include "program/ops/op_def.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr const char* kEntry = "main";
constexpr int64_t kEntryId = 1;

int element_type(DType dtype) {  // PrimitiveType of xla_data.proto
  switch (dtype) {
    case DType::kF32:
      return 11;
    case DType::kBF16:
      return 16;
    case DType::kI32:
      return 4;
    case DType::kPred:
      return 1;
    case DType::kF64:
      return 12;
  }
  return 0;
}

hlo::Shape shape_of(const TensorType& type) {
  hlo::Shape shape;
  shape.set_element_type(element_type(type.dtype));
  for (const int64_t d : type.dims) {
    shape.add_dimensions(d);
    shape.add_is_dynamic_dimension(false);
  }
  hlo::Layout& layout = *shape.mutable_layout();
  for (auto i = static_cast<int64_t>(type.dims.size()) - 1; i >= 0; --i)
    layout.add_minor_to_major(i);
  return shape;
}

// Kinds whose names are opcodes of HLO and that have no attributes there.
bool is_plain_opcode(std::string_view kind) {
  static constexpr std::array<std::string_view, 20> kPlain = {
      "select", "negate",   "abs",     "convert", "add",   "subtract",    "multiply",
      "divide", "maximum",  "minimum", "sqrt",    "rsqrt", "exponential", "log",
      "tanh",   "logistic", "erf",     "and",     "or",    "xor"};
  return std::ranges::find(kPlain, kind) != kPlain.end();
}

class ModuleWriter {
 public:
  ModuleWriter(const std::string& name, const Program& step, const tpu::HbmPlan& plan)
      : step_(step), plan_(plan) {
    module().set_name(text::clean(name));
  }
  hlo::HloProto run() {
    number_parameters();
    add_instructions();
    add_buffers();
    return std::move(proto_);
  }

 private:
  static int64_t instruction_id(ValueId id) { return static_cast<int64_t>(id) + 1; }
  hlo::Module& module() { return *proto_.mutable_hlo_module(); }
  void number_parameters();
  void add_instructions();
  void add_buffers();
  void add_trace(int64_t allocation, const std::vector<int64_t>& buffers);

  const Program& step_;
  const tpu::HbmPlan& plan_;
  hlo::HloProto proto_;
  std::map<ValueId, int64_t> parameters_;   // numbers by value
  std::map<std::string, ValueId> by_name_;  // values of inputs and state variables
};

void ModuleWriter::number_parameters() {
  for (ValueId id = 0; id < step_.graph.size(); ++id) {
    if (step_.graph.op(id).kind == OpKind::kParameter)
      parameters_.emplace(id, static_cast<int64_t>(parameters_.size()));
  }
  for (const Input& input : step_.inputs) by_name_[input.name] = input.id;
  for (const StateVar& var : step_.state) by_name_[var.name] = var.id;
}

void ModuleWriter::add_instructions() {
  hlo::Computation& entry = *module().add_computations();
  entry.set_name(kEntry);
  entry.set_id(kEntryId);
  hlo::ProgramShape& shape = *entry.mutable_program_shape();
  for (ValueId id = 0; id < step_.graph.size(); ++id) {
    const Op& op = step_.graph.op(id);
    hlo::Instruction& in = *entry.add_instructions();
    in.set_name(hlo_name(op.name));
    in.set_id(instruction_id(id));
    *in.mutable_shape() = shape_of(op.type);
    in.mutable_metadata()->set_op_name(text::clean(op.name));
    in.mutable_metadata()->set_op_type(std::string(name_of(op.kind)));
    if (const auto parameter = parameters_.find(id); parameter != parameters_.end()) {
      in.set_opcode("parameter");
      in.set_parameter_number(parameter->second);
      *shape.add_parameters() = in.shape();
      shape.add_parameter_names(in.name());
      continue;
    }
    for (const ValueId operand : op.operands) in.add_operand_ids(instruction_id(operand));
    const bool plain = is_plain_opcode(name_of(op.kind));
    in.set_opcode(plain ? std::string(name_of(op.kind)) : "custom-call");
    if (!plain) in.set_custom_call_target(std::string(name_of(op.kind)));
  }
  const ValueId root = step_.loss != kNoValue ? step_.loss : step_.graph.size() - 1;
  *shape.mutable_result() = shape_of(step_.graph.type(root));
  entry.set_root_id(instruction_id(root));
  module().set_entry_computation_name(kEntry);
  module().set_entry_computation_id(kEntryId);
  module().set_id(kEntryId);
  *module().mutable_host_program_shape() = shape;
}

// Arguments have an allocation each, which lasts. All others share one, in which each lies at the
// first free place.
void ModuleWriter::add_buffers() {
  hlo::BufferAssignment& assignment = *proto_.mutable_buffer_assignment();
  std::vector<int64_t> shared;  // indices of buffers
  const auto assign = [&](hlo::BufferAllocation& allocation, size_t i, int64_t offset) {
    auto& assigned = *allocation.add_assigned();
    assigned.set_logical_buffer_id(static_cast<int64_t>(i));
    assigned.set_offset(offset);
    assigned.set_size(plan_.buffers[i].bytes);
    allocation.set_size(std::max(allocation.size(), offset + plan_.buffers[i].bytes));
  };
  hlo::BufferAllocation temporaries;
  std::vector<std::pair<size_t, int64_t>> placed;  // buffer and offset
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const tpu::HbmBuffer& buffer = plan_.buffers[i];
    ValueId id = step_.graph.find(buffer.op);
    if (const auto named = by_name_.find(buffer.op); named != by_name_.end()) id = named->second;
    if (id == kNoValue) continue;
    hlo::LogicalBuffer& logical = *assignment.add_logical_buffers();
    logical.set_id(static_cast<int64_t>(i));
    logical.set_size(buffer.bytes);
    logical.mutable_defined_at()->set_instruction_id(instruction_id(id));
    if (tpu::is_argument(buffer.use)) {
      hlo::BufferAllocation& allocation = *assignment.add_buffer_allocations();
      allocation.set_index(static_cast<int64_t>(i) + 1);
      allocation.set_is_entry_computation_parameter(true);
      if (const auto parameter = parameters_.find(id); parameter != parameters_.end())
        allocation.set_parameter_number(parameter->second);
      assign(allocation, i, 0);
      continue;
    }
    // Occupied places that are held at the same time, in their order.
    std::vector<std::pair<int64_t, int64_t>> occupied;
    for (const auto& [other, offset] : placed) {
      const tpu::HbmBuffer& b = plan_.buffers[other];
      if (b.first <= buffer.last && buffer.first <= b.last)
        occupied.emplace_back(offset, offset + b.bytes);
    }
    std::ranges::sort(occupied);
    int64_t offset = 0;
    for (const auto& [begin, end] : occupied) {
      if (begin - offset >= buffer.bytes) break;
      offset = std::max(offset, end);
    }
    placed.emplace_back(i, offset);
    shared.push_back(static_cast<int64_t>(i));
    assign(temporaries, i, offset);
  }
  if (shared.empty()) return;
  *assignment.add_buffer_allocations() = std::move(temporaries);  // its index is 0
  add_trace(0, shared);
}

void ModuleWriter::add_trace(int64_t allocation, const std::vector<int64_t>& buffers) {
  hlo::HeapSimulatorTrace& trace = *proto_.mutable_buffer_assignment()->add_heap_simulator_traces();
  trace.set_whole_module_simulation(true);
  trace.set_buffer_allocation_index(allocation);
  std::map<int, std::vector<int64_t>> begins, ends;  // by unit
  for (const int64_t i : buffers) {
    const tpu::HbmBuffer& buffer = plan_.buffers[static_cast<size_t>(i)];
    begins[buffer.first].push_back(i);
    ends[buffer.last].push_back(i);
  }
  std::string unit;  // the op that wrote last
  for (int u = 0; u < plan_.units; ++u) {
    const auto add = [&](int kind, int64_t buffer) {
      auto& event = *trace.add_events();
      event.set_kind(kind);
      event.set_buffer_id(buffer);
      event.set_computation_name(kEntry);
      event.set_instruction_name(unit);
    };
    for (const int64_t i : begins[u]) {
      unit = hlo_name(plan_.buffers[static_cast<size_t>(i)].op);
      add(0, i);
    }
    for (const int64_t i : ends[u]) add(1, i);
  }
}

}  // namespace

std::string to_hlo_proto(const std::string& name, const Program& step, const tpu::HbmPlan& plan) {
  return ModuleWriter(name, step, plan).run().SerializeAsString();
}

}  // namespace twinrun
