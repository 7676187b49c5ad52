// Proves that an elementary function is correctly rounded for all 2^32 arguments, with and without
// flushing. Run by `./dev prove-math [FUNCTION..]`; after an interruption it resumes where it was.
//
// The functions are monotone, and so is rounding: if f rounds to y at a and at b, it rounds to y at
// every argument between them. Therefore our function is computed at every argument, but MPFR only
// at both ends of each run of equal results, and at every argument of a run where an end disagrees.
// A run never contains both signs. A run of NaN results is compared with MPFR at every argument,
// unless the arguments imply NaN (NaN itself; below 0 for log, below -1 for log1p).
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/elementary.h"
#include "program/base/digest.h"
#include "program/base/names.h"
#include "program/base/thread_pool.h"
#include "tests/reference/correctly_rounded.h"

namespace twinrun {
namespace {

struct Function {
  const char* name;
  void (*ElementaryKernels::*ours)(const float*, float*, int64_t);
  CorrectlyRounded::Function truth;
  // f(-x) = -f(x), f(-x) = f(x): MPFR computes the positive arguments only.
  bool odd, even;
  float lowest;  // below it the result is NaN
  // Where a function is not monotone, its runs are short. The C library's function, whose relative
  // error is below 2^-50, then decides most roundings instead of MPFR.
  double (*close)(double) = nullptr;
};
constexpr float kAll = -std::numeric_limits<float>::infinity();
constexpr Function kFunctions[] = {
    {"exp", &ElementaryKernels::exp, mpfr_exp, false, false, kAll},
    {"log", &ElementaryKernels::log, mpfr_log, false, false, 0},
    {"tanh", &ElementaryKernels::tanh, mpfr_tanh, true, false, kAll},
    {"erf", &ElementaryKernels::erf, mpfr_erf, true, false, kAll},
    {"log1p", &ElementaryKernels::log1p, mpfr_log1p, false, false, -1},
    {"sin", &ElementaryKernels::sin, mpfr_sin, true, false, kAll, std::sin},
    {"cos", &ElementaryKernels::cos, mpfr_cos, false, true, kAll, std::cos}};

constexpr uint32_t kChunk = 1u << 20;  // arguments in a chunk; all have one sign and one exponent
constexpr int kChunks = 4096;

std::atomic<bool> stop = false;

struct Count {
  int64_t wrong = 0, asked = 0;
};

bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

class Chunk {
 public:
  Chunk(const Function& f, uint32_t first) : f_(f), first_(first), y_(kChunk) {}

  Count prove() {
    compute(first_, false);
    const bool by_symmetry = (f_.odd || f_.even) && (first_ & 0x80000000u) != 0;
    if (by_symmetry) {
      symmetry();
    } else {
      against_mpfr();
    }
    flushed();
    return count_;
  }

 private:
  // Computes with AVX2 and, where the machine has it, AVX-512 too, which must give the same bits.
  void compute(uint32_t first, bool flush) {
    const FlushScope scope(flush);
    float x[kElementaryChunk], wide[kElementaryChunk];
    for (uint32_t i = 0; i < kChunk; i += kElementaryChunk) {
      for (uint32_t j = 0; j < kElementaryChunk; ++j) x[j] = from_bits(first + i + j);
      ours(Isa::kAvx2, x, y_.data() + i, kElementaryChunk);
      if (!vectors_of_512()) continue;
      ours(Isa::kAvx512, x, wide, kElementaryChunk);
      for (uint32_t j = 0; j < kElementaryChunk; ++j) {
        if (to_bits(wide[j]) != to_bits(y_[i + j])) wrong(first + i + j, y_[i + j], wide[j]);
      }
    }
  }
  void ours(Isa isa, const float* x, float* y, int64_t n) const {
    (elementary_kernels(isa).*f_.ours)(x, y, n);
  }

  // Whether the result is NaN by definition.
  bool undefined(uint32_t x) const { return is_nan(x) || from_bits(x) < f_.lowest; }

