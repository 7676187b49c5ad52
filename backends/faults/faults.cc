// The hooks: at which op, core and step each fault strikes, and the log of what it changed. What
// the kinds do is in the files of the groups.
#include "backends/faults/faults.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "backends/faults/kind.h"
#include "program/base/names.h"
#include "program/base/philox.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

constexpr uint32_t kElements = 0xFA017u, kRate = 0xFA018u;  // streams of Philox

int64_t changed(const Tensor& a, const Tensor& b) {
  if (a.raw() == b.raw()) return 0;
  const size_t size = size_of(a.dtype());
  int64_t n = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    n += std::memcmp(a.raw() + at, b.raw() + at, size) != 0;
  }
  return n;
}

Error no_op(const FaultSpec& fault, bool named, const std::vector<std::string>& possible) {
  const std::string closest = nearest(fault.glob, possible);
  return Error{named ? "'" + fault.glob + "' matches ops, but none that " +
                           std::string(fault.kind->name) + " can act on (" +
                           std::string(fault.kind->acts_on) + ")"
                     : "no op matches '" + fault.glob + "'",
               "--fault " + fault.text,
               closest.empty() ? "this program has no op for this kind of fault"
                               : "the nearest op it can act on is '" + closest + "'"};
}

}  // namespace

// ---- helpers for the kinds (kind.h)

Tensor Strike::computed(const std::vector<Tensor>& on) const {
  Tensor result = Tensor::empty(op().type);
  (*site.compute)(on, result);
  return result;
}
std::span<float> Strike::own_output() { return (output = output.clone()).as<float>(); }
std::span<float> Strike::own_input(size_t i) { return (inputs[i] = inputs[i].clone()).as<float>(); }
uint32_t Strike::random(uint64_t i, bool each_step) const {
  return draw({where.seed, kElements}, each_step ? static_cast<uint32_t>(site.step) : ~0u,
              static_cast<uint32_t>(site.id), i);
}
size_t Strike::element(bool each_step) const {
  return static_cast<size_t>(
      bounded(random(0, each_step), static_cast<uint32_t>(output.elements())));
}

bool f32_operands(const Program& p, ValueId id) {
  return std::ranges::all_of(op_at(p, id).operands, [&](ValueId operand) {
    return p.graph.type(operand).dtype == DType::kF32;
  });
}
const StateVar* updates(const Program& p, ValueId id) {
  const auto it = std::ranges::find(p.state, id, &StateVar::next);
  return it == p.state.end() ? nullptr : &*it;
}
bool reads(const Op& op, ValueId value) {
  return std::ranges::find(op.operands, value) != op.operands.end();
}

// ---- the hooks

struct FaultHooks::Impl {
  struct Memory {
    std::vector<Tensor> inputs;
    Tensor output;
  };

  std::vector<FaultSpec> faults;
  Where where;
  std::vector<std::vector<size_t>> by_op;  // [value] -> indices into faults
  std::vector<ValueId> state_of;           // [value] -> the state variable that it replaces
  // By (op, replica), for kinds with `remembers`: what the op read and gave when it last ran.
  std::map<std::pair<ValueId, int>, Memory> last_step;
  std::vector<Activation> log;
  mutable std::mutex mutex;

  // Whether the fault strikes this op in this step, regardless of the core.
  bool strikes(size_t f, ValueId id, int64_t step) const {
    const FaultSpec& fault = faults[f];
    if (!fault.active_at(step)) return false;
    if (!fault.rate) return true;
    const uint32_t u = draw({where.seed, kRate}, static_cast<uint32_t>(step),
                            static_cast<uint32_t>(id), where.run * faults.size() + f);
    return static_cast<double>(u) * 0x1p-32 < *fault.rate;
  }

  // A fault on a collective normally changes the shared result once. It changes the cores' copies
  // instead if its kind makes cores differ, or if it names a core and its kind is not itself a
  // fault of collectives (for those, `core` selects a contribution).
  static bool on_copies(const FaultSpec& fault) {
    if (fault.kind->place == FaultKind::Place::kEachCopy) return true;
    return fault.core && fault.kind->group != FaultGroup::kCollectives;
  }
  bool here(const FaultSpec& fault, const OpSite& site) const {
    const bool collective = class_of(site.op().kind) == OpClass::kCollective;
    if (!collective) return !fault.core || *fault.core == site.replica;
    if (site.replica < 0) return !on_copies(fault);
    return on_copies(fault) && (!fault.core || *fault.core == site.replica);
  }

