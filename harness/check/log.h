// What an error or a whole log of the software around a TPU says: each line is compared with the
// table of messages (messages.h), with the arguments read out of it. Logs are not trusted: at most
// kMaxLogBytes are read, line by line, in time linear in their size. On the data's path: log file
// or stdin -> LogReading (here) -> terminal, JSON.
//
//   std::ifstream in("train.log");
//   LogReading reading = read_log(in, "train.log");
//   reading.findings[0].message->id;  // "hbm-full"
//   find_places(checked, reading);    // the layers and instructions that it names
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "harness/check/messages.h"
#include "reports/memory.h"

namespace twinrun {

inline constexpr size_t kMaxLogBytes = size_t{64} << 20;

// An argument of a message. Where the table has {}, the name is its number: "1".
struct LogArgument {
  std::string name, value;
  bool operator==(const LogArgument&) const = default;
};

// One of the largest allocations, as the compiler lists them. All fields but `bytes` as printed.
struct LoggedAllocation {
  std::string size, unpadded, expansion;  // "32.00G", "1.00G", "32.0"
  std::string op, shape, label, type;     // `op`: its name; `label`: the HLO instruction
  int64_t bytes = 0;
};

// What an out-of-memory message says. Bytes are 0 where it does not.
struct LoggedMemory {
  int64_t used = 0, limit = 0, exceeded = 0;
  std::vector<LoggedAllocation> largest;  // at most kMaxLoggedAllocations
};
inline constexpr size_t kMaxLoggedAllocations = 20;

// All places of a log that match one row of the table.
struct LogFinding {
  const Message* message = nullptr;
  std::string_view part_of;            // the wording, if the log is a single piece of one
  size_t line = 0;                     // of the first, from 1
  size_t count = 0;                    // of places
  std::string text;                    // of the first, without its prefix
  std::vector<LogArgument> arguments;  // of the first
  std::vector<std::string> others;     // texts with other arguments, at most kMaxOtherTexts
  std::optional<LoggedMemory> memory;
  std::vector<std::string> places;         // in the program: "digits.toml:31: conv1"
  std::vector<std::string_view> agreeing;  // rules that find it in the scenario or program, too
};
inline constexpr size_t kMaxOtherTexts = 7;

struct LogReading {
  std::string name;
  size_t lines = 0;
  bool cut = false;  // longer than kMaxLogBytes, and read up to there
  // Causes, then consequences, then remarks, each in the order of the log.
  std::vector<LogFinding> findings;
  size_t count(MessageKind kind) const;  // of findings
};

LogReading read_log(std::istream& in, std::string name);

// Fills in `places` and `agreeing`.
void find_places(const Checked& checked, LogReading& reading);

// Which changes of a memory report save as much as the log says is missing, in words; nothing if
// the log does not say how much. `report` needs option `fit` for the largest batch.
std::vector<std::string> memory_advice(const LoggedMemory& logged, const MemoryReport& report);

int64_t logged_bytes(std::string_view size);  // "9.08G" -> bytes; 0 if it is no size

namespace check {

// A line (or a piece of a very long one) without colours, control characters and the prefixes that
// loggers put before a message. `letters` is `text` without what wrapping and rendering change:
// spaces and backticks; letters[i] is text[at[i]].
struct LogLine {
  size_t number = 0;
  std::string text, letters;
  std::vector<uint32_t> at;
};
LogLine clean_line(std::string_view raw, size_t number);
std::string letters_of(std::string_view text);

// Reads the list of largest allocations that follows an out-of-memory message.
class AllocationReader {
 public:
  bool read(std::string_view line);  // false: the list is over
  std::vector<LoggedAllocation> take();

 private:
  std::vector<LoggedAllocation> read_;
  size_t lines_since_ = 0;  // the last line that belongs to the list
};

}  // namespace check
}  // namespace twinrun
