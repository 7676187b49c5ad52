// The driver for libFuzzer: TWINRUN_FUZZ_READER names the reader (campaign.py sets it). With the
// argument --list it prints the table of readers, with --words FILE it writes the dictionary, with
// --seeds DIR the seeds of that reader.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/reader.h"

namespace {

const twinrun::fuzz::Reader* chosen = nullptr;

}  // namespace

// libhdf5 1.10 itself leaks memory when it fails on a damaged file.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the sanitizers' names.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=16:allocator_may_return_null=1:detect_leaks=0";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace twinrun::fuzz;
  const std::string_view first = *argc > 1 ? (*argv)[1] : "";
  if (first == "--list") {
    static constexpr const char* kKinds[] = {"text", "json", "binary", "trace", "hdf5"};
    for (const Reader& r : readers()) {
      std::printf("%s\t%s\t%zu\t%s\n", std::string(r.name).c_str(),
                  kKinds[static_cast<size_t>(r.kind)], r.longest, std::string(r.reads).c_str());
    }
    std::exit(0);
  }
  if (first == "--words" && *argc > 2) {
    std::ofstream file((*argv)[2]);
    for (const std::string& word : words()) {
      file << '"';
      for (const char c : word) {
        char hex[5];
        std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
        file << hex;
      }
      file << "\"\n";
    }
    file.close();
    std::exit(0);
  }
  const char* name = std::getenv("TWINRUN_FUZZ_READER");
  chosen = find_reader(name != nullptr ? name : "");
  if (chosen == nullptr) {
    std::fprintf(stderr, "TWINRUN_FUZZ_READER names no reader; --list shows them\n");
    std::exit(2);
  }
  if (first == "--seeds" && *argc > 2) {
    int number = 0;
    for (const std::string& seed : seeds_of(*chosen)) {
      std::ofstream((*argv)[2] + ("/seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
    std::exit(0);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t longest);
// Half of the mutations of a trace are of values in its calls.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t longest,
                                          unsigned seed) {
  if (chosen->kind != twinrun::fuzz::Kind::kTrace || seed % 2 == 0)
    return LLVMFuzzerMutate(data, size, longest);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  twinrun::fuzz::Random random(seed);
  twinrun::fuzz::edit_calls(bytes, random);
  std::copy(bytes.begin(), bytes.end(), data);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    chosen->check({reinterpret_cast<const char*>(data), size});
  } catch (const twinrun::fuzz::Violation& violation) {
    std::fprintf(stderr, "VIOLATION of '%s': %s\n", std::string(chosen->name).c_str(),
                 violation.what.c_str());
    std::abort();
  }
  return 0;
}
