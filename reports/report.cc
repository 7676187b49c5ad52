// Names and exit codes of verdicts and effects, and the table of formats.
#include "reports/report.h"

#include <array>

namespace twinrun {

std::string_view to_string(VerdictClass verdict) {
  switch (verdict) {
    case VerdictClass::kIdentical:
      return "IDENTICAL";
    case VerdictClass::kNoise:
      return "NOISE";
    case VerdictClass::kSharding:
      return "SHARDING";
    case VerdictClass::kProgram:
      return "PROGRAM";
    case VerdictClass::kEngineBug:
      return "ENGINE_BUG";
    case VerdictClass::kNondeterministic:
      return "NONDETERMINISTIC";
    case VerdictClass::kInconclusive:
      return "INCONCLUSIVE";
  }
  return "INCONCLUSIVE";
}

std::string_view to_string(Effect effect) {
  switch (effect) {
    case Effect::kNoneDetected:
      return "none detected";
    case Effect::kSeedNoise:
      return "inside seed noise";
    case Effect::kWithinMargin:
      return "within the margin";
    case Effect::kHarmful:
      return "harmful";
    case Effect::kBeneficial:
      return "beneficial";
    case Effect::kUndecided:
      return "undecided";
  }
  return "undecided";
}

std::string_view to_string(PairedOutcome outcome) {
  switch (outcome) {
    case PairedOutcome::kIdentical:
      return "identical";
    case PairedOutcome::kNoneDetected:
      return to_string(Effect::kNoneDetected);
    case PairedOutcome::kWithinMargin:
      return to_string(Effect::kWithinMargin);
    case PairedOutcome::kHarmful:
      return to_string(Effect::kHarmful);
    case PairedOutcome::kBeneficial:
      return to_string(Effect::kBeneficial);
    case PairedOutcome::kUndecided:
      return to_string(Effect::kUndecided);
    case PairedOutcome::kEquivalent:
      return "equivalent";
    case PairedOutcome::kOutside:
      return "outside";
    case PairedOutcome::kUndetermined:
      return "undetermined";
  }
  return "undetermined";
}

std::string_view to_string(CureOutcome outcome) {
  switch (outcome) {
    case CureOutcome::kWithinNoise:
      return "within the seed noise";
    case CureOutcome::kOutsideNoise:
      return "outside the seed noise";
    case CureOutcome::kUndecided:
      return "undecided";
  }
  return "undecided";
}

std::string_view to_string(EnsembleOutcome outcome) {
  return outcome == EnsembleOutcome::kInside ? "inside" : "outside";
}

int exit_code(VerdictClass verdict, Effect effect) {
  switch (verdict) {
    case VerdictClass::kIdentical:
    case VerdictClass::kNoise:
      return 0;
    case VerdictClass::kSharding:
      return effect == Effect::kWithinMargin ? 0 : 10;
    case VerdictClass::kProgram:
      return 15;
    case VerdictClass::kEngineBug:
      return 20;
    case VerdictClass::kNondeterministic:
      return 30;
    case VerdictClass::kInconclusive:
      return 125;
  }
  return 125;
}

std::span<const ReportFormat> report_formats() {
  static constexpr std::array<ReportFormat, 4> kFormats = {{
      {"json", "report.json", to_json},
      {"markdown", "report.md", to_markdown},
      {"html", "report.html", to_html},
      {"junit", "junit.xml", to_junit},
  }};
  return kFormats;
}

}  // namespace twinrun
