// The JSON messages of the engine protocol (docs/reference/engine-protocol.md): writes the
// description of a program and the requests, and parses the replies of an engine.
#pragma once

#include <string>
#include <string_view>

#include "backends/core/backend.h"
#include "program/text/stablehlo.h"

namespace twinrun::exec {

inline constexpr int kProtocol = 1;

// Whether an engine must return this output of a program: the loss and the gradients. No other
// output is required of it.
bool is_asked_for(const Output& output);
// The text of an imported program, in a file of the session folder; nullptr: a scenario's model.
struct StepText {
  std::string file;
  const StableHlo* text = nullptr;
};
std::string program_json(const Program& program, const std::string& scenario,
                         const StepText& step = {});
std::string hello();
std::string prepare(const std::string& program_file);
// An empty state_file means: continue from the state after the last step.
std::string step(const std::string& program_file, int64_t step, const std::string& inputs_file,
                 const std::string& state_file, const std::string& result);

// A parsed line from an engine.
struct Reply {
  std::string alive;   // not empty: a sign of life with this text, not the answer yet
  std::string result;  // the result file of a step
  std::string line;    // the whole line of an answer
};
// Foreign text for an error message: at most 200 bytes of it, control characters replaced by
// blanks, in quotes.
std::string shown(std::string_view text);
// `key`: the key that the answer must have ("hello", "prepared", "stepped"); `is`: its expected
// value as JSON, "" for any. Errors: not a JSON object, another answer, or the engine reports an
// error ("the engine says: ...").
Result<Reply> parse_reply(const std::string& line, const std::string& key, const std::string& is,
                          const std::string& engine);
// What the answer to hello declares. Keys that are missing get the defaults of
// docs/reference/engine-protocol.md.
Result<Capabilities> parse_hello(const std::string& line, const std::string& engine);
// The devices that a hello lists, at most kMaxDevices of them; empty where it lists none.
inline constexpr size_t kMaxDevices = 512;
Result<std::vector<DeviceFacts>> parse_devices(const std::string& line, const std::string& engine);

}  // namespace twinrun::exec
