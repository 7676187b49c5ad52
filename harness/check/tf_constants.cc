// Follows what is fed, variables and random numbers through a TensorFlow graph, up to inputs that
// the compiler needs as constants.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "harness/check/rules.h"
#include "harness/check/tpu_ops.h"

namespace twinrun::check {
namespace {

// Their results are known when the step is compiled, whatever they read.
constexpr std::array kOfShape = {"Shape",    "ShapeN",          "Size",
                                 "Rank",     "VariableShape",   "ZerosLike",
                                 "OnesLike", "EmptyTensorList", "TensorListLength"};

bool is_of_shape(std::string_view op) { return std::ranges::find(kOfShape, op) != kOfShape.end(); }

// The gradient of a loop takes from a list what the loop put there in each iteration.
bool is_source(std::string_view op) {
  return op == "Placeholder" || op == "ReadVariableOp" || op == "VariableV2" ||
         op == "TensorListPopBack" || op == "StackPopV2" || op.starts_with("IteratorGetNext") ||
         op.starts_with("InfeedDequeue") || op.find("Random") != std::string_view::npos ||
         op.ends_with("TruncatedNormal");
}

constexpr size_t kMaxBranches = 64;  // that are followed into

// Where a call's inputs begin that are its function's arguments; -1: not known, or they change from
// one iteration to the next.
int first_argument(std::string_view op) {
  if (op == "PartitionedCall" || op == "StatefulPartitionedCall") return 0;
  if (op == "If" || op == "StatelessIf" || op == "Case" || op == "StatelessCase") return 1;
  return -1;
}

bool must_be_constant(const TpuOp& op, size_t input, size_t count) {
  return std::ranges::any_of(op.constants, [&](int c) {
    return c >= 0 ? static_cast<size_t>(c) == input : input + static_cast<size_t>(-c) == count;
  });
}

// A body with, for each name of a node or argument, the inputs that read it.
struct Flow {
  const TfBody* body;
  struct Reader {
    size_t node, input;
  };
  std::map<std::string_view, std::vector<Reader>> readers;
  std::vector<size_t> counts;                   // per node, of inputs that are values
  std::map<size_t, std::vector<Flow*>> called;  // by the node that calls
  std::set<std::string_view> known;             // names that are followed
};

class DataFlow {
 public:
  explicit DataFlow(const TfStep& step) {
    for (const TfBody& body : step.bodies) {
      Flow& flow = flows_.emplace_back();
      flow.body = &body;
      if (body.function != nullptr) by_name_.emplace(body.function->name, &flow);
      for (size_t i = 0; i < body.nodes.size(); ++i) {
        const std::vector<std::string_view>& inputs = body.nodes[i].inputs;
        flow.counts.push_back(static_cast<size_t>(std::ranges::count_if(
            inputs, [](std::string_view input) { return !input.starts_with('^'); })));
        for (size_t k = 0; body.on_tpu[i] && k < inputs.size(); ++k) {
          if (!inputs[k].starts_with('^')) flow.readers[node_of(inputs[k])].push_back({i, k});
        }
      }
    }
  }

  std::vector<ComputedInput> run() {
    for (Flow& flow : flows_) find_calls(flow);
    for (Flow& flow : flows_) {
      for (size_t i = 0; i < flow.body->nodes.size(); ++i) {
        // What feeds the step stands beside it in a graph that was built for TPUs.
        if (is_source(flow.body->nodes[i].op)) follow(flow, flow.body->nodes[i].name);
      }
      if (!flow.body->called_first) continue;
      for (const TfPort& argument : flow.body->function->inputs) {
        if (tf_type_name(argument.type) != "resource") follow(flow, argument.name);
      }
    }
    while (!open_.empty()) {
      const auto [flow, name] = open_.front();
      open_.pop_front();
      for (const Flow::Reader& r : flow->readers[name]) read(*flow, r);
    }
    return std::move(found_);
  }

 private:
  void follow(Flow& flow, std::string_view name) {
    if (flow.known.insert(name).second) open_.emplace_back(&flow, name);
  }

  void read(Flow& flow, const Flow::Reader& r) {
    const TfNode& n = flow.body->nodes[r.node];
    if (is_of_shape(n.op)) return;
    const TpuOp* const op = find_tpu_op(n.op);
    if (op != nullptr && must_be_constant(*op, r.input, flow.counts[r.node])) {
      found_.push_back({flow.body, &n, r.input});
      return;
    }
    if (const auto calls = flow.called.find(r.node); calls != flow.called.end()) {
      into_call(n.op, calls->second, r.input);
    } else {
      follow(flow, n.name);
    }
  }

  void find_calls(Flow& flow) {
    for (size_t i = 0; i < flow.body->nodes.size(); ++i) {
      for (const TfAttribute& a : flow.body->nodes[i].attributes) {
        for (const std::string_view name : a.functions) {
          std::vector<Flow*>& called = flow.called[i];
          const auto found = by_name_.find(name);
          if (found != by_name_.end() && called.size() < kMaxBranches)
            called.push_back(found->second);
        }
      }
    }
  }

  // What a function gives may depend on this argument or not, so its results are not followed.
  void into_call(std::string_view op, const std::vector<Flow*>& called, size_t input) {
    const int first = first_argument(op);
    if (first < 0 || input < static_cast<size_t>(first)) return;
    const size_t index = input - static_cast<size_t>(first);
    for (Flow* const flow : called) {
      const std::vector<TfPort>& arguments = flow->body->function->inputs;
      if (index < arguments.size()) follow(*flow, arguments[index].name);
    }
  }

  std::deque<Flow> flows_;
  std::map<std::string_view, Flow*> by_name_;
  std::deque<std::pair<Flow*, std::string_view>> open_;
  std::vector<ComputedInput> found_;
};

}  // namespace

std::vector<ComputedInput> computed_inputs(const TfStep& step) { return DataFlow(step).run(); }

}  // namespace twinrun::check
