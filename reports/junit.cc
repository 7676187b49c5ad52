// Writes JUnit XML, which CI servers display. There is no formal standard; this follows the format
// that Ant's JUnit task writes and CI servers read.
#include <fmt/format.h>

#include <algorithm>

#include "reports/gate.h"
#include "reports/html_text.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// clean() leaves no character that XML 1.0 forbids.
std::string escaped(std::string_view raw) { return html::escaped(text::clean(raw)); }

// The element that reports how a test case ended; "" where it passed.
std::string_view element_of(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kSame:
    case GateOutcome::kInside:
      return "";
    case GateOutcome::kDiverged:
      return "failure";
    case GateOutcome::kInterrupted:
      return "skipped";
    default:
      return "error";
  }
}

int64_t count(const std::vector<Gate>& gates, std::string_view element) {
  int64_t n = 0;
  for (const Gate& gate : gates) n += element_of(gate.outcome) == element;
  return n;
}

std::string suite(std::string_view name, size_t tests, int64_t failures, int64_t errors,
                  int64_t skipped, const std::string& rest) {
  const std::string counts =
      fmt::format("name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"{}", name,
                  tests, failures, errors, skipped, rest);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {}>\n  <testsuite {}>\n", counts,
      counts);
}

}  // namespace

bool FailOn::has(VerdictClass verdict) const {
  return std::ranges::find(classes, verdict) != classes.end();
}

// A question is a test case: "no" is a failure, what is open an error, what was not asked skipped.
std::string to_junit(const Report& report, const FailOn& fail_on) {
  using enum Answer::Outcome;
  int64_t failures = 0, errors = 0, skipped = 0;
  std::string body;
  for (const Question& q : questions()) {
    const Answer& a = report.answers.*q.answer;
    const bool effect = q.if_no == VerdictClass::kNoise;
    const bool remarks = fail_on.remarks && q.if_no == VerdictClass::kProgram;
    const bool accepted = q.if_no == report.verdict && exit_code(q.if_no, report.effect) == 0;
    const bool no = (a.outcome == kNo && fail_on.has(q.if_no) && !accepted) ||
                    (remarks && !report.remarks.empty());
    const bool open = a.outcome == kOpen && !effect && fail_on.open;
    const bool passed = a.outcome == kYes || a.outcome == kPartly || (effect && a.outcome == kNo);
    failures += no;
    errors += open;
    skipped += !no && !open && !passed;
    std::string all = a.what;
    if (q.if_no == VerdictClass::kProgram)
      for (const std::string& remark : report.remarks) all += "; look at this: " + remark;
    const std::string what = escaped(all);
    body += fmt::format("    <testcase classname=\"twinrun.{}\" name=\"{}\">\n",
                        escaped(report.scenario_name), escaped(q.words));
    body += passed ? fmt::format("      <system-out>{}</system-out>\n", what)
            : no   ? fmt::format("      <failure type=\"{}\" message=\"{}\">{}</failure>\n",
                                 to_string(q.if_no), what, escaped(report.headline))
            : open
                ? fmt::format("      <error type=\"{}\" message=\"{}\"/>\n",
                              to_string(report.verdict), what)
                : fmt::format("      <skipped message=\"{}: {}\"/>\n", to_string(a.outcome), what);
    body += "    </testcase>\n";
  }
  return suite("twinrun diagnose", questions().size(), failures, errors, skipped, "") + body +
         "  </testsuite>\n</testsuites>\n";
}

std::string to_junit(const Report& report) {
  FailOn all;
  for (const Question& q : questions())
    if (q.if_no != VerdictClass::kNoise) all.classes.push_back(q.if_no);
  return to_junit(report, all);
}

std::string to_junit(const std::vector<Gate>& gates) {
  double seconds = 0;
  for (const Gate& gate : gates) seconds += gate.seconds;
  std::string out =
      suite("twinrun verify", gates.size(), count(gates, "failure"), count(gates, "error"),
            count(gates, "skipped"), fmt::format(" time=\"{:.3f}\"", seconds));
  for (const Gate& gate : gates) {
    out += fmt::format("    <testcase classname=\"twinrun.{}\" name=\"{}\" time=\"{:.3f}\">\n",
                       escaped(gate.scenario.empty() ? "golden" : gate.scenario),
                       escaped(gate.golden), gate.seconds);
    std::string body;
    for (const std::string& line : text::clean_lines(to_terminal(gate)))
      body += escaped(line) + "\n";
    const std::string_view element = element_of(gate.outcome);
    if (element.empty()) {
      out += fmt::format("      <system-out>{}</system-out>\n", body);
    } else if (element == "skipped") {
      out += fmt::format("      <skipped message=\"{}\"/>\n", escaped(gate.headline));
    } else {
      out += fmt::format("      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n", element,
                         to_string(gate.outcome), escaped(gate.headline), body);
    }
    out += "    </testcase>\n";
  }
  return out + "  </testsuite>\n</testsuites>\n";
}

}  // namespace twinrun
