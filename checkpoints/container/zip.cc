// Reads and writes zip archives with libarchive.
#include "checkpoints/container/zip.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>

namespace twinrun {
namespace {

constexpr uint64_t kDeflateRatio = 1032;  // zlib, "Technical Details"
// What numbers, images and text yield for each packed byte, and what any archive may yield: weights
// of a state that has not been trained are zeros.
constexpr uint64_t kUsualRatio = 100, kUnusual = uint64_t{256} << 20;
constexpr size_t kMaxMembers = 100'000;

using Reader = std::unique_ptr<archive, decltype(&archive_read_free)>;
using Writer = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Entry = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

Error zip_error(archive* a, const std::string& where) {
  const char* text = archive_error_string(a);
  return {
      fmt::format("is not a readable zip archive ({})", text != nullptr ? text : "no reason given"),
      where, "the file is damaged, cut short, encrypted or of another format"};
}

// False for a name that would leave the folder it is unpacked to. We unpack nothing, but such an
// archive is an attack.
bool plain_path(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos)
    return false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part == ".." || part == ".") return false;
    begin = end + 1;
  }
  return std::ranges::none_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

// Whether the current member is stored or deflated. libarchive unpacks five more methods, whose
// members pack far more tightly and may demand gigabytes of memory for a dictionary.
bool plainly_packed(archive* a) {
  const char* name = archive_format_name(a);  // "ZIP 2.0 (deflation)"
  const std::string_view format = name != nullptr ? name : "";
  return format.ends_with("(deflation)") || format.ends_with("(uncompressed)");
}

// Reads the current member's content; `left` is how many bytes the archive may still yield,
// `declared` how many the member says that it has.
Status read_content(archive* a, const std::string& place, uint64_t& left, uint64_t declared,
                    std::vector<std::byte>& out) {
  const auto too_much = [&] {
    return Error{"unpacks to more than any array file of this size would", place,
                 "it is a zip bomb, or packed far more tightly than weights are: save it "
                 "uncompressed"};
  };
  if (declared > left) return too_much();
  out.reserve(declared);
  for (;;) {
    const void* block = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    const int code = archive_read_data_block(a, &block, &size, &offset);
    if (code == ARCHIVE_EOF) return Ok{};
    if (code != ARCHIVE_OK) return zip_error(a, place);
    if (static_cast<uint64_t>(offset) != out.size())
      return Error{"has gaps between its members", place, ""};
    if (size > left) return too_much();
    left -= size;
    const auto* from = static_cast<const std::byte*>(block);
    out.insert(out.end(), from, from + size);
  }
}

}  // namespace

Result<std::vector<ZipMember>> read_zip(std::span<const std::byte> bytes, const std::string& where,
                                        const std::function<bool(const std::string&)>& wanted,
                                        uint64_t max_unpacked) {
  // libarchive takes an archive without members, which is its end record alone, for none.
  constexpr size_t kEndRecord = 22;
  if (bytes.size() == kEndRecord && std::memcmp(bytes.data(), "PK\5\6", 4) == 0)
    return std::vector<ZipMember>();
  const Reader a(archive_read_new(), &archive_read_free);
  if (a == nullptr || archive_read_support_format_zip_seekable(a.get()) != ARCHIVE_OK ||
      archive_read_open_memory(a.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    return zip_error(a.get(), where);
  }
  uint64_t left = std::min({bytes.size() * kDeflateRatio, bytes.size() + max_unpacked,
                            bytes.size() * kUsualRatio + kUnusual});
  std::vector<ZipMember> members;
  std::set<std::string> names;
  for (;;) {
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(a.get(), &entry);
    if (code == ARCHIVE_EOF) return members;
    // A warning concerns a name that the locale cannot represent; the UTF-8 name is available.
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) return zip_error(a.get(), where);
    const char* utf8 = archive_entry_pathname_utf8(entry);
    const char* name = utf8 != nullptr ? utf8 : archive_entry_pathname(entry);
    if (name == nullptr || !plain_path(name)) {
      return Error{fmt::format("holds a member named '{}'; expected a plain relative path",
                               name != nullptr ? name : ""),
                   where, "do not trust this file"};
    }
    if (archive_entry_filetype(entry) == AE_IFDIR) continue;
    ZipMember member{name, {}, false};
    const std::string place = fmt::format("{}:{}", where, member.name);
    if (archive_entry_filetype(entry) != AE_IFREG) return Error{"is not a regular file", place, ""};
    if (!names.insert(member.name).second) {
      return Error{fmt::format("holds two members named '{}'", member.name), where,
                   "write the file again"};
    }
    if (members.size() == kMaxMembers) {
      return Error{fmt::format("has more than {} members", kMaxMembers), where, ""};
    }
    if (wanted(member.name)) {
      if (!plainly_packed(a.get())) {
        return Error{fmt::format("is packed by another method than deflate ({})",
                                 archive_format_name(a.get())),
                     place, "write it again, deflated or uncompressed"};
      }
      const la_int64_t size = archive_entry_size_is_set(entry) != 0 ? archive_entry_size(entry) : 0;
      TWINRUN_RETURN_IF_ERROR(read_content(a.get(), place, left,
                                           static_cast<uint64_t>(std::max<la_int64_t>(size, 0)),
                                           member.bytes));
      member.read = true;
    }
    members.push_back(std::move(member));
  }
}

Result<std::vector<std::byte>> to_zip(const std::vector<ZipMember>& members,
                                      const std::string& where, ZipPacking packing) {
  std::vector<std::byte> out;
  const Writer a(archive_write_new(), &archive_write_free);
  const auto append = [](archive*, void* to, const void* data, size_t size) -> la_ssize_t {
    try {
      auto* bytes = static_cast<std::vector<std::byte>*>(to);
      const auto* from = static_cast<const std::byte*>(data);
      bytes->insert(bytes->end(), from, from + size);
      return static_cast<la_ssize_t>(size);
    } catch (const std::exception&) {
      return -1;  // exceptions must not pass through C
    }
  };
  const auto error = [&] {
    const char* text = archive_error_string(a.get());
    return Error{fmt::format("cannot make the zip archive ({})", text != nullptr ? text : ""),
                 where, ""};
  };
  if (a == nullptr || archive_write_set_format_zip(a.get()) != ARCHIVE_OK ||
      (packing == ZipPacking::kStored
           ? archive_write_zip_set_compression_store(a.get())
           : archive_write_zip_set_compression_deflate(a.get())) != ARCHIVE_OK ||
      archive_write_set_bytes_in_last_block(a.get(), 1) != ARCHIVE_OK ||  // no padding
      archive_write_open(a.get(), &out, nullptr, append, nullptr) != ARCHIVE_OK) {
    return error();
  }
  for (const ZipMember& member : members) {
    const Entry entry(archive_entry_new(), &archive_entry_free);
    if (entry == nullptr) return error();
    archive_entry_set_pathname_utf8(entry.get(), member.name.c_str());
    archive_entry_set_pathname(entry.get(), member.name.c_str());
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(member.bytes.size()));
    if (archive_write_header(a.get(), entry.get()) != ARCHIVE_OK) return error();
    const std::byte* data = member.bytes.data();
    for (size_t left = member.bytes.size(); left != 0;) {
      const la_ssize_t n = archive_write_data(a.get(), data, left);
      if (n <= 0) return error();
      data += n;
      left -= static_cast<size_t>(n);
    }
  }
  if (archive_write_close(a.get()) != ARCHIVE_OK) return error();
  return out;
}

}  // namespace twinrun
