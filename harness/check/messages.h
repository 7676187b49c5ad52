// The table of messages: what the software around a TPU prints when something is wrong, what it
// means and what to do. A row names the rules (rules.cc) that find the same before a run; where a
// rule quotes the message already, the words are kept there alone. Used by read_log (log.h).
//
//   messages()[0].id;         // "batch-size-missing"
//   wordings(messages()[0]);  // with {name} or {} for each argument
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "harness/check/check.h"

namespace twinrun {

// A cause says what is wrong; a consequence follows from something else that is in the log or on
// another machine; a remark needs no action, or only costs time.
enum class MessageKind : uint8_t { kCause, kConsequence, kRemark };
std::string_view to_string(MessageKind kind);  // "cause", "consequence", "remark"

// A row. docs/guides/check.md has the id of each and how it begins; `./dev docs` writes them.
struct Message {
  std::string_view id;  // stable
  MessageKind kind;
  std::string_view rules;    // ids, separated by spaces; "": no rule finds it before a run
  std::string_view says;     // one wording a line, besides those of the rules
  std::string_view meaning;  // "": that of the first rule
  std::string_view fix;
  std::string_view source;  // of the wordings in `says`
};

std::span<const Message> messages();
std::vector<std::string_view> rules_of(const Message& message);
std::vector<std::string_view> wordings(const Message& message);  // those of its rules first
std::string_view meaning_of(const Message& message);
std::string sources_of(const Message& message);  // of all wordings
std::string message_table_markdown();            // for docs/guides/check.md

namespace check {

// The parts of the table, each by the software that prints it.
std::span<const Message> tensorflow_messages();
std::span<const Message> runtime_messages();
std::span<const Message> jax_messages();
std::span<const Message> pytorch_messages();

}  // namespace check
}  // namespace twinrun
