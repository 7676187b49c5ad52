// Tests the text helpers that the reports share: numbers, sentences, cleaned and wrapped text,
// shell quoting, tables, sparklines, Markdown.
#include "reports/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "reports/drift.h"
#include "reports/markdown_text.h"
#include "tests/reports/examples.h"

namespace twinrun::text {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Text, Numbers) {
  EXPECT_EQ(number(0.000123), "1.23e-04");
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(-0.5), "-0.500");
  EXPECT_EQ(number(12.34), "12.3");
  EXPECT_EQ(number(4130), "4130");
  EXPECT_EQ(number(999.9), "1000");
  EXPECT_EQ(number(512), "512");
  EXPECT_EQ(number(2.5e7), "2.50e+07");
  EXPECT_EQ(number(NAN), "nan");
  EXPECT_EQ(number(-kInf), "-inf");
  EXPECT_EQ(signed_number(0.5), "+0.500");
  EXPECT_EQ(signed_number(-0.5), "-0.500");
  EXPECT_EQ(power_of_two(0.0018), "2^-9.1");
  EXPECT_EQ(power_of_two(0), "0");
  EXPECT_EQ(percent(0.9297), "92.97%");
  EXPECT_EQ(percent(NAN), "-");
  EXPECT_EQ(share(1), "100%");
  EXPECT_EQ(share(0.998), ">99%");
  EXPECT_EQ(share(0.001), "<1%");
  EXPECT_EQ(share(0), "0%");
  EXPECT_EQ(count(31457280), "31,457,280");
  EXPECT_EQ(count(-4608), "-4,608");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(plural(1, "step"), "1 step");
  EXPECT_EQ(plural(2000, "step"), "2,000 steps");
}

TEST(Text, Durations) {
  EXPECT_EQ(duration(0.012), "12 ms");
  EXPECT_EQ(duration(3.21), "3.2 s");
  EXPECT_EQ(duration(59.99), "1 min 00 s");
  EXPECT_EQ(duration(245), "4 min 05 s");
  EXPECT_EQ(duration(3725), "1 h 02 min");
  EXPECT_EQ(duration(NAN), "-");
  EXPECT_EQ(duration(1e300), "1.00e+300 s");
}

TEST(Text, AgainstBoundNeverClaimsWhatRoundingMakes) {
  EXPECT_EQ(against_bound(0.03125, 7.567e-6), "0.0312; allowed 7.57e-06 (4130 times)");
  EXPECT_EQ(against_bound(1.0004, 1), "1.00; allowed 1.00 (more than 1.00 times)");
  EXPECT_EQ(against_bound(0.41, 1), "0.410; allowed 1.00");
  EXPECT_EQ(against_bound(1, 1), "1.00; allowed 1.00");
  EXPECT_EQ(against_bound(3, 0), "3.00; allowed 0");
  EXPECT_EQ(against_bound(NAN, 1), "nan; allowed 1.00");
  EXPECT_EQ(against_bound(1, kInf), "1.00; allowed inf");
}

TEST(Text, LargeRatiosAreWords) {
  EXPECT_EQ(times(2.4), "2.40 times");
  EXPECT_EQ(times(4130), "4130 times");
  EXPECT_EQ(times(42136), "42,100 times");
  EXPECT_EQ(times(766417), "766,000 times");
  EXPECT_EQ(times(2.396e6), "2.40 million times");
  EXPECT_EQ(times(1.61e8), "161 million times");
  EXPECT_EQ(times(2.5e10), "25.0 billion times");
  EXPECT_EQ(times(1e15), "1.00e+15 times");
  EXPECT_EQ(relative(0.0371), "3.71%");
  EXPECT_EQ(relative(2.4), "240%");
  EXPECT_EQ(relative(1.3e-7), "1.30e-07 of its size");
  EXPECT_EQ(interval(-6e-5, 0.00154), "[-6.00e-05, +0.00154]");
}

