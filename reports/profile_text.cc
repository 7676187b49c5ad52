// Renders a profile for the terminal: the overview, and where to look further.
#include <fmt/format.h>

#include "reports/profile.h"
#include "reports/profile_words.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using words::seconds;

class Text {
 public:
  explicit Text(int width) : width_(width) {}
  void line(const std::string& words) { out_ += words + "\n"; }
  void row(const std::string& name, const std::string& words) { paragraph(words, 16, "  " + name); }
  void paragraph(const std::string& words, int indent, const std::string& first = "") {
    bool begun = false;
    for (const std::string& part : text::wrap(text::clean(words), width_ - indent)) {
      std::string head(static_cast<size_t>(indent), ' ');
      if (!begun && !first.empty()) head.replace(0, first.size(), first);
      begun = true;
      line(head + part);
    }
  }
  void table(const text::Table& t) {
    for (const std::string& l : t.lines(width_, 2)) line(l);
  }
  std::string str() { return std::move(out_); }

 private:
  int width_;
  std::string out_;
};

void add_top_ops(const Profile& p, Text& t) {
  t.line(fmt::format("\ntop ops; {} of {} take 90 % of the ops' time", ops_of_most_time(p),
                     text::plural(static_cast<int64_t>(p.ops.size()), "op")));
  text::Table top({{.title = "op", .flexible = true},
                   {.title = "category", .drop = 2},
                   {.title = "time", .right = true},
                   {.title = "share", .right = true},
                   {.title = "cumulative", .right = true, .drop = 1},
                   {.title = "used", .right = true},
                   {.title = "GFLOP/s", .right = true, .drop = 1},
                   {.title = "limit"}});
  std::vector<std::string> fits;
  double sum = 0;
  for (const ProfileOp* op : top_ops(p, kTopOps)) {
    sum += op->share;
    top.add({text::clean(op->name), text::clean(op->category), seconds(op->seconds),
             text::percent(op->share, 1), text::percent(sum, 1), text::percent(op->utilisation, 0),
             words::three_digits(op->seconds > 0 ? op->flops / op->seconds / 1e9 : 0),
             text::clean(op->limit)});
    if (!op->fit.empty())
      fits.push_back(fmt::format("{}: {}, {} of the cells are of use", op->name, op->fit,
                                 text::percent(op->fill, 0)));
  }
  t.table(top);
  if (!fits.empty()) t.line("\ntiles of 128 x 128 of their products");
  for (const std::string& fit : fits) t.paragraph(fit, 4, "  -");
}

void add_input(const InputAnalysis& in, const HostTime& host, Text& t) {
  if (in.stages.empty()) return;
  const auto share = [&](double s) { return text::percent(in.host > 0 ? s / in.host : 0, 1); };
  t.line("\nhost time of one batch");
  text::Table by({{.title = "category"},
                  {.title = "time", .right = true},
                  {.title = "share", .right = true},
                  {.title = "if it is long", .flexible = true}});
  const auto row = [&](const char* name, double s, const char* advice) {
    by.add({name, seconds(s), share(s), advice});
  };
  row("enqueuing", host.enqueuing, "pack small inputs together; feed bfloat16 where it suffices");
  row("reading", host.reading, "larger files, several at a time; data.cache=memory where they fit");
  row("preprocessing", host.preprocessing,
      "data.parallel_calls; prepare once and store what was prepared");
  row("other", host.other, "");
  t.table(by);

  // Self time is an op's own, summed over its threads; total includes the ops before it.
  t.line("\nhost side of one batch, op by op");
  text::Table ops({{.title = "op"},
                   {.title = "what", .flexible = true, .drop = 1},
                   {.title = "self time", .right = true},
                   {.title = "share", .right = true},
                   {.title = "total", .right = true},
                   {.title = "waiting", .right = true},
                   {.title = "elements", .right = true},
                   {.title = "MB", .right = true}});
  double total = 0;
  for (const InputStage& s : in.stages) {
    if (!s.once) total += s.seconds;
    const bool counted = s.elements > 0;
    ops.add({text::clean(s.name), text::clean(s.what), seconds(s.seconds),
             s.once ? "once" : share(s.seconds), s.once ? "" : seconds(total),
             counted ? seconds(s.waiting) : "", counted ? fmt::format("{}", s.elements) : "",
             fmt::format("{:.2f}", s.bytes / 1e6)});
  }
  t.table(ops);
}

}  // namespace

std::string to_profile_text(const Profile& p, int width) {
  Text t(width);
  t.line(fmt::format(
      "{}: {}, {}, batch {}{}", text::clean(p.scenario), p.source, text::clean(p.machine), p.batch,
      p.cores > 1 ? fmt::format(", {} on each of {} cores", p.batch / p.cores, p.cores) : ""));
  t.row("step", words::step(p));
  t.row("steps", words::step_range(p));
  t.row("parts", fmt::format("compute {}, all-reduce {}, waiting for input {}, host loop {}",
                             seconds(p.average.compute), seconds(p.average.all_reduce),
                             seconds(p.average.input), seconds(p.average.host)));
  t.row(p.source == "modelled" ? "matrix unit" : "arithmetic", words::matrix(p));
  t.row("memory", words::memory(p));
  t.row("idle", fmt::format("device {}, host {}", text::percent(p.idle_device, 1),
                            text::percent(p.idle_host, 1)));
  t.row("input", words::input(p));
  if (const std::string cores = words::cores(p); !cores.empty()) t.row("cores", cores);
  for (const PublishedFigure& f : p.published)
    t.paragraph(fmt::format("{} samples/s, the {} {:.2f} times that: {} ({})",
                            words::three_digits(f.samples_per_second), p.source,
                            p.samples_per_second() / f.samples_per_second, f.what, f.source),
                16, "  published");

  if (!p.core_times.empty()) {
    constexpr size_t kShown = 16;
    t.line("\nby core, of a step");
    text::Table cores({{.title = "core", .right = true},
                       {.title = "compute", .right = true},
                       {.title = "waiting", .right = true},
                       {.title = "all-reduce", .right = true}});
    for (size_t i = 0; i < std::min(p.core_times.size(), kShown); ++i) {
      const ProfileCore& c = p.core_times[i];
      cores.add(
          {std::to_string(c.core), seconds(c.compute), seconds(c.waiting), seconds(c.all_reduce)});
    }
    t.table(cores);
    if (p.core_times.size() > kShown)
      t.line(fmt::format("  and {} more cores", p.core_times.size() - kShown));
  }

  t.line("\nby category");
  text::Table by({{.title = "category"},
                  {.title = "units", .right = true},
                  {.title = "time", .right = true},
                  {.title = "share", .right = true},
                  {.title = "GFLOP", .right = true}});
  for (const ProfileCategory& c : categories(p))
    by.add({text::clean(c.name), std::to_string(c.count), seconds(c.seconds),
            text::percent(c.share, 1), fmt::format("{:.2f}", c.flops / 1e9)});
  t.table(by);

  add_top_ops(p, t);
  add_input(p.input, host_time(p), t);

  if (!p.recommendations.empty()) t.line("\nwhat to set");
  for (const Recommendation& r : p.recommendations) {
    t.paragraph(fmt::format("{}{}", r.text, r.rule.empty() ? "" : " [" + r.rule + "]"), 4, "  -");
    t.paragraph(fmt::format("{}", fmt::join(words::options(r), " ")), 6);
    t.paragraph(words::effect(r), 6);
  }
  if (!p.notes.empty()) t.line("\nnotes");
  for (const std::string& note : p.notes) t.paragraph(note, 4, "  -");
  return t.str();
}

}  // namespace twinrun
