// Draws line charts as static SVG, and writes the same as JSON for the page's script.
#include "reports/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/axis.h"
#include "reports/html_text.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

constexpr double kWidth = 720, kHeight = 280;
constexpr double kLeft = 66, kRight = 12, kTop = 14, kBottom = 40;

// Maps values to coordinates of the drawing.
struct Scale {
  text::Axis axis;
  double from = 0, to = 1;

  bool shows(double v) const { return axis.shows(v); }
  double operator()(double v) const { return from + axis.part(v) * (to - from); }
};

struct Tick {
  double at;
  std::string label;
};

// Ticks at whole powers of ten; at every second or third of them where there are many.
void add_decades(double low, double high, int about, std::vector<Tick>& out) {
  const int first = static_cast<int>(std::ceil(std::log10(low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(high) + 1e-9));
  if (std::log10(high / low) < 2.5) {  // so few that ticks at 2 and 5 are added
    for (int e = first - 1; e <= last; ++e) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double v = factor * std::pow(10.0, e);
        if (v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9))
          out.push_back({v, fmt::format("{:.6g}", v)});
      }
    }
    return;
  }
  const int step = std::max(1, (last - first + about) / about);
  for (int e = first; e <= last; e += step)
    out.push_back({std::pow(10.0, e), fmt::format("1e{}", e)});
}

// Ticks at multiples of 1, 2 or 5 times a power of ten.
void add_steps(double low, double high, int about, bool whole, std::vector<Tick>& out) {
  const double raw = (high - low) / about;
  double step = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (step * factor >= raw) {
      step *= factor;
      break;
    }
  }
  if (whole) step = std::max(1.0, std::round(step));
  for (double v = std::ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) {
    const double tidy = std::abs(v) < 1e-9 * step ? 0 : v;
    out.push_back({tidy, fmt::format("{:.6g}", tidy)});
  }
}

std::vector<Tick> ticks_of(const text::Axis& axis, int about, bool whole) {
  std::vector<Tick> out;
  const bool squeezed = axis.knee > 0;
  const double end = squeezed ? axis.knee : axis.high;
  if (axis.logarithmic) {
    add_decades(axis.low, end, about, out);
  } else {
    add_steps(axis.low, end, about, whole, out);
  }
  // Start a decade above the knee: closer to the last tick below it there is no room.
  if (squeezed) add_decades(axis.knee * 10, axis.high, 3, out);
  return out;
}

text::Axis axis_of(const LineChart& c) {
  text::Axis axis{INFINITY, -INFINITY, c.logarithmic, c.knee};
  const auto see = [&](const std::vector<double>& values) {
    for (const double v : values) {
      if (!axis.shows(v)) continue;
      axis.low = std::min(axis.low, v);
      axis.high = std::max(axis.high, v);
    }
  };
  for (const Line& line : c.lines) see(line.y);
  see(c.low);
  see(c.high);
  if (axis.knee > 0 && !(axis.low < axis.knee && axis.knee < axis.high)) axis.knee = 0;
  const double high = axis.high;
  const bool decades = axis.logarithmic || axis.knee > 0;  // extend to whole decades
  if (decades) axis.high = std::pow(10.0, std::ceil(std::log10(high)));
  if (axis.logarithmic) {
    axis.low = std::pow(10.0, std::floor(std::log10(axis.low)));
    if (axis.high <= axis.low) axis.high = axis.low * 10;
  } else {
    const double top = axis.knee > 0 ? axis.knee : high;
    const double room =
        top > axis.low ? 0.04 * (top - axis.low) : std::max(1e-6, 0.1 * std::abs(top));
    axis.low -= room;
    if (!decades) axis.high += room;
  }
  return axis;
}

Scale scale_of(const LineChart& c) { return {axis_of(c), kHeight - kBottom, kTop}; }

Scale across(const LineChart& c) { return {{c.x.front(), c.x.back()}, kLeft, kWidth - kRight}; }

