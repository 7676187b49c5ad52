// Tests that every cause is known at every door: that it is named there, that another name says the
// same, or that there is a reason. tests/adapters/{xla,diagnose}/causes_test.py plant the causes.
#include "harness/sharding/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/sharding/causes.h"

namespace twinrun {
namespace {

bool is_cause_of_scenarios(const std::string& cause) {
  const std::vector<std::string> names = cause_names();
  return std::ranges::find(names, cause) != names.end();
}

TEST(CauseCatalogue, EveryDoorHasAnAnswer) {
  // What is read from an engine's tensors, which no list has (docs/method/diagnosis.md).
  const std::vector<std::string> identified = {"grouped_reduction", "other_rows", "averaged_loss"};
  for (const CataloguedCause& c : cause_catalogue()) {
    EXPECT_EQ(c.doors.size(), 4u) << c.cause;
    EXPECT_FALSE(c.means.empty()) << c.cause;
    bool named = false;
    for (const auto& [door, told] : c.doors) {
      named = named || told == "yes";
      if (told.starts_with("as ")) {
        const std::string other = told.substr(3);
        const CataloguedCause* row = catalogued(other);
        EXPECT_TRUE(row != nullptr ? row->doors.at(door) == "yes"
                                   : std::ranges::find(identified, other) != identified.end())
            << c.cause << " at " << door << ": " << told;
      } else if (told != "yes") {
        EXPECT_TRUE(told.starts_with("no: ") && told.size() > 10) << c.cause << " at " << door;
      }
      if (told == "yes" && door != "scenario")
        EXPECT_TRUE(c.cures.contains(door == "torch" ? "torch" : "jax") && !c.sentence.empty())
            << c.cause << " at " << door;
    }
    EXPECT_TRUE(named || c.cause == "loss_not_reduced") << c.cause << ": no door names it";
    EXPECT_EQ(c.doors.at("scenario") == "yes", is_cause_of_scenarios(c.cause)) << c.cause;
  }
}

TEST(CauseCatalogue, FactsStandInTheSentences) {
  const CauseWords words = cause_words(
      "no_all_reduce", "hlo", {{"names", "w1, w2"}, {"axes", "data"}, {"line", "train.py:4"}});
  EXPECT_NE(words.sentence.find("update w1, w2 by gradients"), std::string::npos) << words.sentence;
  EXPECT_NE(words.cure.find("over data by jax.lax.pmean"), std::string::npos) << words.cure;
  EXPECT_EQ((words.sentence + words.cure).find('{'), std::string::npos);
  EXPECT_EQ(catalogued("nonsense"), nullptr);
}

}  // namespace
}  // namespace twinrun
