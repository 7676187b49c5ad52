// Makes the batch of a step: a pure function of (options, step), computed ahead on a thread. The
// rows of a batch are decoded and copied by `parallel_calls` threads, a block of rows each; the
// number of threads changes no bit.
//
// The order of epoch e is a Fisher-Yates shuffle of 0..n-1:
//   for i = n-1 down to 1:
//     j = bounded(draw({seed, kStreamShuffle}, step 0, sample e, element i), i + 1)
//     swap(order[i], order[j])
// where e is taken mod 2^32. Without data.shuffle, the order is 0..n-1. Position p of the stream is
// element p mod m of epoch p / m, with m = floor(n / batch) * batch: every batch is full, and the
// remainder of an epoch is left out.
#include "scenarios/data/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "program/base/philox.h"
#include "program/base/thread_pool.h"
#include "scenarios/data/source.h"

namespace twinrun {
namespace {

double seconds_since(double begin) { return steady_seconds() - begin; }

// The order of an epoch; keeps that of the latest call.
class Orders {
 public:
  Orders(int64_t samples, uint64_t seed, bool shuffle)
      : samples_(samples), seed_(seed), shuffle_(shuffle) {}

  const std::vector<int32_t>& of(int64_t epoch) {
    if (epoch_ != epoch) {
      epoch_ = epoch;
      make(epoch);
    }
    return order_;
  }

 private:
  void make(int64_t epoch) {
    order_.resize(static_cast<size_t>(samples_));
    std::iota(order_.begin(), order_.end(), 0);
    if (!shuffle_) return;
    const RandomKey key{seed_, kStreamShuffle};
    for (int64_t i = samples_ - 1; i > 0; --i) {
      const uint32_t u = draw(key, 0, static_cast<uint32_t>(epoch), static_cast<uint64_t>(i));
      std::swap(order_[static_cast<size_t>(i)], order_[bounded(u, static_cast<uint32_t>(i + 1))]);
    }
  }

  int64_t samples_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1;
  std::vector<int32_t> order_;
};

}  // namespace

struct Feed::Impl {
  Impl(const Samples& samples, FeedOptions options)
      : samples(samples),
        options(options),
        count(samples.count()),
        orders(count, options.seed, options.shuffle),
        mappers(static_cast<int>(options.parallel_calls)) {
    if (options.batch > 0) per_epoch = count / options.batch;
    counters.parallel_calls = mappers.threads();
    counters.depth = std::max<int64_t>(options.prefetch, 0);
  }
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (reader.joinable()) reader.join();
  }

  int64_t available() const {
    if (options.batch <= 0 || count == 0) return 0;
    return options.repeat && per_epoch > 0 ? std::numeric_limits<int64_t>::max() : per_epoch;
  }

  // A batch and the counters of making it.
  struct Made {
    Batch batch;
    StageCounters shuffle, map, assembly;
  };

  Made make(int64_t step) {
    Made out;
    const double begin = steady_seconds();
    const std::vector<int64_t> from = samples_of(step);
    out.shuffle = {options.batch, static_cast<int64_t>(from.size() * sizeof from[0]),
                   seconds_since(begin)};
    const double ordered = steady_seconds();
    Batch& batch = out.batch;
    batch = {of_batch(samples.features, samples.dtype()), of_batch(samples.labels, DType::kI32),
             of_batch(samples.weights, DType::kF32), Tensor::empty({DType::kI32, {options.batch}})};
    std::iota(batch.sample_ids.as<int32_t>().begin(), batch.sample_ids.as<int32_t>().end(), 0);
    out.assembly = {1, static_cast<int64_t>(batch.bytes()), seconds_since(ordered)};
    out.map = map(from, batch);
    return out;
  }

  // The indices of the samples of a step's batch.
  std::vector<int64_t> samples_of(int64_t step) {
    const std::vector<int32_t>& order = orders.of(step / per_epoch);
    const auto begin = order.begin() + step % per_epoch * options.batch;
    return {begin, begin + options.batch};
  }

  // Decodes and copies the samples into the batch, a block of rows on each thread.
  StageCounters map(const std::vector<int64_t>& from, Batch& batch) {
    const auto rows = static_cast<int64_t>(from.size());
    const int64_t pieces = std::min<int64_t>(mappers.threads(), rows);
    std::vector<double> busy(static_cast<size_t>(pieces));
    const double begin = steady_seconds();
    mappers.parallel_for(pieces, [&](int64_t piece) {
      const double began = steady_seconds();
      for (int64_t i = rows * piece / pieces; i < rows * (piece + 1) / pieces; ++i) {
        const int64_t sample = from[static_cast<size_t>(i)];
        put(samples.features, sample, batch.features, i);
        put(samples.labels, sample, batch.labels, i);
        put(samples.weights, sample, batch.weights, i);
      }
      busy[static_cast<size_t>(piece)] = seconds_since(began);
    });
    const double all = seconds_since(begin) * static_cast<double>(pieces);
    StageCounters out{rows, 0, std::accumulate(busy.begin(), busy.end(), 0.0), 0};
    out.bytes = static_cast<int64_t>(batch.bytes() - batch.sample_ids.bytes());
    out.waiting = std::max(0.0, all - out.busy);
    return out;
  }

