// Tests the input pipeline: caching, prefetching and threads change no bit of any batch;
// interleaved files; checks of the cache file; the counters.
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "checkpoints/container/array.h"
#include "checkpoints/container/safetensors.h"
#include "scenarios/data/sample_cache.h"
#include "tests/scenarios/source_test.h"

namespace twinrun {
namespace {

constexpr int64_t kSteps = 5;

std::string big_endian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8),
          static_cast<char>(x)};
}

// Records of CIFAR-10's binary version: record i has label i mod 10 and every pixel equal to i.
std::string cifar_records(int first, int count) {
  std::string out;
  for (int i = first; i < first + count; ++i) {
    out += static_cast<char>(i % 10);
    out += std::string(3072, static_cast<char>(i));
  }
  return out;
}

class PipelineTest : public SourceTest {
 protected:
  // A request for each data source.
  std::map<std::string, DataRequest> every_source() const {
    std::map<std::string, DataRequest> all;
    all["digits"] = {.source = "digits", .train = 30, .eval = 5, .seed = 3};
    all["images32"] = {.source = "images32", .train = 30, .eval = 5, .seed = 3};
    all["phrases"] = {.source = "phrases", .window = 8, .vocabulary = 40, .train = 30, .eval = 5};
    all["text_synthetic"] = {.source = "text_synthetic", .window = 16, .train = 30, .eval = 5};
    write("book", std::string(400, 'a') + std::string(400, 'b'));
    all["text"] = {.source = "text", .dir = dir_.string(), .files = {"book"}, .window = 16};
    std::string pixels;
    for (int i = 0; i < 30 * 6; ++i) pixels += static_cast<char>(7 * i);
    write("x", big_endian(0x0803) + big_endian(30) + big_endian(2) + big_endian(3) + pixels);
    write("y", big_endian(0x0801) + big_endian(30) + std::string(30, '\1'));
    all["idx"] = {.source = "idx", .dir = dir_.string(), .files = {"x", "y"}};
    write("data_batch_1.bin", cifar_records(0, 20));
    write("data_batch_2.bin", cifar_records(20, 9));
    all["cifar10"] = {.source = "cifar10", .dir = dir_.string(), .cycle_length = 2};
    DataRequest files{.dir = kFixtures, .classes = 3};
    all["tfrecord"] = files;
    all["tfrecord"].files = {"images.tfrecord"};
    all["tfrecord"].feature = "image", all["tfrecord"].label = "label";
    all["tfrecord"].shape = {2, 2, 3};
    all["npy"] = files;
    all["npy"].files = {"pixels_u8.npy", "labels_i64.npy"};
    all["npz"] = files;
    all["npz"].files = {"pixels.npz"}, all["npz"].feature = "x_train";
    all["npz"].label = "y_train";
    all["hdf5"] = all["npz"];
    all["hdf5"].files = {"arrays.h5"};
    for (auto& [name, request] : all) request.source = name;
    return all;
  }

  std::string cache() const { return (dir_ / "kept.cache").string(); }
  DataRequest cached(DataRequest request) const {
    request.cache = cache();
    return request;
  }
  std::string note_of(const DataRequest& request) const {
    const Dataset data = opened(request);
    if (data.notes.size() != 1) return "no note";
    std::string note = data.notes[0];
    const size_t at = note.find(cache());
    return at == std::string::npos ? note : note.replace(at, cache().size(), "FILE");
  }
};

bool same(const Tensor& a, const Tensor& b) {
  return a.valid() == b.valid() && (!a.valid() || a.same_bits(b));
}

std::vector<Batch> batches(const Samples& samples, const FeedOptions& options) {
  Feed feed(samples, options);
  std::vector<Batch> out;
  for (int64_t step = 0; step < kSteps; ++step) {
    auto batch = feed.batch(step);
    EXPECT_TRUE(batch.ok()) << batch.error().message();
    if (batch.ok()) out.push_back(*std::move(batch));
  }
  return out;
}

