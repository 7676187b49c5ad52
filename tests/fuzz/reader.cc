// The table of readers, and what their checks share.
#include "tests/fuzz/reader.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "reports/error_text.h"

namespace twinrun::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestError = 60'000;

// Removed when the process ends; a crash leaves it, in memory.
struct Scratch {
  Scratch() {
    const fs::path memory = "/dev/shm";
    std::string name =
        ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "twinrun-fuzz-XXXXXX")
            .string();
    path = ::mkdtemp(name.data());
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all = [] {
    std::vector<Reader> out;
    for (auto* table : {&text_readers, &array_readers, &hdf5_readers, &data_readers,
                        &record_readers, &graph_readers}) {
      for (const Reader& reader : table()) out.push_back(reader);
    }
    return out;
  }();
  return all;
}

const Reader* find_reader(std::string_view name) {
  const auto at = std::ranges::find(readers(), name, &Reader::name);
  return at == readers().end() ? nullptr : &*at;
}

std::vector<std::string> seeds_of(const Reader& reader) {
  std::vector<std::string> seeds = reader.seeds();
  std::vector<fs::path> files;
  std::error_code none;
  const fs::path corpus = fs::path(TWINRUN_SOURCE_DIR) / "tests/fuzz/corpus" / reader.name;
  for (const auto& entry : fs::directory_iterator(corpus, none)) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const fs::path& file : files) seeds.push_back(file_text(file.string()));
  return seeds;
}

void require(bool holds, std::string_view what) {
  if (!holds) throw Violation{std::string(what)};
}

void require_same(std::string_view a, std::string_view b, std::string_view what) {
  if (a == b) return;
  const auto [x, y] = std::ranges::mismatch(a, b);
  const auto at = static_cast<size_t>(x - a.begin());
  const size_t from = at < 30 ? 0 : at - 30;
  throw Violation{std::string(what) + ": differs at byte " + std::to_string(at) + ": '" +
                  std::string(a.substr(from, 80)) + "' and '" + std::string(b.substr(from, 80)) +
                  "'"};
}

void require_printable(const Error& error) {
  const std::string text = text::printed(error);
  require(!error.what.empty(), "an error without text");
  require(text.size() <= kLongestError, "an error of " + std::to_string(text.size()) + " bytes");
  for (const char c : text) {
    require(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F),
            "a control character in: " + text.substr(0, 200));
  }
}

std::string as_file(const std::string& name, std::string_view bytes) {
  const fs::path path = fs::path(folder()) / name;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

const std::string& folder_path() {
  static const Scratch scratch;
  return scratch.path;
}

std::string folder() {
  for (const auto& entry : fs::directory_iterator(folder_path())) fs::remove_all(entry.path());
  return folder_path();
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string fixture(const std::string& path) {
  return file_text((fs::path(TWINRUN_SOURCE_DIR) / "tests" / path).string());
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace twinrun::fuzz
