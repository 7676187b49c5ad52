// Rules that read a training step as text, instruction by instruction, before it is imported; and
// the rule about all-reduces of a program.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "harness/check/opcodes.h"
#include "harness/check/rules.h"
#include "program/base/names.h"

namespace twinrun::check {
namespace {

constexpr std::array kInfeedTypes = {"pred", "s32", "s64", "bf16", "f32", "c64", "u32"};
constexpr const char* kInfeedNames =
    "[tf.bool, tf.int32, tf.int64, tf.bfloat16, tf.float32, tf.complex64, tf.uint32]";

bool is_wide_float(std::string_view t) { return t == "f64" || t == "c128"; }
bool is_wide_integer(std::string_view t) { return t == "s64" || t == "u64"; }
bool is_narrow_float(std::string_view t) { return t == "f16" || t.starts_with("f8"); }

// All instructions that share one finding of a rule.
struct Group {
  std::vector<const HloInstruction*> of;
};

class TextRules {
 public:
  TextRules(const HloModule& module, size_t state, Findings& out)
      : module_(module), state_(state), out_(out) {}

  void run() {
    infeed();
    for (const HloComputation& c : module_.computations) {
      const std::vector<bool> own = made_by_jax(c);
      for (size_t i = 0; i < c.instructions.size(); ++i) {
        const HloInstruction& in = c.instructions[i];
        if (!keeps_f64_to_constants(c, in)) by_type_["f64"].of.push_back(&in);
        if (!own[i]) types(in, in.shape);
        op(in);
      }
    }
    tell_types();
    tell_ops();
    if (module_.replicas > 1 && !summed_) {
      out_.push_back(finding(
          "no-all-reduce", module_.file,
          fmt::format("{} replicas, and no all-reduce among the instructions", module_.replicas),
          "each core applies its own gradients: the cores' weights diverge from the first step on, "
          "and the checkpoint has "
          "those of core 0",
          "reduce the gradients: jax.lax.pmean(grads, \"batch\") inside of pmap, "
          "CrossShardOptimizer, xm.optimizer_step"));
    }
  }

 private:
  std::string place(const HloInstruction& in) const {
    return fmt::format("{}:{}: {}", module_.file, in.line, in.name);
  }
  static std::string text_of(const HloInstruction& in) {
    return fmt::format("%{} = {} {}(...)", in.name, to_string(in.shape), in.opcode);
  }
  // "fft.3", "12 instructions, the first fft.3"
  static std::string some(const Group& g) {
    return g.of.size() == 1
               ? g.of[0]->name
               : fmt::format("{} instructions, the first {}", g.of.size(), g.of[0]->name);
  }
  template <typename... Arguments>
  void add(std::string_view id, const Group& g, const std::string& what, const char* why,
           const std::string& fix, const Arguments&... arguments) {
    RuleFinding f = finding(id, place(*g.of[0]), what + ": " + some(g), why, fix, arguments...);
    for (const HloInstruction* in : g.of) f.ops.push_back(op_id(*in));
    out_.push_back(std::move(f));
  }

  void infeed() {
    const HloComputation& entry = module_.entry();
    for (size_t i = state_; i < entry.parameters.size(); ++i) {
      const HloInstruction& in = entry.instructions[static_cast<size_t>(entry.parameters[i])];
      const std::string& t = in.shape.dtype;
      if (in.shape.is_tuple() || std::ranges::find(kInfeedTypes, t) != kInfeedTypes.end()) continue;
      Group g{{&in}};
      const bool real = is_wide_float(t) || is_narrow_float(t);
      add("infeed-type", g, fmt::format("an input of {}", to_string(in.shape)),
          "TensorFlow feeds batches through the infeed, which takes few types; JAX and PyTorch/XLA "
          "copy arrays of this type to a core",
          real ? "cast on the host: tf.cast(x, tf.float32) (or tf.bfloat16)"
               : "cast on the host: tf.cast(x, tf.int32)",
          in.name + " of " + t, kInfeedNames);
    }
  }