  void run(Strike& s, size_t f) {
    const Tensor before = s.output;
    faults[f].kind->strike(s);
    const int64_t n = changed(before, s.output);
    if (n == 0) return;
    std::lock_guard lock(mutex);
    log.push_back({s.site.step, s.site.replica, s.op().name, faults[f].text,
                   std::string(faults[f].kind->name), n});
  }

  // Applies first the faults that change how the op computes, then those that change its result,
  // each in the order given.
  void strike(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) {
    const auto& indices = by_op[static_cast<size_t>(site.id)];
    std::vector<Tensor> previous_inputs;
    Tensor previous_output;
    if (std::ranges::any_of(indices, [&](size_t f) { return faults[f].kind->remembers; })) {
      std::lock_guard lock(mutex);
      Memory& memory = last_step[{site.id, site.replica}];
      previous_inputs = std::exchange(memory.inputs, inputs);
      previous_output = std::exchange(memory.output, output);
    }
    std::vector<Tensor> in = inputs;
    for (const bool computation : {true, false}) {
      for (size_t f : indices) {
        const FaultSpec& fault = faults[f];
        if ((fault.kind->place == FaultKind::Place::kComputation) != computation) continue;
        if (!here(fault, site) || !strikes(f, site.id, site.step)) continue;
        Strike s{site,
                 fault,
                 where,
                 std::move(in),
                 output,
                 state_of[static_cast<size_t>(site.id)],
                 previous_inputs,
                 previous_output};
        run(s, f);
        in = std::move(s.inputs);
        output = s.output;
      }
    }
  }
};

FaultHooks::FaultHooks() : impl_(std::make_unique<Impl>()) {}
FaultHooks::~FaultHooks() = default;

Result<std::unique_ptr<FaultHooks>> FaultHooks::make(const Program& program,
                                                     std::vector<FaultSpec> faults, Where where) {
  std::unique_ptr<FaultHooks> hooks(new FaultHooks());
  Impl& impl = *hooks->impl_;
  impl.where = std::move(where);
  const int cores = program.sharding.cores;
  const std::vector<bool> dead = dead_values(program);
  impl.by_op.resize(static_cast<size_t>(program.graph.size()));
  impl.state_of.assign(static_cast<size_t>(program.graph.size()), kNoValue);
  for (const auto& var : program.state) {
    if (var.next != kNoValue) impl.state_of[static_cast<size_t>(var.next)] = var.id;
  }
  for (size_t f = 0; f < faults.size(); ++f) {
    const FaultSpec& fault = faults[f];
    if (fault.core && *fault.core >= cores) {
      return Error{"core " + std::to_string(*fault.core) + " does not exist (cores 0 to " +
                       std::to_string(cores - 1) + ")",
                   "--fault " + fault.text, "name an existing core"};
    }
    std::vector<std::string> possible;
    bool named = false, hit = false;
    for (ValueId id = 0; id < program.graph.size(); ++id) {
      const std::string& name = program.graph.op(id).name;
      // Names of imported ops may have brackets, "dot_general[3]", which fnmatch takes for a choice.
      const bool match = fault.glob == name || fnmatch(fault.glob.c_str(), name.c_str(), 0) == 0;
      named = named || match;
      if (dead[static_cast<size_t>(id)] || !applies(*fault.kind, program, id)) continue;
      possible.push_back(name);
      if (!match) continue;
      impl.by_op[static_cast<size_t>(id)].push_back(f);
      hit = true;
    }
    if (!hit) return no_op(fault, named, possible);
  }
  impl.faults = std::move(faults);
  return hooks;
}

bool FaultHooks::watches(const Program&, ValueId id, int64_t step) {
  return std::ranges::any_of(impl_->by_op[static_cast<size_t>(id)], [&](size_t f) {
    return impl_->faults[f].kind->remembers || impl_->strikes(f, id, step);
  });
}

bool FaultHooks::replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) {
  (*site.compute)(inputs, output);
  impl_->strike(site, inputs, output);
  return true;
}

void FaultHooks::after_copy(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& copy) {
  impl_->strike(site, inputs, copy);
}

std::vector<Activation> FaultHooks::activations() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<Activation> sorted = impl_->log;
  std::ranges::stable_sort(sorted, {},
                           [](const Activation& a) { return std::tuple(a.step, a.op, a.replica); });
  return sorted;
}

}  // namespace twinrun
