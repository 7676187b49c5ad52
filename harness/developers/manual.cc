// twinrun_dev manual: the tables of verbs and options as manual pages, for man(1).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/developers/developers.h"
#include "harness/host/environment.h"
#include "program/base/names.h"

namespace twinrun::cli {
namespace {

// Text for roff: no character of it is a command.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case ',':
        out += ",\\:";  // a line may end here
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '"':
        out += "\\(dq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        if (begins && c == '.') out += "\\&";
        out += c;
    }
  }
  return out;
}

std::string head(const std::string& name, std::string_view what) {
  const std::string version = version_text();
  return fmt::format(".TH {} 1 \"\" \"{}\" \"twinrun\"\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n",
                     roff(name), roff(version.substr(0, version.find(" ("))), roff(name),
                     roff(what));
}

std::string as_typed(std::string_view section, std::string_view text) {
  return fmt::format(".SH {}\n.nf\n{}\n.fi\n", section, roff(text));
}

std::string item(const std::string& term, std::string_view meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, roff(meaning));
}
std::string bold(std::string_view word) { return fmt::format("\\fB{}\\fR", roff(word)); }

// A usage or an example of several lines is aligned for --help.
std::string flush_left(const std::string& lines) {
  std::string out;
  for (const char c : lines) {
    if (c != ' ' || (!out.empty() && out.back() != '\n')) out += c;
  }
  return out;
}

std::string items(std::span<const Term> terms) {
  std::string out;
  for (const Term& term : terms) out += item(bold(term.name), term.meaning);
  return out;
}

std::string items(std::span<const Verb> verbs) {
  std::string out;
  for (const Verb& verb : verbs) out += item(bold(verb.name), verb.what);
  return out;
}

std::string see_also(const std::string& page) {
  return fmt::format(".SH SEE ALSO\n.BR {} (1)\n", roff(page));
}

std::string top_page() {
  std::string out = head("twinrun", kSubtitle);
  out += as_typed("SYNOPSIS", "twinrun VERB [OPTIONS]");
  out += ".SH VERBS\nEach verb has a page of its own, such as\n.BR twinrun\\-diagnose (1).\n";
  out += items(verbs()) + ".SH EXIT STATUS\n" + items(exit_codes()) + ".SH ENVIRONMENT\n" +
         items(environment_variables()) + as_typed("EXAMPLE", "twinrun diagnose digits_cnn");
  return out;
}

std::string page_of(const std::string& name, const Verb& verb) {
  const Help help = help_of(verb);
  std::string out = head(name, verb.what) + as_typed("SYNOPSIS", flush_left(help.usage));
  if (!verb.axes.empty()) {
    out += fmt::format(".SH AXES\nEach axis has a page of its own, such as\n.BR {}\\-{} (1).\n",
                       roff(name), roff(verb.axes.front().name));
    out += items(verb.axes);
  }
  out += ".SH OPTIONS\n";
  for (const Help::Option& option : help.options) {
    std::string term = bold(option.name);
    if (!option.letter.empty()) term = bold(option.letter) + ", " + term;
    if (!option.value.empty()) term += " " + roff(option.value);
    out += item(term, option.help);
  }
  out += as_typed("EXAMPLE", flush_left(help.example));
  return out + see_also("twinrun");
}

struct Page {
  std::string name;
  const Verb* verb = nullptr;  // of the program's own page: none
  std::string text() const { return verb == nullptr ? top_page() : page_of(name, *verb); }
};

void add_pages(std::vector<Page>& pages, std::span<const Verb> verbs) {
  const std::string above = pages.back().name;
  for (const Verb& verb : verbs) {
    pages.push_back({fmt::format("{}-{}", above, verb.name), &verb});
    add_pages(pages, verb.axes);
  }
}

}  // namespace

Result<int> manual_verb(const Args& args) {
  Options options;
  options.text("out,o FOLDER", "write every page to this folder");
  Values known{.closed = true}, axes{.closed = true};
  for (const Verb& verb : verbs()) {
    known.names.emplace_back(verb.name);
    for (const Verb& axis : verb.axes) axes.names.emplace_back(axis.name);
  }
  options.takes("?VERB", known);
  options.takes("?AXIS", axes);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun_dev manual [VERB [AXIS]]\n       twinrun_dev manual -o FOLDER",
            "twinrun_dev manual bisect op | man -l -", options, {"?VERB", "?AXIS"}));
  if (parsed.help) return 0;

  std::vector<Page> pages = {{"twinrun"}};
  add_pages(pages, verbs());
  if (parsed.has("out")) {
    const std::filesystem::path folder = parsed.get<std::string>("out");
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return Error{error.message(), folder.string(), "name another folder with -o"};
    for (const Page& page : pages)
      TWINRUN_RETURN_IF_ERROR(
          write_file_atomically((folder / (page.name + ".1")).string(), page.text()));
    return 0;
  }
  std::string name = "twinrun";
  for (const char* word : {"?VERB", "?AXIS"})
    if (parsed.has(word)) name += "-" + parsed.get<std::string>(word);
  const auto page = std::ranges::find(pages, name, &Page::name);
  if (page == pages.end())
    return Error{"there is no page " + name, "", "twinrun_dev manual VERB, or bisect AXIS"};
  print_document(page->text());
  return 0;
}

}  // namespace twinrun::cli
