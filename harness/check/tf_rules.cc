// Rules that read a TensorFlow graph, node by node.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "harness/check/rules.h"
#include "harness/check/tpu_ops.h"
#include "program/base/names.h"

namespace twinrun::check {
namespace {

// The types that TensorFlow's infeed takes, by its names (tensorflow python/tpu/ops/tpu_ops.py).
constexpr std::array kTfInfeedTypes = {"bool",  "int32",     "int64", "bfloat16",
                                       "float", "complex64", "uint32"};
constexpr const char* kTfInfeedNames =
    "[tf.bool, tf.int32, tf.int64, tf.bfloat16, tf.float32, tf.complex64, tf.uint32]";

// Draws whose state is the device's (tensorflow compiler/tf2xla/kernels/random_ops.cc).
constexpr std::array kTfRandom = {
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal",        "TruncatedNormal",
    "RandomShuffle", "Multinomial",      "ParameterizedTruncatedNormal"};

// So many ops without a kernel are told one by one.
constexpr size_t kMaxUnknown = 100;
constexpr std::string_view kFurther = "further ops";

// Larger numbers of a damaged file are cut down, so that sums of them are numbers.
constexpr int64_t kMaxReplicas = int64_t{1} << 20, kMaxBatch = int64_t{1} << 40;

constexpr std::array kTfAllReduces = {"CrossReplicaSum", "XlaAllReduce", "CollectiveReduceV2",
                                      "XlaReduceScatter"};

template <size_t kSize>
bool is_one_of(const std::array<const char*, kSize>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// "float32", as Python writes it.
std::string python_type(int type) {
  const std::string name = tf_type_name(type);
  return name == "float"    ? "float32"
         : name == "double" ? "float64"
         : name == "half"   ? "float16"
                            : name;
}

// Whether the first version is of a later release (2.19) than the second; "" and what is no version
// is not.
bool is_newer(std::string_view version, std::string_view than) {
  const auto numbers = [](std::string_view v) {
    std::array<int, 2> out{};
    for (size_t part = 0, at = 0; part < out.size() && at < v.size(); ++part, ++at) {
      for (; at < v.size() && v[at] >= '0' && v[at] <= '9' && out[part] < 10'000; ++at)
        out[part] = 10 * out[part] + (v[at] - '0');
      if (at < v.size() && v[at] != '.') break;
    }
    return out;
  };
  const auto other = numbers(than);
  return other[0] > 0 && numbers(version) > other;
}

struct TfPlace {
  const TfBody* body;
  const TfNode* node;
};
using TfPlaces = std::vector<TfPlace>;

class TfRules {
 public:
  TfRules(const TfGraph& graph, const TfStep& step, Findings& out)
      : graph_(graph), step_(step), out_(out) {}

  void run() {
    for (const TfFunction& f : graph_.functions) functions_.insert(f.name);
    for (const TfBody& body : step_.bodies) {
      for (size_t i = 0; i < body.nodes.size(); ++i) {
        if (body.on_tpu[i]) node({&body, &body.nodes[i]});
      }
      arguments(body);
    }
    tell_inputs();
    tell_ops();
    tell_types();
    if (step_.marked) loop();
  }

 private:
  std::string place(const TfPlace& p) const {
    return fmt::format("{}: {}", graph_.file, tf_node_id(*p.body, *p.node));
  }
  static std::string some(const TfPlaces& g) {
    const std::string first = tf_node_id(*g[0].body, *g[0].node);
    return g.size() == 1 ? first : fmt::format("{} nodes, the first {}", g.size(), first);
  }
  template <typename... Arguments>
  RuleFinding& add(std::string_view id, const TfPlaces& g, const std::string& what,
                   const std::string& why, const std::string& fix, const Arguments&... arguments) {
    RuleFinding f = finding(id, place(g[0]), what + ": " + some(g), why, fix, arguments...);
    for (const TfPlace& p : g) f.ops.push_back(tf_node_id(*p.body, *p.node));
    out_.push_back(std::move(f));
    return out_.back();
  }

  void node(const TfPlace& p) {
    const TfNode& n = *p.node;
    if (n.op == "Placeholder") input(p);
    if (is_one_of(kTfAllReduces, n.op)) summed_ = true;
    if (n.op.starts_with("ResourceApply") || n.op.starts_with("Apply")) updates_.push_back(p);
    if (is_one_of(kTfRandom, n.op)) random_.push_back(p);
    if (has_dynamic_result(n.op) || (n.op == "NonMaxSuppressionV4" && !is_padded(n)))
      dynamic_[n.op].push_back(p);
    if (const std::string device = pinned(n.device); !device.empty()) pinned_[device].push_back(p);
    op(p);
  }

  static bool is_padded(const TfNode& n) {
    const TfAttribute* const pad = n.find("pad_to_max_output_size");
    return pad != nullptr && pad->numbers == std::vector<int64_t>{1};
  }

  // "CPU" or "GPU", if a device string names one: "/job:worker/device:GPU:0", "/gpu:0".
  static std::string pinned(std::string_view device) {
    const std::string lower = lower_case(device);
    for (const char* kind : {"gpu", "cpu"}) {
      for (const std::string& form : {fmt::format("/{}:", kind), fmt::format("device:{}:", kind)}) {
        if (lower.find(form) != std::string::npos)
          return kind == std::string_view("gpu") ? "GPU" : "CPU";
      }
    }
    return "";
  }

  void op(const TfPlace& p) {
    const TfNode& n = *p.node;
    if (functions_.contains(n.op)) return;  // a call by name
    const TpuOp* const known = find_tpu_op(n.op);
    bool strings = false;
    const bool of_arrays = holds_arrays(n);
    for (const TfAttribute& a : n.attributes) {
      for (const int type : a.types) {
        const std::string name = tf_type_name(type);
        const bool allowed = known != nullptr && accepts(*known, a.name, name);
        if (name == "string") {
          strings = strings || !allowed || n.op == "Placeholder";
        } else if (name == "complex128" || name == "double" || name == "half" ||
                   name.starts_with("float8")) {
          add_once(types_[name], p);
        } else if (name == "int64" || name == "uint64") {
          if (of_arrays && is_of_data(a.name)) add_once(types_[name], p);
        } else if (known != nullptr && !allowed) {
          add_once(wrong_types_[{n.op, name}], p);
        }
      }
    }
    // What the oldest known version has may be older still.
    if (known != nullptr && known->first_version != tpu_versions().front() &&
        is_newer(known->first_version, graph_.version)) {
      later_[{n.op, known->first_version}].push_back(p);
    } else if (strings) {
      strings_.push_back(p);
    } else if (known == nullptr) {
      const bool room = unknown_.size() < kMaxUnknown || unknown_.contains(n.op);
      unknown_[room ? n.op : kFurther].push_back(p);
    }
  }

  // Sizes, indices and counters of steps are 64-bit integers in many graphs: constants when the
  // step is compiled, or single numbers.
  static bool holds_arrays(const TfNode& n) {
    const TfAttribute* const shapes = n.find("_output_shapes");
    const bool single = shapes != nullptr && !shapes->shapes.empty() && shapes->shapes[0] &&
                        shapes->shapes[0]->empty();
    return !single && n.op != "Const" && !n.op.starts_with("Assign");
  }
  static bool is_of_data(std::string_view attribute) {
    return attribute == "T" || attribute == "dtype" || attribute == "DstT" ||
           attribute == "output_type" || attribute == "Tlabels";
  }

  // A node may have several attributes of one type.
  static void add_once(TfPlaces& to, const TfPlace& p) {
    if (to.empty() || to.back().node != p.node) to.push_back(p);
  }

  // An input's shape: the batch may be unknown, the rest must be known.
  void input(const TfPlace& p) {
    const TfAttribute* const shape = p.node->find("shape");
    const TfAttribute* const type = p.node->find("dtype");
    const int dtype = type != nullptr && !type->types.empty() ? type->types[0] : 0;
    if (tf_type_name(dtype) == "string" || tf_type_name(dtype) == "resource") return;
    input(graph_.file + ": " + tf_node_id(*p.body, *p.node), std::string(p.node->name), dtype,
          shape != nullptr && !shape->shapes.empty() ? shape->shapes[0] : TfShape());
  }

  void arguments(const TfBody& body) {
    if (!body.called_first || body.function == nullptr) return;
    for (const TfPort& a : body.function->inputs) {
      const std::string type = tf_type_name(a.type);
      if (type == "resource" || type == "variant" || type == "string") continue;
      input(fmt::format("{}: {}({})", graph_.file, body.name, a.name), std::string(a.name), a.type,
            a.shape);
    }
  }

  struct Input {
    std::string where, name, shape, type;
  };

  void input(const std::string& where, const std::string& name, int type, const TfShape& shape) {
    const auto unknown = [](int64_t size) { return size < 0; };
    if (shape && std::ranges::none_of(*shape, unknown)) return;
    std::string shown = to_string(shape);
    std::ranges::replace(shown, '[', '(');
    std::ranges::replace(shown, ']', ')');
    const bool batch_only = shape && std::none_of(shape->begin() + 1, shape->end(), unknown);
    (batch_only ? unknown_batch_ : unknown_shape_)
        .push_back({where, name, shown, python_type(type)});
  }

  template <typename... Arguments>
  void add(std::string_view id, const std::vector<Input>& inputs, const std::string& why,
           const std::string& fix, const Arguments&... arguments) {
    if (inputs.empty()) return;
    const Input& first = inputs[0];
    RuleFinding f = finding(id, first.where,
                            inputs.size() == 1 ? "an input of shape " + first.shape
                                               : fmt::format("{} inputs, the first of shape {}",
                                                             inputs.size(), first.shape),
                            why, fix, arguments...);
    for (const Input& one : inputs) f.ops.push_back(one.name);
    out_.push_back(std::move(f));
  }

  void tell_inputs() {
    add("unknown-batch", unknown_batch_,
        "a step is compiled for one size; a batch of another size, such as the last one of the "
        "data, is compiled for again",
        "batch(n, drop_remainder=True) with n a multiple of the cores (8 on a v2-8 or v3-8), best "
        "of 8 times that; or the batch in the signature's tf.TensorSpec");
    if (unknown_shape_.empty()) return;
    const Input& first = unknown_shape_[0];
    add("unknown-shape", unknown_shape_,
        "a step is compiled for known shapes; only the batch may vary, at the price of another "
        "compilation",
        "pad the samples to one size (padded_batch, pad_to_bounding_box), and name it: "
        "tf.TensorSpec, tf.ensure_shape, set_shape",
        "features",
        fmt::format("Tensor(\"{}:0\", shape={}, dtype={})", first.name, first.shape, first.type));
  }

  // "PyFunc (No registered 'PyFunc' OpKernel for XLA_TPU_JIT devices compatible with node {{node
  // a}}){{node a}}"
  static std::string no_kernel(const TfPlace& p) {
    return fmt::format(
        "{0} (No registered '{0}' OpKernel for XLA_TPU_JIT devices compatible with node {{{{node "
        "{1}}}}}){{{{node {1}}}}}",
        p.node->op, p.node->name);
  }
  std::string graph_name(const TfPlace& p) const {
    return p.body->name.empty() ? "main" : p.body->name;
  }

  void tell_ops() {
    const std::string versions =
        fmt::format("TensorFlow {} to {}", tpu_versions().front(), tpu_versions().back());
    for (const auto& [name, g] : unknown_) {
      add("unsupported-op", g, std::string(name),
          fmt::format("the TPU's compiler has no kernel for it in {}", versions), instead_of(name),
          graph_name(g[0]), no_kernel(g[0]));
    }
    for (const auto& [what, g] : later_) {
      add("unsupported-op", g, std::string(what.first),
          fmt::format("the TPU's compiler has a kernel for it since TensorFlow {}", what.second),
          fmt::format("TensorFlow {} or newer, on the TPU's host as well", what.second),
          graph_name(g[0]), no_kernel(g[0]));
    }
    for (const auto& [what, g] : wrong_types_) {
      add("unsupported-op", g, fmt::format("{} of {}", what.first, what.second),
          fmt::format("the TPU's compiler has this op for other types only, in {}", versions),
          "cast to float32, bfloat16 or int32 before it: tf.cast(x, tf.float32)", graph_name(g[0]),
          no_kernel(g[0]));
    }
    if (!strings_.empty()) {
      std::set<std::string> names;
      for (const TfPlace& p : strings_) names.emplace(p.node->op);
      add("unsupported-op", strings_, "strings in " + join({names.begin(), names.end()}, ", "),
          "a core has no strings", instead_of("StringJoin") + ", and feed numbers",
          graph_name(strings_[0]), no_kernel(strings_[0]));
    }
    for (const auto& [name, g] : dynamic_) {
      add("dynamic-shape", g, fmt::format("the size of what {} gives depends on data", name),
          "a step is compiled for known shapes: what follows is computed for the largest size, "
          "or refused",
          instead_of(name), name)
          .stack_message.clear();
    }
    for (const auto& [device, g] : pinned_) {
      add("pinned-device", g, "placed on a " + device,
          "a step runs as one program on the TPU: an op that is placed elsewhere has no place in "
          "it",
          "take it out of tf.device; what the host has to do, in the input pipeline or in "
          "tf.compat.v1.tpu.outside_compilation",
          fmt::format("{}: could not satisfy explicit device specification '{}'", g[0].node->name,
                      g[0].node->device));
    }
    std::map<std::string_view, std::pair<TfPlaces, size_t>> computed;
    for (const ComputedInput& c : computed_inputs(step_)) {
      auto& [places, input] = computed[c.node->op];
      if (places.empty()) input = c.input;
      places.push_back({c.body, c.node});
    }
    for (const auto& [op, found] : computed) {
      const auto& [g, input] = found;
      add("not-constant", g, fmt::format("input {} of {} depends on data", input, op),
          "the compiler needs this value, and it depends on an argument, a variable, a random "
          "number "
          "or what a loop put aside, which are known at run time only",
          "compute it in Python, or from shapes (x.shape, tf.shape(x)); pad to a bound and mask; "
          "trace the gradient of a loop for XLA: in TPUStrategy.run, or jit_compile=True",
          input, g[0].node->name, op);
    }
    if (!random_.empty()) {
      add("stateful-random", random_, "draws of the device's own state",
          "the state is the device's: graph and op seeds do not reach it, each core draws its own, "
          "and a run cannot be repeated",
          "stateless draws: tf.random.stateless_uniform(shape, seed=[seed, step])");
    }
  }

  void tell_types() {
    for (const auto& [type, g] : types_) {
      const std::string shown =
          fmt::format("{{{{node {}}}}} = {}(...)", g[0].node->name, g[0].node->op);
      if (type == "double" || type == "complex128") {
        add("wide-dtype", g, type,
            "there is no 64-bit arithmetic: some ops are spelt out in pairs of float32, others "
            "refused",
            "tf.cast(x, tf.float32); NumPy's numbers are float64 unless they are converted", shown);
      } else if (type == "int64" || type == "uint64") {
        add("wide-integer", g, type,
            "a 64-bit integer is two of 32 bits: slower, and refused by some ops (sort, convert)",
            "tf.cast(x, tf.int32); output_type=tf.int32 of tf.argmax and tf.shape", shown);
      } else {
        add("unsupported-dtype", g, type,
            "the vector unit computes in float32, the matrix unit takes bfloat16",
            "tf.bfloat16 (policy mixed_bfloat16 of Keras): it has float32's range and needs no "
            "loss scaling",
            shown);
      }
    }
  }

  // What a graph that was built for TPUs says about its cores and its infeed.
  void loop() {
    int64_t replicas = 1;
    for (const TfBody& body : step_.bodies) {
      for (const TfNode& n : body.nodes) {
        if (const TfAttribute* const count = n.find("num_replicas");
            count && !count->numbers.empty())
          replicas = std::clamp(count->numbers[0], replicas, kMaxReplicas);
        feeds({&body, &n});
      }
    }
    tell_feeds();
    if (replicas == 1) return;
    if (!updates_.empty() && !summed_) {
      add("no-all-reduce", updates_,
          fmt::format("{} replicas, and no all-reduce before the updates", replicas),
          "each core applies its own gradients: the cores' weights diverge from the first step on, "
          "and the checkpoint has those of core 0",
          "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or an optimizer of Keras within "
          "TPUStrategy.run");
    }
    const auto uneven =
        std::ranges::find_if(graph_.nodes, [&](const TfNode& n) { return is_uneven(n, replicas); });
    if (uneven == graph_.nodes.end()) return;
    const int64_t batch = batch_of(*uneven), up = (batch + replicas - 1) / replicas * replicas;
    RuleFinding f = finding("batch-not-divisible", fmt::format("{}: {}", graph_.file, uneven->name),
                            fmt::format("a batch of {} for {} replicas", batch, replicas),
                            "every core runs one program on as many samples",
                            fmt::format("a batch of {}", up), batch, replicas);
    f.ops.emplace_back(uneven->name);
    out_.push_back(std::move(f));
  }

  void feeds(const TfPlace& p) {
    const TfNode& n = *p.node;
    if (!n.op.starts_with("InfeedDequeue") && !n.op.starts_with("InfeedEnqueue")) return;
    for (const TfAttribute& a : n.attributes) {
      for (const int type : a.types) {
        if (!is_one_of(kTfInfeedTypes, tf_type_name(type)))
          add_once(fed_types_[python_type(type)], p);
      }
      for (const TfShape& shape : a.shapes) {
        if (!shape || std::ranges::any_of(*shape, [](int64_t d) { return d < 0; }))
          add_once(fed_shapes_[to_string(shape)], p);
      }
    }
  }

  void tell_feeds() {
    for (const auto& [type, g] : fed_types_) {
      add("infeed-type", g, "an infeed of " + type,
          "batches reach a core through its infeed, which takes few types",
          "cast in the input pipeline: tf.cast(x, tf.float32), or tf.int32 for integers", type,
          kTfInfeedNames);
    }
    if (fed_shapes_.empty()) return;
    const auto& [shape, g] = *fed_shapes_.begin();
    add("remainder-kept", g, "an infeed of shape " + shape, "a step is compiled for known shapes",
        "batch(n, drop_remainder=True)", "features",
        fmt::format("Tensor(\"{}:0\", shape={})", g[0].node->name, shape));
  }

  // The first size of what comes into the graph, which the replicas share; 0: nothing, or unknown.
  static int64_t batch_of(const TfNode& n) {
    const bool iterator = n.op.starts_with("IteratorGetNext");
    if (n.op != "Placeholder" && !iterator) return 0;
    const TfAttribute* const shapes = n.find(iterator ? "output_shapes" : "shape");
    if (shapes == nullptr || shapes->shapes.empty()) return 0;
    const TfShape& first = shapes->shapes[0];
    return !first || first->empty() ? 0 : std::clamp<int64_t>(first->front(), 0, kMaxBatch);
  }
  static bool is_uneven(const TfNode& n, int64_t replicas) { return batch_of(n) % replicas != 0; }

  const TfGraph& graph_;
  const TfStep& step_;
  Findings& out_;
  std::set<std::string_view> functions_;
  bool summed_ = false;
  TfPlaces updates_, random_, strings_;
  std::vector<Input> unknown_batch_, unknown_shape_;
  std::map<std::string_view, TfPlaces> unknown_, dynamic_;
  std::map<std::string, TfPlaces> types_, pinned_, fed_types_, fed_shapes_;
  std::map<std::pair<std::string_view, std::string>, TfPlaces> wrong_types_;
  std::map<std::pair<std::string_view, std::string_view>, TfPlaces> later_;
};

}  // namespace

std::string tf_node_id(const TfBody& body, const TfNode& node) {
  return (body.name.empty() ? "" : body.name + ": ") + std::string(node.name);
}

void check_tf_graph(const TfGraph& graph, const TfStep& step, Findings& out) {
  TfRules(graph, step, out).run();
}

}  // namespace twinrun::check
