// What is said of a recorded step as a whole: whether it is the program that it claims to be.
//
//   step::wrong(v);          // a sentence, what the step itself does wrong; "" if nothing is known
//   step::looked_at(v);      // what of the program was asked, and what was not
//   step::add_findings(v, report);
#pragma once

#include <string>
#include <vector>

#include "reports/trace_verdict.h"

namespace twinrun::step {

std::string wrong(const TraceVerdict& v);  // without a full stop
// What the steps do that is right by itself, and not always meant: sentences without a full stop.
std::vector<std::string> remarks(const TraceVerdict& v);
std::string looked_at(const TraceVerdict& v);  // the same
// Why a gradient that is no derivative seems to be meant, or is allowed.
std::string meant(const GradientCheck& g);
// Findings about the step itself, and what to do about each.
void add_findings(const TraceVerdict& v, Report& r);
// The innermost frame of a place.
std::string innermost(const std::string& place);

}  // namespace twinrun::step
