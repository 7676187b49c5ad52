// dot_general: f32 and emulated bf16, against libraries of matrix products; and emulated bf16
// against our own f32. The shapes are squares and those of training: dense layers forward and
// backward, convolutions as matrix products. Row-major, no transposition, all layouts plain.
// Emulated bf16 reads f32 and rounds while packing, which is timed; peers get bf16 operands. oneDNN
// writes f32, PyTorch and JAX write bf16, which is less to write.
//
//   ./dev bench --filter '^dot'
#include <dlfcn.h>
#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/child.h"
#include "bench/onednn.h"
#include "bench/operands.h"

namespace twinrun {
namespace {

struct Shape {
  int64_t m, n, k;
  std::string text() const { return fmt::format("{}x{}x{}", m, n, k); }
  double flop() const { return 2.0 * static_cast<double>(m * n * k); }
};

constexpr Shape kShapes[] = {
    {512, 512, 512},   {1024, 1024, 1024}, {2048, 2048, 2048}, {128, 1024, 784},
    {1024, 256, 1152}, {128, 512, 512},    {128, 1024, 3136},  {3136, 1024, 128},
    {25088, 64, 800},  {2048, 512, 128},   {131072, 16, 144},
};

KernelCase dot_case(const Shape& s) {
  return KernelCase({{s.m, s.k}, {s.k, s.n}},
                    [](GraphBuilder& b, const auto& x) { return b.dot(x[0], x[1]); });
}

BenchCase describe(const std::string& topic, const Shape& s, int threads,
                   std::optional<double> target) {
  return {.name = fmt::format("{} {}", topic, s.text()),
          .threads = threads,
          .work = s.flop(),
          .target = target};
}

// sgemm of a shared library, loaded beside the others under names of its own.
class Blas {
 public:
  explicit Blas(const PeerEntry& peer)
      : name_(peer.name),
        wide_(peer.wide),
        library_(dlopen(peer.file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    const auto find = [&](const char* function) {
      std::string symbol = peer.symbols;
      symbol.replace(symbol.find("{}"), 2, function);
      return library_ == nullptr ? nullptr : dlsym(library_, symbol.c_str());
    };
    sgemm_ = find("cblas_sgemm");
    set_threads_ = find("openblas_set_num_threads");
  }
  bool found() const { return sgemm_ != nullptr && set_threads_ != nullptr; }
  const std::string& name() const { return name_; }

  void set_threads(int threads) const { reinterpret_cast<void (*)(int)>(set_threads_)(threads); }
  void sgemm(const Shape& s, const float* a, const float* b, float* c) const {
    if (wide_) {
      call<int64_t>(s, a, b, c);
    } else {
      call<int32_t>(s, a, b, c);
    }
  }

 private:
  template <typename Int>
  void call(const Shape& s, const float* a, const float* b, float* c) const {
    using Function = void (*)(int, int, int, Int, Int, Int, float, const float*, Int, const float*,
                              Int, float, float*, Int);
    constexpr int kRowMajor = 101, kNoTranspose = 111;
    const auto m = static_cast<Int>(s.m), n = static_cast<Int>(s.n), k = static_cast<Int>(s.k);
    reinterpret_cast<Function>(sgemm_)(kRowMajor, kNoTranspose, kNoTranspose, m, n, k, 1, a, k, b,
                                       n, 0, c, n);
  }

  std::string name_;
  bool wide_;
  void *library_, *sgemm_ = nullptr, *set_threads_ = nullptr;
};

void bf16_against_f32(Suite& suite, std::optional<double> target) {
  suite.section("dot bf16/own: bf16 in the emulated order, against our own f32");
  for (const int threads : suite.threads()) {
    ThreadPool pool(threads);
    for (const Shape& s : kShapes) {
      if (!suite.begin(describe("dot bf16/own", s, threads, target))) continue;
      KernelCase ours = dot_case(s), peer = dot_case(s);
      const KernelContext bf16{&pool, {.dot = DotArithmetic::kBf16, .flush = true}};
      const KernelContext f32{&pool, {}};
      ours.run(bf16);
      peer.run(f32);
      expect_close("dot bf16/own", ours.output.as<float>().data(), peer.output.as<float>().data(),
                   s.m * s.n, 1e-2);
      suite.counted_bytes(ours.bytes());
      suite.measure([&] { ours.run(bf16); }, {timed("own f32", [&] { peer.run(f32); })});
    }
  }
}

// A matrix product of Debian's oneDNN; to f32, whatever the operands are.
#ifdef TWINRUN_ONEDNN
void add_onednn(Suite& suite, const std::string& name, const Shape& s, int threads,
                dnnl::memory::data_type type, const KernelCase& ours, double most,
                std::vector<Side>& sides) {
  using Tag = dnnl::memory::format_tag;
  try {
    const auto dnn = std::make_shared<OneDnn>(threads);
    const dnnl::memory::desc a({s.m, s.k}, type, Tag::ab), b({s.k, s.n}, type, Tag::ab),
        c({s.m, s.n}, dnnl::memory::data_type::f32, Tag::ab);
    const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a, b, c), dnn->engine);
    const dnnl::matmul product(described);
    dnnl::memory out(c, dnn->engine);
    const std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, dnn->converted({s.m, s.k}, Tag::ab, ours.input(0), a)},
        {DNNL_ARG_WEIGHTS, dnn->converted({s.k, s.n}, Tag::ab, ours.input(1), b)},
        {DNNL_ARG_DST, out}};
    dnn->run(product, arguments);
    const std::string wrong =
        difference(ours.output.as<float>().data(), static_cast<const float*>(out.get_data_handle()),
                   s.m * s.n, most);
    if (!wrong.empty()) return suite.skip(name, wrong, kOneDnnName);
    sides.push_back(timed(kOneDnnName, [=] { dnn->run(product, arguments); }));
  } catch (const dnnl::error& error) {
    suite.skip(name, error.message, kOneDnnName);
  }
}
#endif

