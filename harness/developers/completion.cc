// twinrun_dev completion: the completion script of a shell for twinrun.
#include <algorithm>

#include "harness/developers/developers.h"

namespace twinrun::cli {
namespace {

// Each script runs `twinrun complete SHELL -- WORD..` with the words before the cursor. The
// first line of the answer says whether names of files fit, too. The program is the one typed.
constexpr std::string_view kBash = R"(# Completion of twinrun for bash
_twinrun() {
  local -a found
  local word=${COMP_WORDS[COMP_CWORD]}
  mapfile -t found < <("${COMP_WORDS[0]/#\~/$HOME}" complete bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
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
  found=("${(@f)$(${~words[1]} complete zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
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
    set -l found ($words[1] complete fish -- $words[2..-1] "$word" 2>/dev/null)
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

}  // namespace

Result<int> completion_verb(const Args& args) {
  Options options;
  std::vector<std::string> shells;
  for (const Script& script : kScripts) shells.emplace_back(script.shell);
  options.takes("SHELL", {.names = shells, .closed = true});
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun_dev completion bash|zsh|fish",
                       "twinrun_dev completion bash > twinrun.bash", options, {"SHELL"}));
  if (parsed.help) return 0;
  const auto shell = parsed.get<std::string>("SHELL");
  print_document(std::ranges::find(kScripts, std::string_view(shell), &Script::shell)->text);
  return 0;
}

}  // namespace twinrun::cli
