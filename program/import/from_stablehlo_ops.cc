// Translates names and attributes of StableHLO's ops to HLO's, text to text. Each op is written in
// its own pretty form or in the generic form; both are accepted.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "program/import/from_stablehlo.h"
#include "program/import/text_cursor.h"

namespace twinrun {
namespace from_stablehlo {
namespace {

using Items = std::vector<std::string>;

// The items of "[1, 0]", "array<i64: 1, 0>", "dense<[[0, 1], [2, 3]]>", in order.
Items items(std::string_view text) {
  for (const std::string_view head : {"array<i64", "array<i1", "dense<"}) {
    if (!text.starts_with(head)) continue;
    text.remove_prefix(head.size());
    if (text.ends_with('>')) text.remove_suffix(1);
    if (text.starts_with(':')) text.remove_prefix(1);
    break;
  }
  Items out;
  std::string item;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == ',') {
      if (!item.empty()) out.push_back(std::move(item));
      item.clear();
    } else if (c != ' ' && c != '[' && c != ']') {
      item += c;
    }
  }
  return out;
}

std::string braced(const Items& items) { return fmt::format("{{{}}}", fmt::join(items, ",")); }

// The value of `key` in "#stablehlo.gather<offset_dims = [1], index_vector_dim = 2>"; "" if it is
// missing.
std::string field(std::string_view text, std::string_view key) {
  for (size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    if (at > 0 && TextCursor::is_word(text[at - 1])) continue;
    TextCursor value(text.substr(at + key.size()));
    if (value.take("=")) return trimmed(value.until(",", TextCursor::Angles::kBrackets));
  }
  return "";
}

// GT of "#stablehlo<comparison_direction GT>".
std::string last_word(std::string_view text) {
  while (text.ends_with('>')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind(' ') + 1));
}

struct Op {
  const MlirOp& op;
  const std::vector<const HloShape*>& operands;
  HloInstruction& in;

  // The attribute, by its name in the pretty form or in the generic one.
  std::string text(const std::string& key, const std::string& other = "") const {
    const auto found = op.attributes.find(key);
    if (found != op.attributes.end()) return found->second;
    return other.empty() ? "" : text(other);
  }
  Items list(const std::string& key, const std::string& other = "") const {
    return items(text(key, other));
  }
  void set(const std::string& key, std::string value) const {
    in.attributes[key] = std::move(value);
  }
};

using Rule = void (*)(const Op&);

template <const char* kTo, const char* kKey, const char* kOther>
void list_rule(const Op& o) {
  o.set(kTo, braced(o.list(kKey, kOther)));
}
constexpr char kDimensions[] = "dimensions", kDims[] = "dims", kPermutation[] = "permutation",
               kBroadcast[] = "broadcast_dimensions", kSlice[] = "dynamic_slice_sizes",
               kSizes[] = "sizes", kSliceSizes[] = "slice_sizes";

void concatenate(const Op& o) { o.set("dimensions", "{" + o.text("dim", "dimension") + "}"); }
void iota(const Op& o) { o.set("iota_dimension", o.text("dim", "iota_dimension")); }

// Written "[0:1, 0:5:2]", or as lists of starts, limits and strides.
void slice(const Op& o) {
  Items ranges = items(o.op.list);
  const Items start = o.list("start_indices"), limit = o.list("limit_indices"),
              stride = o.list("strides");
  for (size_t i = 0; i < start.size() && i < limit.size() && i < stride.size(); ++i)
    ranges.push_back(fmt::format("{}:{}:{}", start[i], limit[i], stride[i]));
  for (std::string& range : ranges) range = "[" + range + "]";
  o.set("slice", braced(ranges));
}

void pad(const Op& o) {
  const Items low = o.list("low", "edge_padding_low"), high = o.list("high", "edge_padding_high"),
              interior = o.list("interior", "interior_padding");
  Items all;
  for (size_t i = 0; i < low.size() && i < high.size() && i < interior.size(); ++i)
    all.push_back(fmt::format("{}_{}_{}", low[i], high[i], interior[i]));
  o.set("padding", fmt::format("{}", fmt::join(all, "x")));
}

void compare(const Op& o) {
  const Items& words = o.op.words;
  o.set("direction", words.empty() ? last_word(o.text("comparison_direction")) : words[0]);
  o.set("type", words.size() < 2 ? last_word(o.text("compare_type")) : words[1]);
}

