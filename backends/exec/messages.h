// The protocol's JSON: what is said of a program, and what an engine says of itself.
#pragma once

#include <string>
#include <string_view>

#include "backends/core/backend.h"

namespace twinrun::exec {

inline constexpr int kProtocol = 1;

// Which of a program's outputs an engine must give; nothing else of them may be held against it.
bool is_asked_for(const Output& output);
std::string program_json(const Program& program, const std::string& scenario);
std::string hello();
std::string prepare(const std::string& program_file);
// state_file "": go on from the last step.
std::string step(const std::string& program_file, int64_t step, const std::string& inputs_file,
                 const std::string& state_file, const std::string& result);

// A line from an engine. Errors: no JSON object; it reports an error ("the engine says: ...").
struct Reply {
  std::string alive;   // not the answer yet
  std::string result;  // of a step
  std::string line;    // all of it
};
// Text from outside in an error: the beginning, without control characters, in quotes.
std::string shown(std::string_view text);
// `key`: what the answer must have ("hello", "prepared", "stepped"); `is` its value, for the latter two.
Result<Reply> parse_reply(const std::string& line, const std::string& key, const std::string& is,
                          const std::string& engine);
// Of the answer to hello.
Result<Capabilities> parse_hello(const std::string& line, const std::string& engine);

}  // namespace twinrun::exec
