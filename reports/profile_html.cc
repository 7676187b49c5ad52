// Writes profile.html: the cost of a step on the first screen, then ops, steps, input and advice.
#include <fmt/format.h>

#include <algorithm>

#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/profile.h"
#include "reports/profile_words.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using words::rate;
using words::seconds;

constexpr size_t kOpsOfCategory = 300;

struct Part {
  const char *name, *title;
  double ProfileStep::*seconds;
};
constexpr Part kParts[] = {{"compute", "compute", &ProfileStep::compute},
                           {"all_reduce", "all-reduce", &ProfileStep::all_reduce},
                           {"input", "waiting for input", &ProfileStep::input},
                           {"host", "host loop", &ProfileStep::host}};

// A cell that sorts by `value` and displays `shown`.
std::string cell(double value, const std::string& shown) {
  return fmt::format("<span data-v=\"{:.9g}\">{}</span>", value, html::text(shown));
}
// The bar of an op that wastes much of the step has another colour: waste is the share of the time
// times what is not used.
std::string used(double fraction, double share) {
  constexpr double kMuch = 0.05;
  const double used = std::clamp(fraction, 0.0, 1.0);
  return fmt::format(
      "<span class=\"used{}\" aria-hidden=\"true\"><span style=\"width:{:.0f}%\"></span></span>{}",
      share * (1 - used) >= kMuch ? " wasteful" : "", 100 * used,
      cell(fraction, text::percent(fraction, 0)));
}
std::string term(std::string_view name, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, html);
}

std::string card(const ProfileOp& op) {
  std::string out = fmt::format("<details><summary>{}</summary><div class=\"card\"><dl>\n",
                                html::code(op.name, 120));
  out += term("kind", html::text(op.ops > 1 ? fmt::format("fusion of {} ops", op.ops) : op.kind));
  out += term("layer", html::code(op.layer));
  out += term("phase", html::text(op.phase));
  out += term("layout", html::code(op.layout));
  if (op.bytes > 0)
    out += term("bytes", html::text(fmt::format("{:.3f} MB, {:.2f} times the bytes without padding",
                                                op.bytes / 1e6, op.padding)));
  out += term("matrix unit", html::text(text::percent(op.matrix_utilisation, 1) + " of its peak"));
  if (!op.fit.empty())
    out += term("tiles of 128 x 128", html::text(fmt::format("{}: {} of the cells are of use",
                                                             op.fit, text::percent(op.fill, 0))));
  out += term("limit", html::text(op.limit));
  return out + "</dl>\n" + html::block(op.expression, 6000) + "</div></details>";
}

std::string table_of(const std::string& caption, const std::vector<const ProfileOp*>& ops,
                     size_t most, bool with_category) {
  html::Table t(caption,
                {{"op"},
                 {"category"},
                 {"time", true},
                 {"share", true},
                 {"cumulative", true},
                 {"used", true},
                 {"GFLOP", true},
                 {"GFLOP/s", true},
                 {"MB", true},
                 {"limit"}},
                most);
  double sum = 0;
  for (const ProfileOp* op : ops) {
    sum += op->share;
    const double speed = op->seconds > 0 ? op->flops / op->seconds / 1e9 : 0;
    t.add({card(*op), with_category ? html::text(op->category) : "",
           cell(op->seconds, seconds(op->seconds)), cell(op->share, text::percent(op->share, 2)),
           cell(sum, text::percent(sum, 1)), used(op->utilisation, op->share),
           cell(op->flops, fmt::format("{:.3f}", op->flops / 1e9)),
           cell(speed, words::three_digits(speed)),
           cell(op->bytes, fmt::format("{:.2f}", op->bytes / 1e6)), html::text(op->limit)});
  }
  return t.str();
}

class ProfilePage {
 public:
  ProfilePage(const Profile& profile, const std::string& trace) : p_(profile), trace_(trace) {}

  std::string render() {
    sections_.add("overview", "Overview", overview());
    sections_.add("advice", "What to set", advice());
    sections_.add("ops", "Ops", ops());
    sections_.add("steps", "Steps", steps());
    sections_.add("input", "Input", input());
    sections_.add("published", "Against the real machine", published());
    sections_.add("trace", "Trace", trace());
    sections_.add("notes", "Notes", html::bullets(p_.notes));
    sections_.add("environment", "Environment", environment());
    return html::page(
        {.title = fmt::format("profile: {}", html::text(p_.scenario, 100)),
         .styles = {"page.css", "profile.css"},
         .body = header() + sections_.contents() + "<main>\n" + sections_.body() + "</main>\n",
         .scripts = {std::string(html::page_file("profile.js"))}});
  }