// A finding without a number shows none, and a bound of 0 does not show as "inf".
TEST(Text, NumbersOfFindingsAndOps) {
  Finding f;
  EXPECT_EQ(number_of(f), "");
  f.number = 3e-5, f.bound = 1e-5;
  EXPECT_EQ(number_of(f), "3.00e-05; allowed 1.00e-05 (3.00 times)");
  f.number_text = "NaN where 1 was expected";
  EXPECT_EQ(number_of(f), f.number_text);
  ProbeRow row;
  row.worst_ratio = kInf;
  EXPECT_EQ(worst_of(row), "wrong bits");
  EXPECT_EQ(unbounded(0), "");
  EXPECT_EQ(unbounded(12), ", 12 without a finite bound");
}

TEST(Text, OneSeedHasNoInterval) {
  TrajectoryRow row;
  row.differences = {0.1};
  row.mean = row.low = row.high = 0.1;
  row.outcome = PairedOutcome::kUndecided;
  EXPECT_EQ(interval_of(row), "- (one seed)");
  EXPECT_EQ(margin_of(row), "none");
  EXPECT_EQ(outcome_of(row), "not tested");
  row.differences = {0.1, 0.2};
  row.low = -0.2, row.high = 0.5, row.margin = 0.01;
  EXPECT_EQ(interval_of(row), "[-0.200, +0.500]");
  EXPECT_EQ(margin_of(row), "0.0100");
  EXPECT_EQ(outcome_of(row), "undecided");
  EXPECT_EQ(change_of(row, 0.1), "+0.100");
  row.metric = "held-out accuracy";  // a fraction, shown in percentage points
  EXPECT_EQ(interval_of(row), "[-20.0, +50.0]");
  EXPECT_EQ(size_of(row, -0.012), "1.20 points");
}

TEST(Text, AFailedControlSaysWhatItMeans) {
  Control c{"R = R'", true, true, ""};
  EXPECT_EQ(failure_of(c), "");
  c.passed = false;
  EXPECT_EQ(failure_of(c), "A control failed: R = R'. Nothing below is certain until it passes.");
  c.failure = "The engine gave different bits when run twice.";
  EXPECT_EQ(failure_of(c), c.failure);
  c.run = false;
  EXPECT_EQ(failure_of(c), "");
}

TEST(Text, AblationsAndWhatTheyShow) {
  AblationRow row{"batch_wise", "restored in S", 0.885, 0, 1.5e-8, true, 1.011, ""};
  EXPECT_EQ(ablation_of(row), "undone");
  EXPECT_EQ(effect_of(row), "yes, 101%");
  row.direction = "introduced alone";
  EXPECT_EQ(ablation_of(row), "added alone");
  EXPECT_EQ(effect_of(row), "has an effect");
  row.explains = false;
  EXPECT_EQ(effect_of(row), "no effect");
}

// The interaction is one difference between single runs: it means nothing beside an engine bug, and
// NaN is not shown.
TEST(Text, TheInteractionIsSaidWhereItMeansSomething) {
  Report r;
  r.verdict = VerdictClass::kNoise;
  EXPECT_EQ(interaction_of(r), "");
  r.unexplained = 0.208;
  EXPECT_NE(interaction_of(r).find("+0.208 of held-out loss"), std::string::npos);
  r.verdict = VerdictClass::kEngineBug;
  EXPECT_EQ(interaction_of(r), "");
  r.verdict = VerdictClass::kNoise;
  r.unexplained = NAN;
  EXPECT_EQ(interaction_of(r), "");
}

