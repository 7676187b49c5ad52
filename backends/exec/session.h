// One engine process and its session folder: exchanges messages and writes files. Destroying this
// object ends the process and removes the folder.
//
//   TWINRUN_ASSIGN(auto session, Session::start(options));
//   TWINRUN_ASSIGN(const Reply reply,
//                  session->ask(exec::prepare(file), "prepared", quoted, options.slow));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backends/exec/child.h"
#include "backends/exec/exec_backend.h"
#include "backends/exec/messages.h"
#include "checkpoints/container/array.h"
#include "checkpoints/container/temporary.h"

namespace twinrun::exec {

class Session {
 public:
  static Result<std::shared_ptr<Session>> start(const ExecOptions& options);
  // Releases a session: ends it, or keeps it for the next start() (ExecOptions::reuse_idle).
  static void leave(std::shared_ptr<Session> session);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Sends a request and returns the answer, which must have `key` with the value `is` (JSON; "" for
  // any). It must come within `limit` after the request or the last sign of life, and in total
  // within ExecOptions::longest (or `limit`, if that is longer). After an error the session cannot
  // be used any more.
  Result<Reply> ask(const std::string& message, const std::string& key, const std::string& is,
                    std::chrono::milliseconds limit);
  // Writes a new file into the folder, and first removes whatever has its name.
  Status write(const std::string& name, const ArrayFile& file) const;
  Status write(const std::string& name, std::string_view bytes) const;
  void remove(const std::string& name) const;

  const std::string& folder() const { return folder_->path(); }
  // What errors give as their place: "exec:COMMAND".
  const std::string& name() const { return name_; }
  const ExecOptions& options() const { return options_; }
  const Capabilities& declared() const { return declared_; }
  const std::vector<DeviceFacts>& devices() const { return devices_; }
  int next_program() { return ++programs_; }
  int next_request() { return requests_++; }

 private:
  explicit Session(const ExecOptions& options);
  Result<Reply> ask_engine(const std::string& message, const std::string& key,
                           const std::string& is, std::chrono::milliseconds limit);
  bool is_idle() const { return !broken_ && asked_ == 1 && child_->is_quiet(); }
  ExecOptions options_;
  std::string name_;
  std::optional<TemporaryFolder> folder_;  // removed after the child has ended
  std::unique_ptr<Child> child_;
  Capabilities declared_;
  std::vector<DeviceFacts> devices_;
  int programs_ = 0, requests_ = 0, asked_ = 0;
  bool broken_ = false;
};

}  // namespace twinrun::exec
