// The checksum of a JSON document that this program writes and reads again (reports, records of
// searches, manifests), so that a digit that changed on the disk is not taken for a result. It is
// the last member of the document, `"checksum": "crc32:1a2b3c4d"`: the CRC-32 of zlib over all
// bytes before the quote that opens `"checksum"`. docs/reference/report-schema.md has the script
// that checks it.
//
//   write_file_atomically(path, with_checksum(json.dump(2) + "\n"));
//   TWINRUN_ASSIGN(const bool has_one, check_checksum(text, path));
//   if (!has_one) notes.push_back(path + " " + std::string(kNoChecksum));
#pragma once

#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun {

// Adds the member to the text of an object, in the layout of the text: on a line of its own with
// the same indent if the text has several lines, otherwise on the same line. Text that is not an
// object is returned as it is.
std::string with_checksum(std::string json);

// Whether the document has a checksum. Error: the document, or the checksum, was changed after it
// was written.
Result<bool> check_checksum(std::string_view json, const std::string& where);

// What to say of a document without one.
inline constexpr std::string_view kNoChecksum =
    "has no checksum, because an older version wrote it; a change of the file would not be noticed";

}  // namespace twinrun
