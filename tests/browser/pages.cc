// Writes HTML pages of the example reports of tests/reports, and a few variations of them, into the
// given folder. tests/browser/run.py opens them in a browser.
#include <cmath>
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
  Report diverging = examples::noise();
  for (size_t i = 20; i < 40; ++i)
    diverging.runs.back().losses[i] =
        i == 39 ? NAN : std::pow(10.0f, static_cast<float>(i) - 10.0f);
  const std::pair<const char*, Report> pages[] = {{"noise", examples::noise()},
                                                  {"sharding", examples::sharding()},
                                                  {"engine_bug", examples::engine_bug()},
                                                  {"inconclusive", examples::inconclusive()},
                                                  {"identical", identical},
                                                  {"long", lengthy},
                                                  {"diverging", diverging},
                                                  {"hostile", examples::hostile()},
                                                  {"empty", Report{}}};
  const auto written = [&](const std::string& name, const std::string& text) {
    std::ofstream out(std::string(argv[1]) + "/" + name, std::ios::binary);
    out << text;
    return out.good();
  };
  bool good = true;
  for (const auto& [name, report] : pages)
    good = good && written(std::string(name) + ".html", to_html(report));
  return good ? 0 : 1;
}
