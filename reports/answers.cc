// The five questions about a training step, and the verdict that their answers give.
#include <array>

#include "reports/report.h"

namespace twinrun {

std::string_view to_string(Answer::Outcome outcome) {
  switch (outcome) {
    case Answer::Outcome::kYes:
      return "yes";
    case Answer::Outcome::kNo:
      return "no";
    case Answer::Outcome::kOpen:
      return "open";
    case Answer::Outcome::kPartly:
      return "in part";
    case Answer::Outcome::kNotAsked:
      return "not asked";
    case Answer::Outcome::kNotApplicable:
      return "-";
  }
  return "not asked";
}

std::span<const Question> questions() {
  static constexpr std::array kAll = {
      Question{"repeats", "does it repeat?", &Answers::repeats, VerdictClass::kNondeterministic},
      Question{"operations", "is every operation right?", &Answers::operations,
               VerdictClass::kEngineBug},
      Question{"program", "is it the program that it claims to be?", &Answers::program,
               VerdictClass::kProgram},
      Question{"sharding", "does sharding mean the same?", &Answers::sharding,
               VerdictClass::kSharding},
      Question{"effect", "does it matter?", &Answers::effect, VerdictClass::kNoise},
  };
  return kAll;
}

VerdictClass classify(const Answers& answers) {
  using enum Answer::Outcome;
  const auto is = [](const Answer& a, Answer::Outcome outcome) { return a.outcome == outcome; };
  if (is(answers.operations, kNo)) return VerdictClass::kEngineBug;
  if (is(answers.repeats, kNo)) return VerdictClass::kNondeterministic;
  if (is(answers.sharding, kNo)) return VerdictClass::kSharding;
  if (is(answers.program, kNo)) return VerdictClass::kProgram;
  if (is(answers.operations, kNotAsked)) return VerdictClass::kInconclusive;
  for (const Answer* a :
       {&answers.repeats, &answers.operations, &answers.program, &answers.sharding}) {
    if (is(*a, kOpen)) return VerdictClass::kInconclusive;
  }
  return VerdictClass::kNoise;
}

}  // namespace twinrun