std::string path_of(const LineChart& c, const Line& line, const Scale& x, const Scale& y) {
  std::string path, dots;
  bool open = false;
  const size_t n = std::min(c.x.size(), line.y.size());
  for (size_t i = 0; i < n; ++i) {
    if (!y.shows(line.y[i])) {
      open = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", x(c.x[i]), y(line.y[i]));
    const bool alone = !open && (i + 1 == n || !y.shows(line.y[i + 1]));
    if (alone) {
      dots += fmt::format("<circle class=\"dot s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>\n",
                          line.style, x(c.x[i]), y(line.y[i]));
    }
    open = true;
  }
  if (path.empty()) return "";
  return fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n{}", line.style, path, dots);
}

std::string band_of(const LineChart& c, const Scale& x, const Scale& y) {
  std::string up, down;
  for (size_t i = 0; i < std::min({c.x.size(), c.low.size(), c.high.size()}); ++i) {
    if (!y.shows(c.low[i]) || !y.shows(c.high[i])) continue;
    up += fmt::format("{}{:.1f} {:.1f}", up.empty() ? "M" : "L", x(c.x[i]), y(c.high[i]));
    down.insert(0, fmt::format("L{:.1f} {:.1f}", x(c.x[i]), y(c.low[i])));
  }
  return up.empty() ? "" : fmt::format("<path class=\"band\" d=\"{}{}Z\"/>\n", up, down);
}

std::string axes(const LineChart& c, const Scale& x, const Scale& y) {
  std::string out;
  for (const Tick& tick : ticks_of(y.axis, 6, false)) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - kRight, y(tick.at), kLeft - 6, y(tick.at) + 4, tick.label);
  }
  for (const Tick& tick : ticks_of(x.axis, 8, true)) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(tick.at),
                       kHeight - kBottom + 16, tick.label);
  }
  if (y.axis.knee > 0) {
    out +=
        fmt::format("<line class=\"knee\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
                    kLeft, kWidth - kRight, y(y.axis.knee));
  }
  out += fmt::format(
      "<path class=\"axis\" d=\"M{0} {1}V{2}H{3}\"/>\n"
      "<text x=\"{4}\" y=\"{5}\" text-anchor=\"middle\">{6}</text>\n"
      "<text transform=\"translate(14 {7}) rotate(-90)\" text-anchor=\"middle\">{8}</text>\n",
      kLeft, kTop, kHeight - kBottom, kWidth - kRight, (kLeft + kWidth - kRight) / 2, kHeight - 6,
      text(c.x_label), (kTop + kHeight - kBottom) / 2, text(c.y_label));
  return out;
}

nlohmann::json numbers(const std::vector<double>& values, bool positive) {
  nlohmann::json out = nlohmann::json::array();
  for (const double v : values) {
    // Seven digits distinguish any two points on a screen.
    const bool shown = std::isfinite(v) && (!positive || v > 0);
    out.push_back(shown ? nlohmann::json(std::stod(fmt::format("{:.7g}", v)))
                        : nlohmann::json(nullptr));
  }
  return out;
}

}  // namespace

LineChart thinned(const LineChart& c, size_t most) {
  const size_t n = c.x.size();
  if (n <= most) return c;
  const size_t stretch = (2 * n + most - 1) / most;
  LineChart out = c;
  out.x.clear();
  out.low.clear();
  out.high.clear();
  for (Line& line : out.lines) line.y.clear();
  for (size_t begin = 0; begin < n; begin += stretch) {
    const size_t end = std::min(n, begin + stretch), middle = (begin + end) / 2;
    out.x.push_back(c.x[begin]);
    out.x.push_back(c.x[middle] > c.x[begin] ? c.x[middle] : c.x[begin] + 0.5);
    // Each stretch becomes two points: a line gets its least and largest value; a bound of the band
    // gets its own extreme twice.
    const auto put = [&](const std::vector<double>& from, std::vector<double>& to, bool low_first,
                         bool high_second) {
      if (from.empty()) return;
      double low = INFINITY, high = -INFINITY;
      bool broken = false;
      for (size_t i = begin; i < std::min(end, from.size()); ++i) {
        broken = broken || !std::isfinite(from[i]);
        low = std::min(low, from[i]);
        high = std::max(high, from[i]);
      }
      if (broken || low > high) low = high = std::nan("");
      to.push_back(low_first ? low : high);
      to.push_back(high_second ? high : low);
    };
    for (size_t k = 0; k < c.lines.size(); ++k) put(c.lines[k].y, out.lines[k].y, true, true);
    put(c.low, out.low, true, false);
    put(c.high, out.high, false, true);
  }
  return out;
}

