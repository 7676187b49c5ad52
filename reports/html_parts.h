// The parts of report.html. Each function makes markup from a Report, and returns "" where the
// report has nothing to show; reports/html.cc assembles them. Charts: html_charts.cc; tables:
// html_tables.cc; the runs of the experiment: html_corners.cc.
#pragma once

#include <string>

#include "reports/report.h"
#include "reports/tables.h"

namespace twinrun::html {

// Figures: a chart as SVG, its legend, and its data for the page's script.
std::string loss_figure(const Report& report);
std::string drift_figure(const Report& report);  // same axis of steps as loss_figure
std::string weight_figure(const Report& report);
std::string tensor_figure(const Finding& finding);

// Explains in visible words each run whose name occurs in `html` as an abbreviation.
std::string runs_named(const std::string& html);
std::string corners(const Report& report);
std::string digests(const Report& report);

// The tables that every format shows (reports/tables.h).
std::string tables_of(const tables::Section& section);

std::string findings(const Report& report);
std::string cures(const Report& report);
std::string commands(const Report& report);

}  // namespace twinrun::html
