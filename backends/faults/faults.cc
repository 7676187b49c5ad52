#include "backends/faults/faults.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <mutex>

#include "backends/tpu/machine.h"
#include "program/base/bits.h"
#include "program/base/names.h"
#include "program/base/philox.h"
#include "program/ops/k_tail.h"

namespace twinrun {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"truncate_bf16", "drop_k_tail",   "scale",
                                                    "drop_core",     "stale_weights", "bit_flip"};

bool is_dot(const Op& op) { return class_of(op.kind) == OpClass::kDot; }

bool applies(FaultKind kind, const Op& op) {
  if (op.kind == OpKind::kParameter || class_of(op.kind) == OpClass::kSource) return false;
  switch (kind) {
    case FaultKind::kDropKTail:
      return is_dot(op);
    case FaultKind::kDropCore:
      return op.kind == OpKind::kAllReduce;
    case FaultKind::kTruncateBf16:
    case FaultKind::kScale:
      return op.type.dtype == DType::kF32;
    case FaultKind::kStaleWeights:
    case FaultKind::kBitFlip:
      return true;
  }
  return false;
}

int64_t changed(const Tensor& a, const Tensor& b) {
  const size_t size = size_of(a.dtype());
  int64_t n = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    n += std::memcmp(a.raw() + at, b.raw() + at, size) != 0;
  }
  return n;
}

Tensor truncated(const Tensor& x) {
  if (x.dtype() != DType::kF32) return x;
  Tensor out = x.clone();
  for (float& v : out.as<float>()) v = bf16_to_f32(bf16_truncate(v));
  return out;
}

// The last partial tile of 128 of the flat k, a whole one if it divides; magnitude: the size.
int64_t tail_of(int64_t k, std::optional<double> magnitude) {
  if (magnitude) return std::min<int64_t>(k, static_cast<int64_t>(*magnitude));
  return k % tpu::kLanes != 0 ? k % tpu::kLanes : std::min(k, tpu::kLanes);
}

Error bad(std::string_view text, std::string what, std::string fix = "") {
  return Error{
      std::move(what), "--fault " + std::string(text),
      fix.empty() ? "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M]" : std::move(fix)};
}

template <typename T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status set_key(FaultSpec& spec, std::string_view key, std::string_view value,
               std::string_view text) {
  int64_t n = 0;
  double m = 0;
  if (key == "magnitude") {
    if (!parse_number(value, m) || !std::isfinite(m))
      return bad(text, "magnitude '" + std::string(value) + "' is no finite number");
    const bool count = spec.kind == FaultKind::kDropKTail || spec.kind == FaultKind::kBitFlip;
    if (count && (m < 0 || m > 1e9 || m != std::floor(m))) {
      return bad(text,
                 "magnitude '" + std::string(value) + "' is no count: this kind takes " +
                     (spec.kind == FaultKind::kBitFlip ? "a bit number" : "a number of terms"));
    }
    spec.magnitude = m;
    return Ok{};
  }
  const std::vector<std::string> known = {"core", "step", "from", "every", "magnitude"};
  if (std::ranges::find(known, key) == known.end()) {
    return bad(text, "unknown key '" + std::string(key) + "' (allowed: " + join(known, ", ") + ")",
               "did you mean '" + nearest(key, known) + "'?");
  }
  if (!parse_number(value, n) || n < 0 ||
      n > (key == "core" ? int64_t{1} << 20 : int64_t{1} << 60) || (key == "every" && n == 0)) {
    return bad(text, std::string(key) + " '" + std::string(value) + "' is no count");
  }
  if (key == "core") {
    spec.core = static_cast<int>(n);
    return Ok{};
  }
  if (spec.step || spec.from || spec.every) return bad(text, "more than one of step, from, every");
  (key == "step" ? spec.step : key == "from" ? spec.from : spec.every) = n;
  return Ok{};
}

}  // namespace

std::vector<std::string> fault_kinds() { return {kNames.begin(), kNames.end()}; }

