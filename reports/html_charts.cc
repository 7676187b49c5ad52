// Makes the figures of report.html.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/axis.h"
#include "reports/drift.h"
#include "reports/html_parts.h"
#include "reports/html_text.h"
#include "reports/svg.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

// Static chart: more points than a page is wide in pixels; chart with zoom: more than it needs.
constexpr size_t kStillPoints = 700, kLivePoints = 3000;

// A run has the same style in every chart; a pair has the style of its left side.
int style_of(std::string_view name) {
  static constexpr std::array<std::string_view, kStyles> kNames = {"R", "R1",    "E1", "S",
                                                                   "T", "T - S", "U"};
  const auto whole = std::ranges::find(kNames, name);
  if (whole != kNames.end()) return static_cast<int>(whole - kNames.begin());
  const auto left = std::ranges::find(kNames, name.substr(0, name.find(' ')));
  return left == kNames.end() ? 5 : static_cast<int>(left - kNames.begin());
}

std::vector<double> steps_to(size_t n) {
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<double>(i);
  return x;
}

std::vector<double> padded(const std::vector<float>& values, size_t n) {
  std::vector<double> out(values.begin(), values.end());
  out.resize(n, std::nan(""));
  return out;
}

void mark_finding(const Report& r, LineChart& chart) {
  const Finding* f = text::first_divergence(r);
  if (f == nullptr || !f->step) return;
  chart.marks.push_back(
      {static_cast<double>(*f->step), f->op.empty() ? fmt::format("step {}", *f->step)
                                                    : fmt::format("step {}: {}", *f->step, f->op)});
}

std::string key_of(const LineChart& chart) {
  std::string out = "<ul class=\"key\">\n";
  // The script turns each entry into a button that shows or hides the line with that number, or the
  // band.
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    out += fmt::format("<li data-shows=\"{}\">{} <b>{}</b> <span>{}</span></li>\n", i,
                       line_sample(line.style), text(line.name, 60), text(line.note, 200));
  }
  if (!chart.low.empty()) {
    out += fmt::format(
        "<li data-shows=\"band\"><svg class=\"sample\" viewBox=\"0 0 34 10\" "
        "aria-hidden=\"true\"><rect class=\"band\" "
        "width=\"34\" height=\"10\"/></svg> <b>noise band</b> <span>{}</span></li>\n",
        text(chart.band, 200));
  }
  return out + "</ul>\n";
}

// Length of the longest run: all charts of a report share one axis of steps.
size_t steps_of(const Report& r) {
  size_t steps = r.loss_band.low.size();
  for (const RunSummary& run : r.runs) steps = std::max(steps, run.losses.size());
  return steps;
}

// Explains an axis that is not plain; "" for a linear one.
std::string axis_text(const text::Axis& axis, const Report& r) {
  if (axis.plain()) return "";
  std::string out = axis.logarithmic ? " Logarithmic scale: losses span more than three decades."
                                     : " Linear scale.";
  if (axis.knee > 0)
    out += fmt::format(
        " Above {} (the dotted line) the scale is compressed, up to {}, to show how "
        "far a loss diverges.",
        text::number(axis.knee, 2), text::number(axis.high));
  const auto zero = [](const RunSummary& run) { return std::ranges::count(run.losses, 0.0f) > 0; };
  if (axis.logarithmic && std::ranges::any_of(r.runs, zero))
    out += " A loss of 0 has no point on it.";
  return out;
}

std::string figure(const LineChart& chart, const std::string& caption) {
  const LineChart still = thinned(chart, kStillPoints), live = thinned(chart, kLivePoints);
  return fmt::format(
      "<figure class=\"chart\" id=\"{0}\">\n<figcaption>{1}</figcaption>\n"
      "<div class=\"scroll plot\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"{2}\">\n{3}</div>\n{4}"
      "<script type=\"application/json\">{5}</script>\n</figure>\n",
      text(chart.id), caption, text(chart.title), to_svg(still), key_of(chart), to_data(live));
}

}  // namespace

