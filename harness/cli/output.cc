// Writes to standard output and standard error, with what a terminal would obey replaced.
#include "harness/cli/output.h"

#include <cstdio>
#include <iostream>

#include "harness/cli/cli.h"

namespace twinrun::cli {
namespace {

bool document_is_out = false;

bool silent = false;

void write(std::FILE* to, std::string_view text) {
  if (silent) return;
  // A failure stays in ferror(), which main() reads.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), to));
}

std::string safe(std::string_view text, Colors colors) {
  return text::printable(text, colors == Colors::kOwn);
}

}  // namespace

void set_silent(bool is_silent) { silent = is_silent; }

void print_text(std::string_view text, Colors colors) { write(stdout, safe(text, colors)); }

void print_document(std::string_view text) {
  document_is_out = true;
  write(stdout, text::escaped(text));
}
bool has_printed_document() { return document_is_out; }

void say(std::string_view text, Colors colors) {
  write(stderr, safe(text, colors));
  std::fflush(stderr);
}

void say_over(std::string_view text) {
  write(stderr, "\r\x1b[K");
  say(text);
}

std::ostream& messages_out() { return std::cout; }

}  // namespace twinrun::cli
