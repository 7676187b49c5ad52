// Reads TensorFlow's graphs from protobuf's wire format.
#include "harness/check/tf_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "checkpoints/container/array.h"
#include "harness/check/tf_text.h"
#include "program/base/protobuf_wire.h"

namespace twinrun {
namespace {

using wire::Field;
using wire::Message;

// protobuf itself writes and reads messages of less than 2 GiB.
constexpr size_t kMaxGraphBytes = (size_t{1} << 31) - 1;
// A node of two bytes takes a hundred of memory, so their number is limited apart.
constexpr size_t kMaxTfNodes = 4'000'000;
constexpr size_t kMaxTfName = 10'000;  // bytes; names stand in findings
constexpr size_t kMaxTfDims = 254;     // tensorflow core/framework/tensor_shape.h

constexpr std::array kTfTypes = {"",
                                 "float",
                                 "double",
                                 "int32",
                                 "uint8",
                                 "int16",
                                 "int8",
                                 "string",
                                 "complex64",
                                 "int64",
                                 "bool",
                                 "qint8",
                                 "quint8",
                                 "qint32",
                                 "bfloat16",
                                 "qint16",
                                 "quint16",
                                 "uint16",
                                 "complex128",
                                 "half",
                                 "resource",
                                 "variant",
                                 "uint32",
                                 "uint64",
                                 "float8_e5m2",
                                 "float8_e4m3fn",
                                 "float8_e4m3fnuz",
                                 "float8_e4m3b11fnuz",
                                 "float8_e5m2fnuz",
                                 "int4",
                                 "uint4",
                                 "int2",
                                 "uint2"};
constexpr int kTfReference = 100;  // is added for a reference

// Calls `take(field)` for each field of a message.
template <typename Take>
Status each(Message message, const Take& take) {
  Field f;
  while (true) {
    TWINRUN_ASSIGN(const bool more, message.next(f));
    if (!more) return Ok{};
    TWINRUN_RETURN_IF_ERROR(take(message, f));
  }
}

Status text(const Message& m, const Field& f, std::string_view& to) {
  TWINRUN_ASSIGN(to, m.bytes(f));
  return Ok{};
}

Status text(const Message& m, const Field& f, std::vector<std::string_view>& to) {
  TWINRUN_ASSIGN(to.emplace_back(), m.bytes(f));
  return Ok{};
}

// The entry of a map<string, message>: field 1 is its key, field 2 its value.
template <typename Take>
Status entry(const Message& m, const Field& f, const Take& take) {
  std::string_view key;
  std::optional<Message> value;
  TWINRUN_ASSIGN(const Message inside, m.message(f));
  TWINRUN_RETURN_IF_ERROR(each(inside, [&](const Message& e, const Field& part) -> Status {
    if (part.number == 1) return text(e, part, key);
    if (part.number != 2) return Ok{};
    TWINRUN_ASSIGN(value, e.message(part));
    return Ok{};
  }));
  return take(key, value);
}

Result<TfShape> read_shape(const Message& message) {
  std::vector<int64_t> dims;
  bool known = true;
  TWINRUN_RETURN_IF_ERROR(each(message, [&](const Message& m, const Field& f) -> Status {
    if (f.number == 3) {
      TWINRUN_ASSIGN(const uint64_t unknown, m.number(f));
      known = unknown == 0;
    } else if (f.number == 2) {
      if (dims.size() == kMaxTfDims)
        return m.fail(f.at, fmt::format("a shape of more than {} sizes", kMaxTfDims));
      int64_t size = 0;
      TWINRUN_ASSIGN(const Message dim, m.message(f));
      TWINRUN_RETURN_IF_ERROR(each(dim, [&](const Message& d, const Field& part) -> Status {
        if (part.number != 1) return Ok{};
        TWINRUN_ASSIGN(const uint64_t value, d.number(part));
        size = static_cast<int64_t>(value);
        return Ok{};
      }));
      if (size < -1)
        return m.fail(
            f.at,
            fmt::format("a size of {}; allowed are 0 and more, and -1 where it is unknown", size));
      dims.push_back(size);
    }
    return Ok{};
  }));
  return known ? TfShape(std::move(dims)) : TfShape();
}

Status read_function_name(const Message& message, TfAttribute& to) {
  return each(message, [&](const Message& m, const Field& f) -> Status {
    return f.number == 1 ? text(m, f, to.functions) : Status(Ok{});
  });
}

// The value of an entry of a map<string, string>.
Status map_value(const Message& m, const Field& f, std::vector<std::string_view>& to) {
  TWINRUN_ASSIGN(const Message inside, m.message(f));
  return each(inside, [&](const Message& e, const Field& part) -> Status {
    return part.number == 2 ? text(e, part, to) : Status(Ok{});
  });
}

// An AttrValue, or its list: the numbers of their fields agree, but for the function's.
Status read_value(const Message& message, bool list, TfAttribute& to) {
  return each(message, [&](const Message& m, const Field& f) -> Status {
    if (f.number == 2) return text(m, f, to.texts);
    if (f.number == 3 || f.number == 5)
      return m.numbers(f, [&](uint64_t v) { to.numbers.push_back(static_cast<int64_t>(v)); });
    if (f.number == 6)
      return m.numbers(f, [&](uint64_t v) {
        to.types.push_back(static_cast<int>(std::min<uint64_t>(v, 2 * kTfReference)));
      });
    if (f.number == 7) {
      TWINRUN_ASSIGN(const Message shape, m.message(f));
      TWINRUN_ASSIGN(to.shapes.emplace_back(), read_shape(shape));
    } else if (f.number == (list ? 9 : 10)) {
      TWINRUN_ASSIGN(const Message name, m.message(f));
      return read_function_name(name, to);
    } else if (f.number == 1 && !list) {
      TWINRUN_ASSIGN(const Message values, m.message(f));
      return read_value(values, true, to);
    }
    return Ok{};
  });
}

Status read_attribute(const Message& m, const Field& f, std::vector<TfAttribute>& to) {
  return entry(m, f, [&](std::string_view key, const std::optional<Message>& value) -> Status {
    TfAttribute& attribute = to.emplace_back();
    attribute.name = key;
    return value ? read_value(*value, false, attribute) : Status(Ok{});
  });
}

bool is_op_name(std::string_view op) {
  return !op.empty() && std::ranges::all_of(op, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '>' || c == '.' || c == '/' || c == '-';
  });
}

class TfReader {
 public:
  explicit TfReader(std::string file) { graph_.file = std::move(file); }

