// Draws charts made of cells, bars and dots.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reports/html_text.h"
#include "reports/svg.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

constexpr int kLevels = 10;

// The level of a distance within its map: "z" for zero, "x" for a non-finite or negative one, else
// 0 .. 9.
std::string level_of(double v, double low, double high) {
  if (v == 0) return "z";
  if (!std::isfinite(v) || v < 0) return "x";
  if (!(high > low)) return fmt::format("{}", kLevels - 1);
  const double part = (std::log10(v) - std::log10(low)) / (std::log10(high) - std::log10(low));
  return fmt::format("{}", std::clamp(static_cast<int>(part * kLevels), 0, kLevels - 1));
}

}  // namespace

std::string op_bar(const ProbeRow& row) {
  // 10^-3 is the left edge, the bound is at 3/7, 10^4 is the right edge.
  constexpr double kLow = -3, kHigh = 4, kSpan = 140;
  const bool wrong = row.outside > 0;
  double length = kSpan;
  if (std::isfinite(row.worst_ratio)) {
    const double at = row.worst_ratio > 0 ? std::log10(row.worst_ratio) : kLow;
    length = std::clamp((at - kLow) / (kHigh - kLow), 0.0, 1.0) * kSpan;
  }
  return fmt::format(
      "<svg class=\"bar\" viewBox=\"0 0 {0} 14\" aria-hidden=\"true\"><rect class=\"{1}\" x=\"0\" "
      "y=\"3\" width=\"{2:.1f}\" height=\"8\"/><line class=\"limit\" x1=\"{3:.1f}\" "
      "x2=\"{3:.1f}\" y1=\"0\" y2=\"14\"/></svg>",
      kSpan, wrong ? "outside" : "inside", std::max(1.0, length), -kLow / (kHigh - kLow) * kSpan);
}

std::string to_svg(const HeatMap& map) {
  double low = INFINITY, high = 0;
  size_t longest = 4;
  for (const auto& row : map.cells) {
    for (const double v : row) {
      if (!(v > 0) || !std::isfinite(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  std::vector<std::string> names;
  for (const std::string& name : map.rows) {
    names.push_back(text::clip(text::clean(name.substr(0, 400)), 26));
    longest = std::max<size_t>(longest, static_cast<size_t>(text::display_width(names.back())));
  }
  const double left = 8 * static_cast<double>(longest) + 10, cell = 18, top = 4;
  const auto columns = static_cast<double>(map.columns.size());
  const double wide = std::clamp(440 / std::max(1.0, columns), 18.0, 60.0);
  const double width = left + wide * columns + 14;
  const double bottom = top + cell * static_cast<double>(names.size());
  std::string out = fmt::format(
      "<svg class=\"heat\" viewBox=\"0 0 {0:.0f} {1:.0f}\" style=\"width:{0:.0f}px\" role=\"img\" "
      "aria-label=\"{2}\"><desc>{3}</desc>\n",
      width, bottom + 76, text(map.title), text(map.description));
  for (size_t r = 0; r < names.size(); ++r) {
    const double y = top + cell * static_cast<double>(r);
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", left - 6,
                       y + 13, text(names[r]));
    for (size_t c = 0; c < map.cells[r].size(); ++c) {
      const double v = map.cells[r][c];
      out += fmt::format(
          "<rect class=\"cell h{}\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\">"
          "<title>{} {} {}: {}</title></rect>\n",
          level_of(v, low, high), left + wide * static_cast<double>(c), y, wide - 1, cell - 1,
          text(map.rows[r], 60), text(map.x_label), text(map.columns[c]),
          v == 0 ? "equal" : text::number(v));
    }
  }
  const size_t every = map.columns.size() > 12 ? 4 : map.columns.size() > 6 ? 2 : 1;
  for (size_t c = 0; c < map.columns.size(); ++c) {
    if (c % every != 0 && c + 1 != map.columns.size()) continue;
    if (c + 1 != map.columns.size() && map.columns.size() - 1 - c < 2 && every > 1) continue;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                       left + wide * (static_cast<double>(c) + 0.5) - 0.5, bottom + 14,
                       text(map.columns[c], 12));
  }
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                     left + wide * columns / 2, bottom + 32, text(map.x_label));
  // The legend, from least to largest.
  const double key = bottom + 48;
  if (high > 0) {
    const std::string from = text::number(low, 2), to = text::number(high, 2);
    const double x = left + 9 * static_cast<double>(from.size());
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", x - 6,
                       key + 12, from);
    for (int i = 0; i < kLevels; ++i) {
      out += fmt::format(
          "<rect class=\"cell h{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"15\"/>", i,
          x + 15 * i, key);
    }
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", x + 15 * kLevels + 5,
                       key + 12, to);
  }
  return out + "</svg>\n";
}