 private:
  std::string header() const {
    std::string out = fmt::format(
        "<header>\n<p class=\"about\">twinrun profile, {}, {}</p>\n<h1>{}: {} per step, {} "
        "samples/s</h1>\n",
        html::text(p_.source), html::text(p_.machine), html::text(p_.scenario, 100),
        html::text(seconds(p_.step_seconds)), words::three_digits(p_.samples_per_second()));
    out += "<dl class=\"answer\">\n";
    out += term("Machine", html::text(fmt::format("{}: 1 host, {}, batch {}, {} on each core",
                                                  p_.machine, text::plural(p_.cores, "core"),
                                                  p_.batch, p_.batch / std::max(1, p_.cores))));
    out += term("Step", html::text(words::step(p_)));
    out +=
        term(p_.source == "modelled" ? "Matrix unit" : "Arithmetic", html::text(words::matrix(p_)));
    out += term("Memory", html::text(words::memory(p_)));
    out += term("Idle", html::text(fmt::format("device {} of a step, host {}",
                                               text::percent(p_.idle_device, 1),
                                               text::percent(p_.idle_host, 1))));
    out += term("Input", html::text(words::input(p_)));
    if (const std::string cores = words::cores(p_); !cores.empty())
      out += term("Cores", html::text(cores));
    return out + "</dl>\n</header>\n";
  }

  std::string overview() const {
    std::string bar, key;
    for (const Part& part : kParts) {
      const double s = p_.average.*part.seconds;
      if (s > 0)
        bar += fmt::format("<span class=\"p-{}\" style=\"width:{:.3f}%\"></span>", part.name,
                           100 * s / p_.step_seconds);
      key += fmt::format("<li><i class=\"swatch p-{}\" aria-hidden=\"true\"></i>{}: {}</li>\n",
                         part.name, part.title, html::text(seconds(s)));
    }
    std::string out = fmt::format(
        "<div class=\"parts\" aria-hidden=\"true\">{}</div>\n<ul class=\"key\">{}</ul>\n", bar,
        key);
    return out + by_core() + groups("By category", categories(p_)) +
           html::folded("By layer", groups("By layer", grouped(p_, &ProfileOp::layer))) +
           table_of("Top ten ops", top_ops(p_, kTopOps), kTopOps, true);
  }

  std::string by_core() const {
    if (p_.core_times.empty()) return "";
    html::Table t("By core, of a step",
                  {{"core", true}, {"compute", true}, {"waiting", true}, {"all-reduce", true}});
    for (const ProfileCore& c : p_.core_times)
      t.add({std::to_string(c.core), html::text(seconds(c.compute)), html::text(seconds(c.waiting)),
             html::text(seconds(c.all_reduce))});
    return t.str();
  }

  static std::string groups(const std::string& caption, const std::vector<ProfileCategory>& all) {
    html::Table by(caption,
                   {{"name"}, {"units", true}, {"time", true}, {"share", true}, {"GFLOP", true}});
    for (const ProfileCategory& c : all)
      by.add({html::text(c.name), std::to_string(c.count), html::text(seconds(c.seconds)),
              text::percent(c.share, 1), fmt::format("{:.2f}", c.flops / 1e9)});
    return by.str();
  }

  static std::string settings(const Recommendation& r) {
    std::string out;
    for (const std::string& option : words::options(r))
      out += (out.empty() ? "" : " ") + html::code(option, 200);
    return out;
  }

  std::string advice() const {
    std::string out;
    for (const Recommendation& r : p_.recommendations)
      out += fmt::format("<li>{}{}<br>{}: {}</li>\n", html::text(r.text),
                         r.rule.empty() ? "" : " (rule " + html::code(r.rule) + ")", settings(r),
                         words::effect(r, "→"));
    return out.empty() ? "" : "<ul class=\"advice\">\n" + out + "</ul>\n";
  }

  std::string ops() const {
    if (p_.ops.empty()) return "";
    std::string out = html::paragraph(
        fmt::format("{} of {} take 90 % of the ops' time. The bar of an op that leaves unused what "
                    "makes 5 % of the time or more has another colour.",
                    ops_of_most_time(p_), text::plural(static_cast<int64_t>(p_.ops.size()), "op")));
    const std::vector<const ProfileOp*> all = top_ops(p_, p_.ops.size());
    const std::vector<ProfileCategory> all_categories = categories(p_);
    for (const ProfileCategory& c : all_categories) {
      std::vector<const ProfileOp*> mine;
      std::ranges::copy_if(all, std::back_inserter(mine),
                           [&](const auto* op) { return op->category == c.name; });
      out += fmt::format(
          "<details class=\"category\"{}><summary>{}: {}, {} of the device's time, "
          "{}</summary>\n{}</details>\n",
          &c == &all_categories.front() ? " open" : "", html::text(c.name),
          html::text(seconds(c.seconds)), text::percent(c.share, 1), text::plural(c.count, "unit"),
          table_of(c.name, mine, kOpsOfCategory, false));
    }
    return out;
  }

