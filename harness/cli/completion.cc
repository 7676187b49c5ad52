// The candidates that the completion scripts of shells ask for (harness/developers/completion.cc).
// They come from the tables of verbs and options, so the scripts know no names.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "harness/cli/bisect.h"

namespace twinrun::cli {
namespace {

struct Candidates {
  std::vector<Choice> all;
  bool files = false;
};

// The values that fit what is typed of one. `before`: what precedes the value in its word.
Candidates of_values(const Values& values, std::string typed, std::string before) {
  std::vector<std::string> given;
  if (values.several) {
    given = split_commas(typed);
    typed = given.back();
    given.pop_back();
    for (const std::string& word : given) before += word + ",";
  }
  Candidates out{.files = values.files};
  for (const std::string& name : values.names) {
    // Of "KEY=" and "KEY=VALUE", first the one, and then the other.
    const bool later = std::ranges::any_of(values.names, [&](const std::string& first) {
      return first.ends_with('=') && first.size() > typed.size() && name.size() > first.size() &&
             name.starts_with(first);
    });
    const bool begun =
        name == typed && std::string_view("=:@").find(name.back()) != std::string_view::npos;
    if (name.starts_with(typed) && !later && !begun &&
        std::ranges::find(given, name) == given.end())
      out.all.push_back({before + name});
  }
  return out;
}

Candidates of_verbs(std::span<const Verb> verbs, const std::string& typed) {
  Candidates out;
  for (const Verb& verb : verbs) {
    if (verb.name.starts_with(typed))
      out.all.push_back({std::string(verb.name), std::string(verb.what)});
  }
  return out;
}

// What fits as the last word.
Candidates candidates(const Args& words) {
  const std::string typed = words.back();
  const Verb* verb = nullptr;
  std::span<const Verb> below = verbs();
  size_t at = 0;
  for (; at + 1 < words.size() && find_verb(below, words[at]) != nullptr; ++at) {
    verb = find_verb(below, words[at]);
    below = verb->axes;
  }
  if (at + 1 == words.size() && !below.empty() && (verb == nullptr || !typed.starts_with('-')))
    return of_verbs(below, typed);
  if (verb == nullptr) return {};

  const Help help = help_of(*verb);
  const auto find = [&](const std::string& word) -> const Help::Option* {
    const std::string name = word.substr(0, word.find('='));
    for (const Help::Option& option : help.options) {
      if (option.name == name || option.letter == name) return &option;
    }
    return nullptr;
  };
  const Help::Option* open = nullptr;  // the option whose value comes next
  std::set<const Help::Option*> given;
  size_t arguments = 0;
  for (; at + 1 < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "--") return {.files = true};  // a command
    if (open != nullptr) {
      open = nullptr;
    } else if (const Help::Option* option = find(word)) {
      if (!option->repeatable) given.insert(option);
      if (!option->value.empty() && word.find('=') == std::string::npos) open = option;
    } else if (!word.starts_with('-')) {
      ++arguments;
    }
  }
  if (open != nullptr) return of_values(open->values, typed, "");
  if (const size_t equals = typed.find('=');
      typed.starts_with("--") && equals != std::string::npos) {
    const Help::Option* option = find(typed);
    return option == nullptr
               ? Candidates()
               : of_values(option->values, typed.substr(equals + 1), typed.substr(0, equals + 1));
  }
  if (!help.arguments.empty() && help.arguments.back().first.ends_with(".."))
    arguments = std::min(arguments, help.arguments.size() - 1);
  if (arguments < help.arguments.size() && !typed.starts_with('-'))
    return of_values(help.arguments[arguments].second, typed, "");
  Candidates out;
  for (const Help::Option& option : help.options) {
    if (option.name.starts_with(typed) && !given.contains(&option))
      out.all.push_back({option.name, option.help});
  }
  return out;
}

// Bash splits words at these characters and replaces only what follows the last of them. Joins the
// words again; `kept`: how much of the last one stays.
Args joined(const Args& words, size_t& kept) {
  Args out;
  bool join = false;
  kept = 0;
  for (const std::string& word : words) {
    const bool splits = !word.empty() && word.find_first_not_of("=:@") == std::string::npos;
    if ((splits || join) && !out.empty()) {
      kept = out.back().size() + (splits ? word.size() : 0);
      out.back() += word;
    } else {
      kept = 0;
      out.push_back(word);
    }
    join = splits;
  }
  return out;
}

}  // namespace

std::optional<int> complete(const Args& words) {
  if (words.size() < 4 || words[0] != kCompleteWord || words[2] != "--") return std::nullopt;
  const bool bash = words[1] == "bash";
  const Args typed(words.begin() + 3, words.end());
  size_t kept = 0;
  const Candidates found = candidates(bash ? joined(typed, kept) : typed);
  print("{}\n", found.files ? "files" : "names");
  for (const Choice& choice : found.all) {
    const bool meaning = !bash && !choice.meaning.empty();
    print_document(
        fmt::format("{}{}\n", choice.name.substr(kept), meaning ? "\t" + choice.meaning : ""));
  }
  return 0;
}

}  // namespace twinrun::cli