std::string to_svg(const DotPlot& plot) {
  constexpr double kWidth = 720, kRow = 18, kTop = 20, kEdge = 26;
  double least = 0.1, most = 10;
  size_t longest = 4;
  for (const DotPlot::Row& row : plot.rows) {
    longest = std::max(longest, std::min<size_t>(row.name.size(), 34));
    for (const double v : row.values) {
      if (!(v > 0) || !std::isfinite(v)) continue;
      least = std::min(least, v);
      most = std::max(most, v);
    }
  }
  const double low = std::max(-8.0, std::floor(std::log10(least)));
  const double high = std::min(8.0, std::ceil(std::log10(most)));
  const double left = 7.2 * static_cast<double>(longest) + 14 + kEdge, right = kWidth - kEdge - 8;
  const double bottom = kTop + kRow * static_cast<double>(plot.rows.size());
  const auto x = [&](double v) {
    if (v == 0) return left - kEdge + 6;
    if (!std::isfinite(v)) return right + kEdge - 6;
    const double part = (std::log10(v) - low) / (high - low);
    return left + std::clamp(part, 0.0, 1.0) * (right - left);
  };
  std::string out = fmt::format(
      "<svg class=\"dots\" viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">"
      "<desc>{}</desc>\n",
      kWidth, bottom + 38, text(plot.title), text(plot.description));
  const auto tick = [&](double v, std::string_view label) {
    const bool bound = v == 1;
    out += fmt::format(
        "<line class=\"{0}\" x1=\"{1:.1f}\" x2=\"{1:.1f}\" y1=\"{2}\" y2=\"{3:.0f}\"/>"
        "<text x=\"{1:.1f}\" y=\"{4:.0f}\" text-anchor=\"middle\">{5}</text>\n",
        bound ? "limit" : "grid", x(v), kTop - 4, bottom + 2, bottom + 16, label);
    if (bound)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">bound</text>\n", x(v),
                         kTop - 8);
  };
  const auto every = static_cast<int>(std::ceil((high - low) / 8));
  for (auto e = static_cast<int>(low); e <= static_cast<int>(high); ++e)
    if (e % every == 0) tick(std::pow(10.0, e), e == 0 ? "1" : fmt::format("1e{}", e));
  tick(0, "0");
  tick(INFINITY, "inf");
  for (size_t r = 0; r < plot.rows.size(); ++r) {
    const DotPlot::Row& row = plot.rows[r];
    const double y = kTop + kRow * (static_cast<double>(r) + 0.5);
    out += fmt::format(
        "<g><title>{}: {}</title><text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>",
        text(row.name), text(row.note), left - kEdge - 6, y + 4, text(row.name, 34));
    const double worst = std::ranges::max(row.values);
    std::set<int> at;  // dots at the same place are drawn once
    for (const double v : row.values)
      if (v != worst && at.insert(static_cast<int>(std::lround(x(v)))).second)
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.0f}\" r=\"2.5\"/>", x(v), y);
    out += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.0f}\" r=\"4\"/></g>\n",
                       worst > 1 ? "outside" : "inside", x(worst), y);
  }
  return out +
         fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text></svg>\n",
                     (left + right) / 2, bottom + 33, text(plot.x_label));
}

std::string to_svg(const TensorPicture& picture, std::string_view description) {
  if (picture.cells.empty() || picture.cells.front().empty()) return "";
  const auto rows = picture.cells.size(), columns = picture.cells.front().size();
  const double cell = std::clamp(360.0 / static_cast<double>(std::max(rows, columns)), 5.0, 24.0);
  const double width = cell * static_cast<double>(columns),
               height = cell * static_cast<double>(rows);
  std::string out = fmt::format(
      "<svg class=\"tensor\" shape-rendering=\"crispEdges\" viewBox=\"-1 -1 {0:.1f} {1:.1f}\" "
      "style=\"width:{0:.0f}px\" "
      "role=\"img\" aria-label=\"The wrong tensor, folded into {2} x {3} cells\"><desc>{4}</desc>\n"
      "<rect class=\"frame\" x=\"-0.5\" y=\"-0.5\" width=\"{5:.1f}\" height=\"{6:.1f}\"/>\n",
      width + 2, height + 2, rows, columns, text(description), width + 1, height + 1);
  for (size_t r = 0; r < rows; ++r) {
    const std::string& row = picture.cells[r];
    for (size_t begin = 0; begin < row.size();) {  // equal adjacent cells form one rectangle
      size_t end = begin + 1;
      while (end < row.size() && row[end] == row[begin]) ++end;
      const char c = row[begin];
      if ((c >= '1' && c <= '9') || c == '!') {
        out += fmt::format(
            "<rect class=\"w{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
            c == '!' ? "x" : std::string(1, c), cell * static_cast<double>(begin),
            cell * static_cast<double>(r), cell * static_cast<double>(end - begin), cell);
      }
      begin = end;
    }
  }
  return out + "</svg>\n";
}

}  // namespace twinrun::html
