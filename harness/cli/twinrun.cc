// twinrun VERB ...
#include "harness/cli/cli.h"

int main(int argc, char** argv) {
  using namespace twinrun::cli;
  return main_of({.name = "twinrun",
                  .subtitle = kSubtitle,
                  .example = "twinrun diagnose digits_cnn",
                  .verbs = verbs()},
                 argc, argv);
}