  // Instructions of 64-bit integers that JAX writes for its random numbers: a count for each word,
  // and the keys of XLA's generator. Every TPU runs them, and no user can avoid them.
  static std::vector<bool> made_by_jax(const HloComputation& c) {
    constexpr std::string_view kMakers[] = {"iota_2x32_shape", "rng_bit_generator"};
    std::vector<bool> own(c.instructions.size()), read(own.size()), by_others(own.size());
    for (size_t i = own.size(); i-- > 0;) {
      const HloInstruction& in = c.instructions[i];
      const bool constant = in.opcode == "constant" || in.opcode == "broadcast";
      own[i] = std::ranges::any_of(kMakers,
                                   [&](std::string_view maker) {
                                     return in.op_name.find(maker) != std::string::npos;
                                   }) ||
               (constant && read[i] && !by_others[i]);
      for (const int o : in.operands) {
        read[static_cast<size_t>(o)] = true;
        if (!own[i]) by_others[static_cast<size_t>(o)] = true;
      }
    }
    return own;
  }

  void types(const HloInstruction& in, const HloShape& shape) {
    for (const HloShape& part : shape.parts) types(in, part);
    if (shape.dynamic) dynamic_.of.push_back(&in);
    if (in.opcode == "tuple" || in.opcode == "get-tuple-element") return;
    const std::string& t = shape.dtype;
    if (t == "f64" && in.opcode != "parameter") return;  // run() looks at what reads it, too
    if (is_wide_float(t) || is_wide_integer(t) || is_narrow_float(t)) by_type_[t].of.push_back(&in);
  }

  void tell_types() {
    if (!dynamic_.of.empty()) {
      // The message that is known is about a Reshape; other ops of unknown size have none.
      const auto reshape = std::ranges::find_if(dynamic_.of, [](const HloInstruction* in) {
        return in->opcode == "reshape" || in->opcode == "dynamic-reshape";
      });
      const HloInstruction& told = reshape == dynamic_.of.end() ? *dynamic_.of[0] : **reshape;
      add("dynamic-shape", dynamic_,
          "a size that is known only at run time, " + to_string(told.shape),
          "a step is compiled for known shapes",
          "fix the batch: batch(n, drop_remainder=True), jit with concrete shapes; pad to a bound",
          told.name);
      if (reshape == dynamic_.of.end()) out_.back().stack_message.clear();
    }
    for (const auto& [t, g] : by_type_) {
      if (is_narrow_float(t)) {
        add("unsupported-dtype", g, t,
            "the vector unit computes in float32, the matrix unit takes bfloat16",
            "cast: x.astype(jnp.bfloat16), tf.cast(x, tf.bfloat16); bfloat16 has float32's range "
            "and needs no loss scaling",
            text_of(*g.of[0]));
      } else if (is_wide_float(t)) {
        add("wide-dtype", g, t,
            "there is no 64-bit arithmetic: some ops are spelt out in pairs of float32, others "
            "refused",
            "cast: x.astype(jnp.float32), tf.cast(x, tf.float32); in JAX leave jax_enable_x64 off",
            text_of(*g.of[0]));
      } else {
        add("wide-integer", g, t,
            "a 64-bit integer is two of 32 bits: slower, and refused by some ops (sort, convert)",
            "cast: x.astype(jnp.int32), tf.cast(x, tf.int32)", text_of(*g.of[0]));
      }
    }
  }

  void op(const HloInstruction& in) {
    if (sums_over_cores(in.opcode)) summed_ = true;
    if (is_dynamic(in.opcode)) {
      if (dynamic_.of.empty() || dynamic_.of.back() != &in) dynamic_.of.push_back(&in);
    } else if (in.opcode == "custom-call") {
      std::string target;
      if (const auto found = in.attributes.find("custom_call_target"); found != in.attributes.end())
        target = found->second;
      std::erase(target, '"');
      if (!has_tpu_target(target)) by_target_[target].of.push_back(&in);
    } else if (!is_known(in.opcode)) {
      unknown_[in.opcode].of.push_back(&in);
    } else if (in.opcode == "rng") {
      stateful_.of.push_back(&in);
    } else if (in.opcode == "rng-bit-generator") {
      const auto found = in.attributes.find("algorithm");
      const std::string algorithm = found == in.attributes.end() ? "" : lower_case(found->second);
      if (algorithm.empty() || algorithm.find("default") != std::string::npos)
        default_.of.push_back(&in);
    }
  }