  // An uninitialized tensor for a batch of samples of `all`.
  Tensor of_batch(const Tensor& all, DType dtype) const {
    if (!all.valid()) return {};
    Dims dims = all.dims();
    dims[0] = options.batch;
    return Tensor::empty({dtype, std::move(dims)});
  }
  static void put(const Tensor& all, int64_t from, Tensor& out, int64_t to) {
    if (!all.valid()) return;
    const auto row = static_cast<size_t>(all.elements() / all.dims()[0]);
    const std::byte* in = all.raw() + static_cast<size_t>(from) * row * size_of(all.dtype());
    std::byte* at = out.raw() + static_cast<size_t>(to) * row * size_of(out.dtype());
    if (all.dtype() == DType::kPred) {
      data::normalize(reinterpret_cast<const uint8_t*>(in), static_cast<int64_t>(row),
                      reinterpret_cast<float*>(at));
    } else {
      std::memcpy(at, in, row * size_of(all.dtype()));
    }
  }

  void count_work(const Made& made) {
    counters.shuffle += made.shuffle;
    counters.map += made.map;
    counters.batch += made.assembly;
  }

  // The loop of the reader thread: makes batches of consecutive steps until `ready` holds
  // `prefetch` of them. While prefetching, only this thread calls make(), so `orders` needs no
  // lock.
  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      const double begin = steady_seconds();
      wake.wait(lock, [&] {
        return stop ||
               (next < available() && static_cast<int64_t>(ready.size()) < options.prefetch);
      });
      if (stop) return;
      counters.prefetch.waiting += seconds_since(begin);
      const int64_t step = next++;
      const uint64_t asked = round;
      making = true;
      lock.unlock();
      Made made = make(step);
      lock.lock();
      count_work(made);
      if (asked != round) continue;  // the consumer jumped to another step meanwhile
      making = false;
      counters.prefetch += {1, static_cast<int64_t>(made.batch.bytes()), 0, 0};
      ready.push_back(std::move(made.batch));
      came.notify_one();
    }
  }

  Batch take(int64_t step) {
    const double begin = steady_seconds();
    if (options.prefetch <= 0) {
      Made made = make(step);
      count_work(made);
      counters.add(PipelineCounters::Asked{step, seconds_since(begin), 0});
      return std::move(made.batch);
    }
    std::unique_lock lock(mutex);
    // Steps [first, next) are ready; the last of them may still be in the making. Any other step is
    // a jump, after which the reader starts anew from there.
    int64_t first = next - static_cast<int64_t>(ready.size()) - (making ? 1 : 0);
    if (step < first || step > next || (step == next && making)) {
      ready.clear();
      first = next = step;
      making = false;
      ++round;
    }
    for (; first < step && !ready.empty(); ++first) ready.pop_front();
    const auto held = static_cast<int64_t>(ready.size());
    if (!reader.joinable()) {
      try {
        reader = std::thread([this] {
          try {
            read_ahead();
          } catch (...) {  // no memory: the consumer throws it
            const std::lock_guard failing(mutex);
            failure = std::current_exception();
            came.notify_one();
          }
        });
      } catch (const std::system_error&) {  // no more threads: nothing is read ahead
        options.prefetch = 0;
        lock.unlock();
        return take(step);
      }
    }
    wake.notify_one();
    came.wait(lock, [&] { return !ready.empty() || failure != nullptr; });
    if (ready.empty()) std::rethrow_exception(failure);
    Batch out = std::move(ready.front());
    ready.pop_front();
    wake.notify_one();
    counters.add(PipelineCounters::Asked{step, seconds_since(begin), held});
    return out;
  }

  PipelineCounters counted() {
    const std::lock_guard lock(mutex);
    return counters;
  }

  Samples samples;
  FeedOptions options;
  int64_t count = 0, per_epoch = 0;
  Orders orders;
  ThreadPool mappers;

  std::mutex mutex;
  std::condition_variable wake, came;
  std::deque<Batch> ready;
  int64_t next = 0;     // the step that the reader makes next
  bool making = false;  // step next-1 is being made
  uint64_t round = 0;   // number of jumps by the consumer
  bool stop = false;
  PipelineCounters counters;
  std::exception_ptr failure;  // that ended the reader
  std::thread reader;
};

Samples Samples::rows(int64_t begin, int64_t end) const {
  return {features.rows(begin, end), labels.rows(begin, end),
          weights.valid() ? weights.rows(begin, end) : Tensor{}};
}

Feed::Feed(const Samples& samples, FeedOptions options)
    : impl_(std::make_unique<Impl>(samples, options)) {}
Feed::~Feed() = default;

int64_t Feed::steps_available() const { return impl_->available(); }
PipelineCounters Feed::counters() const { return impl_->counted(); }

Result<Batch> Feed::batch(int64_t step) {
  const FeedOptions& options = impl_->options;
  const int64_t available = impl_->available();
  if (step >= 0 && step < available) return impl_->take(step);
  const std::string where = fmt::format("data, step {}", step);
  if (step < 0) return Error{"the step is negative; steps count from 0", where, ""};
  if (options.batch <= 0) {
    return Error{fmt::format("train.batch is {}; allowed: at least 1", options.batch), where, ""};
  }
  if (available == 0) {
    return Error{fmt::format("{} samples do not fill one batch of {}", impl_->count, options.batch),
                 where,
                 fmt::format("lower train.batch to {} or less, or raise data.train", impl_->count)};
  }
  const int64_t left = impl_->count - available * options.batch;
  return Error{fmt::format("the data ended after step {}: {} samples are {} batches of {}{}; "
                           "allowed: train.steps up to {}",
                           available - 1, impl_->count, available, options.batch,
                           left > 0 ? fmt::format(" and {} left over", left) : "", available),
               where, "set data.repeat = true or lower train.steps"};
}

}  // namespace twinrun
