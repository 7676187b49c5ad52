// Containers for definitions. Sizes, indices and strides come from a trace, which anybody may have
// written, so every access is checked: one beyond the end makes the call Undefined, and never reads
// or writes another's memory.
//
//   Dims inner = dims.part(axis + 1);   // to the end
//   dims.put(-1, 1);                    // before the last one: numbers below zero count from the end
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace twinrun::aten {

// Thrown by a definition that does not cover a call; its text completes "not judged: ".
class Undefined : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
[[noreturn]] void beyond_the_end();  // throws Undefined

// a / b and a % b where b is an argument or a size, which may be anything.
inline int64_t quotient(int64_t a, int64_t b) {
  if (b == 0 || b == -1) [[unlikely]] {
    if (b == 0) throw Undefined("a division by a size or a step of 0");
    return static_cast<int64_t>(-static_cast<uint64_t>(a));
  }
  return a / b;
}
inline int64_t remainder(int64_t a, int64_t b) { return b == -1 ? 0 : a - quotient(a, b) * b; }

// A number as the integer that it is rounded towards zero to; one that no integer can hold makes the
// call Undefined.
inline int64_t as_integer(double x) {
  if (!(x > -0x1p62 && x < 0x1p62)) [[unlikely]]
    throw Undefined("a position that is no number, or too large");
  return static_cast<int64_t>(x);
}

template <typename T, typename Allocator = std::allocator<T>>
class Checked : public std::vector<T, Allocator> {
  using Base = std::vector<T, Allocator>;

 public:
  using Base::Base;
  Checked() = default;
  Checked(Base v) : Base(std::move(v)) {}  // NOLINT

  typename Base::reference operator[](size_t i) {
    if (i >= Base::size()) [[unlikely]]
      beyond_the_end();
    return Base::operator[](i);
  }
  typename Base::const_reference operator[](size_t i) const {
    if (i >= Base::size()) [[unlikely]]
      beyond_the_end();
    return Base::operator[](i);
  }
  typename Base::reference front() { return (*this)[0]; }
  typename Base::const_reference front() const { return (*this)[0]; }
  typename Base::reference back() { return (*this)[Base::size() - 1]; }
  typename Base::const_reference back() const { return (*this)[Base::size() - 1]; }
  void pop_back() {
    back();
    Base::pop_back();
  }

  Checked part(int64_t first) const { return part(first, static_cast<int64_t>(Base::size())); }
  Checked part(int64_t first, int64_t last) const {
    return Checked(Base::begin() + place(first), Base::begin() + place(last, place(first)));
  }
  void put(int64_t before, T value) {
    Base::insert(Base::begin() + place(before), std::move(value));
  }
  void drop(int64_t which) {
    (*this)[static_cast<size_t>(place(which))];
    Base::erase(Base::begin() + place(which));
  }
  void append(const Checked& more) { Base::insert(Base::end(), more.begin(), more.end()); }

 private:
  // A place from `least` to the end.
  int64_t place(int64_t i, int64_t least = 0) const {
    const auto n = static_cast<int64_t>(Base::size());
    if (i < 0) i += n;
    if (i < least || i > n) [[unlikely]]
      beyond_the_end();
    return i;
  }
};

using Dims = Checked<int64_t>;

}  // namespace twinrun::aten
