// What an errno of the operating system says about an Error: whether the machine has run out of
// something, or what was typed is wrong.
//
//   return Error{std::strerror(code), path, "free space", kind_of_failure(code)};
#pragma once

#include <cerrno>

#include "program/base/result.h"

namespace twinrun {

constexpr Error::Kind kind_of_failure(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO:
    case EROFS:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
    case ENOLCK:
      return Error::Kind::kMachine;
    default:
      return Error::Kind::kInput;
  }
}

}  // namespace twinrun
