// The members of a bundle while it is made: each is named in the manifest with its digest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/container/zip.h"
#include "harness/bundle/bundle.h"
#include "harness/bundle/manifest.h"
#include "harness/bundle/private_paths.h"

namespace twinrun {

class Package {
 public:
  Manifest manifest;

  void add(std::string_view name, std::vector<std::byte> bytes);
  // The diagnosis that the bundle is made from, as JSON and as text.
  void add_original(const Report& report);
  // Writes the .zip, the manifest first.
  Result<Bundle> write(const std::string& path);

 private:
  std::vector<ZipMember> members_;
};

}  // namespace twinrun