TEST(Text, CleanTakesAwayWhatATerminalObeys) {
  EXPECT_EQ(clean("a\nb\tc"), "a b c");
  EXPECT_EQ(clean("\x1b[31m"), "\xEF\xBF\xBD[31m");
  EXPECT_EQ(clean("\xc2\x9b"), "\xEF\xBF\xBD");              // C1 CSI
  EXPECT_EQ(clean("\xe2\x80\xae"), "\xEF\xBF\xBD");          // right-to-left override
  EXPECT_EQ(clean("\xc0\xaf"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // overlong
  EXPECT_EQ(clean("\xed\xa0\x80").size(), 9U);               // a surrogate, byte by byte
  EXPECT_EQ(clean("caf\xc3"), "caf\xEF\xBF\xBD");
  EXPECT_EQ(clean("漢 ×8 → x", false), "? x8 -> x");
}

TEST(Text, PrintableKeepsLinesAndIsTheSameForCleanText) {
  const std::string clean_text = "a\tb\n\n  caf\u00e9 \u2264 \u6f22\n";
  EXPECT_EQ(printable(clean_text), clean_text);
  EXPECT_EQ(printable("\x1b[2J\a\r\x7f"), "\uFFFD[2J\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(printable("a\r\nb"), "a\nb");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1m\xff\xe2\x80\xae"),
            "\uFFFD1m\uFFFD\uFFFD");
  EXPECT_EQ(printable("\x1b[1;31mred\x1b[0m"), "\uFFFD[1;31mred\uFFFD[0m");
  EXPECT_EQ(printable("\x1b[1;31mred\x1b[0m\x1b[2J\x1b[", true),
            "\x1b[1;31mred\x1b[0m\uFFFD[2J\uFFFD[");
}

TEST(Text, EscapedKeepsWhatADocumentSays) {
  EXPECT_EQ(escaped("{\"a\": \"é\\n\"}\n"), "{\"a\": \"é\\n\"}\n");
  EXPECT_EQ(escaped("[\"\u202E\x7f\U000E0001\"]"), R"(["\u202E\u007F\uDB40\uDC01"])");
  EXPECT_EQ(escaped("a\r\nb\rc\x9b"), "a\r\nb\\u000Dc\uFFFD");
  EXPECT_EQ(escaped("a = \"\u0085\U000E0001\""), R"(a = "\u0085\U000E0001")");
}

TEST(Text, WidthsCountColumns) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("×–"), 2);
  EXPECT_EQ(display_width("漢字"), 4);
  EXPECT_EQ(display_width("\x1b[1mab\x1b[0m"), 2);
  EXPECT_EQ(clip("abcdef", 4), "abc…");
  EXPECT_EQ(clip("abcd", 4), "abcd");
}

TEST(Text, WrapsAtSpacesAndCutsOnlyWhatIsTooLong) {
  EXPECT_EQ(wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap("abcdefghij k", 4), (std::vector<std::string>{"abcd", "efgh", "ij k"}));
  EXPECT_EQ(wrap("dense1/kernel.grad", 12), (std::vector<std::string>{"dense1/", "kernel.grad"}));
  EXPECT_EQ(wrap("a dense1/kernel.grad", 9),
            (std::vector<std::string>{"a", "dense1/", "kernel.", "grad"}));
  EXPECT_EQ(wrap("", 7), (std::vector<std::string>{""}));
  EXPECT_EQ(wrap("  a   b ", 9), (std::vector<std::string>{"a b"}));
}

// Runs the command text through a POSIX shell and returns the words that the shell sees, one per
// line.
std::string through_shell(const std::string& command) {
  const std::string script = "printf '%s\\n' " + command;
  std::string quoted = "'";
  for (char c : script) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* pipe = popen(("sh -c " + quoted + "'").c_str(), "r");
  std::string out;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) out += static_cast<char>(c);
  pclose(pipe);
  return out;
}

TEST(Text, CommandsCanBePastedBack) {
  const std::string long_word(150, 'w');
  const std::vector<std::string> commands = {
      "twinrun diagnose digits-cnn --set tpu.precision=highest --set train.steps=40 -o out",
      "twinrun diagnose x --subject 'exec:python3 adapters/pytorch/engine.py --trace --deep on'",
      "twinrun 'a b  " + long_word + " c' \"d  " + long_word + " \\\" e\" " + long_word + " f\\ g",
      "twinrun '" + long_word + "'" + long_word + " \"it's\" end",
  };
  for (const std::string& command : commands) {
    for (int width : {40, 60, 80}) {
      std::string pasted;
      for (const std::string& line : command_lines(command, width, 2)) {
        EXPECT_LE(display_width(line), width) << line;
        pasted += line + "\n";
      }
      EXPECT_EQ(through_shell(pasted), through_shell(command)) << pasted;
    }
  }
}

