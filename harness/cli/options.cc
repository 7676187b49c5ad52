// Parses the options of a verb, and defines those that several verbs share.
#include "harness/cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <sstream>
#include <thread>
#include <type_traits>

#include "harness/cli/diagnose_what.h"
#include "harness/trace/side.h"
#include "program/base/names.h"

namespace twinrun::cli {
namespace {

namespace po = boost::program_options;
using Words = std::vector<std::string>;

constexpr const char* kSurplus = "surplus words";

// Where parse() puts the help, instead of printing it.
Help* asked_help = nullptr;

std::string long_name(const std::string& name) { return name.substr(0, name.find_first_of(", ")); }

// Of "out,o FILE" what the library takes, "out,o", and what --help calls the value.
struct Named {
  std::string name, value;
  Named(const std::string& given, std::string_view kind)
      : name(given.substr(0, given.find(' '))),
        value(given.find(' ') == std::string::npos ? kind : given.substr(given.find(' ') + 1)) {}
};

Help help_in(const po::options_description& visible, const std::map<std::string, Values>& values) {
  Help help;
  for (const auto& option : visible.options()) {
    const std::string name = option->long_name();
    const auto letter =
        option->canonical_display_name(po::command_line_style::allow_dash_for_short);
    const auto it = values.find(name);
    help.options.push_back({.name = "--" + name,
                            .letter = letter.size() == 2 ? letter : "",
                            .value = option->format_parameter(),
                            .help = option->description(),
                            .repeatable = option->semantic()->is_composing(),
                            .values = it == values.end() ? Values() : it->second});
  }
  return help;
}

Status check_value(const std::string& where, const Values& allowed, const std::string& text) {
  for (const std::string& word : allowed.several ? split_commas(text) : Words{text}) {
    if (std::ranges::find(allowed.names, word) != allowed.names.end()) continue;
    return Error{fmt::format("unknown value '{}' (known: {})", word, join(allowed.names, ", ")),
                 where, did_you_mean(word, allowed.names)};
  }
  return Ok{};
}

// What the verb is for, a sentence above its usage, "twinrun VERB [AXIS] ...".
std::string purpose_of(const std::string& usage) {
  std::istringstream words(usage);
  std::string program, word;
  words >> program;
  std::string name = program, purpose;
  for (std::span<const Verb> table = tool().verbs; words >> word;) {
    const Verb* const verb = find_verb(table, word);
    if (verb == nullptr) break;
    name += " " + word;
    purpose = verb->what;
    table = verb->axes;
  }
  return purpose.empty() ? "" : fmt::format("{}: {}\n\n", name, purpose);
}

// What to use instead of an option that left, of the verb whose usage this is; "": no such option.
std::string_view instead_of(std::string_view option, std::string_view usage) {
  struct Left {
    std::string_view verb, option, instead;
  };
  constexpr std::string_view kGraph =
      "XProf's graph viewer draws a step: twinrun profile SCENARIO -o DIR, then xprof --logdir DIR";
  constexpr Left kLeft[] = {
      {"", "--pjrt-plugin",
       "XLA is the engine 'exec:python3 adapters/engines/jax/engine.py', without a plugin"},
      {"twinrun diagnose ", "--seeds", "--set diagnose.seeds=N"},
      {"", "--shard",
       "the cases of a drill are divided by --share I/N; seeds train in one process"},
      {"", "--merge", "cases.jsonl of all shares of a drill in one folder, and --resume"},
      {"twinrun train ", "--trace",
       "XProf shows when ops ran: twinrun profile SCENARIO --measured -o DIR, then xprof --logdir "
       "DIR"},
      {"twinrun check ", "--out", kGraph},
      {"twinrun check ", "-o", kGraph},
  };
  for (const Left& left : kLeft) {
    if (usage.starts_with(left.verb) && option == left.option) return left.instead;
  }
  return "";
}

}  // namespace

std::vector<Choice> choices(const Words& names) {
  std::vector<Choice> all;
  for (const std::string& name : names) all.push_back({name});
  return all;
}

Words split_commas(const std::string& text) {
  Words parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Help help_of(const Verb& verb) {
  Help help;
  asked_help = &help;
  static_cast<void>(verb.run({"--help"}));
  asked_help = nullptr;
  return help;
}

Options::Options() : description_(std::make_shared<po::options_description>("options")) {
  groups_.push_back(description_);
}

void Options::group(const std::string& title) {
  description_ = std::make_shared<po::options_description>("options of " + title);
  groups_.push_back(description_);
}

bool Options::takes_value(const std::string& word) const {
  for (const auto& group : groups_) {
    for (const auto& option : group->options()) {
      const std::string letter =
          option->canonical_display_name(po::command_line_style::allow_dash_for_short);
      if (word == "--" + option->long_name() || word == letter)
        return option->semantic()->max_tokens() > 0;
    }
  }
  return false;
}

void Options::takes(const std::string& name, Values values) {
  values_[long_name(name)] = std::move(values);
}

void Options::axes(std::span<const Verb> axes) { axes_ = axes; }

void Options::flag(const std::string& name, const std::string& help) {
  description_->add_options()(name.c_str(), po::bool_switch(), help.c_str());
}

void Options::text(const std::string& name, const std::string& help,
                   const std::optional<std::string>& value) {
  const Named named(name, "FILE");
  auto* semantic = po::value<std::string>()->value_name(named.value);
  if (value) semantic->default_value(*value);
  description_->add_options()(named.name.c_str(), semantic, help.c_str());
  takes(name, {.files = true});
}

void Options::one_of(const std::string& name, const std::string& help,
                     const std::vector<Choice>& choices, const std::optional<std::string>& value) {
  std::string all = help;
  Values values{.closed = true};
  for (const Choice& choice : choices) {
    if (!all.empty()) all += !choice.meaning.empty() ? "; " : values.names.empty() ? ": " : ", ";
    all += choice.name + (choice.meaning.empty() ? "" : ": " + choice.meaning);
    values.names.push_back(choice.name);
  }
  text(Named(name, "").value.empty() ? name + " NAME" : name, all, value);
  takes(name, std::move(values));
}

void Options::some_of(const std::string& name, const std::string& help, const Words& names,
                      const std::optional<std::string>& value) {
  text(name + " NAME,..", fmt::format("{}, between commas: {}", help, join(names, ", ")), value);
  takes(name, {.names = names, .closed = true, .several = true});
}

void Options::list(const std::string& name, const std::string& help) {
  const Named named(name, "VALUE");
  description_->add_options()(
      named.name.c_str(), po::value<Words>()->composing()->value_name(named.value), help.c_str());
  takes(name, {.files = true});
}

template <typename T>
void Options::number(const std::string& name, const std::string& help, std::optional<T> value) {
  const Named named(name, std::is_floating_point_v<T> ? "X" : "N");
  auto* semantic = po::value<T>()->value_name(named.value);
  if (value) semantic->default_value(*value, fmt::format("{}", *value));
  description_->add_options()(named.name.c_str(), semantic, help.c_str());
}
template void Options::number(const std::string&, const std::string&, std::optional<int>);
template void Options::number(const std::string&, const std::string&, std::optional<int64_t>);
template void Options::number(const std::string&, const std::string&, std::optional<uint64_t>);
template void Options::number(const std::string&, const std::string&, std::optional<double>);

bool Parsed::has(const std::string& name) const { return values->count(name) > 0; }

template <typename T>
T Parsed::get(const std::string& name) const {
  return (*values)[name].as<T>();
}
template bool Parsed::get(const std::string&) const;
template int Parsed::get(const std::string&) const;
template int64_t Parsed::get(const std::string&) const;
template uint64_t Parsed::get(const std::string&) const;
template double Parsed::get(const std::string&) const;
template std::string Parsed::get(const std::string&) const;
template Words Parsed::get(const std::string&) const;

Result<Parsed> parse(const Args& args, const char* usage, const char* example, Options options,
                     const std::vector<std::string>& positional) {
  Parsed parsed{std::make_shared<po::variables_map>()};
  options.groups_.front()->add_options()("help,h", "this text");
  po::options_description visible, all, hidden;
  for (const auto& group : options.groups_) visible.add(*group);
  all.add(visible);
  po::positional_options_description order;
  for (const auto& name : positional) {
    const bool several = name.ends_with("..");
    if (several) {
      hidden.add_options()(name.c_str(), po::value<Words>());
    } else {
      hidden.add_options()(name.c_str(), po::value<std::string>());
    }
    order.add(name.c_str(), several ? -1 : 1);
  }
  hidden.add_options()(kSurplus, po::value<Words>());
  if (positional.empty() || !positional.back().ends_with("..")) order.add(kSurplus, -1);
  all.add(hidden);
  const std::string fix = fmt::format("usage: {}", usage);
  try {
    po::store(
        po::command_line_parser(args)
            .options(all)
            .positional(order)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
            .run(),
        *parsed.values);
    po::notify(*parsed.values);
  } catch (const po::unknown_option& e) {
    Words known;
    for (const auto& option : visible.options()) known.push_back("--" + option->long_name());
    std::string name = e.get_option_name();
    name = name.substr(0, name.find('='));
    const std::string_view instead = instead_of(name, usage);
    return Error{fmt::format("unknown option '{}'", name), "",
                 !instead.empty()             ? std::string(instead)
                 : meant(name, known).empty() ? "see --help"
                                              : did_you_mean(name, known) + " See --help"};
  } catch (const po::error& e) {
    return Error{e.what(), "", fix};
  }
  if (parsed.has("help") && asked_help != nullptr) {
    *asked_help = help_in(visible, options.values_);
    asked_help->usage = usage;
    asked_help->example = example;
    for (const auto& name : positional) {
      const auto it = options.values_.find(name);
      asked_help->arguments.emplace_back(name, it != options.values_.end() ? it->second
                                               : name.find("SCENARIO") != std::string::npos
                                                   ? scenario_values()
                                                   : Values{.files = true});
    }
  } else if (parsed.has("help")) {
    std::ostringstream text;
    text << visible;
    print_text(fmt::format("{}usage: {}\n\n", purpose_of(usage), usage));
    for (const Verb& axis : options.axes_) print("  {:<8} {}\n", axis.name, axis.what);
    const std::string listed = text.str();
    print_text(fmt::format("{}{}\nexample:\n  {}\n", options.axes_.empty() ? "" : "\n",
                           listed.substr(listed.find_first_not_of('\n')), example));
  }
  if (parsed.has("help")) {
    parsed.help = true;
    return parsed;
  }
  if (parsed.has(kSurplus))
    return Error{fmt::format("unexpected argument '{}'", parsed.get<Words>(kSurplus).front()), "",
                 fix};
  for (const auto& name : positional) {
    if (!name.starts_with('?') && !parsed.has(name))
      return Error{fmt::format("{} is missing", name), "", fix};
  }
  for (const auto& [name, allowed] : options.values_) {
    if (!allowed.closed || !parsed.has(name)) continue;
    if (allowed.several) {  // in small letters, without blanks
      std::string text = lower_case(parsed.get<std::string>(name));
      std::erase(text, ' ');
      parsed.values->at(name).value() = text;
    }
    const bool argument = std::ranges::find(positional, name) != positional.end();
    TWINRUN_RETURN_IF_ERROR(check_value(!argument               ? "--" + name
                                        : name.starts_with('?') ? name.substr(1)
                                                                : name,
                                        allowed, parsed.get<std::string>(name)));
  }
  return parsed;
}

std::vector<size_t> arguments_at(const Args& args, const Options& options) {
  std::vector<size_t> at;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("-") || args[i] == "-m") {
      at.push_back(i);
    } else if (options.takes_value(args[i])) {
      ++i;
    }
  }
  return at;
}

