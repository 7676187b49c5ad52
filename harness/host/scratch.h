// A new folder below the system's temporary folder, removed with the object.
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

// Creates a folder. Errors: it exists already; its parent does not exist.
Status new_folder(const std::string& path);

}  // namespace twinrun