bool FaultSpec::active_at(int64_t s) const {
  if (step) return s == *step;
  if (from) return s >= *from;
  if (every) return s % *every == 0;
  return kind != FaultKind::kBitFlip || s == 0;
}

Result<FaultSpec> parse_fault(std::string_view text) {
  FaultSpec spec;
  spec.text = text;
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return bad(text, "no '@' between the kind and the op");
  const std::string_view kind = text.substr(0, at);
  const auto found = std::ranges::find(kNames, kind);
  if (found == kNames.end()) {
    return bad(
        text, "unknown kind '" + std::string(kind) + "' (known: " + join(fault_kinds(), ", ") + ")",
        "did you mean '" + nearest(kind, fault_kinds()) + "'?");
  }
  spec.kind = static_cast<FaultKind>(found - kNames.begin());
  std::string_view rest = text.substr(at + 1);
  spec.glob = rest.substr(0, rest.find(','));
  if (spec.glob.empty()) return bad(text, "no op pattern after '@'");
  while (rest.find(',') != std::string_view::npos) {
    rest = rest.substr(rest.find(',') + 1);
    const std::string_view item = rest.substr(0, rest.find(','));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return bad(text, "'" + std::string(item) + "' is not KEY=VALUE");
    TWINRUN_RETURN_IF_ERROR(set_key(spec, item.substr(0, equals), item.substr(equals + 1), text));
  }
  return spec;
}

struct FaultHooks::Impl {
  std::vector<FaultSpec> faults;
  uint64_t seed = 0;
  int cores = 1;
  std::vector<std::vector<size_t>> by_op;  // [value] -> indices into faults
  std::vector<ValueId> update_of;          // [value] -> the state it replaces, or kNoValue
  std::map<std::pair<ValueId, int>, Tensor> previous;  // stale: what this op gave one step before
  std::vector<Activation> log;
  mutable std::mutex mutex;

  void record(const OpSite& site, const FaultSpec& fault, int64_t elements) {
    if (elements == 0) return;
    std::lock_guard lock(mutex);
    log.push_back({site.step, site.replica, site.op().name, fault.text, elements});
  }
  bool hits(const FaultSpec& fault, const OpSite& site) const {
    if (!fault.active_at(site.step)) return false;
    return site.replica < 0 || !fault.core || *fault.core == site.replica;
  }
  Tensor stale(const OpSite& site, const std::vector<Tensor>& inputs, const Tensor& output) {
    const Op& op = site.op();
    const ValueId state = update_of[static_cast<size_t>(site.id)];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] == state) return inputs[i];
    }
    std::lock_guard lock(mutex);
    const auto it = previous.find({site.id, site.replica});
    return it == previous.end() ? output : it->second;
  }
};

FaultHooks::FaultHooks() : impl_(std::make_unique<Impl>()) {}
FaultHooks::~FaultHooks() = default;

Result<std::unique_ptr<FaultHooks>> FaultHooks::make(const Program& program,
                                                     std::vector<FaultSpec> faults, uint64_t seed) {
  std::unique_ptr<FaultHooks> hooks(new FaultHooks());
  Impl& impl = *hooks->impl_;
  impl.seed = seed;
  impl.cores = program.sharding.cores;
  impl.by_op.resize(static_cast<size_t>(program.graph.size()));
  impl.update_of.assign(static_cast<size_t>(program.graph.size()), kNoValue);
  for (const auto& var : program.state) {
    if (var.next != kNoValue) impl.update_of[static_cast<size_t>(var.next)] = var.id;
  }
  for (size_t f = 0; f < faults.size(); ++f) {
    const FaultSpec& fault = faults[f];
    if (fault.core && *fault.core >= impl.cores) {
      return bad(fault.text,
                 "core " + std::to_string(*fault.core) + " does not exist (cores 0 to " +
                     std::to_string(impl.cores - 1) + ")",
                 "name an existing core");
    }
    std::vector<std::string> names;
    bool named = false, hit = false;
    for (ValueId id = 0; id < program.graph.size(); ++id) {
      const Op& op = program.graph.op(id);
      const bool match = fnmatch(fault.glob.c_str(), op.name.c_str(), 0) == 0;
      named = named || match;
      if (applies(fault.kind, op)) {
        names.push_back(op.name);
        if (match) {
          impl.by_op[static_cast<size_t>(id)].push_back(f);
          hit = true;
        }
      }
    }
    if (!hit) {
      const std::string closest = nearest(fault.glob, names);
      return bad(fault.text,
                 named ? "'" + fault.glob + "' matches ops, but none that " +
                             std::string(kNames[static_cast<size_t>(fault.kind)]) + " can act on"
                       : "no op matches '" + fault.glob + "'",
                 closest.empty() ? "this program has no op for this kind of fault"
                                 : "the nearest op it can act on is '" + closest + "'");
    }
  }
  impl.faults = std::move(faults);
  return hooks;
}

