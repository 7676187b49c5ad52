// Writes and reads session.jsonl, and maps a command's exit code to an outcome.
#include "harness/search/session.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoints/container/array.h"
#include "program/base/json_checksum.h"
#include "program/base/json_text.h"

namespace twinrun::bisect {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr std::string_view kSessionName = "twinrun bisect";

std::string dump_line(const Json& json) {
  return with_checksum(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string head_line(const SessionHead& head) {
  return dump_line({{"session", kSessionName},
                    {"schema", kSchema},
                    {"axis", head.axis},
                    {"identity", Json::parse(head.identity)},
                    {"command", head.command}});
}

std::string execution_line(int64_t number, const Execution& e) {
  return dump_line({{"execution", number},
                    {"candidate", e.candidate},
                    {"outcome", to_string(e.outcome)},
                    {"why", e.why},
                    {"seconds", e.seconds},
                    {"log", e.log}});
}

std::optional<Outcome> outcome_named(const std::string& text) {
  for (const Outcome o : {Outcome::kGood, Outcome::kBad, Outcome::kSkip}) {
    if (text == to_string(o)) return o;
  }
  return std::nullopt;
}

// Adds the content of a line to the record. Error: what is wrong with the line.
Status take_line(const std::string& line, bool first, SessionRecord& record) {
  const auto parsed = parse_ordered_json_text(line);
  if (!parsed) return Error{"not a JSON object: it " + parsed.error().what, "", ""};
  const Json& j = *parsed;
  if (!j.is_object()) return Error{"not a JSON object", "", ""};
  TWINRUN_ASSIGN(const bool has_checksum, check_checksum(line, ""));
  record.has_checksums = record.has_checksums && has_checksum;
  try {
    if (first) {
      if (j.at("session") != kSessionName) return Error{"not a session of twinrun bisect", "", ""};
      if (j.at("schema") != kSchema) {
        return Error{fmt::format("schema {}, this program reads {}",
                                 j.at("schema").dump().substr(0, 40), kSchema),
                     "", ""};
      }
      record.head = {j.at("axis"), j.at("identity").dump(), j.at("command")};
    } else if (j.contains("result")) {
      record.result = j.at("result").dump();
    } else {
      const auto outcome = outcome_named(j.at("outcome"));
      if (!outcome) return Error{"outcome is none of good, bad, skip", "", ""};
      record.executions.push_back(
          {j.at("candidate"), *outcome, j.at("why"), j.at("seconds"), j.at("log")});
    }
  } catch (const Json::exception& e) {
    return Error{e.what(), "", ""};
  }
  return Ok{};
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  return outcome == Outcome::kGood ? "good" : outcome == Outcome::kBad ? "bad" : "skip";
}

Error interrupted() {
  return {"interrupted", "", "run the same command with --resume to continue",
          Error::Kind::kInterrupted};
}

Result<SessionRecord> read_session(const std::string& path) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  SessionRecord record;
  int64_t number = 0;
  for (const std::string_view line : whole_lines(text)) {
    if (const Status taken = take_line(std::string(line), number++ == 0, record); !taken) {
      return Error{taken.error().what, fmt::format("{}:{}", path, number),
                   "start again without --resume, or in another folder (-o)"};
    }
  }
  if (number == 0)
    return Error{text.empty() ? "is empty" : "holds no whole line", path,
                 "start again without --resume"};
  return record;
}

Result<std::unique_ptr<Session>> Session::open(const std::string& folder, const SessionHead& head,
                                               bool resume, Progress* progress) {
  namespace fs = std::filesystem;
  auto session = std::make_unique<Session>();
  session->path_ = (fs::path(folder) / kSessionFile).string();
  TWINRUN_ASSIGN(session->lock_, FolderLock::take(folder));
  std::error_code error;
  SessionRecord before;
  if (resume && fs::exists(session->path_, error)) {
    TWINRUN_ASSIGN(before, read_session(session->path_));
    if (before.head.axis != head.axis ||
        Json::parse(before.head.identity) != Json::parse(head.identity)) {
      return Error{fmt::format("is the session of another search: {}", before.head.command),
                   session->path_,
                   "repeat that search's arguments, or choose another folder with -o"};
    }
  }
  if (!before.has_checksums && progress != nullptr)
    progress->note(fmt::format("{} {}", session->path_, kNoChecksum));
  std::string known = head_line(head) + "\n";
  for (Execution& e : before.executions) {
    known += execution_line(++session->executions_, e) + "\n";
    session->known_[e.candidate].push_back(std::move(e));
  }
  TWINRUN_ASSIGN(session->file_, LineFile::begin(session->path_, known));
  return session;
}

const Execution* Session::next_known(const std::string& candidate) {
  const auto known = known_.find(candidate);
  if (known == known_.end()) return nullptr;
  size_t& used = used_[candidate];
  return used < known->second.size() ? &known->second[used++] : nullptr;
}

const std::vector<Execution>& Session::known(const std::string& candidate) const {
  static const std::vector<Execution> kNone;
  const auto known = known_.find(candidate);
  return known == known_.end() ? kNone : known->second;
}

Status Session::add(const Execution& execution) {
  return append(execution_line(++executions_, execution));
}

Status Session::finish(const std::string& result_json) {
  return append(dump_line({{"result", Json::parse(result_json)}}));
}

Status Session::append(const std::string& line) { return file_ ? file_->add(line) : Ok{}; }

Result<Outcome> outcome_of(const CommandResult& ran, const std::string& command) {
  switch (ran.ended) {
    case CommandResult::Ended::kInterrupted:
      return interrupted();
    case CommandResult::Ended::kTimeout:
      return Outcome::kSkip;
    case CommandResult::Ended::kExit:
      if (ran.code == 0) return Outcome::kGood;
      if (ran.code == 125) return Outcome::kSkip;
      if (ran.code < 128) return Outcome::kBad;
      break;
    case CommandResult::Ended::kSignal:
      break;
  }
  return Error{
      fmt::format("{}: not an answer about the candidate, so the search stops", ran.text()),
      command,
      "0 is good, 1 to 127 bad, 125 skip, as for git bisect run; a crash that counts as "
      "bad: -- sh -c 'COMMAND || exit 1'"};
}

}  // namespace twinrun::bisect
