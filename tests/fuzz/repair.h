// Makes the checksums of a mutated file right, so that what lies behind them is reached.
#pragma once

#include <string>
#include <string_view>

namespace twinrun::fuzz {

// Of each record of a TFRecord or event file, up to the first whose length does not fit.
std::string with_record_checksums(std::string_view bytes);
// Of each record of a trace (docs/reference/trace-format.md), likewise.
std::string with_trace_checksums(std::string_view bytes);

// Of a JSON document, or of each line of a record (program/base/json_checksum.h).
std::string with_json_checksums(std::string_view text, bool by_line = false);

void write_text(const std::string& path, std::string_view text);

}  // namespace twinrun::fuzz
