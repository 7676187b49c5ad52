// The options of a verb and their values. Only options.cc sees the library that parses them.
//
//   Options options;
//   options.text("out,o", "file to write", "run.h5");
//   options.flag("json", "one JSON document on stdout");
//   TWINRUN_ASSIGN(const Parsed parsed, parse(args, "twinrun x SCENARIO -o FILE",
//                                             "twinrun x digits_mlp", options, {"SCENARIO"}));
//   if (parsed.help) return 0;
//   parsed.get<std::string>("out");
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/cli/cli.h"
#include "scenarios/scenario.h"

namespace boost::program_options {
class options_description;
class variables_map;
}  // namespace boost::program_options

namespace twinrun::cli {

struct Parsed;

// What an option or an argument may be. parse() and completion use it.
struct Values {
  std::vector<std::string> names;  // of these, one that ends in "=", ":" or "@" goes on
  bool files = false;              // or the name of a file
  bool closed = false;             // parse() refuses everything else
  bool several = false;            // a list between commas
};

// A value of one_of(), with a meaning for the help text where its name does not say it.
struct Choice {
  std::string name, meaning = "";
};
std::vector<Choice> choices(const std::vector<std::string>& names);

// What --help prints of a verb, as data.
struct Help {
  struct Option {
    std::string name, letter;  // "--out", and "-o" or ""
    std::string value;         // "FILE (=run.h5)"; "" for a flag
    std::string help;
    bool repeatable = false;
    Values values;
  };
  std::string usage, example;
  std::vector<Option> options;
  std::vector<std::pair<std::string, Values>> arguments;  // name as in parse()
};
Help help_of(const Verb& verb);

// Names are "out", "out,o" with a short form, or "out,o FOLDER" with the word for the value in
// --help (else FILE, NAME or N, by its type). An option without a default value may be absent.
class Options {
 public:
  Options();
  void flag(const std::string& name, const std::string& help);
  void text(const std::string& name, const std::string& help,
            const std::optional<std::string>& value = {});
  // A text that must be one of these, or several of them between commas. Their names end the help.
  void one_of(const std::string& name, const std::string& help, const std::vector<Choice>& choices,
              const std::optional<std::string>& value = {});
  void some_of(const std::string& name, const std::string& help,
               const std::vector<std::string>& names, const std::optional<std::string>& value = {});
  void list(const std::string& name, const std::string& help);  // repeatable
  // T: int, int64_t, uint64_t or double.
  template <typename T>
  void number(const std::string& name, const std::string& help, std::optional<T> value = {});
  // Of an option or an argument. Without this texts, lists and arguments are names of files, and
  // arguments named SCENARIO are those of the library, too.
  void takes(const std::string& name, Values values);
  void axes(std::span<const Verb> axes);  // listed by --help
  void group(const std::string& title);   // of the options that are added from now on
  // Whether a word "--name" or "-n" is followed by its value.
  bool takes_value(const std::string& word) const;

 private:
  friend Result<Parsed> parse(const Args&, const char*, const char*, Options,
                              const std::vector<std::string>&);
  std::shared_ptr<boost::program_options::options_description> description_;
  // Each with a title; the first has those without.
  std::vector<std::shared_ptr<boost::program_options::options_description>> groups_;
  std::map<std::string, Values> values_;  // by long name, or name of an argument
  std::span<const Verb> axes_;
};

struct Parsed {
  std::shared_ptr<boost::program_options::variables_map> values;
  bool help = false;  // --help was given and is answered: the verb is done
  bool has(const std::string& name) const;
  // T: bool of flag(), std::string of text(), std::vector<std::string> of list(), else of number().
  template <typename T>
  T get(const std::string& name) const;
};
// `positional`: names of the arguments; "?NAME" may be absent, "NAME.." is a list. Prints the help
// text if it is requested.
Result<Parsed> parse(const Args& args, const char* usage, const char* example, Options options,
                     const std::vector<std::string>& positional);
std::vector<std::string> split_commas(const std::string& text);
// The places of the words that are neither options nor their values; "-m", which a module follows,
// is one of them.
std::vector<size_t> arguments_at(const Args& args, const Options& options);
// The place of the first argument that is a Python script or interpreter, or "-m", which a module
// follows: what comes after it is the script's. args.size(): there is none.
size_t script_at(const Args& args, const Options& options);

// Options that several verbs share.
void add_scenario_options(Options& options);  // --set
void add_common_options(Options& options);    // --threads, --json, -q, -v
// An option that overrides keys of a scenario, and one that names an engine.
void add_key_option(Options& options, const std::string& name, const std::string& help);
enum class Engines { kOurs, kWithForeign, kWithDouble };  // cpu, tpu ..; exec:..; cpu:f64
void add_engine_option(Options& options, const std::string& name, const std::string& help,
                       Engines which, const std::optional<std::string>& value = {});
std::vector<Choice> generation_choices();  // of a TPU
Values scenario_values();                  // names of the library, and files
Result<Overrides> overrides_of(const Parsed& parsed, const std::string& option = "set");
// Error: an existing file or folder of another kind, with what takes it.
Status check_is_scenario(const std::string& name);
Result<Scenario> scenario_of(const Parsed& parsed, const std::string& option = "SCENARIO");
Result<int> threads_of(const Parsed& parsed);

// An option that names a fault of `what`.
void add_fault_option(Options& options, const std::string& name, const std::string& what);
// Prints the kinds for --fault help, even if other arguments are missing; false if not requested.
bool fault_help(const Args& args);
Result<std::vector<FaultSpec>> faults_of(const Parsed& parsed, const std::string& option = "fault");
// Checks that each fault begins within a run of `steps` steps.
Status check_faults_begin(const std::vector<FaultSpec>& faults, int64_t steps);

}  // namespace twinrun::cli