void reduce_precision(const Op& o) {
  const std::string format = o.text("format");  // e8m7
  const size_t m = format.find('m');
  const bool pretty = format.starts_with('e') && m != std::string::npos;
  o.set("exponent_bits", pretty ? format.substr(1, m - 1) : o.text("exponent_bits"));
  o.set("mantissa_bits", pretty ? format.substr(m + 1) : o.text("mantissa_bits"));
}

void precision(const Op& o) {
  const std::string text = o.text("precision", "precision_config");
  if (text.find("HIGH") == std::string::npos) return;
  o.set("operand_precision", text.find("HIGHEST") == std::string::npos ? "{high}" : "{highest}");
}

// Written contracting_dims = [1] x [0], or
// dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], ...>
void dot_general(const Op& o) {
  const std::string numbers = o.text("dot_dimension_numbers");
  for (const std::string kind : {"batch", "contracting"}) {
    const std::string pair = o.text(kind == "batch" ? "batching_dims" : "contracting_dims");
    const std::string longer = (kind == "batch" ? "batching" : kind) + "_dimensions";
    const size_t middle = std::min(pair.find(']'), pair.size());
    const size_t right = std::min(pair.find('[', middle), pair.size());
    const std::string lhs = pair.empty() ? field(numbers, "lhs_" + longer) : pair.substr(0, middle);
    const std::string rhs = pair.empty() ? field(numbers, "rhs_" + longer) : pair.substr(right);
    o.set("lhs_" + kind + "_dims", braced(items(lhs)));
    o.set("rhs_" + kind + "_dims", braced(items(rhs)));
  }
  precision(o);
}

// Of vectors and matrices: contracts the last dimension of the left operand with the first of the
// right one.
void dot(const Op& o) {
  const size_t rank = o.operands.empty() ? 0 : o.operands[0]->dims.size();
  o.set("lhs_contracting_dims", fmt::format("{{{}}}", rank == 0 ? 0 : rank - 1));
  o.set("rhs_contracting_dims", "{0}");
  precision(o);
}

// "size=3x3 stride=1x1 pad=0_0x0_0 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0", without items
// that are absent.
std::string window(const Items& size, const Items& stride, Items pad, const Items& lhs,
                   const Items& rhs, const Items& reversal) {
  const auto item = [&](const char* key, Items values) {
    if (values.size() == 1) values.assign(size.size(), std::string(values[0]));  // dense<1>
    return values.empty() ? "" : fmt::format("{}={} ", key, fmt::join(values, "x"));
  };
  if (pad.size() == 1) pad.assign(2 * size.size(), std::string(pad[0]));  // dense<0>
  Items pairs;
  for (size_t i = 0; i + 1 < pad.size(); i += 2)
    pairs.push_back(fmt::format("{}_{}", pad[i], pad[i + 1]));
  return "{" + item("size", size) + item("stride", stride) + item("pad", pairs) +
         item("lhs_dilate", lhs) + item("rhs_dilate", rhs) + item("rhs_reversal", reversal) + "}";
}

// Written dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
// window = {stride = [1, 1], pad = [[1, 1], [1, 1]], ...}
void convolution(const Op& o) {
  std::string numbers = o.text("dim_numbers", "dimension_numbers");
  if (numbers.starts_with("#stablehlo.conv<")) numbers = numbers.substr(16, numbers.size() - 17);
  std::string labels;
  for (const char c : numbers) {
    if (c == 'x') labels += '_';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 && c != 'x') labels += c;
    if (c == '>') labels += "->";
  }
  o.set("dim_labels", labels);
  // The size of the window is that of the kernel's spatial dimensions, in order.
  const size_t first = std::min(labels.find('_'), labels.size());
  const std::string kernel = labels.substr(std::min(first + 1, labels.size()),
                                           std::min(labels.find("->"), labels.size()) - first - 1);
  Items size;
  for (size_t i = 0; i < kernel.size(); ++i) {
    const size_t at = kernel.find(std::to_string(i));
    if (at == std::string::npos || o.operands.size() < 2 || at >= o.operands[1]->dims.size()) break;
    size.push_back(std::to_string(o.operands[1]->dims[at]));
  }
  const std::string w = o.text("window");
  const auto list = [&](const char* pretty, const char* generic) {
    const std::string text = field(w, pretty);
    return items(text.empty() ? o.text(generic) : text);
  };
  Items reversal = list("reverse", "window_reversal");
  for (std::string& r : reversal) r = r == "true" ? "1" : "0";
  o.set("window",
        window(size, list("stride", "window_strides"), list("pad", "padding"),
               list("lhs_dilate", "lhs_dilation"), list("rhs_dilate", "rhs_dilation"), reversal));
  for (const char* key : {"feature_group_count", "batch_group_count"}) {
    if (const std::string groups = o.text(key); !groups.empty()) o.set(key, groups);
  }
  precision(o);
}

