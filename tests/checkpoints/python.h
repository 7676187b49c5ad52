// Runs Python as an independent check. Debian's interpreter comes first, because the test packages
// (numpy, h5py, xxhash) are installed for it. A test whose packages are missing is skipped.
#pragma once

#include <cstdlib>
#include <string>

#include "tests/checkpoints/samples.h"

namespace twinrun::samples {

// The first interpreter that has these modules, such as "numpy, h5py"; or "" if there is none.
inline std::string python_with(const std::string& modules) {
  for (const char* name : {"/usr/bin/python3", "python3"}) {
    if (std::system((std::string(name) + " -c 'import " + modules + "' 2>/dev/null").c_str()) == 0)
      return name;
  }
  return "";
}

// The result of running a program in a folder: its exit status and its output, stderr included.
struct Printed {
  int code = -1;
  std::string text;
};
inline Printed run_python(const std::string& python, const Folder& folder,
                          const std::string& program) {
  write_bytes(folder / "program.py", program);
  const std::string command =
      "cd '" + folder.path() + "' && '" + python + "' program.py > python.out 2>&1 < /dev/null";
  const int code = std::system(command.c_str());
  return {code, read_bytes(folder / "python.out")};
}

}  // namespace twinrun::samples