  Status node(const Message& m, const Field& f, std::vector<TfNode>& to) {
    if (++nodes_ > kMaxTfNodes) return m.fail(f.at, fmt::format("more than {} nodes", kMaxTfNodes));
    TfNode& n = to.emplace_back();
    TWINRUN_ASSIGN(const Message inside, m.message(f));
    TWINRUN_RETURN_IF_ERROR(each(inside, [&](const Message& part, const Field& p) -> Status {
      if (p.number == 1) return text(part, p, n.name);
      if (p.number == 2) return text(part, p, n.op);
      if (p.number == 3) return text(part, p, n.inputs);
      if (p.number == 4) return text(part, p, n.device);
      return p.number == 5 ? read_attribute(part, p, n.attributes) : Status(Ok{});
    }));
    if (std::max(n.name.size(), n.op.size()) > kMaxTfName)
      return m.fail(f.at, fmt::format("a name of more than {} bytes", kMaxTfName));
    if (!is_op_name(n.op)) return m.fail(f.at, "a node without an op, or whose op is no name");
    return Ok{};
  }

  Status graph(const Message& message) {
    return each(message, [&](const Message& m, const Field& f) -> Status {
      if (f.number == 1) return node(m, f, graph_.nodes);
      if (f.number != 2) return Ok{};
      TWINRUN_ASSIGN(const Message library, m.message(f));
      return each(library, [&](const Message& l, const Field& part) -> Status {
        if (part.number != 1) return Ok{};
        TWINRUN_ASSIGN(const Message one, l.message(part));
        return function(one);
      });
    });
  }