void pooling(const Op& o) {
  o.set("window", window(o.list("window_dimensions"), o.list("window_strides"), o.list("padding"),
                         o.list("base_dilations"), o.list("window_dilations"), {}));
}

// Dimension numbers. MLIR omits lists that are empty and numbers that are 0.
void numbers(const Op& o, const std::string& text, std::initializer_list<const char*> lists) {
  for (const char* key : lists) o.set(key, braced(items(field(text, key))));
  const std::string dim = field(text, "index_vector_dim");
  o.set("index_vector_dim", dim.empty() ? "0" : dim);
}

void gather(const Op& o) {
  numbers(o, o.text("dimension_numbers"),
          {"offset_dims", "collapsed_slice_dims", "operand_batching_dims",
           "start_indices_batching_dims", "start_index_map"});
  list_rule<kSliceSizes, kSliceSizes, kSizes>(o);
}

void scatter(const Op& o) {
  numbers(o, o.text("scatter_dimension_numbers"),
          {"update_window_dims", "inserted_window_dims", "input_batching_dims",
           "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"});
  o.set("unique_indices", o.text("unique_indices"));
}

// Rows of "dense<"0x00000000000000000100000000000000" : tensor<1x2xi64>", little-endian numbers of 8
// bytes; the text itself if it is malformed.
std::string lists_of_bytes(const std::string& text) {
  const size_t begin = text.find("\"0x"), end = text.rfind('"'), type = text.rfind('<');
  const auto width = number(text.substr(std::min(text.find('x', type), text.size() - 1) + 1,
                                        text.rfind('x') - text.find('x', type) - 1));
  if (begin == std::string::npos || end < begin + 3 || !width || *width < 1) return text;
  const std::string_view digits = std::string_view(text).substr(begin + 3, end - begin - 3);
  std::string out = "{";
  for (size_t i = 0; i + 16 <= digits.size(); i += 16) {
    uint64_t value = 0;
    for (size_t byte = 8; byte-- > 0;) {
      unsigned one = 0;
      const char* const at = digits.data() + i + 2 * byte;
      if (std::from_chars(at, at + 2, one, 16).ptr != at + 2) return text;
      value = value << 8 | one;
    }
    const bool first = i / 16 % static_cast<size_t>(*width) == 0;
    out += fmt::format("{}{}", first ? (i == 0 ? "{" : "},{") : ",", static_cast<int64_t>(value));
  }
  return out + "}}";
}

// "dense<[[0, 1], [2, 3]]>" -> "{{0,1},{2,3}}". One number for all elements is a list of one, or a
// pair.
std::string lists(const std::string& text, bool pairs) {
  if (text.starts_with("dense<\"")) return lists_of_bytes(text);
  if (!text.starts_with("dense<") || !text.ends_with('>')) return text;
  std::string out;
  for (const char c : std::string_view(text).substr(6, text.size() - 7)) {
    if (c != ' ') out += c == '[' ? '{' : c == ']' ? '}' : c;
  }
  if (out.empty() || out.starts_with('{')) return out.empty() ? "{}" : out;
  return pairs ? fmt::format("{{{{{0},{0}}}}}", out) : fmt::format("{{{{{}}}}}", out);
}

void collective(const Op& o) {
  for (const char* key : {"replica_groups", "source_target_pairs"}) {
    const std::string text = o.text(key);
    if (!text.empty()) o.set(key, lists(text, key[0] == 's'));
  }
  const std::string channel = field(o.text("channel_handle"), "handle");
  if (!channel.empty()) o.set("channel_id", channel);
  const std::string global = o.text("use_global_device_ids");
  if (global == "unit" || global == "true") o.set("use_global_device_ids", "true");
  for (const char* key : {"all_gather_dim", "scatter_dimension", "split_dimension"}) {
    if (const std::string dim = o.text(key); !dim.empty()) o.set("dimensions", "{" + dim + "}");
  }
  if (const std::string dim = o.text("concat_dimension"); !dim.empty())
    o.set("concat_dimensions", "{" + dim + "}");
}

void sort(const Op& o) {
  const std::string dimension = o.text("dimension");
  o.set("dimensions", "{" + dimension.substr(0, dimension.find(' ')) + "}");
}

void rng_bit_generator(const Op& o) {
  const std::string algorithm = o.text("algorithm", "rng_algorithm");
  o.set("algorithm", algorithm.starts_with('#') ? last_word(algorithm) : algorithm);
}

