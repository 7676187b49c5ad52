// Collects the members of a bundle and writes them.
#include "harness/bundle/package.h"

#include "checkpoints/container/atomic_file.h"

namespace twinrun {

void Package::add(std::string_view name, std::vector<std::byte> bytes) {
  manifest.files.push_back(
      {std::string(name), bytes.size(), digest_bytes(bytes.data(), bytes.size())});
  members_.push_back({std::string(name), std::move(bytes), true});
}

void Package::add_original(const Report& report) {
  add(kOriginalJson, bytes_of(to_json(report)));
  add(kOriginalText, bytes_of(to_markdown(report)));
}

Result<Bundle> Package::write(const std::string& path) {
  members_.insert(members_.begin(), {std::string(kManifest), bytes_of(to_json(manifest)), true});
  TWINRUN_ASSIGN(const auto zipped, to_zip(members_, path, ZipPacking::kDeflated));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, zipped));
  Bundle out;
  out.bytes = zipped.size();
  for (const ZipMember& member : members_) out.members.push_back(member.name);
  return out;
}

}  // namespace twinrun
