// A fusion group (program/analysis/fusion.h) prepared to run. Blocks of about a thousand elements
// go through all of its ops while they are in L1 and L2, by the kernels of blocks.h, so that every
// bit is that of running op by op. Called by the interpreter.
//
//   const FusedKernel kernel(graph, group, arithmetic.flush);  // once
//   kernel.run(context, jobs, sources, stored);  // pointers: job after job, in the group's order
//   kernel.agrees(context, jobs, sources, stored);  // whether that is what `stored` holds
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/kernels/blocks.h"
#include "backends/kernels/kernels.h"
#include "program/analysis/fusion.h"

namespace twinrun {

class FusedKernel {
 public:
  // over[i]: stored[i] may share memory with a source that is read element by element along with
  // it. It is then written after all reads of its block.
  FusedKernel(const Graph& graph, const FusionGroup& group, bool flush,
              const std::vector<bool>& over = {});
  // sources[job * group.sources.size() + i], stored[job * group.stored.size() + i]: pointers to the
  // tensors' elements. Sources may overlap each other; otherwise no two overlap except as `over`
  // says.
  void run(const KernelContext& context, int64_t jobs, std::span<const std::byte* const> sources,
           std::span<std::byte* const> stored) const;
  // Whether `run` would store these bits. Nothing is written: each block is compared while it is
  // in a near cache. For kernels that were made with every `over` set.
  bool agrees(const KernelContext& context, int64_t jobs, std::span<const std::byte* const> sources,
              std::span<const std::byte* const> stored) const;
  // Work of one job, in elements touched.
  int64_t work() const { return elements_ * cost_; }

 private:
  // An entry of the table of pointers. For a tensor, `moves` is the element size, and element i of
  // a block at offset o lies at pointer + (o + i) * moves. For a buffer, which holds one block,
  // `moves` is 0 and element i lies at pointer + i * size.
  struct Place {
    int index = 0;
    size_t moves = 0;
  };
  struct Node {
    BlockKernel kernel = nullptr;  // null: expand views_[view] instead
    int inputs = 0, view = -1;
    Place in[3], out;
  };
  struct View {  // a broadcast that is expanded into a buffer
    int source = 0;
    int64_t inner = 1, period = 1;
    size_t size = 4;
    Place out;
  };
  struct Fold {  // a reduction
    Place in;
    DType dtype = DType::kF32;
    Reducer reducer = Reducer::kSum;
    int64_t rows = 0;
    int stored = 0;
  };
  struct Late {  // a result that stays in a buffer until all reads of its block are done
    Place from, to;
  };
  struct Compiler;
  struct Pass;

  void fetch(std::byte* const* table, int64_t at, int64_t n, size_t i) const;
  void piece(Pass& pass, int64_t job, int64_t begin, int64_t end) const;
  void run_pass(const KernelContext& context, int64_t jobs, Pass& pass) const;
  void fold_block(const Fold& fold, float* lanes, const std::byte* x, int64_t at, int64_t n) const;
  void fold_tree(const Fold& fold, float* lanes, int64_t rows) const;
  void finish(Pass& pass, int64_t job) const;

  bool flush_, far_ = false;  // far: operands are too large to lie in a near cache
  int64_t elements_ = 0, block_ = 0, cost_ = 1;
  int64_t columns_ = 0;  // results per reduction; 0: no reductions
  // Elements of a unit that threads share: a block, or a segment of the reductions.
  int64_t unit_ = 0;
  int sources_ = 0, stored_ = 0, buffers_ = 0;
  std::vector<View> kept_;   // expanded once per piece, since a block is a multiple of their period
  std::vector<View> views_;  // expanded block by block
  std::vector<Node> nodes_;
  std::vector<Fold> folds_;
  std::vector<Late> late_;
  std::vector<Place> full_;  // sources that are read without a broadcast
};

}  // namespace twinrun
