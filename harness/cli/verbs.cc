// The table of verbs, and what the program says of itself beside them.
#include "harness/cli/bisect.h"

namespace twinrun::cli {
namespace {

constexpr Verb kVerbs[] = {
    Verb{"diagnose",
         "is a step right? of a script, a trace, a scenario, a compiled step",
         diagnose_verb,
         {},
         /*on_ranks=*/true},
    Verb{"report", "render a finished diagnosis in other formats", report_verb},
    Verb{"train", "train once on one engine", train_verb, {}, /*on_ranks=*/true},
    Verb{"record", "record a golden run, with which verify compares later ones", record_verb},
    Verb{"verify", "compare golden runs with what the engine computes now: a gate for CI",
         verify_verb},
    Verb{"compare", "compare two engines or settings over paired seeds: an A/B test", compare_verb},
    Verb{"bundle",
         "pack a diagnosis into one .zip, reduced to the smallest case that fails in the same way",
         bundle_verb},
    Verb{"replay", "check whether a bundle gives the same result on this machine", replay_verb},
    Verb{"diff", "show where two runs or checkpoints diverge, and by how much", diff_verb},
    Verb{"bisect", "find where a difference begins: step, op, scenario key, commit or release",
         bisect_verb, kBisectAxes},
    Verb{"check", "check whether it will work on a TPU, by rules, before anything runs",
         check_verb},
    Verb{"inspect", "list the scenarios of the library; show what a scenario or a file contains",
         inspect_verb},
    Verb{"convert", "convert weights of NumPy, safetensors and Keras; a training step as StableHLO",
         convert_verb},
    Verb{"profile", "show where the time of a step goes, on a modelled TPU or on this machine",
         profile_verb},
    Verb{"doctor", "check this machine, this build and an engine", doctor_verb},
};

constexpr Term kExitCodes[] = {
    {"0", "done, and nothing bad was found"},
    {"1",
     "check, compare, diff, verify: an error or a difference; train, record: the run failed; "
     "replay: not reproduced; doctor: a check failed"},
    {"10", "diagnose: sharding"},
    {"15", "diagnose: another program"},
    {"20", "diagnose: engine bug"},
    {"30", "diagnose: reference not deterministic"},
    {"125", "inconclusive, undecided or not reproducible; or an engine is not available"},
    {"128", "usage, bad input or environment"},
    {"130", "interrupted"},
};

constexpr Term kEnvironment[] = {
    {"TWINRUN_CACHE",
     "folder of the reference runs that are kept (default: twinrun/references in $XDG_CACHE_HOME "
     "or ~/.cache); empty: none"},
    {"TWINRUN_ISA",
     "the highest instruction set to use, which never changes a bit: scalar, neon, avx2, "
     "avx512, avx512bf16, amx"},
    {"TWINRUN_PYTHON", "the Python that runs your scripts (python3)"},
    {"NO_COLOR", "not empty: no colours"},
    {"LC_ALL", "without UTF-8 in it (else in LC_CTYPE or LANG), reports are drawn in ASCII"},
};

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }
std::span<const Term> exit_codes() { return kExitCodes; }
std::span<const Term> environment_variables() { return kEnvironment; }

}  // namespace twinrun::cli