  void wrong(uint32_t x, float want, float got) {
    if (++count_.wrong <= 3) {
      std::cerr << fmt::format("{}({:a}) [0x{:08x}] is {:a}, ours {:a}\n", f_.name, from_bits(x), x,
                               want, got);
    }
  }
  bool ask(uint32_t i) {
    if (f_.close != nullptr) {
      const double v = f_.close(static_cast<double>(from_bits(first_ + i)));
      const auto low = static_cast<float>(v - v * 0x1p-50),
                 high = static_cast<float>(v + v * 0x1p-50);
      if (to_bits(low) == to_bits(high)) return to_bits(low) == to_bits(y_[i]);
    }
    ++count_.asked;
    return to_bits(truth_(from_bits(first_ + i))) == to_bits(y_[i]);
  }
  void against_mpfr() {
    for (uint32_t i = 0, end; i < kChunk; i = end) {
      const uint32_t bits = to_bits(y_[i]);
      const bool nan = undefined(first_ + i);
      for (end = i + 1; end < kChunk && to_bits(y_[end]) == bits && undefined(first_ + end) == nan;)
        ++end;
      if (nan) {
        if (bits != kCanonicalNaN) wrong(first_ + i, from_bits(kCanonicalNaN), y_[i]);
        continue;
      }
      if (bits != kCanonicalNaN && ask(i) && (end == i + 1 || ask(end - 1))) continue;
      for (uint32_t j = i; j < end; ++j) {
        if (!ask(j)) wrong(first_ + j, truth_(from_bits(first_ + j)), y_[j]);
      }
    }
  }
  void symmetry() {
    const std::vector<float> negative = y_;
    compute(first_ & 0x7FFFFFFFu, false);
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t want = is_nan(to_bits(y_[i])) ? kCanonicalNaN
                            : f_.odd               ? to_bits(y_[i]) ^ 0x80000000u
                                                   : to_bits(y_[i]);
      if (to_bits(negative[i]) != want) wrong(first_ + i, from_bits(want), negative[i]);
    }
    y_ = negative;
  }
  // With FTZ and DAZ the result is f at the flushed argument, flushed if it is tiny after rounding
  // with unbounded exponent. That differs from flushing the binary32 result only where that result
  // is the smallest normal number, so only there MPFR decides.
  void flushed() {
    const std::vector<float> kept = y_;
    compute(first_, true);
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t x = first_ + i;
      const bool denormal = (x & 0x7F800000u) == 0;
      float want = kept[i];
      if (denormal) ours(Isa::kAvx2, &(want = from_bits(x & 0x80000000u)), &want, 1);
      if ((to_bits(want) & 0x7FFFFFFFu) == 0x00800000u && !is_nan(x) && !denormal) {
        ++count_.asked;
        want = truth_.flushed(from_bits(x));
      }
      want = flush(want);
      if (to_bits(want) != to_bits(y_[i])) wrong(x, want, y_[i]);
    }
  }
  const Function& f_;
  uint32_t first_;
  std::vector<float> y_;
  CorrectlyRounded truth_{f_.truth};
  Count count_;
};

// The chunks that are done, kept in a file with a line per chunk. The file is valid only for the
// executable whose digest it names; for any other one the proof starts again.
class Progress {
 public:
  Progress(const std::string& folder, const std::string& name, const std::string& program)
      : path_(folder + "/" + name + ".txt") {
    std::ifstream in(path_);
    std::string line;
    if (std::getline(in, line) && line == header(program)) {
      int chunk;
      Count c;
      double seconds;
      while (in >> chunk >> c.wrong >> c.asked >> seconds && chunk >= 0 && chunk < kChunks) {
        add(chunk, c, seconds);
      }
      out_.open(path_, std::ios::app);
    } else {
      out_.open(path_, std::ios::trunc);
      out_ << header(program) << std::endl;
    }
    if (!out_) throw std::runtime_error("cannot write " + path_);
  }
  bool has(int chunk) const { return done_.contains(chunk); }
  void record(int chunk, Count c, double seconds) {
    const std::scoped_lock lock(mutex_);
    add(chunk, c, seconds);
    out_ << chunk << ' ' << c.wrong << ' ' << c.asked << ' ' << seconds << std::endl;
  }
  size_t done() const { return done_.size(); }
  Count total() const { return total_; }
  double seconds() const { return seconds_; }

