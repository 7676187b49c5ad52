// Answers the requests of the engine protocol (hello, prepare, step) with one of our engines. Names
// of files in requests are untrusted (session_files.h).
#include "harness/doctor/serve.h"

#include <algorithm>
#include <filesystem>
#include <istream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "backends/exec/arrays.h"
#include "backends/exec/messages.h"
#include "backends/exec/session_files.h"
#include "backends/faults/faulty_backend.h"
#include "backends/registry.h"
#include "checkpoints/container/safetensors.h"
#include "harness/experiment/engines.h"
#include "harness/experiment/experiment.h"
#include "program/base/json_text.h"
#include "program/import/import.h"

namespace twinrun {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMax = uint64_t{1} << 40;  // in practice no limit: twinrun wrote these files

struct Prepared {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  States states;
};

class Server {
 public:
  explicit Server(const ServeOptions& options) : o_(options) {}

  Result<json> answer(const json& request) {
    const std::string what = request.value("do", "");
    if (what == "hello") return hello();
    if (what == "prepare") return prepare(request.value("program", ""));
    if (what == "step") return step(request);
    return Error{"unknown request '" + what + "'", "", "hello, prepare or step"};
  }

 private:
  Result<std::string> read(const std::string& name, uint64_t most) const {
    TWINRUN_ASSIGN(const Descriptor file, exec::open_session_file(o_.folder, name, name));
    TWINRUN_ASSIGN(const auto bytes, read_open_file(file.get(), most, name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Result<json> hello() {
    TWINRUN_ASSIGN(const auto backend, make_backend(o_.engine, {}));
    const Capabilities c = backend->capabilities();
    return json{{"hello",
                 {{"protocol", exec::kProtocol},
                  {"name", c.name},
                  {"version", c.settings},
                  {"max_cores", c.max_cores},
                  {"precision", to_string(c.precision)},
                  {"elementary_ulps", c.elementary_ulps},
                  {"flush", c.flush},
                  {"contracts", c.contracts},
                  {"deterministic", c.deterministic},
                  {"activations", true},
                  {"programs", true}}}};
  }

  static Result<Program> of_scenario(const json& p, const Scenario& scenario) {
    TWINRUN_ASSIGN(const Experiment e, make_experiment(scenario));
    Sharding sharding = e.sharding;
    sharding.cores = p.at("cores");
    const auto stack = p.at("algebra") == "xla" ? Experiment::Stack::kTpu : Experiment::Stack::kCpu;
    Program program = sharding.cores > 1                      ? e.sharded(sharding)
                      : p.at("batch") == scenario.train.batch ? e.whole(stack)
                                                              : e.per_core(stack);
    if (!p.value("activations", json::array()).empty()) program = with_layers_shown(program);
    return program;
  }

  // An imported program, from the text that twinrun has sent.
  Result<Program> imported(const json& p) const {
    const json& step = p.at("step");
    StepBinding binding;
    const auto results = step.at("results").get<std::vector<std::string>>();
    const auto result = [&](const std::string& name) {
      const auto at = std::ranges::find(results, name);
      return at == results.end() ? int64_t{-1} : at - results.begin();
    };
    for (const json& var : p.at("state")) {
      binding.state.push_back(var.at("name").get<std::string>());
      binding.roles.push_back(StateRole::kParameter);
      binding.results.push_back(result("state/" + binding.state.back()));
    }
    for (const json& input : p.at("inputs"))
      binding.inputs.push_back(input.at("name").get<std::string>());
    binding.loss = result("output/loss");
    const std::string name = step.at("stablehlo");
    TWINRUN_ASSIGN(const std::string text, read(name, kMaxHloBytes));
    TWINRUN_ASSIGN(const HloModule module, parse_program(text, name));
    TWINRUN_ASSIGN(ImportedStep made, import_step(module, binding));
    return std::move(made.program);
  }

  Result<json> prepare(const std::string& name) {
    TWINRUN_ASSIGN(const std::string text, read(name, kMaxHloBytes));
    TWINRUN_ASSIGN(const json p, parse_json_text(text));
    if (!p.is_object()) return Error{"is not a program", name, ""};
    TWINRUN_ASSIGN(Scenario scenario, parse_scenario(p.at("scenario").get<std::string>(), name));
    forget_cache_file(scenario);
    TWINRUN_ASSIGN(const Program program,
                   p.contains("step") ? imported(p) : of_scenario(p, scenario));
    Prepared prepared;
    TWINRUN_ASSIGN(auto backend, make_backend(o_.engine, backend_options(scenario, o_.threads)));
    prepared.backend = with_faults(std::move(backend), o_.faults, scenario.seed, nullptr);
    TWINRUN_ASSIGN(prepared.engine, prepared.backend->prepare(
                                        as_computed_by(prepared.backend->capabilities(), program)));
    programs_[name] = std::move(prepared);
    return json{{"prepared", name}};
  }

  Result<json> step(const json& request) {
    const auto found = programs_.find(request.value("program", ""));
    if (found == programs_.end()) return Error{"no such program was prepared", "", ""};
    Prepared& at = found->second;
    const Program& program = at.engine->program();
    const auto replicas = static_cast<size_t>(program.sharding.cores);
    if (request.at("state").is_string()) {
      const std::string name = request["state"];
      TWINRUN_ASSIGN(ArrayFile file, exec::read_result(o_.folder, name, kMax, name));
      const exec::ResultArrays arrays(std::move(file), name);
      at.states.assign(replicas, {});
      for (const StateVar& var : program.state) {
        TWINRUN_ASSIGN(const auto values, arrays.take("state/" + var.name, var.type, replicas));
        for (size_t r = 0; r < replicas; ++r) at.states[r].vars.push_back(values[r]);
      }
    }
    if (at.states.empty()) return Error{"there is no state to continue from", "", ""};
    const std::string name = request.at("inputs");
    TWINRUN_ASSIGN(ArrayFile file, exec::read_result(o_.folder, name, kMax, name));
    const exec::ResultArrays arrays(std::move(file), name);
    StepInputs inputs(replicas);
    for (const Input& input : program.inputs) {
      TWINRUN_ASSIGN(const auto values,
                     arrays.take("input/" + input.name, program.graph.type(input.id), replicas));
      for (size_t r = 0; r < replicas; ++r) inputs[r].push_back(values[r]);
    }
    StepOutputs outputs;
    const int64_t step = request.at("step");
    TWINRUN_RETURN_IF_ERROR(at.engine->step(step, at.states, inputs, outputs));
    return write(program, at.states, outputs, step, request.at("result"));
  }

  Result<json> write(const Program& program, const States& states, const StepOutputs& outputs,
                     int64_t step, const std::string& stem) {
    ArrayFile result;
    const auto add = [&](const std::string& name, const auto& of_replica) {
      std::vector<Tensor> values;
      for (size_t r = 0; r < states.size(); ++r) values.push_back(of_replica(r));
      exec::add_arrays(result, name, values);
    };
    for (size_t i = 0; i < program.state.size(); ++i)
      add("state/" + program.state[i].name, [&](size_t r) { return states[r].vars[i]; });
    for (size_t o = 0; o < program.outputs.size(); ++o)
      add("output/" + program.outputs[o].name, [&](size_t r) { return outputs[r][o]; });
    const std::string name = stem + ".safetensors";
    TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(result, name));
    TWINRUN_RETURN_IF_ERROR(exec::write_session_file(
        o_.folder, name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    return json{{"stepped", step}, {"result", name}};
  }

  ServeOptions o_;
  std::map<std::string, Prepared> programs_;
};

}  // namespace

Status serve(const ServeOptions& options, std::istream& in, std::ostream& out) {
  if (!fs::is_directory(options.folder))
    return Error{"is not a folder", options.folder, "the session folder is the last argument"};
  TWINRUN_ASSIGN(const auto there, make_backend(options.engine, {}));
  Server server(options);
  for (std::string line; std::getline(in, line);) {
    json reply;
    try {
      const auto request = parse_json_text(line);
      auto answer = request ? server.answer(*request) : request.error();
      reply = answer ? *answer : json{{"error", answer.error().message()}};
    } catch (const json::exception& e) {
      reply = {{"error", std::string("not a valid request: ") + e.what()}};
    }
    out << reply.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
  return Ok{};
}

}  // namespace twinrun
