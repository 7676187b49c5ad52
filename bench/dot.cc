// dot_general: f32 against OpenBLAS, emulated bf16 against our own f32 and against oneDNN. The
// shapes are squares and those of training: dense layers forward and backward, convolutions as
// matrix products. Row-major, no transposition. Emulated bf16 reads f32 and rounds while packing,
// which is timed; oneDNN gets bf16 operands, and all its layouts are plain.
//
//   twinrun_bench --filter '^dot'
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "bench/bench.h"
#include "bench/onednn.h"
#include "program/base/bits.h"
#ifdef TWINRUN_OPENBLAS
#include <cblas.h>
#endif

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
          .unit = "GFLOP/s",
          .ours_work = s.flop(),
          .peer_work = s.flop(),
          .target = target};
}

void bf16_against_f32(Suite& suite, std::optional<double> target) {
  suite.section("dot bf16/own: bf16 in the emulated order; peer: our own f32");
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
      suite.measure([&] { ours.run(bf16); }, [&] { peer.run(f32); });
    }
  }
}

#ifdef TWINRUN_ONEDNN
void bf16_against_onednn(Suite& suite, std::optional<double> target) {
  using Tag = dnnl::memory::format_tag;
  using Type = dnnl::memory::data_type;
  suite.section("dot bf16/onednn: the same; peer: oneDNN bf16 matmul to f32, plain layouts");
  for (const int threads : suite.threads()) {
    ThreadPool pool(threads);
    OneDnn dnn(threads);
    for (const Shape& s : kShapes) {
      if (!suite.begin(describe("dot bf16/onednn", s, threads, target))) continue;
      KernelCase ours = dot_case(s);
      const KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true}};
      ours.run(context);
      try {
        const dnnl::memory::desc a({s.m, s.k}, Type::bf16, Tag::ab),
            b({s.k, s.n}, Type::bf16, Tag::ab), c({s.m, s.n}, Type::f32, Tag::ab);
        const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a, b, c), dnn.engine);
        const dnnl::matmul product(described);
        dnnl::memory out(c, dnn.engine);
        const std::unordered_map<int, dnnl::memory> arguments = {
            {DNNL_ARG_SRC, dnn.converted({s.m, s.k}, Tag::ab, ours.input(0), a)},
            {DNNL_ARG_WEIGHTS, dnn.converted({s.k, s.n}, Tag::ab, ours.input(1), b)},
            {DNNL_ARG_DST, out}};
        dnn.run(product, arguments);
        expect_close("dot bf16/onednn", ours.output.as<float>().data(),
                     static_cast<const float*>(out.get_data_handle()), s.m * s.n);
        suite.measure([&] { ours.run(context); }, [&] { dnn.run(product, arguments); });
      } catch (const dnnl::error& error) {
        suite.skip("dot bf16/onednn " + s.text(), error.message);
      }
    }
  }
}
#endif

}  // namespace

void openblas_for_this_machine(char** argv) {
#ifdef TWINRUN_OPENBLAS
  static constexpr std::string_view kAvx512[] = {"SkylakeX", "Cooperlake", "Sapphirerapids", "Zen"};
  static constexpr std::string_view kAvx2[] = {"Haswell", "Excavator"};
  const auto among = [taken = std::string_view(openblas_get_corename())](const auto& names) {
    return std::ranges::any_of(names, [&](std::string_view name) {
      return std::ranges::equal(name, taken, {}, ::tolower, ::tolower);
    });
  };
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (among(kAvx512) || (!wide && among(kAvx2)) || std::getenv("OPENBLAS_CORETYPE") != nullptr)
    return;
  setenv("OPENBLAS_CORETYPE", wide ? "SkylakeX" : "Haswell", 1);
  execv("/proc/self/exe", argv);  // OpenBLAS reads the variable only when it is loaded
#else
  (void)argv;
#endif
}

void bench_dot_f32(Suite& suite) {
#ifdef TWINRUN_OPENBLAS
  suite.section(
      fmt::format("dot f32: binary32, one order; peer: sgemm of {}", openblas_get_config()));
  for (const int threads : suite.threads()) {
    ThreadPool pool(threads);
    openblas_set_num_threads(threads);
    for (const Shape& s : kShapes) {
      if (!suite.begin(describe("dot f32", s, threads, 1.0))) continue;
      KernelCase ours = dot_case(s);
      Tensor c = Tensor::zeros(ours.output.type());
      const auto run = [&] { ours.run({&pool, {}}); };
      const auto m = static_cast<blasint>(s.m), n = static_cast<blasint>(s.n),
                 k = static_cast<blasint>(s.k);
      const auto peer = [&] {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, ours.input(0), k,
                    ours.input(1), n, 0, c.as<float>().data(), n);
      };
      run();
      peer();
      expect_close("dot f32", ours.output.as<float>().data(), c.as<float>().data(), s.m * s.n);
      suite.measure(run, peer);
    }
  }
#else
  suite.section("dot f32");
  suite.skip("dot f32", "OpenBLAS was not found (libopenblas-dev)");
#endif
}

void bench_dot_bf16(Suite& suite) {
  const bool amx = machine_has_amx();
  bf16_against_f32(suite, amx ? std::nullopt : std::optional(0.8));
#ifdef TWINRUN_ONEDNN
  bf16_against_onednn(suite, amx ? std::optional(0.8) : std::nullopt);
#else
  suite.section("dot bf16/onednn");
  suite.skip("dot bf16/onednn", "oneDNN was not found (libdnnl-dev)");
#endif
}

}  // namespace twinrun
