// Runs the steps of a program on an engine of another process: files out, a request, files back.
#include "backends/exec/exec_backend.h"

#include <algorithm>
#include <boost/program_options/parsers.hpp>
#include <chrono>

#include "backends/exec/arrays.h"
#include "backends/exec/messages.h"
#include "backends/exec/session.h"
#include "backends/random_feed.h"
#include "program/text/stablehlo.h"

namespace twinrun {
namespace {

using exec::Reply;
using exec::Session;
using Milliseconds = std::chrono::milliseconds;

class ExecEngine : public Engine {
 public:
  ExecEngine(std::shared_ptr<Session> session, const Program& program)
      : session_(std::move(session)),
        program_(program),
        file_("program-" + std::to_string(session_->next_program()) + ".json") {}

  Status prepare(int threads) {
    TWINRUN_ASSIGN(const auto step, step_text());
    if (step) TWINRUN_RETURN_IF_ERROR(session_->write(text_file(), step->text));
    TWINRUN_RETURN_IF_ERROR(session_->write(
        file_, exec::program_json(program_, session_->options().scenario,
                                  step ? exec::StepText{text_file(), &*step} : exec::StepText{})));
    TWINRUN_ASSIGN(const Reply reply, session_->ask(exec::prepare(file_), "prepared",
                                                    "\"" + file_ + "\"", session_->options().slow));
    return random_.prepare(program_, threads);
  }

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink*, OpHooks* hooks) override {
    Status done = ask_step(step, states, inputs, outputs, hooks);
    if (done || !done.error().of_foreign_engine()) return done;
    last_.clear();  // the engine's state is unknown now: send the full state with the next step
    Error error = done.error();
    error.what = "step " + std::to_string(step) + ": " + error.what;
    return error;
  }

 private:
  std::string text_file() const { return file_.substr(0, file_.rfind('.')) + ".mlir"; }

  // The text of an imported program; nullopt for a model, which the engine builds from the
  // scenario.
  Result<std::optional<StableHlo>> step_text() const {
    const std::string& precision = session_->options().stablehlo_precision;
    if (precision.empty()) return std::optional<StableHlo>();
    try {
      return std::optional(to_stablehlo(program_, {.precision = precision}));
    } catch (const GraphError& error) {
      return Error{
          std::string("the program cannot be written as text for the engine: ") + error.what(),
          session_->name(), "", Error::Kind::kForeignEngine};
    }
  }

  Status ask_step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                  OpHooks* hooks) {
    if (hooks != nullptr)
      return Error{"faults cannot be injected into an engine of another process", "--fault",
                   "use the built-in engine cpu or tpu"};
    // Number the files by request, not by step: then the answer to an earlier request cannot be
    // taken for this one's.
    const std::string number = std::to_string(session_->next_request());
    const std::string inputs_file = "inputs-" + number + ".safetensors",
                      state_file = "state-" + number + ".safetensors", result = "result-" + number;
    TWINRUN_ASSIGN(const ArrayFile fed, arrays_fed(step, states, inputs));
    TWINRUN_RETURN_IF_ERROR(session_->write(inputs_file, fed));
    const bool goes_on = same(states);
    if (!goes_on) {
      ArrayFile state;
      for (size_t i = 0; i < program_.state.size(); ++i)
        exec::add_arrays(state, "state/" + program_.state[i].name, of_replicas(states, i));
      TWINRUN_RETURN_IF_ERROR(session_->write(state_file, state));
    }
    const auto begin = std::chrono::steady_clock::now();
    const Milliseconds limit =
        steps_ == 0 ? session_->options().slow : std::max(session_->options().fast, 20 * slowest_);
    const Result<Reply> answer =
        session_->ask(exec::step(file_, step, inputs_file, goes_on ? "" : state_file, result),
                      "stepped", std::to_string(step), limit);
    if (!answer.ok()) return answer.error();
    const Reply& reply = *answer;
    if (steps_++ > 0)
      slowest_ = std::max(slowest_, std::chrono::duration_cast<Milliseconds>(
                                        std::chrono::steady_clock::now() - begin));
    if (reply.result != result + ".safetensors" && reply.result != result + ".h5") {
      return Error{"returned the result " + exec::shown(reply.result) + "; expected '" + result +
                       ".safetensors' or '" + result + ".h5'",
                   session_->name(), "docs/reference/engine-protocol.md",
                   Error::Kind::kForeignEngine};
    }
    TWINRUN_RETURN_IF_ERROR(
        take(reply.result, states, outputs).with_kind(Error::Kind::kForeignEngine));
    for (const std::string& file : {inputs_file, state_file, reply.result}) session_->remove(file);
    last_ = states;
    return Ok{};
  }

  static std::vector<Tensor> of_replicas(const States& states, size_t var) {
    std::vector<Tensor> out;
    for (const ReplicaState& replica : states) out.push_back(replica.vars[var]);
    return out;
  }

