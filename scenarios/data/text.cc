// `text`: a text file whose bytes or characters are the tokens. A token id is the byte, or the
// character's rank among the code points that occur anywhere in the file. The last tenth of the
// tokens is held out.
#include <fmt/format.h>

#include <filesystem>
#include <span>

#include "scenarios/data/byte_reader.h"
#include "scenarios/data/source.h"
#include "scenarios/data/windows.h"

namespace twinrun::data {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;  // each byte takes 8 bytes in the tensors

}  // namespace

Result<Pool> text_pool(const DataRequest& request) {
  if (request.files.size() != 1) {
    return Error{fmt::format("data.files names {} files; allowed: 1", request.files.size()),
                 request.where, "set data.files = [\"input.txt\"]"};
  }
  const std::string path = path_of(request, request.files[0]);
  const auto text = ByteReader::read_whole(path, kMaxBytes);
  if (!text) return placed(request, text.error());

  Pool pool;
  std::vector<int32_t> tokens;
  const bool bytes = request.tokens == "bytes";
  if (bytes) {
    tokens.reserve(text->size());
    for (const char c : *text) tokens.push_back(static_cast<uint8_t>(c));
    pool.vocabulary = 256;
  } else if (request.tokens == "characters") {
    auto points = code_points(*text);
    if (!points) {
      Error error = points.error();
      error.where = join_where(path, error.where);
      return placed(request, std::move(error));
    }
    tokens = *std::move(points);
    pool.vocabulary = rank_values(tokens);
  } else {
    return Error{fmt::format("data.tokens is \"{}\"; allowed: bytes, characters", request.tokens),
                 request.where, "set data.tokens = \"bytes\""};
  }
  pool.classes = pool.vocabulary;
  const std::span<const int32_t> all(tokens);
  const size_t train = all.size() / 10 * 9 + all.size() % 10 * 9 / 10;
  TWINRUN_ASSIGN(pool.train, windows(request, all.first(train), path + ": the first nine tenths"));
  TWINRUN_ASSIGN(pool.eval, windows(request, all.subspan(train), path + ": the held-out tenth"));
  pool.origin =
      fmt::format("text ({}, {})", std::filesystem::path(path).filename().string(), request.tokens);
  return pool;
}

}  // namespace twinrun::data
