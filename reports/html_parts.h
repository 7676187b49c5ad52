// The parts of report.html, each a piece of markup from a Report; "" where the report has nothing to show. reports/html.cc puts them
// together. What is drawn: html_charts.cc; what is told in tables: html_tables.cc; the experiment's corners: html_corners.cc.
#pragma once

#include <string>

#include "reports/report.h"

namespace twinrun::html {

// Figures: a chart as SVG, its key, its data for the page's script.
std::string loss_figure(const Report& report);
std::string drift_figure(const Report& report);  // on the axis of steps that loss_figure has
std::string drift_table(const Report& report);
std::string weight_figure(const Report& report);
std::string tensor_figure(const Finding& finding);

// What each run is whose name `html` has as an abbreviation, in visible words.
std::string runs_named(const std::string& html);
std::string corners(const Report& report);
std::string digests(const Report& report);

std::string findings(const Report& report);
std::string trajectories(const Report& report);
std::string cures(const Report& report);
std::string ensembles(const Report& report);
std::string probes(const Report& report);
std::string switches(const Report& report);
std::string controls(const Report& report);
std::string environment(const Report& report);
std::string commands(const Report& report);

}  // namespace twinrun::html