TEST_F(PipelineTest, EveryCombinationGivesTheSameBits) {
  for (const auto& [name, request] : every_source()) {
    SCOPED_TRACE(name);
    const Dataset plain = opened(request);
    const FeedOptions options{.batch = 3, .seed = 5, .prefetch = 0};
    const std::vector<Batch> expected = batches(plain.train, options);
    ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
    std::filesystem::remove(cache());
    for (const std::string& how : {std::string("none"), cache(), cache()}) {  // written, then read
      DataRequest other = request;
      other.cache = how;
      const Dataset data = opened(other);
      EXPECT_EQ(data.digest, plain.digest) << how;
      EXPECT_EQ(data.description, plain.description);
      EXPECT_EQ(data.classes, plain.classes);
      EXPECT_EQ(data.vocabulary, plain.vocabulary);
      EXPECT_TRUE(same(data.eval.features, plain.eval.features));
      EXPECT_EQ(data.train.dtype(), plain.train.dtype());
      for (const int64_t threads : {1, 3}) {
        for (const int64_t prefetch : {0, 1, 3}) {
          FeedOptions feeding = options;
          feeding.parallel_calls = threads, feeding.prefetch = prefetch;
          const std::vector<Batch> found = batches(data.train, feeding);
          ASSERT_EQ(found.size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(same(found[i].features, expected[i].features));
            EXPECT_TRUE(same(found[i].labels, expected[i].labels));
            EXPECT_TRUE(same(found[i].weights, expected[i].weights));
            EXPECT_TRUE(same(found[i].sample_ids, expected[i].sample_ids));
          }
        }
      }
    }
  }
}

TEST_F(PipelineTest, WithoutACacheU8StaysAByte) {
  const std::vector<std::string> u8 = {"digits",   "images32", "idx", "cifar10",
                                       "tfrecord", "npy",      "npz", "hdf5"};
  for (auto [name, request] : every_source()) {
    const Dataset decoded = opened(request);
    request.cache = "none";
    const Dataset data = opened(request);
    const bool byte = std::ranges::count(u8, name) > 0;
    EXPECT_EQ(data.train.encoded(), byte) << name;
    EXPECT_FALSE(data.eval.encoded()) << name;
    EXPECT_EQ(data.train.features.bytes() * (byte ? 4 : 1), decoded.train.features.bytes()) << name;
    EXPECT_TRUE(same(data.train.decoded().features, decoded.train.features)) << name;
  }
}

// tf.data's interleave with block_length 1, simulated naively: each slot holds the remaining
// samples of one file.
std::vector<int64_t> simulated(const std::vector<int64_t>& counts, int64_t cycle_length) {
  std::vector<std::vector<int64_t>> files;
  int64_t sample = 0;
  for (const int64_t count : counts) {
    files.emplace_back();
    for (int64_t i = 0; i < count; ++i) files.back().push_back(sample++);
    std::reverse(files.back().begin(), files.back().end());
  }
  std::erase_if(files, [](const auto& file) { return file.empty(); });
  std::reverse(files.begin(), files.end());
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(cycle_length));
  std::vector<int64_t> out;
  for (auto& slot : slots) {
    if (files.empty()) continue;
    slot = files.back();
    files.pop_back();
  }
  while (static_cast<int64_t>(out.size()) < sample) {
    for (auto& slot : slots) {
      if (slot.empty()) continue;
      out.push_back(slot.back());
      slot.pop_back();
      if (slot.empty() && !files.empty()) {
        slot = files.back();
        files.pop_back();
      }
    }
  }
  return out;
}

