// Replays the seeds and the kept corpus of every reader, then the same number of mutations of them
// on every machine. TWINRUN_FUZZ_MUTATIONS sets their number; `./dev fuzz` searches for new ones.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/reader.h"
#include "tests/support/sanitized.h"

// libhdf5 1.10 itself leaks memory when it fails on a damaged file.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the sanitizer's name.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace twinrun::fuzz {
namespace {

class FuzzReplay : public testing::TestWithParam<std::string> {
 protected:
  const Reader& reader_ = *find_reader(GetParam());

  void check(const std::string& bytes, const std::string& which) const {
    try {
      reader_.check(bytes);
    } catch (const Violation& violation) {
      ADD_FAILURE() << which << ": " << violation.what;
    } catch (const std::exception& escaped) {
      ADD_FAILURE() << which << ": an exception escaped: " << escaped.what();
    }
  }
  // Every truncation and every changed byte of the small seeds.
  void cut_and_change(const std::vector<std::string>& seeds) const {
    int few = 3;
    for (const std::string& seed : seeds) {
      if (seed.size() > 700 || HasFailure() || (reader_.kind == Kind::kTrace && few-- <= 0))
        continue;
      for (size_t at = 0; at < seed.size(); at += kSanitized ? 5 : 1) {
        check(seed.substr(0, at), "cut to " + std::to_string(at));
        std::string bad = seed;
        for (const int change : {0x01, 0x80, 0xFF}) {
          bad[at] = static_cast<char>(seed[at] ^ change);
          check(bad, "changed byte " + std::to_string(at));
        }
      }
    }
  }
  // As many as take less than a second of an old core.
  int mutations() const {
    if (const char* number = std::getenv("TWINRUN_FUZZ_MUTATIONS")) return std::atoi(number);
    const int slow = kSanitized ? 4 : 1;
    return (reader_.kind == Kind::kHdf5 ? 60 : reader_.longest > 10'000 ? 400 : 2000) / slow;
  }
};

TEST_P(FuzzReplay, SeedsAndMutations) {
  const std::vector<std::string> seeds = seeds_of(reader_);
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i) check(seeds[i], "seed " + std::to_string(i));
  check("", "nothing");
  if (reader_.kind != Kind::kHdf5) cut_and_change(seeds);
  for (uint64_t i = 0; i < 20 && reader_.kind != Kind::kHdf5; ++i) {
    Random random(i);
    std::string bytes = seeds[below(random, seeds.size())];
    bytes.insert(below(random, bytes.size() + 1), std::string(100'000, 'x'));
    check(bytes, "long word " + std::to_string(i));
  }
  for (int i = 0; i < mutations() && !HasFailure(); ++i) {
    Random random(static_cast<uint64_t>(i));
    std::string bytes = seeds[below(random, seeds.size())];
    if (reader_.kind == Kind::kJson && i % 2 == 0) edit_json(bytes, random);
    if (reader_.kind == Kind::kBinary && i % 2 == 0) edit_header(bytes, random);
    if (reader_.kind == Kind::kTrace && i % 8 != 0) edit_calls(bytes, random);
    if (reader_.kind == Kind::kTrace ? i % 8 == 0 : i % 4 != 0) scramble(bytes, random);
    check(bytes, "mutation " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FuzzReplay, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Reader& reader : readers()) names.emplace_back(reader.name);
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace twinrun::fuzz