void against_libraries(Suite& suite, const std::string& topic, bool bf16, double target) {
  std::vector<Blas> libraries;
  for (const PeerEntry& peer : suite.peers_of(topic)) {
    if (!peer.file.empty()) libraries.emplace_back(peer);
  }
  const double most = bf16 ? 1e-2 : 1e-3;
  for (const int threads : suite.threads()) {
    ThreadPool pool(threads);
    PeerProcesses processes(suite, topic, threads);
    for (const Shape& s : kShapes) {
      const BenchCase what = describe(topic, s, threads, target);
      if (!suite.begin(what)) continue;
      KernelCase ours = dot_case(s);
      const KernelContext context{
          &pool, bf16 ? Arithmetic{.dot = DotArithmetic::kBf16, .flush = true} : Arithmetic{}};
      ours.run(context);
      std::vector<Side> sides;
      Tensor c = Tensor::zeros(ours.output.type());
      for (const Blas& library : libraries) {
        if (!library.found()) {
          suite.skip(what.name, "its library could not be loaded", library.name());
          continue;
        }
        library.set_threads(threads);
        const auto product = [&, s] {
          library.sgemm(s, ours.input(0), ours.input(1), c.as<float>().data());
        };
        product();
        const std::string wrong =
            difference(ours.output.as<float>().data(), c.as<float>().data(), s.m * s.n);
        if (wrong.empty()) {
          sides.push_back(timed(library.name(), product));
        } else {
          suite.skip(what.name, wrong, library.name());
        }
      }
#ifdef TWINRUN_ONEDNN
      using Type = dnnl::memory::data_type;
      add_onednn(suite, what.name, s, threads, bf16 ? Type::bf16 : Type::f32, ours, most, sides);
#else
      suite.skip(what.name, "oneDNN was not found (libdnnl-dev)", kOneDnnName);
#endif
      add_processes(processes, what.name, fmt::format("{} {} {} {}", topic, s.m, s.n, s.k), ours,
                    most, sides);
      suite.counted_bytes(ours.bytes());
      suite.measure([&] { ours.run(context); }, sides);
    }
  }
}

}  // namespace

void bench_dot_f32(Suite& suite) {
  suite.section("dot f32: binary32, one order of sums, against libraries at their own order");
  against_libraries(suite, "dot f32", false, 1.0);
}

void bench_dot_bf16(Suite& suite) {
  bf16_against_f32(suite, machine_has_amx() ? std::nullopt : std::optional(0.8));
  suite.section("dot bf16: bf16 in the emulated order, against libraries at their own order");
  against_libraries(suite, "dot bf16", true, 1.0);
}

}  // namespace twinrun