TEST(Interleave, TakesTurns) {
  EXPECT_EQ(data::interleaved_order({3, 2, 2}, 1), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  // Files {0 1 2}, {3 4}, {5 6}: when {3 4} ends, the third takes its slot.
  EXPECT_EQ(data::interleaved_order({3, 2, 2}, 2), (std::vector<int64_t>{0, 3, 1, 4, 2, 5, 6}));
  EXPECT_EQ(data::interleaved_order({3, 2, 2}, 9), (std::vector<int64_t>{0, 3, 5, 1, 4, 6, 2}));
  EXPECT_EQ(data::interleaved_order({0, 2, 0, 1}, 2), (std::vector<int64_t>{0, 2, 1}));
  for (const int64_t cycle : {1, 2, 3, 4, 7}) {
    for (const auto& counts : {std::vector<int64_t>{5, 1, 7, 2, 3}, {1, 1, 1}, {4}, {0, 0, 6, 2}}) {
      EXPECT_EQ(data::interleaved_order(counts, cycle), simulated(counts, cycle)) << cycle;
    }
  }
}

TEST_F(PipelineTest, FilesTakeTurnsAndTheHeldOutOnesStay) {
  write("data_batch_1.bin", cifar_records(0, 12));
  write("data_batch_2.bin", cifar_records(12, 4));
  write("data_batch_3.bin", cifar_records(16, 4));
  DataRequest request{.source = "cifar10"};
  const Dataset in_order = opened(request);
  request.cycle_length = 2;
  const Dataset turns = opened(request);
  std::vector<float> first;
  for (size_t i = 0; i < 18; ++i) first.push_back(turns.train.features.as<float>()[i * 3072] * 255);
  std::vector<float> expected;  // the last two samples of the third file are held out
  for (const int64_t i : simulated({12, 4, 2}, 2)) expected.push_back(static_cast<float>(i));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(first[i], expected[i], 1e-3) << i;
  EXPECT_EQ(turns.train.labels.as<int32_t>()[1], 2);  // sample 12
  EXPECT_TRUE(same(turns.eval.features, in_order.eval.features));
  EXPECT_NE(turns.digest, in_order.digest);
  request.train = 2;
  EXPECT_EQ(opened(request).train.labels.as<int32_t>()[1], 2) << "data.train counts turns";
}

TEST_F(PipelineTest, TheCacheFileIsUsedAndChecked) {
  DataRequest request{.source = "cifar10"};
  write("data_batch_1.bin", cifar_records(0, 20));
  EXPECT_EQ(note_of(cached(request)), "data.cache: FILE does not exist yet");
  const Dataset again = opened(cached(request));
  EXPECT_EQ(note_of(cached(request)), "data.cache: samples read from FILE");
  EXPECT_EQ(again.opening.read.elements, 0);
  EXPECT_EQ(again.opening.cache.elements, 20);

  request.train = 10;
  EXPECT_EQ(note_of(cached(request)),
            "data.cache: FILE is written again: it was made from other data: \"train 0\", now "
            "\"train 10\"");
  EXPECT_EQ(opened(cached(request)).train.count(), 10);
  request.seed = 9;  // a source that reads files does not depend on the seed
  EXPECT_EQ(note_of(cached(request)), "data.cache: samples read from FILE");
  write("data_batch_1.bin", cifar_records(1, 30));
  EXPECT_TRUE(note_of(cached(request))
                  .find("written again: it was made from other data: \"file "
                        "data_batch_1.bin: 61460 bytes") != std::string::npos);
}

// Files of one archive may have the same size and the same time.
TEST_F(PipelineTest, ACacheFileOfDataThatWasExchangedIsMadeAgain) {
  const DataRequest request{.source = "cifar10"};
  write("data_batch_1.bin", cifar_records(0, 20));
  write("other", cifar_records(20, 20));
  namespace fs = std::filesystem;
  const fs::path one = dir_ / "data_batch_1.bin", other = dir_ / "other";
  fs::last_write_time(other, fs::last_write_time(one));
  const Digest before = opened(cached(request)).digest;
  const auto time = fs::last_write_time(one);
  fs::rename(other, one);
  ASSERT_EQ(fs::last_write_time(one), time);
  const Dataset after = opened(cached(request));
  EXPECT_NE(after.digest, before);
  EXPECT_EQ(after.digest, opened(request).digest);
}

TEST_F(PipelineTest, ADamagedCacheFileIsMadeAgain) {
  const DataRequest request{.source = "digits", .train = 2, .eval = 1};
  const Dataset expected = opened(cached(request));
  std::ifstream in(cache(), std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  const size_t mark = good.find("twinrun samples") + 30;
  const auto expect_made_again = [&](const std::string& bytes, size_t at) {
    write("kept.cache", bytes);
    const Dataset found = opened(cached(request));
    EXPECT_EQ(found.digest, expected.digest) << at;
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_NE(found.notes[0].find("is written again: "), std::string::npos) << at << found.notes[0];
  };
  for (size_t at = mark; at < good.size(); at += 397) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    expect_made_again(bad, at);
    expect_made_again(good.substr(0, at), at);
  }
}

// A cache file can have a valid digest and yet hold values that no source gives. A label beyond the
// number of classes, for example, would lead to reads beyond a table.
TEST_F(PipelineTest, AForgedCacheFileIsMadeAgain) {
  const DataRequest request = cached({.source = "digits", .train = 4, .eval = 2});
  const Dataset good = opened(request);
  const auto forged = [&](auto change) {
    Dataset bad = good;
    bad.train = {good.train.features.clone(), good.train.labels.clone(), {}};
    change(bad);
    bad.digest = data::digest_of(bad);
    EXPECT_TRUE(data::write_cache(request, bad).ok());
    return note_of(request);
  };
  const std::string again =
      "data.cache: FILE is written again: its content does not match its digest and keys";
  EXPECT_EQ(forged([](Dataset&) {}), "data.cache: samples read from FILE");
  EXPECT_EQ(forged([](Dataset& d) { d.train.labels.as<int32_t>()[3] = 10; }), again);
  EXPECT_EQ(forged([](Dataset& d) { d.train.labels.as<int32_t>()[0] = -1; }), again);
  EXPECT_EQ(forged([](Dataset& d) { d.train.features.as<float>()[5] = 0.0f / 0.0f; }), again);
  EXPECT_EQ(forged([](Dataset& d) { d.train.labels = d.train.labels.rows(0, 3); }), again);
  EXPECT_EQ(forged([](Dataset& d) { d.vocabulary = 5; }), again);
  EXPECT_EQ(forged([](Dataset& d) {
              d.train.features = d.train.features.reshaped({4, 784});
            }),
            again);
}

TEST_F(PipelineTest, AnotherFileIsNeverWrittenOver) {
  DataRequest request = cached({.source = "digits", .train = 4, .eval = 2});
  write("kept.cache", "my diary");
  EXPECT_EQ(error(request),
            "DIR/kept.cache: data.cache names a file that is not a cache of samples");
  std::ifstream in(cache());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "my diary");
  request.cache = dir_.string();
  EXPECT_NE(error(request), "accepted");
  request.cache = (dir_ / "nowhere" / "kept.cache").string();
  const auto data = open(request);
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.error().fix, "set data.cache to a file that can be written, or to \"memory\"");
}

