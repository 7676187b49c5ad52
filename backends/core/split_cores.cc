// Moves values between ranks, and runs the ring of an all-reduce across them.
#include "backends/core/split_cores.h"

#include <cstring>
#include <utility>

namespace twinrun {

SplitCores::SplitCores(Communicator& ranks, int cores) : ranks_(ranks), cores_(cores) {}

void SplitCores::gather(std::span<const TensorType> types,
                        const std::function<Tensor&(size_t core, size_t i)>& at) {
  constexpr size_t kAlign = 64;
  const auto padded = [](const TensorType& type) {
    const size_t bytes = static_cast<size_t>(type.elements()) * size_of(type.dtype);
    return (bytes + kAlign - 1) / kAlign * kAlign;
  };
  size_t stride = 0;
  for (const TensorType& type : types) stride += padded(type);
  if (stride == 0) return;
  std::vector<size_t> offsets;
  for (int r = 0; r < ranks_.ranks(); ++r) offsets.push_back(block(r).first * stride);
  offsets.push_back(static_cast<size_t>(cores_) * stride);
  Tensor all = Tensor::zeros({DType::kPred, {static_cast<int64_t>(offsets.back())}});
  const CoreBlock own = mine();
  for (size_t core = own.first; core < own.last; ++core) {
    size_t offset = core * stride;
    for (size_t i = 0; i < types.size(); ++i) {
      const Tensor& value = at(core, i);
      if (value.bytes() != 0) std::memcpy(all.raw() + offset, value.raw(), value.bytes());
      offset += padded(types[i]);
    }
  }
  ranks_.all_gather({all.raw(), all.bytes()}, offsets);
  for (size_t core = 0; core < static_cast<size_t>(cores_); ++core) {
    if (core >= own.first && core < own.last) continue;
    size_t offset = core * stride;
    for (size_t i = 0; i < types.size(); ++i) {
      at(core, i) = all.at(offset, types[i]);
      offset += padded(types[i]);
    }
  }
}

// Chunk c of the result is summed over the cores c + 1, c + 2, ..., c (modulo the number of cores).
// So a chunk starts on the rank of core c + 1 and passes through all ranks. Unless its first core
// is the first of its rank, it comes back there for the cores before its first one. Chunk j of a
// rank is the one that starts with the rank's core j; it is chunk first + j - 1 of the result.
void SplitCores::all_reduce_sum(const KernelContext& context, std::span<const Tensor> contributions,
                                Tensor& output) {
  const auto cores = static_cast<size_t>(cores_);
  const auto length = static_cast<size_t>(output.elements());
  const size_t size = size_of(output.dtype());
  const auto begin_of = [&](size_t chunk) { return chunk * length / cores; };
  struct Chunk {
    size_t begin, elements, offset;  // the offset is in bytes, in a message
  };
  const auto chunks_of = [&](int rank, size_t skipped) {
    std::vector<Chunk> chunks;
    const CoreBlock block = this->block(rank);
    size_t offset = 0;
    for (size_t j = skipped; j < block.size(); ++j) {
      const size_t c = (block.first + j + cores - 1) % cores;
      chunks.push_back({begin_of(c), begin_of(c + 1) - begin_of(c), offset});
      offset += chunks.back().elements * size;
    }
    return chunks;
  };
  const auto bytes_of = [&](const std::vector<Chunk>& chunks) {
    return chunks.empty() ? 0 : chunks.back().offset + chunks.back().elements * size;
  };
  // Adds this rank's cores [first, last), counted from 0, to the partial sum of a chunk.
  const auto add = [&](const Chunk& chunk, size_t first, size_t last) {
    std::vector<const std::byte*> terms;
    for (size_t core = first; core < last; ++core)
      terms.push_back(contributions[core].raw() + chunk.begin * size);
    ring_hops(context, output.dtype(), sums_.data() + chunk.offset, terms,
              static_cast<int64_t>(chunk.elements));
  };
  const auto finish = [&](const Chunk& chunk) {
    if (chunk.elements != 0)
      std::memcpy(output.raw() + chunk.begin * size, sums_.data() + chunk.offset,
                  chunk.elements * size);
  };

  const int rank = ranks_.rank(), ranks = ranks_.ranks();
  const size_t own = contributions.size();
  std::vector<Chunk> chunks = chunks_of(rank, 0);
  sums_.resize(bytes_of(chunks));
  for (size_t j = 0; j < own; ++j) {
    if (chunks[j].elements != 0)
      std::memcpy(sums_.data() + chunks[j].offset, contributions[j].raw() + chunks[j].begin * size,
                  chunks[j].elements * size);
    add(chunks[j], j + 1, own);
  }
  for (int phase = 1; phase <= ranks; ++phase) {
    // Chunk 0 of a rank is finished on the rank before it and does not come back.
    const bool back = phase == ranks;
    const size_t kept = back ? chunks.front().elements * size : 0;
    chunks = chunks_of((rank + ranks - phase) % ranks, back ? 1 : 0);
    received_.resize(bytes_of(chunks));
    ranks_.shift({sums_.data() + kept, sums_.size() - kept}, received_);
    std::swap(sums_, received_);
    for (size_t j = 0; j < chunks.size(); ++j) {
      add(chunks[j], 0, back ? j + 1 : own);
      if (back || (phase == ranks - 1 && j == 0)) finish(chunks[j]);
    }
  }
  std::vector<size_t> offsets;
  for (int r = 0; r < ranks; ++r) offsets.push_back(begin_of(block(r).first) * size);
  offsets.push_back(length * size);
  ranks_.all_gather({output.raw(), output.bytes()}, offsets);
}

}  // namespace twinrun
