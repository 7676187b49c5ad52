// The readers of files and texts that nobody vouches for, each as a function over bytes, for two
// drivers: libFuzzer (libfuzzer.cc, `./dev fuzz`) and fuzz_tests (replay_test.cc), which replays
// the kept corpus and mutations of it in every build.
//
//   const Reader* npy = find_reader("npy");
//   for (const std::string& seed : seeds_of(*npy)) npy->check(seed);     // throws Violation
//
// A check reads the bytes, and requires what must hold whatever they are: a value or an error; an
// error of at most 60 KB that shows no control character; what was written is read again equal.
// New readers go into the table of a readers_*.cc.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/result.h"

namespace twinrun::fuzz {

// How many executions a campaign gives it, and how fuzz_tests mutates its seeds.
enum class Kind { kText, kJson, kBinary, kTrace, kHdf5 };

struct Reader {
  std::string_view name;  // of the folder of its corpus, too
  Kind kind = Kind::kBinary;
  std::string_view reads;  // for the page of results
  size_t longest = 0;      // of a mutated input, in bytes
  // Good inputs, made by the program's own writers or taken from fixtures. The files of
  // tests/fuzz/corpus/NAME, which were once a finding or reach far, come on top.
  std::vector<std::string> (*seeds)() = nullptr;
  void (*check)(std::string_view bytes) = nullptr;
};

const std::vector<Reader>& readers();
const Reader* find_reader(std::string_view name);
std::vector<std::string> seeds_of(const Reader& reader);

struct Violation {
  std::string what;
};
void require(bool holds, std::string_view what);
void require_same(std::string_view a, std::string_view b, std::string_view what);
// What is required of every error.
void require_printable(const Error& error);

// Whether there is a value; if not, checks the error.
template <typename T>
bool accepted(const Result<T>& result) {
  if (!result) require_printable(result.error());
  return result.ok();
}
// The value of a result that must have one.
template <typename T>
T must(Result<T> result, std::string_view what) {
  require(result.ok(), std::string(what) + (result ? "" : ": " + result.error().message()));
  return *std::move(result);
}

// Writes the bytes to a file of this name, the only one in a folder of this process on a file
// system in memory, and returns its path. `folder()` is that folder, emptied.
std::string as_file(const std::string& name, std::string_view bytes);
std::string folder();
const std::string& folder_path();
std::string file_text(const std::string& path);

std::string fixture(const std::string& path);  // a file of the source tree, below tests/
std::string text_of(std::span<const std::byte> bytes);
std::span<const std::byte> bytes_of(std::string_view text);

// The tables of the files readers_*.cc.
std::vector<Reader> text_readers();
std::vector<Reader> array_readers();
std::vector<Reader> hdf5_readers();
std::vector<Reader> data_readers();
std::vector<Reader> record_readers();
std::vector<Reader> graph_readers();

}  // namespace twinrun::fuzz