TEST(Text, TablesKeepTheirWidth) {
  Table t({{.title = "name"},
           {.title = "what it is", .flexible = true},
           {.title = "n", .right = true},
           {.title = "note", .drop = 1}});
  t.add({"R", "the reference that everything is measured against", "4,608", "long note here"});
  t.add({"T", "you", "7", ""});
  const auto wide = t.lines(100, 2);
  ASSERT_EQ(wide.size(), 3U);
  EXPECT_EQ(wide[0].find("note"), wide[1].find("long note"));
  for (int width = 10; width < 100; ++width) {
    for (const std::string& line : t.lines(width, 2))
      EXPECT_LE(display_width(line), std::max(width, 24));
  }
  EXPECT_EQ(t.lines(36, 2)[0].find("note"), std::string::npos) << "dropped when it does not fit";
}

TEST(Text, SparklinesSpanTheirScale) {
  const std::vector<float> falling = {8, 6, 4, 2, 0};
  EXPECT_EQ(sparkline(falling, 5, 0, 8, true), "█▆▅▃▁");
  EXPECT_EQ(sparkline(falling, 5, 0, 8, false), "#+=-_");
  EXPECT_EQ(sparkline(falling, 0, 0, 8, true), "");
  EXPECT_EQ(sparkline(falling, 2, 0, 8, false), "*-");
  const std::vector<float> broken = {1, NAN, 1};
  EXPECT_EQ(sparkline(broken, 3, 1, 1, false), "_!_");
}

TEST(Drift, NamesTheFirstStepThatDiffers) {
  const Report r = examples::sharding();
  const auto rows = drift_of(r);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].pair, "S - R");
  EXPECT_EQ(rows[1].first_step, 1);
  EXPECT_NEAR(rows[1].largest, 0.4375, 1e-6);
  EXPECT_EQ(curves_of(r).front().names, "R = R2");
  ASSERT_NE(first_divergence(r), nullptr);
  EXPECT_EQ(place_of(*first_divergence(r)), "step 0, collective");
}

TEST(Drift, EqualNaNsAreNoDifference) {
  Report r;
  r.runs.resize(2);
  r.runs[0].name = "R";
  r.runs[1].name = "S";
  r.runs[0].losses = r.runs[1].losses = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_FALSE(drift_of(r)[0].first_step.has_value());
  r.runs[1].losses[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(drift_of(r)[0].largest));
}

TEST(MarkdownText, NothingInProseIsMarkup) {
  const Pieces md(0);
  EXPECT_EQ(md.prose("a | b `c` *d* <e> kernel_grad _x_"),
            "a \\| b \\`c\\` \\*d\\* &lt;e&gt; kernel_grad \\_x\\_");
  EXPECT_EQ(md.prose("# title"), "\\# title");
  EXPECT_EQ(md.prose("1. item"), "1\\. item");
  EXPECT_EQ(md.prose("1.5 is fine"), "1.5 is fine");
  EXPECT_EQ(md.prose("see #12 or @me, not bf16@conv"),
            "see #&#8203;12 or @&#8203;me, not bf16@conv");
  EXPECT_EQ(md.prose("x\ny"), "x y");
}

TEST(MarkdownText, CodeSpansHoldBackticksAndPipes) {
  const Pieces md(0);
  EXPECT_EQ(md.code("a`b|c"), "``a`b|c``");
  EXPECT_EQ(md.cell_code("a|b"), "`a\\|b`");
  EXPECT_EQ(md.code("`x`"), "`` `x` ``");
  EXPECT_EQ(md.code(""), "");
  EXPECT_EQ(md.block("sh", "a\n```\nb", 100), "````sh\na\n```\nb\n````\n");
}

TEST(MarkdownText, PiecesKeepTheirSize) {
  const Pieces md(0);
  const std::string much(100000, '|');
  EXPECT_LE(md.prose(much, 100).size(), 100U);
  EXPECT_LE(md.code(much, 100).size(), 110U);
  EXPECT_EQ(md.prose("exactly ten", 24), "exactly ten");
  const std::string table = md.table({{"a"}, {"b", true}}, {{"1", "2"}}, 2);
  EXPECT_NE(table.find("2 more rows in report.json"), std::string::npos) << table;
}

}  // namespace
}  // namespace twinrun::text
