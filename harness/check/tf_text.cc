// Reads protobuf's text form by a table of the fields that count.
#include "harness/check/tf_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "harness/check/tf_graph.h"
#include "program/base/names.h"
#include "program/base/protobuf_wire.h"

namespace twinrun::check {
namespace {

constexpr std::string_view kString = "string", kNumber = "number";

struct TextField {
  std::string_view message, name;
  uint32_t number;
  std::string_view type;  // kString, kNumber or a message
};

// Of tensorflow/core/{framework,protobuf}/*.proto. The entry of a map is a message of its own.
constexpr TextField kTextFields[] = {
    {"SavedModel", "saved_model_schema_version", 1, kNumber},
    {"SavedModel", "meta_graphs", 2, "MetaGraphDef"},
    {"MetaGraphDef", "meta_info_def", 1, "MetaInfoDef"},
    {"MetaGraphDef", "graph_def", 2, "GraphDef"},
    {"MetaGraphDef", "saver_def", 3, "SaverDef"},
    {"MetaGraphDef", "collection_def", 4, "CollectionEntry"},
    {"MetaGraphDef", "signature_def", 5, "SignatureEntry"},
    {"MetaGraphDef", "object_graph_def", 7, "SavedObjectGraph"},
    {"SavedObjectGraph", "concrete_functions", 2, "ConcreteEntry"},
    {"ConcreteEntry", "key", 1, kString},
    {"MetaInfoDef", "tags", 4, kString},
    {"MetaInfoDef", "tensorflow_version", 5, kString},
    {"MetaInfoDef", "function_aliases", 8, "TextEntry"},
    {"SaverDef", "filename_tensor_name", 1, kString},
    {"SaverDef", "save_tensor_name", 2, kString},
    {"SaverDef", "restore_op_name", 3, kString},
    {"SignatureEntry", "key", 1, kString},
    {"SignatureEntry", "value", 2, "SignatureDef"},
    {"SignatureDef", "inputs", 1, "PortEntry"},
    {"SignatureDef", "outputs", 2, "PortEntry"},
    {"PortEntry", "key", 1, kString},
    {"PortEntry", "value", 2, "TensorInfo"},
    {"TensorInfo", "name", 1, kString},
    {"TensorInfo", "dtype", 2, kNumber},
    {"TensorInfo", "tensor_shape", 3, "TensorShapeProto"},
    {"GraphDef", "node", 1, "NodeDef"},
    {"GraphDef", "library", 2, "FunctionDefLibrary"},
    {"GraphDef", "version", 3, kNumber},
    {"GraphDef", "versions", 4, "VersionDef"},
    {"FunctionDefLibrary", "function", 1, "FunctionDef"},
    {"FunctionDef", "signature", 1, "OpDef"},
    {"FunctionDef", "node_def", 3, "NodeDef"},
    {"FunctionDef", "ret", 4, "TextEntry"},
    {"FunctionDef", "control_ret", 6, "TextEntry"},
    {"FunctionDef", "arg_attr", 7, "ArgumentEntry"},
    {"TextEntry", "key", 1, kString},
    {"TextEntry", "value", 2, kString},
    {"ArgumentEntry", "key", 1, kNumber},
    {"ArgumentEntry", "value", 2, "ArgAttrs"},
    {"ArgAttrs", "attr", 1, "AttrEntry"},
    {"OpDef", "name", 1, kString},
    {"OpDef", "input_arg", 2, "ArgDef"},
    {"ArgDef", "name", 1, kString},
    {"ArgDef", "type", 3, kNumber},
    {"NodeDef", "name", 1, kString},
    {"NodeDef", "op", 2, kString},
    {"NodeDef", "input", 3, kString},
    {"NodeDef", "device", 4, kString},
    {"NodeDef", "attr", 5, "AttrEntry"},
    {"AttrEntry", "key", 1, kString},
    {"AttrEntry", "value", 2, "AttrValue"},
    {"AttrValue", "list", 1, "ListValue"},
    {"AttrValue", "s", 2, kString},
    {"AttrValue", "i", 3, kNumber},
    {"AttrValue", "b", 5, kNumber},
    {"AttrValue", "type", 6, kNumber},
    {"AttrValue", "shape", 7, "TensorShapeProto"},
    {"AttrValue", "func", 10, "NameAttrList"},
    {"ListValue", "s", 2, kString},
    {"ListValue", "i", 3, kNumber},
    {"ListValue", "b", 5, kNumber},
    {"ListValue", "type", 6, kNumber},
    {"ListValue", "shape", 7, "TensorShapeProto"},
    {"ListValue", "func", 9, "NameAttrList"},
    {"NameAttrList", "name", 1, kString},
    {"TensorShapeProto", "dim", 2, "Dim"},
    {"TensorShapeProto", "unknown_rank", 3, kNumber},
    {"Dim", "size", 1, kNumber},
};

const TextField* find_text_field(std::string_view message, std::string_view name) {
  const auto* const found = std::ranges::find_if(
      kTextFields, [&](const TextField& f) { return f.message == message && f.name == name; });
  return found == std::end(kTextFields) ? nullptr : found;
}

bool is_text_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '+' || c == '-';
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

class TextReader {
 public:
  TextReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<std::string> read(std::string_view message) {
    std::string out;
    TWINRUN_RETURN_IF_ERROR(fields(message, '\0', 0, out));
    return out;
  }