  // Whether the step starts from the state with which the last one ended.
  bool same(const States& states) const {
    if (last_.size() != states.size()) return false;
    for (size_t r = 0; r < states.size(); ++r) {
      for (size_t i = 0; i < states[r].vars.size(); ++i) {
        const Tensor &a = states[r].vars[i], &b = last_[r].vars[i];
        if (a.raw() != b.raw() && !a.same_bits(b)) return false;
      }
    }
    return true;
  }

  Result<ArrayFile> arrays_fed(int64_t step, const States& states, const StepInputs& inputs) {
    ArrayFile file;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      std::vector<Tensor> replicas;
      for (const auto& replica : inputs) replicas.push_back(replica[i]);
      exec::add_arrays(file, "input/" + program_.inputs[i].name, replicas);
    }
    TWINRUN_ASSIGN(const auto drawn, random_.draw(step, states, inputs));
    for (size_t o = 0; o < drawn.size(); ++o)
      exec::add_arrays(file, "random/" + program_.graph.op(random_.ops()[o]).name, drawn[o]);
    return file;
  }

  Status take(const std::string& name, States& states, StepOutputs& outputs) {
    const size_t replicas = states.size();
    uint64_t expected = 1 << 16;
    for (const StateVar& var : program_.state)
      expected += static_cast<uint64_t>(var.type.bytes()) * replicas;
    for (const Output& output : program_.outputs)
      expected += static_cast<uint64_t>(program_.graph.type(output.id).bytes()) * replicas;
    const std::string where = session_->name() + ": " + name;
    TWINRUN_ASSIGN(ArrayFile file,
                   exec::read_result(session_->folder(), name, 4 * expected, where));
    const exec::ResultArrays arrays(std::move(file), where);
    TWINRUN_RETURN_IF_ERROR(only_known_outputs(arrays));
    outputs.assign(replicas, std::vector<Tensor>(program_.outputs.size()));
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const Output& output = program_.outputs[o];
      const TensorType& type = program_.graph.type(output.id);
      const bool asked = exec::is_asked_for(output);
      std::vector<Tensor> values(replicas, output.of_layer ? Tensor() : Tensor::zeros(type));
      if (asked || (output.of_layer && arrays.has("output/" + output.name))) {
        TWINRUN_ASSIGN(values, arrays.take("output/" + output.name, type, replicas));
      }
      for (size_t r = 0; r < replicas; ++r) outputs[r][o] = values[r];
    }
    for (size_t i = 0; i < program_.state.size(); ++i) {
      const StateVar& var = program_.state[i];
      if (var.next == kNoValue) continue;
      TWINRUN_ASSIGN(const std::vector<Tensor> values,
                     arrays.take("state/" + var.name, var.type, replicas));
      for (size_t r = 0; r < replicas; ++r) states[r].vars[i] = values[r];
    }
    return Ok{};
  }

  // Refuse unknown output names: a misspelt layer output would silently count as not shown.
  Status only_known_outputs(const exec::ResultArrays& arrays) const {
    std::vector<std::string> names;
    bool shows = false;
    for (const Output& output : program_.outputs) {
      shows = shows || output.of_layer;
      names.push_back("output/" + output.name);
    }
    return shows ? arrays.only("output/", names) : Status(Ok{});
  }

  std::shared_ptr<Session> session_;
  Program program_;
  std::string file_;
  RandomFeed random_;
  States last_;
  int64_t steps_ = 0;
  Milliseconds slowest_{0};
};

class ExecBackend : public Backend {
 public:
  ExecBackend(std::shared_ptr<Session> session, int threads)
      : session_(std::move(session)), threads_(threads) {}
  ~ExecBackend() override { Session::leave(std::move(session_)); }
  Capabilities capabilities() const override { return session_->declared(); }
  std::vector<DeviceFacts> devices() override { return session_->devices(); }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    if (program.sharding.cores > session_->declared().max_cores) {
      return Error{"has " + std::to_string(session_->declared().max_cores) +
                       " cores; the program needs " + std::to_string(program.sharding.cores),
                   session_->name(), "set tpu.cores to what it has", Error::Kind::kForeignEngine};
    }
    auto engine = std::make_unique<ExecEngine>(session_, program);
    TWINRUN_RETURN_IF_ERROR(engine->prepare(threads_));
    return std::unique_ptr<Engine>(std::move(engine));
  }

 private:
  std::shared_ptr<Session> session_;
  int threads_;
};

}  // namespace

std::vector<std::string> command_words(const std::string& command) {
  return boost::program_options::split_unix(command);
}

Result<std::unique_ptr<Backend>> make_exec_backend(const ExecOptions& options, int threads) {
  TWINRUN_ASSIGN(auto session, exec::Session::start(options));
  if (!options.stablehlo_precision.empty() && !session->declared().programs)
    return Error{"runs scenarios only, not imported programs", session->name(),
                 "an engine that can run StableHLO text says \"programs\": true in its hello "
                 "(docs/reference/engine-protocol.md#imported-programs)",
                 Error::Kind::kForeignEngine};
  return std::unique_ptr<Backend>(std::make_unique<ExecBackend>(std::move(session), threads));
}

}  // namespace twinrun
