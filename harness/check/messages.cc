// Joins the parts of the table of messages with the rules that they name.
#include "harness/check/messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace twinrun {
namespace check {
namespace {

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool names(const Message& message, std::string_view id) {
  const std::vector<std::string_view> ids = split_at(message.rules, ' ');
  return std::ranges::find(ids, id) != ids.end();
}

// Enough of it to be recognised.
std::string beginning_of(std::string_view wording) {
  constexpr size_t kMost = 60;
  if (wording.size() <= kMost) return std::string(wording);
  return std::string(wording.substr(0, wording.rfind(' ', kMost))) + " …";
}

// In backticks; two where the wording has some itself.
std::string as_code(std::string_view wording) {
  const bool has_ticks = wording.find('`') != std::string_view::npos;
  return (has_ticks ? "`` " : "`") + std::string(wording) + (has_ticks ? " ``" : "`");
}

}  // namespace
}  // namespace check

std::string_view to_string(MessageKind kind) {
  return kind == MessageKind::kCause         ? "cause"
         : kind == MessageKind::kConsequence ? "consequence"
                                             : "remark";
}

std::span<const Message> messages() {
  static const std::vector<Message> all = [] {
    std::vector<Message> rows;
    for (const auto part : {check::tensorflow_messages(), check::runtime_messages(),
                            check::jax_messages(), check::pytorch_messages()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

std::vector<std::string_view> rules_of(const Message& message) {
  return check::split_at(message.rules, ' ');
}

std::vector<std::string_view> wordings(const Message& message) {
  std::vector<std::string_view> all;
  for (const std::string_view id : rules_of(message)) {
    const std::string_view text = rule(id).message;
    // Two rules of a row may quote the same message. Several rows may name one rule: its words are
    // those of the first.
    const auto first =
        std::ranges::find_if(messages(), [&](const Message& m) { return check::names(m, id); });
    if (text.empty() || &*first != &message || std::ranges::find(all, text) != all.end()) continue;
    all.push_back(text);
  }
  for (const std::string_view text : check::split_at(message.says, '\n')) all.push_back(text);
  return all;
}

std::string_view meaning_of(const Message& message) {
  return message.meaning.empty() ? rule(rules_of(message).front()).meaning : message.meaning;
}

std::string sources_of(const Message& message) {
  std::vector<std::string_view> all;
  const auto add = [&](std::string_view source) {
    if (!source.empty() && std::ranges::find(all, source) == all.end()) all.push_back(source);
  };
  const std::vector<std::string_view> said = wordings(message);
  for (const std::string_view id : rules_of(message)) {
    if (std::ranges::find(said, rule(id).message) != said.end()) add(rule(id).source);
  }
  add(message.source);
  std::string joined;
  for (const std::string_view source : all)
    joined += (joined.empty() ? "" : "; ") + std::string(source);
  return joined;
}

std::string message_table_markdown() {
  std::string out;
  for (const Message& m : messages())
    out += fmt::format("- `{}`<a id=\"log-{}\"></a>: {}\n", m.id, m.id,
                       check::as_code(check::beginning_of(wordings(m).front())));
  return out;
}

}  // namespace twinrun
