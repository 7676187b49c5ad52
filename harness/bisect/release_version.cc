// Reads versions by the grammar of PEP 440, appendix B.
#include "harness/bisect/release_version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "program/base/names.h"

namespace twinrun::bisect {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class VersionReader {
 public:
  explicit VersionReader(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::optional<uint64_t> number() {
    if (at_end() || !is_digit(rest_[0])) return std::nullopt;
    uint64_t n = 0;
    for (; !at_end() && is_digit(rest_[0]); rest_.remove_prefix(1)) {
      const auto digit = static_cast<uint64_t>(rest_[0] - '0');
      if (n > (UINT64_MAX - 1 - digit) / 10) return std::nullopt;
      n = 10 * n + digit;
    }
    return n;
  }
  // One of the words, with a separator before it and one between it and its number, both optional.
  // Returns the number, 0 without one; nothing is taken if no word is there.
  std::optional<uint64_t> suffix(std::initializer_list<std::string_view> words) {
    const std::string_view before = rest_;
    separator();
    for (const std::string_view word : words) {
      if (!take(word)) continue;
      const std::string_view after = rest_;
      separator();
      if (at_end() || !is_digit(rest_[0])) {
        rest_ = after;
        return 0;
      }
      const auto n = number();
      if (n) return n;
      break;
    }
    rest_ = before;
    return std::nullopt;
  }
  std::string word() {
    size_t n = 0;
    while (n < rest_.size() && std::isalnum(static_cast<unsigned char>(rest_[n])) != 0) ++n;
    std::string found(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return found;
  }
  void separator() {
    if (!at_end() && std::string_view("-_.").find(rest_[0]) != std::string_view::npos)
      rest_.remove_prefix(1);
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace

std::strong_ordering ReleaseVersion::operator<=>(const ReleaseVersion& other) const {
  const auto key = [](const ReleaseVersion& v) {
    return std::tuple(v.epoch_, v.release_, v.pre_, v.post_, v.dev_.value_or(UINT64_MAX), v.local_);
  };
  return key(*this) <=> key(other);
}

Result<ReleaseVersion> ReleaseVersion::parse(std::string_view text) {
  const Error wrong{fmt::format("'{}' is not a version", text), "", "such as 0.4.28 or 2.1.0rc1"};
  const std::string lower = lower_case(text);
  VersionReader in(lower);
  ReleaseVersion v;
  in.take("v");
  auto n = in.number();
  if (n && in.take("!")) {
    v.epoch_ = *n;
    n = in.number();
  }
  if (!n) return wrong;
  v.release_.push_back(*n);
  while (in.rest().size() > 1 && in.rest()[0] == '.' && is_digit(in.rest()[1])) {
    in.take(".");
    const auto next = in.number();
    if (!next) return wrong;
    v.release_.push_back(*next);
  }
  while (v.release_.size() > 1 && v.release_.back() == 0) v.release_.pop_back();
  if (const auto a = in.suffix({"alpha", "a"})) {
    v.pre_ = {kAlpha, *a};
  } else if (const auto b = in.suffix({"beta", "b"})) {
    v.pre_ = {kBeta, *b};
  } else if (const auto c = in.suffix({"preview", "pre", "rc", "c"})) {
    v.pre_ = {kCandidate, *c};
  }
  if (in.rest().size() > 1 && in.rest()[0] == '-' && is_digit(in.rest()[1])) {
    in.take("-");
    v.post_ = in.number();
    if (!v.post_) return wrong;
  } else {
    v.post_ = in.suffix({"post", "rev", "r"});
  }
  v.dev_ = in.suffix({"dev"});
  if (v.dev_ && v.pre_.first == kFinal && !v.post_) v.pre_ = {kDevelopment, 0};
  if (in.take("+")) {
    do {
      const std::string part = in.word();
      if (part.empty()) return wrong;
      VersionReader digits(part);
      const auto value = digits.number();
      if (value && digits.at_end()) {
        v.local_.emplace_back(true, *value, "");
      } else {
        v.local_.emplace_back(false, 0, part);
      }
    } while (!in.at_end() && (in.take(".") || in.take("-") || in.take("_")));
  }
  if (!in.at_end()) return wrong;
  return v;
}

}  // namespace twinrun::bisect
