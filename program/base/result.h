// Errors that a user or a file can cause are values: what, where, how to fix. Used on the whole
// path.
//
//   Result<int> parse(...) {
//     return Error{"batch is 100", "digits.toml:7: train.batch", "use a multiple of 8"};
//   }
//   auto r = parse(...);  if (!r) return r.error();   use(*r);
//   TWINRUN_ASSIGN(int n, parse(...));                // returns the error from this function
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace twinrun {

struct Error {
  // Whose fault it is. Exit codes and decisions follow the kind, never the text.
  enum class Kind : uint8_t {
    kInput,          // what the user typed, or a file
    kRun,            // a run began and then failed, for example by a loss that is not finite
    kForeignEngine,  // an engine of another process does not start, or has failed
    kRefusal,        // such an engine works, and declines the program
    kUnavailable,    // this engine or machine cannot do what was requested
    kInterrupted,    // the user asked to stop
    kMachine,  // the machine has run out of disk, memory, files or threads: nothing was learnt
  };

  std::string what;   // what was found and what is allowed
  std::string where;  // file, line, key, tensor, layer: may be empty
  std::string fix;    // the nearest valid name, the command to run: may be empty
  Kind kind = Kind::kInput;

  bool of_foreign_engine() const { return kind == Kind::kForeignEngine || kind == Kind::kRefusal; }
  // "where: what", and on a second line "fix: ...", without the parts that are empty.
  std::string message() const {
    std::string out = where.empty() ? what : where + ": " + what;
    if (!fix.empty()) out += "\n  fix: " + fix;
    return out;
  }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : value_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  explicit operator bool() const { return value_.index() == 0; }
  bool ok() const { return value_.index() == 0; }
  T& operator*() & { return std::get<0>(value_); }
  const T& operator*() const& { return std::get<0>(value_); }
  T&& operator*() && { return std::get<0>(std::move(value_)); }
  T* operator->() { return &std::get<0>(value_); }
  const T* operator->() const { return &std::get<0>(value_); }
  const Error& error() const { return std::get<1>(value_); }
  // The same, but an error that has only the default kind gets this one.
  Result with_kind(Error::Kind kind) && {
    if (auto* error = std::get_if<1>(&value_); error && error->kind == Error::Kind::kInput)
      error->kind = kind;
    return std::move(*this);
  }

 private:
  std::variant<T, Error> value_;
};

struct Ok {};
using Status = Result<Ok>;

}  // namespace twinrun

#define TWINRUN_CONCAT_(a, b) a##b
#define TWINRUN_CONCAT(a, b) TWINRUN_CONCAT_(a, b)
#define TWINRUN_ASSIGN(lhs, expr) TWINRUN_ASSIGN_IMPL(TWINRUN_CONCAT(result_, __LINE__), lhs, expr)
#define TWINRUN_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                        \
  if (!tmp.ok()) return tmp.error();        \
  lhs = *std::move(tmp)
#define TWINRUN_RETURN_IF_ERROR(expr)          \
  do {                                         \
    auto status_ = (expr);                     \
    if (!status_.ok()) return status_.error(); \
  } while (false)