  Status meta_graph(const Message& message) {
    return each(message, [&](const Message& m, const Field& f) -> Status {
      switch (f.number) {
        case 1: {
          TWINRUN_ASSIGN(const Message info, m.message(f));
          return meta_info(info);
        }
        case 2: {
          TWINRUN_ASSIGN(const Message inside, m.message(f));
          return graph(inside);
        }
        case 3: {
          TWINRUN_ASSIGN(const Message saver, m.message(f));
          return each(saver, [&](const Message& s, const Field& part) -> Status {
            return part.number <= 3 ? text(s, part, graph_.saver) : Status(Ok{});
          });
        }
        case 5:
          return entry(m, f, [&](std::string_view key, const std::optional<Message>& value) {
            return value ? signature(key, *value) : Status(Ok{});
          });
        case 7: {
          TWINRUN_ASSIGN(const Message objects, m.message(f));
          return each(objects, [&](const Message& o, const Field& part) -> Status {
            if (part.number != 2) return Ok{};
            return entry(o, part, [&](std::string_view key, const std::optional<Message>&) {
              graph_.traced.push_back(key);
              return Status(Ok{});
            });
          });
        }
        default:
          return Ok{};
      }
    });
  }

  // Of several graphs, which differ by their tags, takes the one for a TPU, else the first.
  Status saved_model(const Message& message) {
    std::optional<Message> chosen;
    TWINRUN_RETURN_IF_ERROR(each(message, [&](const Message& m, const Field& f) -> Status {
      if (f.number != 2) return Ok{};
      TWINRUN_ASSIGN(const Message one, m.message(f));
      TWINRUN_ASSIGN(const bool tpu, has_tag(one, "tpu"));
      if (!chosen || tpu) chosen = one;
      return Ok{};
    }));
    if (!chosen) return Error{"a SavedModel without a graph", graph_.file, ""};
    return meta_graph(*chosen);
  }

  TfGraph take(std::shared_ptr<const std::string> bytes, const char* kind) {
    graph_.bytes = std::move(bytes);
    graph_.kind = kind;
    for (TfFunction& f : graph_.functions) {
      if (const auto known = aliases_.find(f.name); known != aliases_.end())
        f.alias = known->second;
    }
    return std::move(graph_);
  }

  size_t nodes() const { return nodes_; }

 private:
  static Result<bool> has_tag(const Message& meta_graph, std::string_view tag) {
    bool has = false;
    TWINRUN_RETURN_IF_ERROR(each(meta_graph, [&](const Message& m, const Field& f) -> Status {
      if (f.number != 1) return Ok{};
      TWINRUN_ASSIGN(const Message info, m.message(f));
      return each(info, [&](const Message& i, const Field& part) -> Status {
        if (part.number != 4) return Ok{};
        std::string_view found;
        TWINRUN_RETURN_IF_ERROR(text(i, part, found));
        has = has || found == tag;
        return Ok{};
      });
    }));
    return has;
  }

  Status meta_info(const Message& info) {
    return each(info, [&](const Message& m, const Field& f) -> Status {
      if (f.number == 5) return text(m, f, graph_.version);
      if (f.number != 8) return Ok{};
      std::string_view name, alias;  // map<string, string>
      TWINRUN_ASSIGN(const Message inside, m.message(f));
      TWINRUN_RETURN_IF_ERROR(each(inside, [&](const Message& e, const Field& part) -> Status {
        if (part.number > 2) return Ok{};
        return text(e, part, part.number == 1 ? name : alias);
      }));
      aliases_[name] = alias;
      return Ok{};
    });
  }