  void tell_ops() {
    for (const auto& [target, g] : by_target_) {
      const bool callback = target.find("callback") != std::string::npos;
      const bool elsewhere = target.starts_with("lapack_") || target.starts_with("cu") ||
                             target.starts_with("hip") || target.starts_with("__cu") || callback;
      add("unsupported-op", g, "custom-call of \"" + target + "\"",
          elsewhere ? "this text was lowered for a CPU or a GPU, whose library it calls"
                    : "a custom call is a kernel of one platform",
          callback ? "take the callback out of the step, or lower for the TPU, where it is a send "
                     "and a receive: "
                     ".lower(lowering_platforms=(\"tpu\",))"
          : elsewhere ? "lower for the TPU: .lower(lowering_platforms=(\"tpu\",)); what stays a "
                        "custom call has no kernel there"
                      : "write it in ops, or as a Pallas kernel",
          module_.name, target);
    }
    for (const auto& [opcode, g] : unknown_)
      add("unsupported-op", g, "\"" + opcode + "\" is not an op of XLA",
          "XLA cannot compile an op that it does not know",
          "write it in ops of XLA; do it on the host, in the input pipeline", module_.name, opcode);
    if (!stateful_.of.empty())
      add("stateful-random", stateful_, "rng",
          "the state is the device's: graph and op seeds do not reach it, each core draws its own, "
          "and a run cannot be repeated",
          "stateless draws: jax.random with a key, tf.random.stateless_uniform(shape, seed=[seed, "
          "step])");
    if (!default_.of.empty())
      add("default-random", default_, "rng-bit-generator of the default algorithm",
          "each backend has its own: the same key draws other numbers on a TPU than on a CPU, and "
          "under another sharding",
          "a named algorithm: jax_default_prng_impl=threefry2x32; "
          "tf.random.Generator.from_seed(seed, alg=\"philox\")");
  }

  const HloModule& module_;
  const size_t state_;
  Findings& out_;
  Group dynamic_, stateful_, default_;
  std::map<std::string, Group> by_type_, by_target_, unknown_;
  bool summed_ = false;
};

}  // namespace

std::string op_id(const HloInstruction& in) { return fmt::format("{}:{}", in.name, in.line); }

void check_text(const HloModule& module, size_t state, Findings& out) {
  TextRules(module, state, out).run();
}

void check_import(const std::vector<ImportProblem>& problems, const std::string& file,
                  Findings& out) {
  std::set<std::string> wrong;
  for (const RuleFinding& f : out) {
    if (f.severity == Severity::kError) wrong.insert(f.ops.begin(), f.ops.end());
  }
  for (const ImportProblem& problem : problems) {
    std::vector<std::string> ops;
    for (const auto& [name, line] : problem.of) ops.push_back(fmt::format("{}:{}", name, line));
    if (!ops.empty() &&
        std::ranges::all_of(ops, [&](const std::string& op) { return wrong.contains(op); }))
      continue;
    RuleFinding f =
        finding("not-replayed",
                problem.of.empty()
                    ? file
                    : fmt::format("{}:{}: {}", file, problem.of[0].second, problem.of[0].first),
                problem.what,
                "a diagnosis repeats every op of a step to judge it, and has no form of this one; "
                "a TPU may "
                "well run it",
                "docs/guides/import.md lists what can be repeated");
    f.ops = std::move(ops);
    out.push_back(std::move(f));
  }
}

void check_collectives(const Program& step, const std::string& where, Findings& out) {
  if (step.sharding.cores == 1) return;
  const bool summed = std::ranges::any_of(step.graph.ops(), [](const Op& op) {
    return op.kind == OpKind::kAllReduce && op.phase != Phase::kForward;
  });
  if (summed) return;
  out.push_back(finding(
      "no-all-reduce", where,
      fmt::format("{} cores, and no all-reduce of gradients in the step", step.sharding.cores),
      "each core applies its own gradients: the cores' weights diverge from the first step on, and "
      "the "
      "checkpoint has those of core 0",
      "--set tpu.reduction=mean, which is what CrossShardOptimizer, xm.optimizer_step and "
      "jax.lax.pmean do"));
}

}  // namespace twinrun::check
