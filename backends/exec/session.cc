// The life of an engine's session: start or reuse, requests and replies, files, removal.
#include "backends/exec/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "backends/exec/session_files.h"
#include "checkpoints/container/safetensors.h"

namespace twinrun::exec {
namespace {

namespace fs = std::filesystem;
using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The idle session that is kept for reuse: it has answered hello and received no other request.
std::shared_ptr<Session>& kept() {
  static std::shared_ptr<Session> session;
  return session;
}

}  // namespace

Session::Session(const ExecOptions& options) : options_(options) {
  constexpr size_t kMaxName = 160;
  name_ = "exec:" + options_.command;
  if (name_.size() > kMaxName) name_ = name_.substr(0, kMaxName) + "...";
}

void Session::leave(std::shared_ptr<Session> session) {
  if (session->options_.reuse_idle && session.use_count() == 1 && session->is_idle())
    kept() = std::move(session);
}

Result<std::shared_ptr<Session>> Session::start(const ExecOptions& options) {
  if (options.reuse_idle) {
    const std::shared_ptr<Session> idle = std::exchange(kept(), nullptr);
    if (idle != nullptr && idle->options_.command == options.command && idle->is_idle()) {
      idle->options_ = options;
      return idle;
    }
  }
  const std::shared_ptr<Session> s(new Session(options));
  std::vector<std::string> words = command_words(options.command);
  if (words.empty())
    return Error{"the command is missing",
                 "exec:", "exec:COMMAND, for example exec:'python3 engine.py'",
                 Error::Kind::kForeignEngine};
  TWINRUN_ASSIGN(TemporaryFolder made,
                 TemporaryFolder::make("engine").with_kind(Error::Kind::kUnavailable));
  s->folder_.emplace(std::move(made));
  const std::string& folder = s->folder();
  words.push_back(folder);
  TWINRUN_ASSIGN(s->child_,
                 Child::start(words, folder, s->name_).with_kind(Error::Kind::kForeignEngine));
  TWINRUN_ASSIGN(const Reply reply, s->ask(hello(), "hello", "", options.slow));
  TWINRUN_ASSIGN(s->declared_,
                 parse_hello(reply.line, s->name_).with_kind(Error::Kind::kForeignEngine));
  TWINRUN_ASSIGN(s->devices_,
                 parse_devices(reply.line, s->name_).with_kind(Error::Kind::kForeignEngine));
  return s;
}

Session::~Session() {
  if (child_) child_->end(Milliseconds(broken_ ? 200 : 5000));
}

Result<Reply> Session::ask(const std::string& message, const std::string& key,
                           const std::string& is, Milliseconds limit) {
  return ask_engine(message, key, is, limit).with_kind(Error::Kind::kForeignEngine);
}

Result<Reply> Session::ask_engine(const std::string& message, const std::string& key,
                                  const std::string& is, Milliseconds limit) {
  if (broken_) return Error{"has already failed", name_, ""};
  broken_ = true;  // until a valid answer has come
  ++asked_;
  // Signs of life may come at any time. Any other unread line is an answer without a request.
  const std::string more = child_->unread();
  for (size_t at = 0, end; (end = more.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = more.substr(at, end - at);
    const auto reply = parse_reply(line, key, is, name_);
    if (!reply || reply->alive.empty()) {
      return Error{"sent a message that was not requested: " + shown(line), name_,
                   "send one reply to each request (docs/reference/engine-protocol.md)"};
    }
  }
  TWINRUN_RETURN_IF_ERROR(child_->send(message));
  const auto end = Clock::now() + std::max(limit, options_.longest);
  for (std::string alive;;) {
    const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
    const auto line = child_->receive(std::min(limit, left));
    if (!alive.empty() && Clock::now() >= end) {
      return Error{"reports that it is alive (\"" + alive + "\") but has not answered within " +
                       std::to_string(options_.longest.count() / 1000) + " s",
                   name_, ""};
    }
    if (!line.ok()) return line.error();
    TWINRUN_ASSIGN(Reply reply, parse_reply(*line, key, is, name_));
    if (reply.alive.empty()) {
      broken_ = false;
      return reply;
    }
    alive = reply.alive;
    if (options_.on_alive) options_.on_alive(alive);
  }
}

Status Session::write(const std::string& name, const ArrayFile& file) const {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(file, name));
  return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Status Session::write(const std::string& name, std::string_view bytes) const {
  std::error_code ignored;
  fs::remove_all(fs::path(folder()) / name, ignored);  // whatever the engine has put there
  return write_session_file(folder(), name, bytes);
}

void Session::remove(const std::string& name) const {
  std::error_code ignored;
  fs::remove(fs::path(folder()) / name, ignored);
}

}  // namespace twinrun::exec