  Status function(const Message& message) {
    TfFunction& to = graph_.functions.emplace_back();
    std::map<uint64_t, TfShape> shapes;
    TWINRUN_RETURN_IF_ERROR(each(message, [&](const Message& m, const Field& f) -> Status {
      if (f.number == 3) return node(m, f, to.nodes);
      if (f.number == 4) return map_value(m, f, to.results);
      if (f.number == 6) return map_value(m, f, to.effects);
      if (f.number == 7) return argument_shape(m, f, shapes);
      if (f.number != 1) return Ok{};
      TWINRUN_ASSIGN(const Message head, m.message(f));
      return each(head, [&](const Message& h, const Field& part) -> Status {
        if (part.number == 1) {
          TWINRUN_RETURN_IF_ERROR(text(h, part, to.name));
          if (to.name.size() > kMaxTfName)
            return h.fail(part.at, fmt::format("a name of more than {} bytes", kMaxTfName));
        }
        if (part.number != 2) return Ok{};
        TfPort& input = to.inputs.emplace_back();
        TWINRUN_ASSIGN(const Message argument, h.message(part));
        return each(argument, [&](const Message& a, const Field& p) -> Status {
          if (p.number == 1) return text(a, p, input.name);
          if (p.number != 3) return Ok{};
          TWINRUN_ASSIGN(const uint64_t type, a.number(p));
          input.type = static_cast<int>(std::min<uint64_t>(type, 2 * kTfReference));
          return Ok{};
        });
      });
    }));
    for (const auto& [index, shape] : shapes) {
      if (index < to.inputs.size()) to.inputs[index].shape = shape;
    }
    return Ok{};
  }

  // An entry of arg_attr, map<uint32, ArgAttrs>: the shape of an argument is in _output_shapes.
  static Status argument_shape(const Message& m, const Field& f,
                               std::map<uint64_t, TfShape>& shapes) {
    uint64_t index = 0;
    std::vector<TfAttribute> attributes;
    TWINRUN_ASSIGN(const Message inside, m.message(f));
    TWINRUN_RETURN_IF_ERROR(each(inside, [&](const Message& e, const Field& part) -> Status {
      if (part.number == 1) {
        TWINRUN_ASSIGN(index, e.number(part));
      } else if (part.number == 2) {
        TWINRUN_ASSIGN(const Message of, e.message(part));
        return each(of, [&](const Message& a, const Field& p) -> Status {
          return p.number == 1 ? read_attribute(a, p, attributes) : Status(Ok{});
        });
      }
      return Ok{};
    }));
    for (TfAttribute& a : attributes) {
      if (a.name == "_output_shapes" && !a.shapes.empty()) shapes[index] = std::move(a.shapes[0]);
    }
    return Ok{};
  }

  Status signature(std::string_view name, const Message& message) {
    TfSignature& to = graph_.signatures.emplace_back();
    to.name = name;
    return each(message, [&](const Message& m, const Field& f) -> Status {
      if (f.number != 1 && f.number != 2) return Ok{};
      std::vector<TfPort>& ports = f.number == 1 ? to.inputs : to.outputs;
      return entry(m, f, [&](std::string_view key, const std::optional<Message>& value) {
        return value ? port(key, *value, ports) : Status(Ok{});
      });
    });
  }

  // A TensorInfo. One of several tensors (sparse, composite) gives several ports.
  Status port(std::string_view name, const Message& message, std::vector<TfPort>& to) {
    TfPort one{name, {}, 0, {}};
    TWINRUN_RETURN_IF_ERROR(each(message, [&](const Message& m, const Field& f) -> Status {
      if (f.number == 1) return text(m, f, one.tensor);
      if (f.number == 2) {
        TWINRUN_ASSIGN(const uint64_t type, m.number(f));
        one.type = static_cast<int>(std::min<uint64_t>(type, 2 * kTfReference));
      } else if (f.number == 3) {
        TWINRUN_ASSIGN(const Message shape, m.message(f));
        TWINRUN_ASSIGN(one.shape, read_shape(shape));
      } else if (f.number == 4) {
        TWINRUN_ASSIGN(const Message sparse, m.message(f));
        return each(sparse, [&](const Message& s, const Field& part) -> Status {
          if (part.number > 3) return Ok{};
          return text(s, part, to.emplace_back(TfPort{name, {}, 0, {}}).tensor);
        });
      } else if (f.number == 5) {
        TWINRUN_ASSIGN(const Message composite, m.message(f));
        return each(composite, [&](const Message& c, const Field& part) -> Status {
          if (part.number != 2) return Ok{};
          TWINRUN_ASSIGN(const Message component, c.message(part));
          return port(name, component, to);
        });
      }
      return Ok{};
    }));
    if (!one.tensor.empty()) to.push_back(std::move(one));
    return Ok{};
  }

