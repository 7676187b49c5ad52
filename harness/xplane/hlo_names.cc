// Reads and makes names of ops in HLO. Field numbers: xla/service/hlo.proto in openxla/xla.
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

void add_places(std::vector<std::string>& places, const std::vector<std::string>& more) {
  for (const std::string& place : more) {
    if (places.size() < kMaxPlaces && std::ranges::find(places, place) == places.end())
      places.push_back(place);
  }
}

template <typename Visit>
void for_instructions(std::string_view computation, Visit visit) {
  Fields fields(computation);
  while (fields.next()) {
    if (fields.number() == 2) visit(instruction_of(fields.bytes()));
  }
}

}  // namespace

std::string hlo_name(std::string_view op) {
  std::string name(op);
  for (char& c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '-') c = '_';
  }
  if (!name.empty() && name[0] >= '0' && name[0] <= '9') name.insert(0, "_");
  return name;
}

std::vector<std::string> places_of(std::string_view framework_op) {
  // TensorFlow and XProf append a type: "dense1/MatMul:MatMul".
  if (const size_t type = framework_op.rfind(':');
      type != framework_op.npos && framework_op.find('/', type) == framework_op.npos)
    framework_op = framework_op.substr(0, type);
  std::vector<std::string> places;
  for (size_t at = 0; at < framework_op.size() && places.size() < kMaxPlaces;) {
    const size_t end = std::min(framework_op.find(';', at), framework_op.size());
    const SourcePath source = source_path(framework_op.substr(at, end - at));
    if (!source.path.empty())
      add_places(places, {text::clean(source.path) + (source.gradient ? ".grad" : "")});
    at = end + 1;
  }
  return places;
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
  std::unordered_map<int64_t, std::vector<std::string>> known;  // of computations
  const auto places_in = [&](int64_t id) -> const std::vector<std::string>& {
    const auto inserted = known.try_emplace(id);
    std::vector<std::string>& places = inserted.first->second;
    if (const auto found = by_id.find(id); inserted.second && found != by_id.end()) {
      for_instructions(found->second, [&](const Instruction& in) {
        add_places(places, places_of(in.framework_op));
      });
    }
    return places;
  };
  for (const std::string_view computation : computations) {
    for_instructions(computation, [&](const Instruction& in) {
      const auto found = ops.find(std::string(in.name));
      if (found == ops.end()) return;
      CaptureOp& op = *found->second;
      if (op.category.empty()) op.category = text::clean(in.opcode.substr(0, kMaxPlaces));
      add_places(op.paths, places_of(in.framework_op));
      if (in.opcode != "fusion") return;
      for (const int64_t id : in.called) add_places(op.paths, places_in(id));
    });
  }
}

}  // namespace twinrun
