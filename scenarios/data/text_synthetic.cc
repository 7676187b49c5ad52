// `text_synthetic`: sentences of a small grammar as characters, for language models on machines
// without files. Sentence i is a function of (seed, i) only. The training text is the sentences 0,
// 1, 2, ...; the held-out text begins with sentence 2^31. Both are cut to the length that the
// windows need.
//
//   sentence = subject verb [object] [adverb] end
//   subject, object = article [adjective] noun        the article and the verb agree in number
//   end = ". " five times in six, else ".\n"
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "scenarios/data/draws.h"
#include "scenarios/data/source.h"
#include "scenarios/data/windows.h"

namespace twinrun::data {
namespace {

constexpr std::string_view kSingular[] = {"a", "the", "one", "every"};
constexpr std::string_view kPlural[] = {"the", "two", "some", "many"};
constexpr std::string_view kAdjectives[] = {"grey",  "young", "small", "big",  "red",  "black",
                                            "quiet", "happy", "tired", "wise", "slow", "brave"};
constexpr std::string_view kNouns[] = {"dog",    "cat",    "bird",  "king",     "queen",
                                       "farmer", "sailor", "tree",  "river",    "doctor",
                                       "horse",  "ship",   "stone", "wolf cub", "child of the king",
                                       "star"};
constexpr std::string_view kPluralNouns[] = {
    "dogs",    "cats",    "birds",  "kings",     "queens",
    "farmers", "sailors", "trees",  "rivers",    "doctors",
    "horses",  "ships",   "stones", "wolf cubs", "children of the king",
    "stars"};
constexpr std::string_view kVerbs[] = {"see",    "follow", "find", "love", "hear",
                                       "forget", "call",   "fear", "help", "know"};
constexpr std::string_view kAdverbs[] = {"today",        "often",      "at night",
                                         "in the woods", "by the sea", "again"};
constexpr int64_t kMaxTokens = int64_t{1} << 28;

template <size_t N>
std::string_view pick(const std::string_view (&words)[N], Draws& draws) {
  return words[draws.below(N)];
}

// Appends a noun phrase. Returns whether it is plural.
bool add_nouns(Draws& draws, std::string& out) {
  const bool plural = draws.below(2) == 1;
  out += plural ? pick(kPlural, draws) : pick(kSingular, draws);
  out += ' ';
  if (draws.below(2) == 1) (out += pick(kAdjectives, draws)) += ' ';
  out += plural ? pick(kPluralNouns, draws) : pick(kNouns, draws);
  return plural;
}

void add_sentence(uint64_t seed, uint32_t id, std::string& out) {
  Draws draws({seed, kStreamText}, 0, id);
  const bool plural = add_nouns(draws, out);
  (out += ' ') += pick(kVerbs, draws);
  if (!plural) out += 's';
  if (draws.below(4) != 0) {
    out += ' ';
    add_nouns(draws, out);
  }
  if (draws.below(3) == 0) (out += ' ') += pick(kAdverbs, draws);
  out += draws.below(6) == 0 ? ".\n" : ". ";
}

// All characters that a sentence can contain, sorted. A token id is an index into this text.
std::string alphabet() {
  std::string all = "s. \n";
  const auto add = [&all](const auto& words) {
    for (const std::string_view word : words) all += word;
  };
  add(kSingular), add(kPlural), add(kAdjectives), add(kNouns);
  add(kPluralNouns), add(kVerbs), add(kAdverbs);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Result<Samples> make(const DataRequest& request, const std::string& letters, int64_t count,
                     uint32_t first) {
  const auto size = static_cast<size_t>(count * request.window + 1);
  std::string text;
  for (uint32_t id = first; text.size() < size; ++id) add_sentence(request.seed, id, text);
  text.resize(size);
  std::vector<int32_t> tokens;
  tokens.reserve(size);
  for (const char c : text) tokens.push_back(static_cast<int32_t>(letters.find(c)));
  return windows(request, tokens, "");
}

}  // namespace

int64_t letters_of_synthetic_text() { return static_cast<int64_t>(alphabet().size()); }

Result<Pool> text_synthetic_pool(const DataRequest& request) {
  TWINRUN_ASSIGN(const Counts counts, procedural_counts(request));
  const int64_t most = kMaxTokens / std::max(counts.train, counts.eval);
  if (request.window < 1 || request.window > most) {
    return Error{fmt::format("data.window is {}; allowed with so many samples: 1 to {}",
                             request.window, most),
                 request.where, "set data.window = 64"};
  }
  const std::string letters = alphabet();
  Pool pool;
  TWINRUN_ASSIGN(pool.train, make(request, letters, counts.train, 0));
  TWINRUN_ASSIGN(pool.eval, make(request, letters, counts.eval, kHeldOut));
  pool.origin = "text_synthetic";
  pool.classes = pool.vocabulary = static_cast<int64_t>(letters.size());
  return pool;
}

}  // namespace twinrun::data
