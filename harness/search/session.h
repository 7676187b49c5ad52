// The record of a search: one line of JSON per execution, written to disk before the next one
// begins. An interrupted search resumes from it; `twinrun bisect --replay` shows it without running
// anything.
//
//   const SessionHead head{"rev", R"({"good":"..."})", "twinrun bisect rev ..."};
//   TWINRUN_ASSIGN(auto session, Session::open("out", head, /*resume=*/true));
//   if (const Execution* known = session->next_known(candidate)) ...   // of an earlier search
//   TWINRUN_RETURN_IF_ERROR(session->add(execution));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/container/line_file.h"
#include "harness/host/command.h"
#include "harness/host/folder_lock.h"
#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun::bisect {

enum class Outcome : uint8_t { kGood, kBad, kSkip };
std::string_view to_string(Outcome outcome);  // "good", "bad", "skip"

// The error of a search that was ended by a signal.
Error interrupted();

// One execution of one candidate.
struct Execution {
  std::string candidate;
  Outcome outcome = Outcome::kSkip;
  std::string why;     // "exit code 1", "NOISE", "the build failed"
  double seconds = 0;  // wall clock
  std::string log;     // file of its output, below the session's folder; "": none
};

// Identifies the search. A session of another axis or identity is not resumed.
struct SessionHead {
  std::string axis;      // "rev", "config", "package"
  std::string identity;  // JSON: everything that determines the answer of an execution
  std::string command;   // as typed
};

struct SessionRecord {
  SessionHead head;
  std::vector<Execution> executions;  // in the order in which they were made
  std::string result;                 // JSON; "": the search has not ended
  bool has_checksums = true;          // false: an older version wrote lines without one
};

inline constexpr std::string_view kSessionFile = "session.jsonl";

// Errors name the file and the line; a line that was changed after it was written is one. An
// incomplete last line is ignored.
Result<SessionRecord> read_session(const std::string& path);

class Session {
 public:
  // A session without a file, for searches that take seconds.
  Session() = default;
  // Opens FOLDER/session.jsonl. With `resume`, the executions in it are known; otherwise it starts
  // empty. `progress` is told of lines without a checksum. Errors: a session of another search, one
  // that was changed after it was written, a folder that cannot be written.
  static Result<std::unique_ptr<Session>> open(const std::string& folder, const SessionHead& head,
                                               bool resume, Progress* progress = nullptr);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The candidate's next execution from an earlier search; nullptr: there is none left.
  const Execution* next_known(const std::string& candidate);
  // All executions of the candidate from an earlier search, with those that next_known has returned.
  const std::vector<Execution>& known(const std::string& candidate) const;
  Status add(const Execution& execution);
  Status finish(const std::string& result_json);
  // Number of executions of earlier searches and of this one.
  int64_t executions() const { return executions_; }

 private:
  Status append(const std::string& line);
  std::string path_;
  std::optional<FolderLock> lock_;
  std::optional<LineFile> file_;
  int64_t executions_ = 0;
  std::map<std::string, std::vector<Execution>> known_;
  std::map<std::string, size_t> used_;
};

// Reads an exit code as `git bisect run` does: 0 good, 125 skip, others from 1 to 127 bad; a
// timeout is a skip. Errors: 128 and above, and signals, which say nothing about the candidate;
// interrupted.
Result<Outcome> outcome_of(const CommandResult& ran, const std::string& command);

}  // namespace twinrun::bisect
