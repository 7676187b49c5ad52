// A folder of one's own below the system's temporary one, gone with the object.
//
//   TWINRUN_ASSIGN(const Scratch work, Scratch::make("twinrun-bundle"));
//   work.path();                              // "/tmp/twinrun-bundle-Ab12Cd"
#pragma once

#include <string>
#include <utility>

#include "program/base/result.h"

namespace twinrun {

class Scratch {
 public:
  static Result<Scratch> make(const std::string& name);
  ~Scratch();
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A folder that was not there; its parent must be.
Status new_folder(const std::string& path);

}  // namespace twinrun
