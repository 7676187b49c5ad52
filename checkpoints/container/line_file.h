// Files of lines that a run adds one by one and an interrupted run continues: records of a drill,
// executions of a search. Each line is on the disk before the next one is written.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoints/container/open_file.h"
#include "program/base/result.h"

namespace twinrun {

// The lines of such a file that were written whole, without their line breaks. A crash can only
// spoil the last line: it lacks its line break, or, after a loss of power, some of its sectors are
// zeros. Such a line is left out. The views are into `text`.
std::vector<std::string_view> whole_lines(std::string_view text);

class LineFile {
 public:
  // Replaces the file, or makes it, with `lines`: whole lines with their line breaks, those that an
  // earlier run left. This is atomic: after an error, which says that it cannot be written, the
  // file is as it was.
  static Result<LineFile> begin(const std::string& path, std::string_view lines);

  // Adds a line, given without its line break, and waits until it is on the disk. Error: a full
  // disk and the like; part of the line may have been written, so nothing may be added after it.
  Status add(std::string_view line);

 private:
  LineFile(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Descriptor file_;
  std::string path_;
};

}  // namespace twinrun
