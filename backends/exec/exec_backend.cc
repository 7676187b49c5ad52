#include "backends/exec/exec_backend.h"

#include <stdlib.h>

#include <algorithm>
#include <boost/program_options/parsers.hpp>
#include <filesystem>
#include <fstream>

#include "backends/exec/arrays.h"
#include "backends/exec/child.h"
#include "backends/exec/messages.h"
#include "backends/random_feed.h"
#include "checkpoints/container/safetensors.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using exec::Reply;
using Milliseconds = std::chrono::milliseconds;

// One process and its folder.
class Session {
 public:
  static Result<std::shared_ptr<Session>> start(const ExecOptions& options) {
    const std::shared_ptr<Session> s(new Session(options));
    std::error_code error;
    std::string folder = (fs::temp_directory_path(error) / "twinrun-engine-XXXXXX").string();
    if (error || mkdtemp(folder.data()) == nullptr)
      return Error{"cannot make a session folder", folder,
                   "set TMPDIR to a folder that can be written"};
    s->folder_ = folder;
    std::vector<std::string> words = boost::program_options::split_unix(options.command);
    if (words.empty())
      return Error{"no command", "exec:", "exec:COMMAND, for example exec:'python3 engine.py'"};
    words.push_back(folder);
    TWINRUN_ASSIGN(s->child_, Child::start(words));
    TWINRUN_ASSIGN(const std::string line, s->ask(exec::hello(), "hello", "", options.slow));
    TWINRUN_ASSIGN(s->declared_, exec::parse_hello(line, s->child_->name()));
    return s;
  }
  ~Session() {
    if (child_) child_->end(std::chrono::seconds(5));
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The line that answers.
  Result<std::string> ask(const std::string& message, const std::string& key, const std::string& is,
                          Milliseconds limit) {
    if (broken_) return Error{"has failed before", child_->name(), ""};
    broken_ = true;  // until it has answered
    TWINRUN_RETURN_IF_ERROR(child_->send(message));
    for (;;) {
      TWINRUN_ASSIGN(std::string line, child_->receive(limit));
      TWINRUN_ASSIGN(const Reply reply, exec::parse_reply(line, key, is, child_->name()));
      if (!reply.alive.empty()) continue;
      broken_ = false;
      return line;
    }
  }

  Status write(const std::string& name, const ArrayFile& file) const {
    const std::string path = (fs::path(folder_) / name).string();
    TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(file, path));
    return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  Status write(const std::string& name, std::string_view bytes) const {
    const std::string path = (fs::path(folder_) / name).string();
    std::error_code ignored;
    fs::remove(path, ignored);  // never through a link that the engine has put there
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) return Error{"cannot write", path, "free space, or set TMPDIR"};
    return Ok{};
  }
  void remove(const std::string& name) const {
    std::error_code ignored;
    fs::remove(fs::path(folder_) / name, ignored);
  }

  const std::string& folder() const { return folder_; }
  const std::string& name() const { return child_->name(); }
  const ExecOptions& options() const { return options_; }
  const Capabilities& declared() const { return declared_; }
  int next_program() { return ++programs_; }

 private:
  explicit Session(ExecOptions options) : options_(std::move(options)) {}
  ExecOptions options_;
  std::string folder_;
  std::unique_ptr<Child> child_;
  Capabilities declared_;
  int programs_ = 0;
  bool broken_ = false;
};

class ExecEngine : public Engine {
 public:
  ExecEngine(std::shared_ptr<Session> session, const Program& program)
      : session_(std::move(session)),
        program_(program),
        file_("program-" + std::to_string(session_->next_program()) + ".json") {}

  Status prepare(int threads) {
    TWINRUN_RETURN_IF_ERROR(
        session_->write(file_, exec::program_json(program_, session_->options().scenario)));
    TWINRUN_ASSIGN(const std::string line,
                   session_->ask(exec::prepare(file_), "prepared", "\"" + file_ + "\"",
                                 session_->options().slow));
    return random_.prepare(program_, threads);
  }

  const Program& program() const override { return program_; }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink*, OpHooks* hooks) override {
    if (hooks != nullptr)
      return Error{"an engine of another process takes no faults", session_->name(),
                   "inject them into cpu or tpu"};
    const std::string number = std::to_string(step);
    const std::string inputs_file = "inputs-" + number + ".safetensors",
                      state_file = "state-" + number + ".safetensors";
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
    TWINRUN_ASSIGN(const std::string line,
                   session_->ask(exec::step(file_, step, inputs_file, goes_on ? "" : state_file,
                                            "result-" + number),
                                 "stepped", number, limit));
    if (steps_++ > 0)
      slowest_ = std::max(slowest_, std::chrono::duration_cast<Milliseconds>(
                                        std::chrono::steady_clock::now() - begin));
    TWINRUN_ASSIGN(const Reply reply, exec::parse_reply(line, "stepped", number, session_->name()));
    TWINRUN_RETURN_IF_ERROR(take(reply.result, states, outputs));
    for (const std::string& file : {inputs_file, state_file, reply.result}) session_->remove(file);
    last_ = states;
    return Ok{};
  }

 private:
  static std::vector<Tensor> of_replicas(const States& states, size_t var) {
    std::vector<Tensor> out;
    for (const ReplicaState& replica : states) out.push_back(replica.vars[var]);
    return out;
  }

  // Does the step start from what the last one ended with?
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
    uint64_t due = 1 << 16;
    for (const StateVar& var : program_.state)
      due += static_cast<uint64_t>(var.type.bytes()) * replicas;
    for (const Output& output : program_.outputs)
      due += static_cast<uint64_t>(program_.graph.type(output.id).bytes()) * replicas;
    TWINRUN_ASSIGN(ArrayFile file, exec::read_result(session_->folder(), name, 4 * due));
    const exec::ResultArrays arrays(std::move(file), session_->name() + ": " + name);
    outputs.assign(replicas, std::vector<Tensor>(program_.outputs.size()));
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const Output& output = program_.outputs[o];
      const TensorType& type = program_.graph.type(output.id);
      std::vector<Tensor> values(replicas, Tensor::zeros(type));
      if (output.name == "loss" || output.name.ends_with(".grad")) {
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
  Capabilities capabilities() const override { return session_->declared(); }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    if (program.sharding.cores > session_->declared().max_cores) {
      return Error{"has " + std::to_string(session_->declared().max_cores) +
                       " cores, the program asks for " + std::to_string(program.sharding.cores),
                   session_->name(), "set tpu.cores to what it has"};
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

Result<std::unique_ptr<Backend>> make_exec_backend(const ExecOptions& options, int threads) {
  TWINRUN_ASSIGN(auto session, Session::start(options));
  return std::unique_ptr<Backend>(std::make_unique<ExecBackend>(std::move(session), threads));
}

}  // namespace twinrun