  std::string steps() const {
    if (p_.steps.empty()) return "";
    constexpr double kWidth = 760, kHeight = 220, kLeft = 90, kBottom = 30;
    double most = 0;
    for (const ProfileStep& s : p_.steps) most = std::max(most, s.seconds());
    const double slot = (kWidth - kLeft) / static_cast<double>(p_.steps.size());
    std::string out = fmt::format(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Steps\"><svg "
        "class=\"steps\" role=\"img\" viewBox=\"0 0 {} {}\" aria-label=\"Time of steps {} to {}, "
        "by part; the "
        "longest takes {}\">\n",
        kWidth, kHeight, p_.steps.front().step, p_.steps.back().step, html::text(seconds(most)));
    for (size_t i = 0; i < p_.steps.size(); ++i) {
      double y = kHeight - kBottom;
      const double x = kLeft + slot * static_cast<double>(i);
      for (const Part& part : kParts) {
        const double h = most > 0 ? p_.steps[i].*part.seconds / most * (kHeight - kBottom - 10) : 0;
        if (h <= 0) continue;
        y -= h;
        out += fmt::format(
            "<rect class=\"p-{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n",
            part.name, x + slot * 0.1, y, slot * 0.8, h);
      }
    }
    out += fmt::format(
        "<text x=\"4\" y=\"18\">{}</text><text x=\"{}\" y=\"{}\">step {}</text>"
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg></div>\n",
        html::text(seconds(most)), kLeft, kHeight - 10, p_.steps.front().step, kWidth, kHeight - 10,
        p_.steps.back().step);
    return out +
           html::paragraph("Parts as in the overview; the host's part marks the end of a loop. " +
                           words::step_range(p_) + ".");
  }

  double in_host(double s) const { return p_.input.host > 0 ? s / p_.input.host : 0; }

  std::string input() const {
    const InputAnalysis& in = p_.input;
    std::string out =
        html::paragraph(words::input(p_) + ".") + html::paragraph(words::step_range(p_) + ".");
    const HostTime host = host_time(p_);
    html::Table by("Host time of one batch, by category",
                   {{"category"}, {"time", true}, {"share", true}, {"if it is long"}});
    const auto row = [&](const char* name, double s, const char* advice) {
      by.add({name, html::text(seconds(s)), text::percent(in_host(s), 1), html::text(advice)});
    };
    row("enqueuing", host.enqueuing,
        "pack small inputs together; feed bfloat16 where that is enough");
    row("reading", host.reading,
        "larger files, several at a time; data.cache=memory where they fit");
    row("preprocessing", host.preprocessing,
        "data.parallel_calls; prepare once and store what was prepared");
    row("other", host.other, "");
    out += by.str();
    html::Table t("Host side, one batch, op by op", {{"op"},
                                                     {"what"},
                                                     {"self time", true},
                                                     {"share", true},
                                                     {"total", true},
                                                     {"waiting", true},
                                                     {"elements", true},
                                                     {"MB", true}});
    double total = 0;
    for (const InputStage& s : in.stages) {
      if (!s.once) total += s.seconds;
      const bool counted = s.elements > 0;
      t.add({html::text(s.name), html::text(s.what), html::text(seconds(s.seconds)),
             s.once ? "once" : text::percent(in.host > 0 ? s.seconds / in.host : 0, 1),
             s.once ? "" : html::text(seconds(total)),
             counted ? html::text(seconds(s.waiting)) : "",
             counted ? fmt::format("{}", s.elements) : "", fmt::format("{:.2f}", s.bytes / 1e6)});
    }
    return out + t.str() +
           html::paragraph(
               "Self time is an op's own, summed over its threads; total includes the ops "
               "before it; elements are samples or batches of the whole run. What is done once for "
               "the whole run is no part of a batch.");
  }

  std::string published() const {
    html::Table t("Samples per second",
                  {{"run"}, {"published", true}, {p_.source, true}, {"ratio", true}, {"source"}});
    for (const PublishedFigure& f : p_.published)
      t.add({html::text(f.what), words::three_digits(f.samples_per_second),
             words::three_digits(p_.samples_per_second()),
             fmt::format("{:.2f}", p_.samples_per_second() / f.samples_per_second),
             html::text(f.source)});
    return t.str();
  }

  std::string trace() const {
    if (trace_.empty()) return "";
    return fmt::format(
        "<p>Beside this page is <a href=\"{0}\"><code>{0}</code></a>: steps, the framework's ops "
        "and the program's on every "
        "core, and the host. Open it in Perfetto (ui.perfetto.dev) or chrome://tracing.</p>\n",
        html::text(trace_));
  }

  std::string environment() const {
    std::string out;
    for (const auto& [key, value] : p_.environment) out += term(html::text(key), html::text(value));
    return out.empty() ? "" : "<dl>\n" + out + "</dl>\n";
  }

  const Profile& p_;
  const std::string& trace_;
  html::Sections sections_;
};

}  // namespace

std::string to_profile_html(const Profile& profile, const std::string& trace) {
  return ProfilePage(profile, trace).render();
}

}  // namespace twinrun
