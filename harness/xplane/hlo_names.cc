// Reads names from the HLO modules in a capture. Field numbers: xla/service/hlo.proto in openxla/xla.
#include "harness/xplane/hlo_names.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "harness/xplane/wire.h"
#include "program/import/names.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using wire::Fields;

constexpr size_t kMaxPlaces = 64;  // of one op

struct Instruction {
  std::string_view name, opcode, framework_op;
  std::vector<int64_t> called;
};

Instruction instruction_of(std::string_view bytes) {
  Instruction in;
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() == 1) in.name = fields.bytes();
    if (fields.number() == 2) in.opcode = fields.bytes();
    if (fields.number() == 7) {
      Fields metadata(fields.bytes());
      while (metadata.next()) {
        if (metadata.number() == 2) in.framework_op = metadata.bytes();
      }
    }
    // Ids of called computations, packed or not. An op calls few.
    if (fields.number() == 38 && in.called.size() < kMaxPlaces) {
      if (fields.bytes().empty()) in.called.push_back(fields.integer());
      for (wire::Packed packed(fields.bytes()); packed.next() && in.called.size() < kMaxPlaces;)
        in.called.push_back(packed.integer());
    }
  }
  return in;
}

void add_place(std::vector<std::string>& places, std::string place) {
  if (!place.empty() && places.size() < kMaxPlaces &&
      std::ranges::find(places, place) == places.end())
    places.push_back(std::move(place));
}

template <typename Visit>
void for_instructions(std::string_view computation, Visit visit) {
  Fields fields(computation);
  while (fields.next()) {
    if (fields.number() == 2) visit(instruction_of(fields.bytes()));
  }
}

}  // namespace

std::string place_of(std::string_view framework_op) {
  // TensorFlow and XProf append a type: "dense1/MatMul:MatMul".
  if (const size_t type = framework_op.rfind(':');
      type != framework_op.npos && framework_op.find('/', type) == framework_op.npos)
    framework_op = framework_op.substr(0, type);
  const SourcePath source = source_path(framework_op);
  if (source.path.empty()) return "";
  return text::clean(source.path) + (source.gradient ? ".grad" : "");
}

void add_hlo_names(std::string_view hlo_proto, const std::map<std::string, CaptureOp*>& ops) {
  std::vector<std::string_view> computations;
  std::unordered_map<int64_t, std::string_view> by_id;
  Fields proto(hlo_proto);
  while (proto.next()) {
    if (proto.number() != 1) continue;
    Fields module(proto.bytes());
    while (module.next()) {
      if (module.number() != 3) continue;
      computations.push_back(module.bytes());
      Fields computation(module.bytes());
      while (computation.next()) {
        if (computation.number() == 5) by_id[computation.integer()] = module.bytes();
      }
    }
  }
  std::unordered_map<int64_t, std::vector<std::string>> places_in;  // computations
  const auto places_of = [&](int64_t id) -> const std::vector<std::string>& {
    const auto [at, fresh] = places_in.try_emplace(id);
    if (const auto found = by_id.find(id); fresh && found != by_id.end()) {
      for_instructions(found->second, [&](const Instruction& in) {
        if (!in.framework_op.empty()) add_place(at->second, place_of(in.framework_op));
      });
    }
    return at->second;
  };
  for (const std::string_view computation : computations) {
    for_instructions(computation, [&](const Instruction& in) {
      const auto found = ops.find(std::string(in.name));
      if (found == ops.end()) return;
      CaptureOp& op = *found->second;
      if (op.category.empty()) op.category = text::clean(in.opcode.substr(0, kMaxPlaces));
      if (!in.framework_op.empty()) add_place(op.paths, place_of(in.framework_op));
      if (in.opcode != "fusion") return;
      for (const int64_t id : in.called) {
        for (const std::string& place : places_of(id)) add_place(op.paths, place);
      }
    });
  }
}

}  // namespace twinrun
