// An example of a project that uses an installed twinrun: find_package(twinrun), one target,
// headers by their folder.
#include <cstdio>

#include "backends/core/backend.h"
#include "backends/registry.h"
#include "program/base/digest.h"

int main() {
  const twinrun::Digest digest = twinrun::digest_bytes("abc", 3);
  std::printf("%s %s\n", digest.hex().c_str(), twinrun::backend_names().front().c_str());
}
