// twinrun_dev VERB ...
#include "harness/developers/developers.h"

namespace twinrun::cli {
namespace {

constexpr Verb kDevelopersVerbs[] = {
    {"drill", "inject faults and causes, diagnose blind, count what was found", drill_verb},
    {"serve", "run one of twinrun's engines behind the engine protocol", serve_verb},
    {"completion", "print the completion script of a shell for twinrun", completion_verb},
    {"manual", "print a manual page of twinrun, or write all of them", manual_verb},
};

}  // namespace
}  // namespace twinrun::cli

int main(int argc, char** argv) {
  using namespace twinrun::cli;
  return main_of({.name = "twinrun_dev",
                  .subtitle = "for those who develop and package twinrun",
                  .example = "twinrun_dev drill drill_mlp --cases 60",
                  .verbs = kDevelopersVerbs},
                 argc, argv);
}