size_t script_at(const Args& args, const Options& options) {
  const std::vector<size_t> at = arguments_at(args, options);
  if (at.empty()) return args.size();
  const std::string& first = args[at.front()];
  return first == "-m" || first.ends_with(".py") || is_python(first) ? at.front() : args.size();
}

void add_scenario_options(Options& options) {
  add_key_option(options, "set",
                 "override a key of the scenario (repeatable), e.g. train.steps=20");
}

void add_common_options(Options& options) {
  options.number<int>("threads", "host threads (default: all cores); never changes a bit");
  options.flag("json", "print one JSON document on stdout, and nothing else there");
  options.flag("quiet,q", "print no progress");
  options.flag("verbose,v", "print a line every train.log_every steps; at the end everything");
}

Result<Overrides> overrides_of(const Parsed& parsed, const std::string& option) {
  Overrides overrides;
  if (!parsed.has(option)) return overrides;
  for (const auto& item : parsed.get<Words>(option)) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error{fmt::format("'{}' is not KEY=VALUE", item), fmt::format("--{}", option),
                   fmt::format("for example --{} train.steps=20", option)};
    }
    overrides.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return overrides;
}

Status check_is_scenario(const std::string& name) {
  TWINRUN_ASSIGN(const What what, what_of({name}));
  if (what.kind == WhatKind::kScenario) return Ok{};
  return Error{"this is no scenario: " + what.understood.substr(name.size() + 2), name,
               what.kind == WhatKind::kModule
                   ? "a program is given by --program FILE"
                   : "allowed: a library scenario or a TOML file; twinrun diagnose takes it"};
}

Result<Scenario> scenario_of(const Parsed& parsed, const std::string& option) {
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  const auto name = parsed.get<std::string>(option);
  TWINRUN_RETURN_IF_ERROR(check_is_scenario(name));
  return load_scenario(name, overrides);
}

Result<int> threads_of(const Parsed& parsed) {
  if (!parsed.has("threads"))
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int n = parsed.get<int>("threads");
  if (n < 1 || n > 1024)
    return Error{fmt::format("{} threads", n), "--threads", "accepted: 1 to 1024"};
  return n;
}

}  // namespace twinrun::cli
