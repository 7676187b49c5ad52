// Writes report.html of every example of tests/reports into the folder named: what tests/browser/run.py looks at.
#include <fstream>
#include <iostream>
#include <string>

#include "tests/reports/examples.h"

int main(int argc, char** argv) {
  using namespace twinrun;
  if (argc != 2) {
    std::cerr << "usage: report_pages DIR\n";
    return 2;
  }
  Report identical = examples::noise();
  identical.verdict = VerdictClass::kIdentical;
  for (RunSummary& run : identical.runs) run.losses = identical.runs[0].losses;
  Report lengthy = examples::engine_bug();
  for (RunSummary& run : lengthy.runs) run.losses = examples::curve(20000, run.losses.back());
  const std::pair<const char*, Report> pages[] = {{"noise", examples::noise()},
                                                  {"sharding", examples::sharding()},
                                                  {"engine_bug", examples::engine_bug()},
                                                  {"inconclusive", examples::inconclusive()},
                                                  {"identical", identical},
                                                  {"long", lengthy},
                                                  {"hostile", examples::hostile()},
                                                  {"empty", Report{}}};
  for (const auto& [name, report] : pages) {
    std::ofstream out(std::string(argv[1]) + "/" + name + ".html", std::ios::binary);
    out << to_html(report);
    if (!out) return 1;
  }
  return 0;
}