std::string loss_figure(const Report& r) {
  LineChart chart{
      .id = "chart-loss", .title = "Training loss by step", .x_label = "step", .y_label = "loss"};
  std::vector<text::Curve> curves = text::curves_of(r);
  curves.resize(std::min<size_t>(curves.size(), 12));
  const size_t steps = steps_of(r);
  if (steps == 0 || curves.empty()) return "";
  const text::Axis axis = text::axis_of_losses(r);
  chart.logarithmic = axis.logarithmic;
  chart.knee = axis.knee;
  if (!axis.plain()) chart.y_label = "loss, log scale";
  chart.x = steps_to(steps);
  std::string broken;
  for (const text::Curve& curve : curves) {
    const auto run = std::ranges::find_if(
        r.runs, [&](const RunSummary& s) { return &s.losses == curve.losses; });
    chart.lines.push_back(
        {curve.names, style_of(run->name), padded(*curve.losses, steps),
         fmt::format("{}: {} → {}", run->meaning, text::number(curve.losses->front(), 4),
                     text::number(curve.losses->back(), 4))});
    if (const auto from = text::broken_from(*curve.losses)) {
      const std::string words = fmt::format("{} is not finite from step {} on", curve.names, *from);
      chart.marks.push_back({static_cast<double>(*from), words});
      broken += " " + words + ".";
    }
  }
  // Draw R1 and E1 first, behind the others: one core's small batch has the noisiest curve.
  std::stable_partition(chart.lines.begin(), chart.lines.end(),
                        [](const Line& line) { return line.style == 1 || line.style == 2; });
  chart.low.assign(r.loss_band.low.begin(), r.loss_band.low.end());
  chart.high.assign(r.loss_band.high.begin(), r.loss_band.high.end());
  if (!chart.low.empty()) {
    chart.low.resize(steps, std::nan(""));
    chart.high.resize(steps, std::nan(""));
    chart.band = r.loss_band.source;
  }
  mark_finding(r, chart);
  const bool thin = steps > kStillPoints;
  chart.description = fmt::format(
      "Loss of {} over {}.{}{}{}", text::plural(static_cast<int64_t>(chart.lines.size()), "curve"),
      text::plural(static_cast<int64_t>(steps), "step"), broken, axis_text(axis, r),
      thin ? " Several steps share a point: their smallest and largest losses are drawn." : "");
  std::string caption = "<b>Training loss by step.</b> " + text(chart.description);
  if (chart.low.empty()) caption += " No noise band: this diagnosis trained one seed.";
  if (!drawable(chart))
    return fmt::format("<p id=\"chart-loss\">{} There is nothing to draw.</p>\n", caption);
  return figure(chart, caption);
}

std::string drift_figure(const Report& r) {
  const std::vector<text::DriftRow> rows = text::drift_of(r);
  if (rows.empty()) return "";
  LineChart chart{.id = "chart-drift",
                  .title = "Difference of the loss by step",
                  .x_label = "step",
                  .y_label = "|difference of loss|",
                  .logarithmic = true};
  const size_t steps = steps_of(r);
  chart.x = steps_to(steps);
  std::string same;
  for (const text::DriftRow& row : rows) {
    const auto zeros = std::ranges::count(row.sizes, 0.0);
    if (zeros > 0)
      same += fmt::format(" {} has the same bits on {} of {}.", row.pair, text::count(zeros),
                          text::plural(row.steps, "step"));
    if (!row.first_step) continue;
    Line line{row.pair, style_of(row.pair), row.sizes, row.isolates};
    line.y.resize(steps, std::nan(""));
    chart.lines.push_back(std::move(line));
  }
  if (!drawable(chart)) return "";
  mark_finding(r, chart);
  chart.description = "Logarithmic scale; equal losses have no point on it." + same;
  return figure(chart, "<b>Difference of the loss curves.</b> " + text(chart.description));
}

