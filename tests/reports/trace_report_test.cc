// Tests the page of a judged trace: it shows what was found, and nothing from the trace is markup.
#include <gtest/gtest.h>

#include "reports/trace_verdict.h"

namespace twinrun {
namespace {

TEST(TraceReport, NothingFromTheTraceIsMarkup) {
  const std::string bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b";
  TraceVerdict v;
  v.trace = v.framework = v.script = v.observer = bad;
  v.calls = v.judged = v.outside_calls = 1;
  CallFinding f;
  f.op = f.place = f.module = f.node = f.phase = f.result = f.type = f.pattern = f.signature = bad;
  f.worst_index = "[3,7]";
  f.got = 2;
  f.expected = 1;
  f.bound = 0.25;
  f.operands = {{bad, bad, bad}};
  v.findings = {f};
  v.ops[bad] = {1, 1, 1, 1, 4, {4}};
  v.unjudged[{bad, bad}] = {1, 1};
  v.open = {{bad, bad, bad, 1}};
  v.notes = {bad};
  v.update.is_wrong = true;
  v.update.optimizer = v.update.place = v.update.type = v.update.what = v.update.looks = bad;
  v.stale.weights = 1;
  v.stale.op = v.stale.place = bad;
  v.settings = {{bad, bad}};
  const std::string page = to_html(report_of(v));
  for (const char* part : {"<img", "<script>alert", "\x1b"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  for (const char* part : {"v-ENGINE_BUG", "[3,7]", "expected 1 within 0.25", "&lt;img"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace twinrun
