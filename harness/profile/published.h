// Published measurements on the real machine, for the scenarios that they used. They test the
// model.
#pragma once

#include <string_view>
#include <vector>

#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

// Empty unless scenario, batch, cores and generation are those of a published run.
std::vector<PublishedFigure> published_figures(const Scenario& scenario,
                                               std::string_view generation);

}  // namespace twinrun