std::string weight_figure(const Report& r) {
  const WeightDrift& w = r.weight_drift;
  if (w.rows.empty() || w.steps.empty()) return "";
  constexpr size_t kMax = 80;
  HeatMap map{.title = fmt::format("Distance of the weights, {}", w.pair), .x_label = "after step"};
  for (const int64_t step : w.steps) map.columns.push_back(fmt::format("{}", step));
  std::vector<Column> columns = {{"variable"}};
  for (const std::string& name : map.columns) columns.push_back({"after " + name, true});
  Table table("Distance of the weights", columns);
  for (size_t i = 0; i < std::min(w.rows.size(), kMax); ++i) {
    const WeightDrift::Row& row = w.rows[i];
    map.rows.push_back(row.variable);
    map.cells.push_back(row.distance);
    map.cells.back().resize(w.steps.size(), std::nan(""));
    std::vector<std::string> cells = {code(row.variable)};
    for (const double v : row.distance) cells.push_back(text::number(v, 2));
    table.add(std::move(cells));
  }
  map.description = fmt::format(
      "Relative distance of each variable in {}, on the core that is farthest away: |T - R| / |R|. "
      "The stronger "
      "the colour, the larger the distance; an empty frame means equal, a red one that the "
      "distance "
      "is not finite or the reference is zero.",
      w.pair);
  return fmt::format(
      "<figure id=\"chart-weights\">\n<figcaption><b>Weights, layer by layer.</b> {}</figcaption>\n"
      "<div class=\"scroll plot\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"{}\">\n{}</div>\n</figure>\n{}{}",
      text(map.description), text(map.title), to_svg(map),
      w.rows.size() > kMax ? more(w.rows.size() - kMax) : "",
      folded("The same as numbers", table.str()));
}

std::string tensor_figure(const Finding& f) {
  if (!f.picture || f.picture->cells.empty()) return "";
  const TensorPicture& p = *f.picture;
  const auto shape = [&](size_t from, size_t to) {
    std::string out;
    for (size_t d = from; d < to; ++d)
      out += fmt::format("{}{}", out.empty() ? "" : " x ", p.dims[d]);
    return out.empty() ? std::string("1") : out;
  };
  const size_t down =
      p.dims.size() - std::min(p.dims.size(), static_cast<size_t>(std::max<int64_t>(0, p.across)));
  const std::string where = text::place_of(f);
  const std::string words =
      fmt::format("{}{}: {} elements down, {} across, in {} x {} cells.", f.op,
                  where.empty() ? "" : fmt::format(" ({})", where), shape(0, down),
                  shape(down, p.dims.size()), p.cells.size(), p.cells.front().size());
  std::string key = "<ul class=\"key\">";
  for (const auto& [level, name] :
       std::array<std::pair<char, std::string_view>, 4>{{{'1', "up to 10 times the bound"},
                                                         {'3', "up to 1000"},
                                                         {'6', "up to 10^6"},
                                                         {'9', "more than 10^8"}}}) {
    key += fmt::format(
        "<li><svg class=\"sample\" viewBox=\"0 0 14 10\" aria-hidden=\"true\"><rect class=\"w{}\" "
        "width=\"14\" height=\"10\"/></svg> {}</li>",
        level, name);
  }
  key +=
      "<li><svg class=\"sample\" viewBox=\"0 0 14 10\" aria-hidden=\"true\"><rect class=\"wx\" "
      "width=\"14\" "
      "height=\"10\"/></svg> NaN, Inf or wrong bits</li><li>empty: inside the bound</li></ul>\n";
  std::string letters;
  for (const std::string& row : p.cells) letters += row + "\n";
  return fmt::format(
      "<figure class=\"picture\">\n<figcaption><b>The wrong tensor.</b> {} Worst error of each "
      "cell:</figcaption>\n"
      "<div class=\"scroll plot\" tabindex=\"0\" role=\"region\" aria-label=\"The wrong "
      "tensor\">\n{}</div>\n{}"
      "{}</figure>\n",
      text(words), to_svg(p, words), key,
      folded("The same as letters",
             "<p>. is inside its bound; 1: up to 10 times the bound, 2: up to 100, 9: more than "
             "10^8; !: NaN, Inf or wrong bits.</p>" +
                 block(letters)));
}

}  // namespace twinrun::html
