// What `twinrun record --trace` keeps of a step on a healthy machine, and what `twinrun verify
// --trace` says of another: digests of every result, the first call that differs, and whether that
// is another order of rounding or a wrong device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/base/digest.h"
#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

struct KnownCall {
  int32_t step = 0;
  std::string op, module, place;
  bool draw = false;              // its result is random
  bool steady = true;             // a second run gave the same
  Digest reads;                   // of all tensors that it reads, in order
  std::optional<Digest> given;    // of those among them that no call computed: batches, weights
  std::optional<Digest> numbers;  // of its arguments that are numbers with a fraction: a rate
  std::vector<std::pair<std::string, Digest>> results;  // type, digest
};

struct KnownStep {
  std::string framework, script;
  int64_t steps = 0;
  bool accelerator = false;
  std::vector<std::pair<std::string, std::string>>
      settings;  // device, instruction set, threads, ..
  std::vector<KnownCall> calls;
  bool repeated = false;     // a second run was compared
  bool has_checksum = true;  // json_checksum.h; false: read from a file of an older version
  Digest root() const;       // of all that is steady
};
std::string to_json(const KnownStep& known);
Result<KnownStep> read_known(const std::string& path);

struct KnownVerdict {
  // kIdentical: the same bits. kNoise: other kernels, every result within its bound. kEngineBug: a
  // result is outside. kProgram: other inputs, or another program. kInconclusive: not judged.
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string headline;
  int64_t calls = 0, differing = 0, outside_calls = 0;
  // The first call that differs; for kEngineBug, the first with a result outside its bound.
  struct Where {
    int64_t call = 0;
    int32_t step = 0;
    std::string op, module, place, type;
    int64_t elements = 0, outside = 0;
    double worst = 0;  // the largest error / bound
    bool judged = false;
  };
  std::optional<Where> first, wrong;
  // Settings that are not as they were: name, then, now.
  struct Changed {
    std::string name, then, now;
  };
  std::vector<Changed> changed;
};
Report report_of(const KnownVerdict& verdict);

}  // namespace twinrun