  TfGraph graph_;
  std::map<std::string_view, std::string_view> aliases_;
  size_t nodes_ = 0;
};

// Reads a message of this kind. Errors: it is none, or has no nodes.
Result<TfGraph> read_as(const char* kind, std::shared_ptr<const std::string> bytes,
                        const std::string& file) {
  TfReader reader(file);
  const Message message(*bytes, file);
  const std::string_view is = kind;
  const Status read = is == "SavedModel"     ? reader.saved_model(message)
                      : is == "MetaGraphDef" ? reader.meta_graph(message)
                                             : reader.graph(message);
  Error wrong = !read            ? read.error()
                : bytes->empty() ? Error{"an empty file", file, ""}
                                 : Error{"no node in it", file, ""};
  if (read && reader.nodes() > 0) return reader.take(std::move(bytes), kind);
  wrong.what = fmt::format("not a {}: {}", kind, wrong.what);
  if (wrong.fix.empty())
    wrong.fix =
        "give a SavedModel's folder, or the file of a GraphDef (.pb, .pbtxt) or "
        "MetaGraphDef (.meta)";
  return wrong;
}

}  // namespace

std::string to_string(const TfShape& shape) {
  if (!shape) return "[...]";
  std::string out;
  for (const int64_t size : *shape)
    out += (out.empty() ? "" : ",") + (size < 0 ? "?" : std::to_string(size));
  return "[" + out + "]";
}

std::string tf_type_name(int type) {
  const bool reference = type > kTfReference;
  const auto index = static_cast<size_t>(reference ? type - kTfReference : type);
  if (type <= 0 || index >= kTfTypes.size()) return fmt::format("type {}", type);
  return std::string(kTfTypes[index]) + (reference ? "_ref" : "");
}

int tf_type(std::string_view name) {
  const auto* const found = std::ranges::find(kTfTypes, name);
  return found == kTfTypes.end() ? 0 : static_cast<int>(found - kTfTypes.begin());
}

const TfAttribute* TfNode::find(std::string_view attribute) const {
  const auto found = std::ranges::find(attributes, attribute, &TfAttribute::name);
  return found == attributes.end() ? nullptr : &*found;
}

Result<TfGraph> parse_tf_graph(std::string content, const std::string& file) {
  if (const char* const kind = check::text_kind(content)) {
    TWINRUN_ASSIGN(std::string bytes, check::text_to_wire(content, kind, file));
    auto graph = read_as(kind, std::make_shared<const std::string>(std::move(bytes)), file);
    if (graph) return graph;
    Error error = graph.error();
    error.where = file;  // the bytes are not those of the text
    return error;
  }
  const auto bytes = std::make_shared<const std::string>(std::move(content));
  // A SavedModel begins with the number of its schema, the others with a message.
  Field first;
  const auto any = wire::Message(*bytes, file).next(first);
  if (any && *any && first.number == 1 && first.type == wire::Type::kVarint)
    return read_as("SavedModel", bytes, file);
  if (file.ends_with(".meta")) return read_as("MetaGraphDef", bytes, file);
  auto graph = read_as("GraphDef", bytes, file);
  if (graph) return graph;
  auto meta = read_as("MetaGraphDef", bytes, file);
  return meta ? std::move(meta) : std::move(graph);
}

Result<TfGraph> read_tf_graph(const std::string& path) {
  namespace fs = std::filesystem;
  std::string file = path;
  std::error_code failed;
  if (fs::is_directory(path, failed)) {
    file = (fs::path(path) / "saved_model.pb").string();
    if (!fs::exists(file, failed) && fs::exists(file + "txt", failed)) file += "txt";
    if (!fs::exists(file, failed))
      return Error{"no saved_model.pb in this folder", path,
                   "give the folder that tf.saved_model.save or model.export wrote"};
  }
  if (const auto size = fs::file_size(file, failed); !failed && size > kMaxGraphBytes)
    return Error{fmt::format("{} bytes; a graph has at most {}", size, kMaxGraphBytes), file,
                 "give the graph without its weights: a SavedModel, or a MetaGraphDef"};
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(file));
  return parse_tf_graph({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
}

}  // namespace twinrun