  // The next word or sign, without taking it: a name, a number, '"' for a string; "" at the end.
  std::string_view peek() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        size_t end = at_;
        while (end < text_.size() && is_text_word(text_[end])) ++end;
        return text_.substr(at_, std::max<size_t>(1, end - at_));
      }
    }
    return {};
  }

 private:
  Error fail(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<int64_t>(at_), '\n');
    return {what, fmt::format("{}:{}", file_, line), ""};
  }
  std::string_view take() {
    const std::string_view word = peek();
    at_ += word.size();
    return word;
  }
  bool take(char sign) {
    const std::string_view next = peek();
    if (next.size() != 1 || next[0] != sign) return false;
    ++at_;
    return true;
  }

  // The fields of a message up to `end`, '\0' for the end of the text. An unknown message ("") is
  // passed over.
  Status fields(std::string_view message, char end, int depth, std::string& out) {
    if (depth > wire::kMaxDepth)
      return fail(fmt::format("messages within messages, more than {} deep", wire::kMaxDepth));
    while (true) {
      const std::string_view name = peek();
      if (name.empty()) {
        if (end == '\0') return Ok{};
        return fail(fmt::format("the text ends before '{}': it is cut short", end));
      }
      if (end != '\0' && take(end)) return Ok{};
      if (take(',') || take(';')) continue;
      TWINRUN_RETURN_IF_ERROR(field_name());
      const TextField* const field = find_text_field(message, last_name_);
      const bool colon = take(':');
      if (colon && take('[')) {
        while (!take(']')) {
          TWINRUN_RETURN_IF_ERROR(value(field, true, depth, out));
          take(',');
        }
      } else {
        TWINRUN_RETURN_IF_ERROR(value(field, colon, depth, out));
      }
    }
  }

  // Takes the name of a field; that of an extension or a type, "[a.b/c]", is nobody's.
  Status field_name() {
    last_name_ = {};
    if (take('[')) {
      while (!take(']')) {
        if (take().empty()) return fail("a name in brackets that does not end");
      }
      return Ok{};
    }
    const std::string_view word = peek();
    if (word.empty() || !is_text_word(word[0]))
      return fail("found something else where the name of a field has to stand");
    last_name_ = take();
    return Ok{};
  }

  Status value(const TextField* field, bool colon, int depth, std::string& out) {
    const std::string_view next = peek();
    if (next == "{" || next == "<") {
      const char end = next == "{" ? '}' : '>';
      ++at_;
      const bool message = field != nullptr && field->type != kString && field->type != kNumber;
      if (field != nullptr && !message)
        return fail(fmt::format("a message; {} is a {}", field->name, field->type));
      std::string inner;
      TWINRUN_RETURN_IF_ERROR(fields(message ? field->type : "", end, depth + 1, inner));
      if (message) put(out, *field, inner);
      return Ok{};
    }
    if (!colon) return fail("a field without a value");
    if (next == "\"" || next == "'") {
      std::string all;
      while (peek() == "\"" || peek() == "'") TWINRUN_RETURN_IF_ERROR(quoted(all));
      if (field == nullptr) return Ok{};
      if (field->type != kString)
        return fail(fmt::format("a string; {} is a {}", field->name, field->type));
      put(out, *field, all);
      return Ok{};
    }
    if (next.empty() || !is_text_word(next[0])) return fail("a field without a value");
    const std::string_view word = take();
    if (field == nullptr) return Ok{};
    const std::optional<int64_t> number = number_of(word);
    if (field->type != kNumber || !number)
      return fail(fmt::format("'{}'; {} is a {}", word.substr(0, 40), field->name, field->type));
    put_varint(out, uint64_t{field->number} << 3);
    put_varint(out, static_cast<uint64_t>(*number));
    return Ok{};
  }

  // A number, true, false, or the name of a type: DT_FLOAT, DT_FLOAT_REF.
  static std::optional<int64_t> number_of(std::string_view word) {
    if (word == "true") return 1;
    if (word == "false") return 0;
    if (word.starts_with("DT_")) {
      std::string name = lower_case(word.substr(3));
      const bool reference = name.ends_with("_ref");
      if (reference) name.resize(name.size() - 4);
      return tf_type(name) + (reference ? 100 : 0);
    }
    int64_t number = 0;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (wrong != std::errc() || end != word.data() + word.size()) return std::nullopt;
    return number;
  }

  // A quoted string, appended without its escapes.
  Status quoted(std::string& to) {
    const char quote = text_[at_++];
    while (true) {
      if (at_ >= text_.size() || text_[at_] == '\n') return fail("a string that does not end");
      const char c = text_[at_++];
      if (c == quote) return Ok{};
      if (c != '\\') {
        to += c;
        continue;
      }
      if (at_ == text_.size()) return fail("a string that does not end");
      const char escape = text_[at_++];
      constexpr std::string_view kLetters = "abfnrtv", kMeant = "\a\b\f\n\r\t\v";
      if (const size_t i = kLetters.find(escape); i != std::string_view::npos) {
        to += kMeant[i];
      } else if (escape == 'x' || escape == 'X' || (escape >= '0' && escape <= '7')) {
        if (escape != 'x' && escape != 'X') --at_;
        const bool octal = escape != 'x' && escape != 'X';
        const size_t from = at_;
        const auto is_digit = [&](char d) {
          return octal ? d >= '0' && d <= '7'
                       : (d >= '0' && d <= '9') || (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
        };
        while (at_ < text_.size() && at_ - from < (octal ? 3 : 2) && is_digit(text_[at_])) ++at_;
        unsigned code = 0;
        std::from_chars(text_.data() + from, text_.data() + at_, code, octal ? 8 : 16);
        to += static_cast<char>(code);
      } else {
        to += escape;
      }
    }
  }

  static void put(std::string& out, const TextField& field, std::string_view content) {
    put_varint(out, (uint64_t{field.number} << 3) | 2);
    put_varint(out, content.size());
    out += content;
  }

  std::string_view text_, file_, last_name_;
  size_t at_ = 0;
};

}  // namespace

const char* text_kind(std::string_view bytes) {
  TextReader reader(bytes, "");
  const std::string_view first = reader.peek();
  for (const char* kind : {"GraphDef", "MetaGraphDef", "SavedModel"}) {
    if (find_text_field(kind, first) == nullptr) continue;
    const auto after = static_cast<size_t>(first.data() - bytes.data()) + first.size();
    const size_t next = bytes.find_first_not_of(" \t\r\n", after);
    if (next != std::string_view::npos && (bytes[next] == '{' || bytes[next] == ':')) return kind;
  }
  return nullptr;
}

Result<std::string> text_to_wire(std::string_view text, const char* kind, std::string_view file) {
  return TextReader(text, file).read(kind);
}

}  // namespace twinrun::check
