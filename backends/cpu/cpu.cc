// The `cpu` engine: the shared interpreter with the default arithmetic.
#include "backends/cpu/cpu.h"

#include "backends/core/interpreter.h"

namespace twinrun {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options) : options_(options) {}

  Capabilities capabilities() const override {
    Capabilities c;
    c.name = "cpu";
    c.settings = "f32, sequential k";
    c.max_cores = 1 << 16;
    return c;
  }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    TWINRUN_RETURN_IF_ERROR(check_ranks(options_.ranks, program.sharding.cores));
    return std::unique_ptr<Engine>(std::make_unique<Interpreter>(program, Arithmetic{}, options_));
  }

 private:
  BackendOptions options_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace twinrun
