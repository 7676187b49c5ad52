// Digests every op of a step as it is traced.
#include "harness/lockstep/op_digests.h"

#include <algorithm>

namespace twinrun {

std::string OpNames::next(const std::string& name) {
  const int n = seen_[name]++;
  return n == 0 ? name : name + "#" + std::to_string(n);
}

void OpDigests::on_op(const OpEvent& event) {
  const std::string& name = event.op().name;
  places_[names_.next(name)] = written_.size();
  std::vector<Digest>& row = written_.emplace_back(name, std::vector<Digest>{}).second;
  for (const Tensor& t : event.outputs)
    row.push_back(!row.empty() && t.raw() == event.outputs[0].raw() ? row[0] : digest(t));
  if (next_ != nullptr) next_->on_op(event);
}

const std::vector<Digest>* OpDigests::find(const std::string& unique_name) const {
  const auto found = places_.find(unique_name);
  return found == places_.end() ? nullptr : &written_[found->second].second;
}

std::string OpDigests::first_difference(const OpDigests& other) const {
  const auto [here, there] = std::ranges::mismatch(written_, other.written_);
  return here == written_.end() || there == other.written_.end() ? "" : here->first;
}

}  // namespace twinrun