bool FaultHooks::watches(const Program&, ValueId id, int64_t step) {
  const auto& indices = impl_->by_op[static_cast<size_t>(id)];
  return std::ranges::any_of(indices, [&](size_t f) {
    // Stale results must be remembered from the step before.
    return impl_->faults[f].kind == FaultKind::kStaleWeights || impl_->faults[f].active_at(step);
  });
}

void FaultHooks::before(const OpSite& site, std::vector<Tensor>& inputs) {
  for (size_t f : impl_->by_op[static_cast<size_t>(site.id)]) {
    const FaultSpec& fault = impl_->faults[f];
    if (!impl_->hits(fault, site)) continue;
    const std::vector<Tensor> original = inputs;
    if (fault.kind == FaultKind::kTruncateBf16 && is_dot(site.op())) {
      for (Tensor& t : inputs) t = truncated(t);
    } else if (fault.kind == FaultKind::kDropKTail) {
      inputs =
          without_k_tail(site.op(), inputs, tail_of(k_size(site.op(), inputs), fault.magnitude));
    } else if (fault.kind == FaultKind::kDropCore) {
      const auto core = static_cast<size_t>(fault.core.value_or(impl_->cores - 1));
      inputs[core] = Tensor::zeros(inputs[core].type());
    } else {
      continue;
    }
    int64_t elements = 0;
    for (size_t i = 0; i < inputs.size(); ++i) elements += changed(original[i], inputs[i]);
    impl_->record(site, fault, elements);
  }
}

void FaultHooks::after(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) {
  const Tensor honest = output;
  for (size_t f : impl_->by_op[static_cast<size_t>(site.id)]) {
    const FaultSpec& fault = impl_->faults[f];
    const bool hit = impl_->hits(fault, site);
    const Tensor before = output;
    if (fault.kind == FaultKind::kStaleWeights) {
      if (hit) output = impl_->stale(site, inputs, output);
      std::lock_guard lock(impl_->mutex);
      impl_->previous[{site.id, site.replica}] = honest;
    } else if (!hit) {
      continue;
    } else if (fault.kind == FaultKind::kScale) {
      output = output.clone();
      for (float& v : output.as<float>()) v *= static_cast<float>(fault.magnitude.value_or(8.0));
    } else if (fault.kind == FaultKind::kTruncateBf16 && !is_dot(site.op())) {
      output = truncated(output);
    } else if (fault.kind == FaultKind::kBitFlip && output.elements() > 0) {
      output = output.clone();
      const size_t bits = size_of(output.dtype()) * 8;
      const auto bit = static_cast<size_t>(fault.magnitude.value_or(22.0)) % bits;
      const uint32_t r = draw({impl_->seed, 0xFA017u}, static_cast<uint32_t>(site.step),
                              static_cast<uint32_t>(site.id), 0);
      const auto element =
          static_cast<size_t>(bounded(r, static_cast<uint32_t>(output.elements())));
      output.raw()[element * (bits / 8) + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    } else {
      continue;
    }
    impl_->record(site, fault, changed(before, output));
  }
}

std::vector<Activation> FaultHooks::activations() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<Activation> sorted = impl_->log;
  std::ranges::stable_sort(sorted, {},
                           [](const Activation& a) { return std::tuple(a.step, a.op, a.replica); });
  return sorted;
}

}  // namespace twinrun
