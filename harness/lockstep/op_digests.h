// Digests of what every op of a step wrote, on every replica: enough to say where two executions
// diverge, without the values, which might not fit into memory.
//
//   OpDigests first, again;                    // each given to Engine::step as its sink
//   first.first_difference(again);             // "dense1/kernel.grad"; "": the same bits
//   first.find("dense1/kernel.grad");          // the digests, by replica
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backends/core/backend.h"
#include "program/base/digest.h"

namespace twinrun {

// Unique names for the ops of one step. The program's names are unique; ops that an engine adds may
// repeat a name and get a number.
class OpNames {
 public:
  std::string next(const std::string& name);

 private:
  std::map<std::string, int> seen_;
};

class OpDigests : public TraceSink {
 public:
  // `next`, where given, receives every op as well.
  explicit OpDigests(TraceSink* next = nullptr) : next_(next) {}
  void on_op(const OpEvent& event) override;
  // By replica; nullptr: no such op.
  const std::vector<Digest>* find(const std::string& unique_name) const;
  // The first op, in the order of execution, that wrote different bits. All ops before it wrote the
  // same bits, so it read the same operands.
  std::string first_difference(const OpDigests& other) const;

 private:
  TraceSink* next_;
  OpNames names_;
  std::map<std::string, size_t> places_;                              // by unique name, in written_
  std::vector<std::pair<std::string, std::vector<Digest>>> written_;  // in the order of execution
};

}  // namespace twinrun