TEST_F(PipelineTest, CountersOnDemand) {
  const Dataset data = opened({.source = "digits", .train = 64, .eval = 4, .cache = "none"});
  EXPECT_EQ(data.opening.read.elements, 68);
  EXPECT_EQ(data.opening.read.bytes, 64 * 784 + 4 * 784 * 4 + 68 * 4);
  EXPECT_GT(data.opening.read.busy, 0);
  for (const int64_t threads : {1, 3}) {
    Feed feed(data.train, {.batch = 16, .prefetch = 0, .parallel_calls = threads});
    for (int64_t step = 0; step < 6; ++step) ASSERT_TRUE(feed.batch(step).ok());
    const PipelineCounters c = feed.counters();
    EXPECT_EQ(c.parallel_calls, threads);
    EXPECT_EQ(c.depth, 0);
    EXPECT_EQ(c.shuffle.elements, 6 * 16);
    EXPECT_EQ(c.map.elements, 6 * 16);
    EXPECT_EQ(c.map.bytes, 6 * 16 * (784 * 4 + 4));
    EXPECT_EQ(c.batch.elements, 6);
    EXPECT_EQ(c.batch.bytes, 6 * 16 * (784 * 4 + 8));
    EXPECT_EQ(c.prefetch.elements, 0);
    ASSERT_EQ(c.asked.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(c.asked[i].step, static_cast<int64_t>(i));
      EXPECT_EQ(c.asked[i].ready, 0) << "everything is read on demand";
    }
    EXPECT_GT(c.map.busy, 0);
    EXPECT_GE(c.map.waiting, 0);
    // These are self times: the loop waits for the stages one after the other, while the threads of
    // map run in parallel.
    const double map = (c.map.busy + c.map.waiting) / static_cast<double>(threads);
    EXPECT_LE(c.shuffle.busy + c.batch.busy + map, c.waited * 1.000001);
  }
}

TEST_F(PipelineTest, CountersReadAheadInThreads) {
  const Dataset data = opened({.source = "digits", .train = 64, .eval = 4, .cache = "none"});
  Feed feed(data.train, {.batch = 16, .prefetch = 2, .parallel_calls = 2});
  for (int64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(feed.batch(step).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a training step
    (void)feed.counters();                                       // while the reader thread runs
  }
  const PipelineCounters c = feed.counters();
  EXPECT_EQ(c.depth, 2);
  ASSERT_EQ(c.asked.size(), 5u);
  EXPECT_EQ(c.asked[0].ready, 0);
  EXPECT_GT(c.asked[0].waited, 0);
  int64_t ahead = 0;
  for (const auto& asked : c.asked) {
    EXPECT_LE(asked.ready, 2);
    ahead += asked.ready > 0;
  }
  EXPECT_GE(ahead, 2) << "20 ms are enough for 16 digits, but for a machine that stands still";
  EXPECT_GE(c.prefetch.elements, 5);
  EXPECT_LE(c.prefetch.elements, 7) << "no more than the buffer holds is read ahead";
  EXPECT_EQ(c.map.elements, c.prefetch.elements * 16);
  EXPECT_GT(c.prefetch.waiting, 0) << "the reader found the buffer full";
}

TEST_F(PipelineTest, CountersOfALongRunTakeConstantMemory) {
  const Dataset data = opened({.source = "digits", .train = 4, .eval = 2});
  constexpr int64_t kSteps = PipelineCounters::kTimeline + 1000;
  Feed feed(data.train, {.batch = 1, .prefetch = 0});
  for (int64_t step = 0; step < kSteps; ++step) ASSERT_TRUE(feed.batch(step).ok());
  const PipelineCounters c = feed.counters();
  EXPECT_EQ(c.asked.size(), PipelineCounters::kTimeline);
  EXPECT_EQ(c.asked.back().step, kSteps - 1001);
  EXPECT_EQ(c.batch.elements, kSteps) << "totals are of all batches";
  double kept = 0;
  for (const auto& asked : c.asked) kept += asked.waited;
  EXPECT_GT(c.waited, kept);
}

}  // namespace
}  // namespace twinrun