bool drawable(const LineChart& c) {
  return !c.x.empty() && std::ranges::any_of(c.lines, [&](const Line& line) {
    return std::ranges::any_of(
        line.y, [&](double v) { return std::isfinite(v) && (!c.logarithmic || v > 0); });
  });
}

std::string to_svg(const LineChart& c) {
  if (!drawable(c)) return "";
  const Scale y = scale_of(c), x = across(c);
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"{2}-t {2}-d\">"
      "<title id=\"{2}-t\">{3}</title><desc id=\"{2}-d\">{4}</desc>\n",
      kWidth, kHeight, text(c.id), text(c.title), text(c.description));
  out += band_of(c, x, y) + axes(c, x, y);
  double row = kTop + 12;
  for (const Mark& mark : c.marks) {
    if (mark.x < c.x.front() || mark.x > c.x.back()) continue;
    const double at = x(mark.x);
    const bool left = at > (kLeft + kWidth) / 2;
    out += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text class=\"marked\" x=\"{3:.1f}\" y=\"{4}\" text-anchor=\"{5}\">{6}</text>\n",
        at, kTop, kHeight - kBottom, at + (left ? -5 : 5), row, left ? "end" : "start",
        text(mark.label, 60));
    row += 15;
  }
  for (const Line& line : c.lines) out += path_of(c, line, x, y);
  return out + "</svg>\n";
}

std::string to_data(const LineChart& c) {
  using Json = nlohmann::ordered_json;
  Json lines = Json::array(), marks = Json::array();
  for (const Line& line : c.lines) {
    lines.push_back({{"name", text::clip(text::clean(line.name.substr(0, 400)), 60)},
                     {"style", line.style},
                     {"y", numbers(line.y, c.logarithmic)}});
  }
  for (const Mark& mark : c.marks)
    marks.push_back(
        {{"x", mark.x}, {"label", text::clip(text::clean(mark.label.substr(0, 400)), 60)}});
  // An axis that is not plain is passed with its ends and ticks, so that the script draws the same
  // one.
  Json axis = nullptr;
  if (drawable(c) && (c.logarithmic || c.knee > 0)) {
    const text::Axis y = axis_of(c);
    Json ticks = Json::array();
    for (const Tick& tick : ticks_of(y, 6, false))
      ticks.push_back({{"at", tick.at}, {"label", tick.label}});
    axis = {{"log", y.logarithmic},
            {"low", y.low},
            {"high", y.high},
            {"knee", y.knee},
            {"ticks", ticks}};
  }
  const Json all = {{"axis", axis},
                    {"xlabel", c.x_label},
                    {"ylabel", c.y_label},
                    {"band", c.band},
                    {"x", numbers(c.x, false)},
                    {"low", numbers(c.low, c.logarithmic)},
                    {"high", numbers(c.high, c.logarithmic)},
                    {"lines", lines},
                    {"marks", marks}};
  // Escape the characters that could close the script element.
  std::string out;
  for (const char ch : all.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (ch == '<' || ch == '>' || ch == '&') {
      out += fmt::format("\\u{:04x}", static_cast<int>(ch));
    } else {
      out += ch;
    }
  }
  return out;
}

std::string line_sample(int style) {
  return fmt::format(
      "<svg class=\"sample\" viewBox=\"0 0 34 10\" aria-hidden=\"true\">"
      "<path class=\"line s{}\" d=\"M1 5H33\"/></svg>",
      style);
}

}  // namespace twinrun::html
