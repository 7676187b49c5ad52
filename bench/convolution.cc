// Convolution and its two gradients, f32, NHWC images and HWIO kernels, against Debian's oneDNN and
// PyTorch (which contains a current oneDNN that cannot be called directly). The peers' images are
// NHWC like ours. oneDNN's kernels are in the layout that it chooses (any), and the conversion is
// not timed; PyTorch converts its own. Input gradients of one-channel images are left out: training
// never needs them.
//
//   ./dev bench --filter '^conv kernel_grad'
#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/child.h"
#include "bench/onednn.h"
#include "bench/operands.h"

namespace twinrun {

#ifdef TWINRUN_ONEDNN
namespace {

using Tag = dnnl::memory::format_tag;
using Md = dnnl::memory::desc;
constexpr auto kF32 = dnnl::memory::data_type::f32;

// One convolution with square images and kernels, padding "same" or "valid".
struct Shape {
  int64_t n, size, ci, kernel, co, stride = 1;
  bool padded = true;
  int64_t out() const { return ((padded ? size : size - kernel + 1) + stride - 1) / stride; }
  int64_t pad() const { return std::max<int64_t>(0, (out() - 1) * stride + kernel - size); }
  Window window() const {
    const int64_t low = pad() / 2, high = pad() - low;
    return {.size = {kernel, kernel},
            .stride = {stride, stride},
            .pad_low = {low, low},
            .pad_high = {high, high}};
  }
  Dims x() const { return {n, size, size, ci}; }
  Dims w() const { return {kernel, kernel, ci, co}; }
  Dims y() const { return {n, out(), out(), co}; }
  double flop() const {
    return 2.0 * static_cast<double>(n * out() * out() * co * kernel * kernel * ci);
  }
  std::string text() const {
    return fmt::format("{}x{}x{}x{} {}x{}->{}{}{}", n, size, size, ci, kernel, kernel, co,
                       stride == 1 ? "" : fmt::format("/{}", stride), padded ? "" : " valid");
  }
};

// The third shape has as many products as the second, but none with padding. The peer always skips
// those with padding.
constexpr Shape kShapes[] = {
    {128, 28, 1, 5, 32},      {128, 14, 32, 5, 64}, {128, 18, 32, 5, 64, 1, false},
    {256, 28, 16, 3, 32},     {200, 32, 3, 3, 256}, {32, 32, 256, 3, 256},
    {128, 16, 64, 3, 128, 2},
};

// oneDNN's descriptors for one shape, shared by the forward convolution and its two gradients.
struct Peer {
  OneDnn& dnn;
  const Shape& s;
  dnnl::memory::dims x, w, y, strides, low, high;
  Md x_md, w_md, y_md;
  dnnl::convolution_forward::primitive_desc forward;

  Peer(OneDnn& dnn, const Shape& s)
      : dnn(dnn),
        s(s),
        x{s.n, s.ci, s.size, s.size},
        w{s.co, s.ci, s.kernel, s.kernel},
        y{s.n, s.co, s.out(), s.out()},
        strides{s.stride, s.stride},
        low{s.pad() / 2, s.pad() / 2},
        high{s.pad() - s.pad() / 2, s.pad() - s.pad() / 2},
        x_md(x, kF32, Tag::nhwc),
        w_md(w, kF32, Tag::any),
        y_md(y, kF32, Tag::nhwc),
        forward({dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x_md, w_md,
                 y_md, strides, low, high},
                dnn.engine) {}

