// Trains a tiny program under lockstep on any subject. Shared by the tests of instrument 1.
#pragma once

#include <memory>
#include <string>

#include "backends/variants/variant.h"
#include "harness/lockstep/lockstep.h"
#include "tests/harness/tiny.h"

namespace twinrun::tiny {

struct Watched {
  std::unique_ptr<Program> program;
  std::unique_ptr<Lockstep> probe;
  std::shared_ptr<FaultLog> log;

  std::string all() const {  // all violations as text, for messages
    std::string text;
    for (const Violation& v : probe->violations()) {
      text += v.op + " step " + std::to_string(v.step) + ": " + v.elements + " " + v.link + " " +
              v.fingerprint + "\n";
    }
    return text;
  }
};

inline Watched watch(std::unique_ptr<Backend> subject, const char* layers, int cores, int64_t steps,
                     ProbePolicy policy = {}, const std::string& fault = "",
                     const Overrides& more = {}) {
  Overrides overrides = {{"tpu.cores", std::to_string(cores)}, {"optimizer.kind", "momentum"}};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const Experiment e = experiment(layers, overrides);
  Watched w{std::make_unique<Program>(program(e, cores > 1)), nullptr,
            std::make_shared<FaultLog>()};
  ThreadPool pool(1);
  w.probe = std::make_unique<Lockstep>(*w.program, subject->capabilities(), policy, &pool);
  if (!fault.empty()) subject = faulty(std::move(subject), fault, w.log);
  RunOptions options;
  options.steps = steps;
  options.observer = w.probe.get();
  options.evaluate = false;
  must(train(e, *w.program, *subject, options));
  return w;
}

inline std::unique_ptr<Backend> variant(uint64_t seed, DotPrecision precision) {
  return make_variant_backend(draw_variant(seed, precision), {});
}

}  // namespace twinrun::tiny