void custom_call(const Op& o) {
  std::string sharding = o.text("mhlo.sharding");
  std::erase(sharding, '"');
  if (!sharding.empty()) o.set("sharding", sharding);
  o.set("custom_call_target",
        o.op.symbol.empty() ? o.text("call_target_name") : "\"" + o.op.symbol + "\"");
}

void call(const Op& o) {  // call @relu(%0); composite "my.op" %0 {decomposition = @my.op.impl}
  const std::string name = o.op.symbol.empty() ? o.text("decomposition", "callee") : o.op.symbol;
  std::string to;
  std::ranges::copy_if(name, std::back_inserter(to), [](char c) { return c != '@' && c != '"'; });
  o.set("to_apply", to);
}

struct Known {
  std::string_view name, opcode;
  Rule rule = nullptr;
};

constexpr std::array kKnown = {
    Known{"broadcast_in_dim", "broadcast", list_rule<kDimensions, kDims, kBroadcast>},
    Known{"transpose", "transpose", list_rule<kDimensions, kDims, kPermutation>},
    Known{"reverse", "reverse", list_rule<kDimensions, kDims, kDimensions>},
    Known{"reduce", "reduce", list_rule<kDimensions, kDimensions, kDims>},
    Known{"dynamic_slice", "dynamic-slice", list_rule<kSlice, kSizes, kSliceSizes>},
    Known{"concatenate", "concatenate", concatenate},
    Known{"iota", "iota", iota},
    Known{"slice", "slice", slice},
    Known{"pad", "pad", pad},
    Known{"compare", "compare", compare},
    Known{"reduce_precision", "reduce-precision", reduce_precision},
    Known{"dot_general", "dot", dot_general},
    Known{"dot", "dot", dot},
    Known{"convolution", "convolution", convolution},
    Known{"reduce_window", "reduce-window", pooling},
    Known{"select_and_scatter", "select-and-scatter", pooling},
    Known{"gather", "gather", gather},
    Known{"scatter", "scatter", scatter},
    Known{"sort", "sort", sort},
    Known{"rng_bit_generator", "rng-bit-generator", rng_bit_generator},
    Known{"count_leading_zeros", "count-leading-zeros"},
    Known{"custom_call", "custom-call", custom_call},
    Known{"all_reduce", "all-reduce", collective},
    Known{"all_gather", "all-gather", collective},
    Known{"reduce_scatter", "reduce-scatter", collective},
    Known{"all_to_all", "all-to-all", collective},
    Known{"collective_permute", "collective-permute", collective},
    Known{"collective_broadcast", "collective-broadcast", collective},
    Known{"composite", "call", call},
    Known{"optimization_barrier", "opt-barrier"},
    Known{"if", "conditional"},
    Known{"case", "conditional"},
};

const Known* known(std::string_view name) {
  const auto* const found = std::ranges::find(kKnown, name, &Known::name);
  return found == kKnown.end() ? nullptr : &*found;
}

constexpr std::string_view kPrefix = "stablehlo.";

}  // namespace
}  // namespace from_stablehlo

std::string hlo_opcode(const std::string& op) {
  if (op == "call" || op == "func.call") return "call";
  static const std::map<std::string_view, std::string_view> chlo = {
      {"chlo.erf", "erf"},
      {"chlo.erfc", "erfc"},
      {"chlo.erf_inv", "erf-inv"},
      {"chlo.next_after", "next-after"},
      {"chlo.top_k", "topk"}};
  if (const auto found = chlo.find(op); found != chlo.end()) return std::string(found->second);
  if (op == "chlo.square") return "multiply";
  if (op == "sdy.sharding_constraint") return "opt-barrier";
  if (!op.starts_with(from_stablehlo::kPrefix)) return op;
  std::string name = op.substr(from_stablehlo::kPrefix.size());
  if (const auto* k = from_stablehlo::known(name)) return std::string(k->opcode);
  std::ranges::replace(name, '_', '-');
  return name;
}

void set_hlo_attributes(const MlirOp& op, const std::vector<const HloShape*>& operands,
                        HloInstruction& in) {
  const from_stablehlo::Op o{op, operands, in};
  if (op.name == "call" || op.name == "func.call") return from_stablehlo::call(o);
  if (op.name == "chlo.top_k") return o.set("k", o.text("k"));
  if (!op.name.starts_with(from_stablehlo::kPrefix)) return;
  const auto* k =
      from_stablehlo::known(std::string_view(op.name).substr(from_stablehlo::kPrefix.size()));
  if (k != nullptr && k->rule != nullptr) k->rule(o);
}

}  // namespace twinrun