  dnnl::memory image(const dnnl::memory::dims& dims, const float* data) {
    return dnn.converted(dims, Tag::nhwc, data, Md(dims, kF32, Tag::nhwc));
  }
  dnnl::memory kernel(const float* data, const Md& to) {
    return dnn.converted(w, Tag::hwio, data, to);
  }
};

using Arguments = std::unordered_map<int, dnnl::memory>;

// One direction of one shape in oneDNN: a primitive, and how its result is laid out.
struct Prepared {
  dnnl::primitive primitive;
  Arguments arguments;
  dnnl::memory result;
  Md plain;
};

void compare(Suite& suite, const BenchCase& what, const Shape& s, const std::string& direction,
             KernelCase& ours, const KernelContext& context, OneDnn& dnn, const Prepared& peer,
             PeerProcesses& processes) {
  ours.run(context);
  dnn.run(peer.primitive, peer.arguments);
  const dnnl::memory out = dnn.reordered(peer.result, peer.plain);
  expect_close(what.name, ours.output.as<float>().data(),
               static_cast<const float*>(out.get_data_handle()), ours.output.elements());
  std::vector<Side> sides{timed(kOneDnnName, [&] { dnn.run(peer.primitive, peer.arguments); })};
  add_processes(processes, what.name,
                fmt::format("conv {} {} {} {} {} {} {} {} {}", direction, s.n, s.size, s.ci,
                            s.kernel, s.co, s.stride, s.pad() / 2, s.pad() - s.pad() / 2),
                ours, 1e-3, sides);
  suite.counted_bytes(ours.bytes());
  suite.measure([&] { ours.run(context); }, sides);
}

void run_shape(Suite& suite, const Shape& s, int threads, ThreadPool& pool, OneDnn& dnn,
               PeerProcesses& processes) {
  const KernelContext context{&pool, {}};
  const auto describe = [&](const char* direction) {
    return BenchCase{.name = fmt::format("conv {} {}", direction, s.text()),
                     .threads = threads,
                     .work = s.flop(),
                     .target = 1.0};
  };
  if (const BenchCase what = describe("forward"); suite.begin(what)) {
    KernelCase ours({s.x(), s.w()}, [&](GraphBuilder& b, const auto& v) {
      return b.convolution(v[0], v[1], s.window());
    });
    Peer peer(dnn, s);
    const dnnl::memory out(peer.y_md, dnn.engine);
    compare(suite, what, s, "forward", ours, context, dnn,
            {dnnl::convolution_forward(peer.forward),
             {{DNNL_ARG_SRC, peer.image(peer.x, ours.input(0))},
              {DNNL_ARG_WEIGHTS, peer.kernel(ours.input(1), peer.forward.weights_desc())},
              {DNNL_ARG_DST, out}},
             out,
             peer.y_md},
            processes);
  }
  if (const BenchCase what = describe("input_grad"); s.ci > 1 && suite.begin(what)) {
    KernelCase ours({s.y(), s.w()}, [&](GraphBuilder& b, const auto& v) {
      return b.convolution_input_grad(v[0], v[1], s.x(), s.window(), "grad");
    });
    Peer peer(dnn, s);
    const dnnl::convolution_backward_data::primitive_desc described(
        {dnnl::algorithm::convolution_direct, peer.x_md, peer.w_md, peer.y_md, peer.strides,
         peer.low, peer.high},
        dnn.engine, peer.forward);
    const dnnl::memory out(peer.x_md, dnn.engine);
    compare(suite, what, s, "input_grad", ours, context, dnn,
            {dnnl::convolution_backward_data(described),
             {{DNNL_ARG_DIFF_DST, peer.image(peer.y, ours.input(0))},
              {DNNL_ARG_WEIGHTS, peer.kernel(ours.input(1), described.weights_desc())},
              {DNNL_ARG_DIFF_SRC, out}},
             out,
             peer.x_md},
            processes);
  }
  if (const BenchCase what = describe("kernel_grad"); suite.begin(what)) {
    KernelCase ours({s.x(), s.y()}, [&](GraphBuilder& b, const auto& v) {
      return b.convolution_kernel_grad(v[0], v[1], s.w(), s.window(), "grad");
    });
    Peer peer(dnn, s);
    const dnnl::convolution_backward_weights::primitive_desc described(
        {dnnl::algorithm::convolution_direct, peer.x_md, peer.w_md, peer.y_md, peer.strides,
         peer.low, peer.high},
        dnn.engine, peer.forward);
    const dnnl::memory out(described.diff_weights_desc(), dnn.engine);
    compare(suite, what, s, "kernel_grad", ours, context, dnn,
            {dnnl::convolution_backward_weights(described),
             {{DNNL_ARG_SRC, peer.image(peer.x, ours.input(0))},
              {DNNL_ARG_DIFF_DST, peer.image(peer.y, ours.input(1))},
              {DNNL_ARG_DIFF_WEIGHTS, out}},
             out,
             Md(peer.w, kF32, Tag::hwio)},
            processes);
  }
}

}  // namespace

void bench_convolution(Suite& suite) {
  suite.section("conv: f32, NHWC images");
  for (const int threads : suite.threads()) {
    ThreadPool pool(threads);
    OneDnn dnn(threads);
    PeerProcesses processes(suite, "conv", threads);
    for (const Shape& s : kShapes) {
      try {
        run_shape(suite, s, threads, pool, dnn, processes);
      } catch (const dnnl::error& error) {
        suite.skip("conv " + s.text(), error.message);
      }
    }
  }
}
#else
void bench_convolution(Suite& suite) {
  suite.section("conv");
  suite.skip("conv", "oneDNN was not found (libdnnl-dev)");
}
#endif

}  // namespace twinrun