 private:
  static std::string header(const std::string& program) { return "prove_math " + program; }
  void add(int chunk, Count c, double seconds) {
    if (!done_.insert(chunk).second) return;
    total_.wrong += c.wrong, total_.asked += c.asked, seconds_ += seconds;
  }

  std::string path_;
  std::ofstream out_;
  std::mutex mutex_;
  std::set<int> done_;
  Count total_;
  double seconds_ = 0;
};

// Returns whether f is correctly rounded at every argument; false if it was interrupted.
bool prove(const Function& f, const std::string& folder, ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  Progress progress(folder, f.name, digest_of_executable().hex());
  if (progress.done() > 0) {
    std::cerr << fmt::format("{}: going on after {} of {} chunks\n", f.name, progress.done(),
                             kChunks);
  }
  std::vector<int> left;
  for (int c = 0; c < kChunks; ++c) {
    if (!progress.has(c)) left.push_back(c);
  }
  const auto start = Clock::now();
  std::atomic<int> finished = 0;
  pool.parallel_for(static_cast<int64_t>(left.size()), [&](int64_t i) {
    if (stop) return;
    const int chunk = left[static_cast<size_t>(i)];
    const auto begin = Clock::now();
    const Count c = Chunk(f, static_cast<uint32_t>(chunk) * kChunk).prove();
    progress.record(chunk, c, std::chrono::duration<double>(Clock::now() - begin).count());
    const int n = ++finished;
    if (n % 128 == 0) {
      const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
      std::cerr << fmt::format("{}: {:.0f} %, about {:.0f} s left\n", f.name,
                               100.0 * (kChunks - static_cast<int>(left.size()) + n) / kChunks,
                               elapsed / n * (static_cast<double>(left.size()) - n));
    }
  });
  if (progress.done() < kChunks) {
    std::cerr << fmt::format("{}: stopped after {} of {} chunks; run it again to go on\n", f.name,
                             progress.done(), kChunks);
    return false;
  }
  const Count total = progress.total();
  std::cout << fmt::format(
                   "{}: 4294967296 arguments, {} wrong; MPFR asked {} times; {:.0f} s of one core",
                   f.name, total.wrong, total.asked, progress.seconds())
            << std::endl;
  return total.wrong == 0;
}

int run(int argc, char** argv) {
  std::string folder;
  std::vector<const Function*> chosen;
  std::vector<std::string> names;
  for (const Function& f : kFunctions) names.emplace_back(f.name);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (i == 1) {
      folder = word;
      continue;
    }
    const auto at = std::ranges::find(names, word);
    if (at == names.end()) {
      std::cerr << fmt::format("prove_math: no function '{}': {}; did you mean {}?\n", word,
                               join(names, ", "), nearest(word, names));
      return 128;
    }
    chosen.push_back(&kFunctions[at - names.begin()]);
  }
  if (folder.empty()) {
    std::cerr << "usage: prove_math FOLDER [FUNCTION..]\nFOLDER keeps what has been proved; "
                 "functions: "
              << join(names, ", ") << "\n";
    return 128;
  }
  if (chosen.empty()) {
    for (const Function& f : kFunctions) chosen.push_back(&f);
  }
  ::mkdir(folder.c_str(), 0777);
  std::signal(SIGINT, [](int) { stop = true; });
  std::signal(SIGTERM, [](int) { stop = true; });
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  bool proved = true;
  for (const Function* f : chosen) proved = !stop && prove(*f, folder, pool) && proved;
  return stop ? 130 : proved ? 0 : 1;
}

}  // namespace
}  // namespace twinrun

int main(int argc, char** argv) {
  try {
    return twinrun::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "prove_math: " << e.what() << "\n";
    return 128;
  }
}
