// Adds and checks the checksum of a JSON document, as the last member of its text.
#include "program/base/json_checksum.h"

#include <algorithm>
#include <boost/crc.hpp>
#include <cstdint>
#include <cstdio>

namespace twinrun {
namespace {

constexpr std::string_view kKey = "\"checksum\"", kKind = "crc32:", kBlanks = " \t\r\n";

std::string checksum_of(std::string_view text) {
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", static_cast<unsigned>(crc.checksum()));
  return std::string(kKind) + digits;
}

std::string_view without_blanks_at_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

std::string_view without_blanks_at_begin(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
}

// Removes `part`, and the blanks before and after it, from the begin of the text.
bool take(std::string_view& text, std::string_view part) {
  text = without_blanks_at_begin(text);
  if (!text.starts_with(part)) return false;
  text = without_blanks_at_begin(text.substr(part.size()));
  return true;
}

}  // namespace

std::string with_checksum(std::string json) {
  const size_t close = without_blanks_at_end(json).size();
  if (close == 0 || json[close - 1] != '}') return json;
  const std::string end = json.substr(close - 1);
  std::string_view members = without_blanks_at_end(std::string_view(json).substr(0, close - 1));
  const bool empty = members.ends_with('{');
  // The blanks between the brace and the first key, which every member of this level has.
  const size_t first = json.find_first_not_of(kBlanks, json.find('{') + 1);
  std::string indent = json.substr(json.find('{') + 1, first - json.find('{') - 1);
  if (empty) indent.clear();
  const std::string before_close = json.substr(members.size(), close - 1 - members.size());
  const std::string colon = json.find('\n') < close && !empty ? ": " : ":";
  json.resize(members.size());
  json += (empty ? "" : ",") + indent;
  const std::string sum = checksum_of(json);
  json += std::string(kKey) + colon + "\"" + sum + "\"" + before_close + end;
  return json;
}

Result<bool> check_checksum(std::string_view json, const std::string& where) {
  const size_t at = json.rfind(kKey);
  if (at == json.npos) return false;
  std::string_view rest = json.substr(at + kKey.size());
  if (!take(rest, ":") || !take(rest, "\"") || rest.empty()) return false;
  const size_t quote = std::min(rest.find('"'), rest.size() - 1);
  const std::string_view found = rest.substr(0, quote);
  rest.remove_prefix(quote + 1);
  const bool last = take(rest, "}") && rest.empty();
  if (!last && !found.starts_with(kKind)) return false;  // another member, of that name by chance
  if (last && found == checksum_of(json.substr(0, at))) return true;
  return Error{"was changed after it was written: its checksum does not fit its content", where,
               "restore the file or make it again; if the change is meant, delete its member "
               "`checksum`"};
}

}  // namespace twinrun
