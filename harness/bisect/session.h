// What a search has asked and been told: one line of JSON for each execution, on the disk before the next one begins. An
// interrupted search goes on from it; read again, it is a replay.
//
//   TWINRUN_ASSIGN(auto session, Session::open("out", {"rev", R"({"good":"..."})", "twinrun bisect rev ..."}, /*resume=*/true));
//   if (const Execution* known = session->next_known(candidate)) ...    // told before the interruption
//   TWINRUN_RETURN_IF_ERROR(session->add(execution));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/host/command.h"
#include "harness/host/folder_lock.h"
#include "program/base/result.h"

namespace twinrun::bisect {

enum class Outcome : uint8_t { kGood, kBad, kSkip };
std::string_view to_string(Outcome outcome);  // "good", "bad", "skip"

// The error of a search that a signal has ended.
Error interrupted();

// One try of one candidate.
struct Execution {
  std::string candidate;
  Outcome outcome = Outcome::kSkip;
  std::string why;     // "exit code 1", "NOISE", "the build failed"
  double seconds = 0;  // wall clock
  std::string log;     // file of its output, below the session's folder; "": none
};

// Of which search. A session of another axis or identity is not gone on with.
struct SessionHead {
  std::string axis;      // "rev", "config"
  std::string identity;  // JSON: all that decides what an execution answers
  std::string command;   // as typed
};

struct SessionRecord {
  SessionHead head;
  std::vector<Execution> executions;  // in the order in which they were made
  std::string result;                 // JSON; "": the search has not ended
};

inline constexpr std::string_view kSessionFile = "session.jsonl";

// Errors name the file and the line. A last line that was cut short is left out.
Result<SessionRecord> read_session(const std::string& path);

class Session {
 public:
  // Kept nowhere: for searches of seconds.
  Session() = default;
  // FOLDER/session.jsonl. With `resume`, what is there is known; otherwise it begins anew. Errors: a session of something else, a
  // folder that cannot be written.
  static Result<std::unique_ptr<Session>> open(const std::string& folder, const SessionHead& head,
                                               bool resume);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The candidate's next execution that an earlier search made; nullptr: there is none left.
  const Execution* next_known(const std::string& candidate);
  // Its first, whether or not it was taken.
  const Execution* first_known(const std::string& candidate) const;
  Status add(const Execution& execution);
  Status finish(const std::string& result_json);
  // Of earlier searches and this one.
  int64_t executions() const { return executions_; }

 private:
  Status append(const std::string& line);
  std::string path_;
  std::optional<FolderLock> lock_;
  int file_ = -1;
  int64_t executions_ = 0;
  std::map<std::string, std::vector<Execution>> known_;
  std::map<std::string, size_t> used_;
};

// As `git bisect run` takes it: 0 good, 125 skip, 1 to 127 bad; a deadline that has passed: skip. Errors: 128 and beyond, and signals, which say
// nothing about the candidate; interrupted.
Result<Outcome> outcome_of(const CommandResult& ran, const std::string& command);

}  // namespace twinrun::bisect
