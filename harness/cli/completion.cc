// twinrun completion: the completion script of a shell, and the candidates that the script asks
// for. They come from the tables of verbs and options, so the scripts know no names.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/cli/bisect.h"

namespace twinrun::cli {
namespace {

// Each script runs `twinrun completion SHELL -- WORD..` with the words before the cursor. The
// first line of the answer says whether names of files fit, too. The program is the one typed.
constexpr std::string_view kBash = R"(# Completion of twinrun for bash
_twinrun() {
  local -a found
  local word=${COMP_WORDS[COMP_CWORD]}
  mapfile -t found < <("${COMP_WORDS[0]/#\~/$HOME}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=("${found[@]:1}")
  if [[ ${found[0]} != files ]]; then
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=:@] ]]; then compopt -o nospace; fi
  elif ((${#COMPREPLY[@]} == 0)); then
    compopt -o default
  else
    compopt -o filenames
    mapfile -t found < <(compgen -f -- "${word#[=:]}")
    COMPREPLY+=("${found[@]}")
  fi
}
complete -F _twinrun twinrun
)";

constexpr std::string_view kZsh = R"(#compdef twinrun
# Completion of twinrun for zsh
compdef _twinrun twinrun
_twinrun() {
  local -a found whole begun
  local line name
  found=("${(@f)$(${~words[1]} completion zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  for line in "${(@)found[2,-1]}"; do
    name=${line%%$'\t'*}
    line=${name//:/\\:}${${line#$name}/$'\t'/:}
    if [[ $name == *[=:@] ]]; then begun+=("$line"); else whole+=("$line"); fi
  done
  ((${#whole})) && _describe twinrun whole
  ((${#begun})) && _describe twinrun begun -S ''
  if [[ $found[1] == files ]]; then
    compset -P '--[^=]#='
    _files
  fi
}
if [[ $funcstack[1] == _twinrun ]]; then _twinrun "$@"; fi
)";

constexpr std::string_view kFish = R"(# Completion of twinrun for fish
function __twinrun_candidates
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found ($words[1] completion fish -- $words[2..-1] "$word" 2>/dev/null)
    printf '%s\n' $found[2..-1]
    if test "$found[1]" = files
        set -l option (string match -r -- '^--[^=]*=' "$word")
        for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' "$word"))
            printf '%s\n' "$option$path"
        end
    end
end
complete -c twinrun -f -a '(__twinrun_candidates)'
)";

struct Script {
  std::string_view shell, text;
};
constexpr Script kScripts[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

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

Result<int> completion_verb(const Args& args) {
  const auto [given, words] = split_command(args);
  Options options;
  std::vector<std::string> shells;
  for (const Script& script : kScripts) shells.emplace_back(script.shell);
  options.takes("SHELL", {.names = shells, .closed = true});
  TWINRUN_ASSIGN(const Parsed parsed, parse(given, "twinrun completion bash|zsh|fish",
                                            "twinrun completion bash > "
                                            "~/.local/share/bash-completion/completions/twinrun",
                                            options, {"SHELL"}));
  if (parsed.help) return 0;
  const auto shell = parsed.get<std::string>("SHELL");
  if (words.empty()) {
    print_document(std::ranges::find(kScripts, std::string_view(shell), &Script::shell)->text);
    return 0;
  }
  const bool bash = shell == "bash";
  size_t kept = 0;
  const Candidates found = candidates(bash ? joined(words, kept) : words);
  print("{}\n", found.files ? "files" : "names");
  for (const Choice& choice : found.all) {
    const bool meaning = !bash && !choice.meaning.empty();
    print_document(
        fmt::format("{}{}\n", choice.name.substr(kept), meaning ? "\t" + choice.meaning : ""));
  }
  return 0;
}

}  // namespace twinrun::cli
