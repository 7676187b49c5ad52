// Which samples training sees at which step: a pure function of (options, step), read ahead on a
// thread.
//
// The order of epoch e is a Fisher-Yates shuffle of 0..n-1:
//   for i = n-1 down to 1:  j = bounded(draw({seed, kStreamShuffle}, step 0, sample e, element i),
//   i + 1)
//                           swap(order[i], order[j])
// (e mod 2^32; without data.shuffle the order is 0..n-1.) Position p of the stream is element p mod
// n of epoch p / n; with drop_remainder an epoch counts floor(n / batch) * batch positions, without
// it all n.
#include "scenarios/data/feed.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "program/base/philox.h"

namespace twinrun {
namespace {

// Orders of the epochs last asked for: two, since a batch may run across the boundary.
class Orders {
 public:
  Orders(int64_t samples, uint64_t seed, bool shuffle)
      : samples_(samples), seed_(seed), shuffle_(shuffle) {}

  const std::vector<int32_t>& of(int64_t epoch) {
    Slot& slot = slots_[epoch & 1];
    if (slot.epoch != epoch) {
      slot.epoch = epoch;
      make(epoch, slot.order);
    }
    return slot.order;
  }

 private:
  struct Slot {
    int64_t epoch = -1;
    std::vector<int32_t> order;
  };

  void make(int64_t epoch, std::vector<int32_t>& order) const {
    order.resize(static_cast<size_t>(samples_));
    std::iota(order.begin(), order.end(), 0);
    if (!shuffle_) return;
    const RandomKey key{seed_, kStreamShuffle};
    for (int64_t i = samples_ - 1; i > 0; --i) {
      const uint32_t u = draw(key, 0, static_cast<uint32_t>(epoch), static_cast<uint64_t>(i));
      std::swap(order[static_cast<size_t>(i)], order[bounded(u, static_cast<uint32_t>(i + 1))]);
    }
  }

  int64_t samples_;
  uint64_t seed_;
  bool shuffle_;
  Slot slots_[2];
};

}  // namespace

struct Feed::Impl {
  Impl(const Samples& samples, FeedOptions options)
      : samples(samples),
        options(options),
        count(samples.count()),
        orders(count, options.seed, options.shuffle) {
    if (options.batch > 0) per_epoch = count / options.batch;
  }
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (reader.joinable()) reader.join();
  }

  // Every batch is full: with a remainder and no repeat, the remainder is left over.
  int64_t available() const {
    if (options.batch <= 0 || count == 0) return 0;
    if (!options.repeat) return per_epoch;
    return options.drop_remainder && per_epoch == 0 ? 0 : std::numeric_limits<int64_t>::max();
  }

  Batch make(int64_t step) {
    const int64_t batch = options.batch;
    Batch out{of_batch(samples.features), of_batch(samples.labels), of_batch(samples.weights),
              Tensor::empty({DType::kI32, {batch}})};
    int64_t epoch, place;
    if (options.drop_remainder || !options.repeat) {
      epoch = step / per_epoch;
      place = step % per_epoch * batch;
    } else {
      // step * batch = epoch * count + place, without overflow
      const int64_t rest = step % count * batch;
      epoch = step / count * batch + rest / count;
      place = rest % count;
    }
    const std::vector<int32_t>* order = &orders.of(epoch);
    for (int64_t i = 0; i < batch; ++i, ++place) {
      if (place == count) {
        place = 0;
        order = &orders.of(++epoch);
      }
      const int64_t from = (*order)[static_cast<size_t>(place)];
      copy_sample(samples.features, from, out.features, i);
      copy_sample(samples.labels, from, out.labels, i);
      copy_sample(samples.weights, from, out.weights, i);
      out.sample_ids.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    }
    return out;
  }

  // Room for a batch of what `all` holds samples of.
  Tensor of_batch(const Tensor& all) const {
    if (!all.valid()) return {};
    TensorType type = all.type();
    type.dims[0] = options.batch;
    return Tensor::empty(type);
  }
  static void copy_sample(const Tensor& all, int64_t from, Tensor& out, int64_t to) {
    if (!all.valid()) return;
    const size_t row = all.bytes() / static_cast<size_t>(all.dims()[0]);
    std::memcpy(out.raw() + static_cast<size_t>(to) * row,
                all.raw() + static_cast<size_t>(from) * row, row);
  }

  // The reader's loop: makes consecutive steps until `ready` holds `prefetch` of them. Once it
  // runs, it alone calls make(), so `orders` needs no lock.
  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] {
        return stop ||
               (next < available() && static_cast<int64_t>(ready.size()) < options.prefetch);
      });
      if (stop) return;
      const int64_t step = next++;
      const uint64_t asked = round;
      making = true;
      lock.unlock();
      Batch batch = make(step);
      lock.lock();
      if (asked != round) continue;  // the consumer went elsewhere meanwhile
      making = false;
      ready.push_back(std::move(batch));
      came.notify_one();
    }
  }

  Batch take(int64_t step) {
    if (options.prefetch <= 0) return make(step);
    std::unique_lock lock(mutex);
    // Steps [first, next) are ready, the last of them perhaps still being made.
    int64_t first = next - static_cast<int64_t>(ready.size()) - (making ? 1 : 0);
    if (step < first || step > next || (step == next && making)) {
      ready.clear();
      first = next = step;
      making = false;
      ++round;
    }
    for (; first < step && !ready.empty(); ++first) ready.pop_front();
    if (!reader.joinable()) reader = std::thread([this] { read_ahead(); });
    wake.notify_one();
    came.wait(lock, [&] { return !ready.empty(); });
    Batch out = std::move(ready.front());
    ready.pop_front();
    wake.notify_one();
    return out;
  }

  Samples samples;
  FeedOptions options;
  int64_t count = 0, per_epoch = 0;
  Orders orders;

  std::mutex mutex;
  std::condition_variable wake, came;
  std::deque<Batch> ready;
  int64_t next = 0;     // the step that is made next
  bool making = false;  // step next-1 is being made
  uint64_t round = 0;   // grows when the consumer jumps
  bool stop = false;
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
