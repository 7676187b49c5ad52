// oneDNN as a peer: engine, stream, thread count, operands. Empty where CMake did not find oneDNN.
//
//   OneDnn dnn(2);                                      // primitives made afterwards use 2 threads
//   dnn.run(primitive, {{DNNL_ARG_SRC, memory}, ...});  // and waits for the result
#pragma once

#ifdef TWINRUN_ONEDNN
#include <omp.h>

#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

namespace twinrun {

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  explicit OneDnn(int threads) { omp_set_num_threads(threads); }

  void run(const dnnl::primitive& primitive, const std::unordered_map<int, dnnl::memory>& with) {
    primitive.execute(stream, with);
    stream.wait();
  }
  dnnl::memory reordered(dnnl::memory from, const dnnl::memory::desc& to) {
    dnnl::memory out(to, engine);
    dnnl::reorder(from, out).execute(stream, from, out);
    stream.wait();
    return out;
  }
  // Converts plain f32 data to the layout and type `to` that a primitive requires.
  dnnl::memory converted(const dnnl::memory::dims& dims, dnnl::memory::format_tag tag,
                         const float* data, const dnnl::memory::desc& to) {
    const dnnl::memory::desc plain(dims, dnnl::memory::data_type::f32, tag);
    dnnl::memory from(plain, engine);
    std::memcpy(from.get_data_handle(), data, plain.get_size());
    return reordered(from, to);
  }
};

}  // namespace twinrun
#endif
