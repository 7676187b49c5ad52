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

}  // namespace

std::string to_profile_text(const Profile& p, int width) {
  Text t(width);
  t.line(fmt::format("{}: {}, {}, batch {}", text::clean(p.scenario), p.source,
                     text::clean(p.machine), p.batch));
  t.row("step", words::step(p));
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

  t.line("\ntop ops");
  text::Table top({{.title = "op", .flexible = true},
                   {.title = "category", .drop = 1},
                   {.title = "time", .right = true},
                   {.title = "share", .right = true},
                   {.title = "used", .right = true},
                   {.title = "limit"}});
  for (const ProfileOp* op : top_ops(p, kTopOps))
    top.add({text::clean(op->name), text::clean(op->category), seconds(op->seconds),
             text::percent(op->share, 1), text::percent(op->utilisation, 0),
             text::clean(op->limit)});
  t.table(top);

  if (!p.recommendations.empty()) t.line("\nwhat to set");
  for (const Recommendation& r : p.recommendations) {
    t.paragraph(fmt::format("{}{}", r.text, r.rule.empty() ? "" : " [" + r.rule + "]"), 4, "  -");
    t.paragraph(fmt::format("{}", fmt::join(words::options(r), " ")), 6);
    t.paragraph(words::effect(r, "->"), 6);
  }
  if (!p.notes.empty()) t.line("\nnotes");
  for (const std::string& note : p.notes) t.paragraph(note, 4, "  -");
  return t.str();
}

}  // namespace twinrun
