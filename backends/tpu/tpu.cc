// The `tpu` engine: the shared interpreter with the arithmetic that TpuOptions select.
#include "backends/tpu/tpu.h"

#include "backends/core/interpreter.h"
#include "device/machine.h"

namespace twinrun {
namespace {

Arithmetic arithmetic_of(const TpuOptions& options) {
  Arithmetic a;
  switch (options.precision) {
    case DotPrecision::kF32:
      a.dot = DotArithmetic::kF32;
      break;
    case DotPrecision::kBf16:
      a.dot = DotArithmetic::kBf16;
      break;
    case DotPrecision::kBf16x3:
      a.dot = DotArithmetic::kBf16x3;
      break;
    case DotPrecision::kBf16x6:
      a.dot = DotArithmetic::kBf16x6;
      break;
  }
  a.flush = options.precision != DotPrecision::kF32;
  a.poison = options.poison;
  return a;
}

class TpuBackend : public Backend {
 public:
  explicit TpuBackend(const BackendOptions& options) : options_(options) {}

  Capabilities capabilities() const override {
    Capabilities c;
    c.name = "tpu";
    c.settings = "precision=" + std::string(to_string(options_.tpu.precision));
    c.precision = options_.tpu.precision;
    c.block32_order = c.flush = options_.tpu.precision != DotPrecision::kF32;
    c.max_cores = tpu::kMaxCores;
    return c;
  }

  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    if (program.sharding.cores > tpu::kMaxCores) {
      return Error{"the program needs " + std::to_string(program.sharding.cores) +
                       " cores; the engine has " + std::to_string(tpu::kMaxCores),
                   "tpu.cores", ""};
    }
    TWINRUN_RETURN_IF_ERROR(check_ranks(options_.ranks, program.sharding.cores));
    return std::unique_ptr<Engine>(
        std::make_unique<Interpreter>(program, arithmetic_of(options_.tpu), options_));
  }

 private:
  BackendOptions options_;
};

}  // namespace

std::unique_ptr<Backend> make_tpu_backend(const BackendOptions& options) {
  return std::make_unique<TpuBackend>(options);
}

}  // namespace twinrun
