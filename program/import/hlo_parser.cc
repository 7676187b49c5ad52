// HLO text -> HloModule. The grammar is the subset that XLA prints before its optimisations. XLA's
// own parser is xla/hlo/parser/hlo_parser.cc.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "program/base/names.h"
#include "program/import/hlo_module.h"
#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

// The value of `key` in "{op_name="a b" stack_frame_id=6}"; "" if it is missing.
std::string field(std::string_view text, std::string_view key) {
  for (size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const size_t equals = at + key.size();
    if (equals >= text.size() || text[equals] != '=') continue;
    if (at > 0 && TextCursor::is_word(text[at - 1])) continue;
    std::string_view value = text.substr(equals + 1);
    if (value.starts_with('"')) return std::string(value.substr(1, value.find('"', 1) - 1));
    size_t end = 0;
    while (end < value.size() && TextCursor::is_word(value[end])) ++end;
    return std::string(value.substr(0, end));
  }
  return "";
}

class HloParser : private TextReader {
 public:
  HloParser(std::string_view text, const std::string& file, HloUse use)
      : TextReader(text, file), use_(use) {
    module_.file = file;
  }

  Result<HloModule> parse() {
    if (!at_.take("HloModule")) {
      return error(fmt::format("'{}'; allowed: HLO text, which begins with 'HloModule', or "
                               "StableHLO text, 'module @..'",
                               shortened(at_.rest_of_line())),
                   "in JAX: jax.jit(step).lower(...).as_text(\"hlo\", debug_info=True)");
    }
    module_.name = at_.word();
    const std::string_view header = at_.rest_of_line();
    module_.replicas = number(field(header, "replica_count")).value_or(1);
    module_.partitions = number(field(header, "num_partitions")).value_or(1);
    meshes(header);
    for (at_.skip(); !at_.at_end(); at_.skip()) {
      const std::string word = at_.peek_word();
      if (word == "FileNames" || word == "FunctionNames" || word == "FileLocations" ||
          word == "StackFrames") {
        table(at_.word());
      } else {
        TWINRUN_RETURN_IF_ERROR(computation());
      }
    }
    if (module_.entry_index < 0) return error("the module has no ENTRY computation");
    return std::move(module_);
  }

 private:
  // frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=4, "model"=2]>}}
  void meshes(std::string_view header) {
    std::string text(header);
    std::erase(text, '\\');
    constexpr std::string_view kMesh = " = #sdy.mesh<";
    for (size_t at = text.find(kMesh); at != std::string::npos; at = text.find(kMesh, at + 1)) {
      size_t begin = at;
      while (begin > 0 && TextCursor::is_word(text[begin - 1])) --begin;
      const size_t end = text.find('>', at);
      if (end == std::string::npos) return;
      const size_t open = at + kMesh.size() - 1;
      module_.meshes[text.substr(begin, at - begin)] = text.substr(open, end + 1 - open);
    }
  }

  // Reads a table of source locations: rows "1 "train.py"" or "3 {file_name_id=1 line=13}".
  void table(const std::string& name) {
    for (at_.skip(); std::isdigit(static_cast<unsigned char>(at_.peek())) != 0; at_.skip()) {
      const std::string id = at_.word();
      const std::string_view row = at_.rest_of_line();
      if (name == "FileNames") {
        const size_t quote = row.find('"');
        if (quote != std::string_view::npos)
          files_[id] = row.substr(quote + 1, row.rfind('"') - quote - 1);
      } else if (name == "FileLocations") {
        locations_[id] = base_name(files_[field(row, "file_name_id")]) + ":" + field(row, "line");
      } else if (name == "StackFrames") {
        frames_[id] = locations_[field(row, "file_location_id")];
      }
    }
  }

  Status computation() {
    HloComputation c;
    bool entry = false;
    c.name = at_.word();
    if (c.name == "ENTRY") {
      entry = true;
      c.name = at_.word();
    }
    if (c.name.empty()) return unexpected("a computation, as in 'ENTRY main.1 {'");
    if (module_.by_name.contains(c.name))
      return error(fmt::format("computation '{}' is defined twice", c.name));
    if (entry && module_.entry_index >= 0) return error("more than one ENTRY computation");
    at_.skip();
    if (at_.peek() != '{') at_.until("{\n");  // "(p: f32[]) -> f32[]"
    if (!at_.take("{")) return unexpected("'{' after the computation's name");
    names_.clear();
    while (!at_.take("}")) {
      if (at_.at_end()) return error(fmt::format("computation '{}' is not closed", c.name));
      TWINRUN_RETURN_IF_ERROR(instruction(c));
    }
    if (at_.take(",")) at_.rest_of_line();  // execution_thread="main"
    if (c.instructions.empty()) return error(fmt::format("computation '{}' is empty", c.name));
    if (c.root < 0) c.root = static_cast<int>(c.instructions.size()) - 1;
    for (size_t i = 0; i < c.parameters.size(); ++i) {
      if (c.parameters[i] < 0)
        return error(fmt::format("computation '{}' has no parameter({})", c.name, i));
    }
    module_.by_name[c.name] = module_.computations.size();
    if (entry) module_.entry_index = static_cast<int>(module_.computations.size());
    module_.computations.push_back(std::move(c));
    return Ok{};
  }

  Status instruction(HloComputation& c) {
    HloInstruction in;
    in.name = at_.word();
    const int index = static_cast<int>(c.instructions.size());
    if (in.name == "ROOT") {
      c.root = index;
      in.name = at_.word();
    }
    in.line = at_.line();
    if (in.name.empty() || !at_.take("="))
      return unexpected("an instruction, as in 'add.3 = f32[8] add(a, b)'");
    TWINRUN_ASSIGN(in.shape, shape(0));
    in.opcode = at_.word();
    if (in.opcode.empty() || !at_.take("("))
      return unexpected("an opcode and its operands, as in 'add(a, b)'");
    if (in.opcode == "constant" || in.opcode == "parameter") {
      in.literal = trimmed(at_.until(""));
      if (!at_.take(")")) return unexpected("')'");
    } else {
      TWINRUN_RETURN_IF_ERROR(operands(in));
    }
    TWINRUN_RETURN_IF_ERROR(attributes(in));
    if (in.opcode == "parameter") TWINRUN_RETURN_IF_ERROR(note_parameter(c, in, index));
    if (!names_.emplace(in.name, index).second)
      return error(fmt::format("instruction '{}' is defined twice in '{}'", in.name, c.name));
    c.instructions.push_back(std::move(in));
    return Ok{};
  }

  Status note_parameter(HloComputation& c, const HloInstruction& in, int index) const {
    const auto n = number(in.literal);
    constexpr int64_t kMax = 100'000;
    if (!n || *n < 0 || *n >= kMax)
      return error(
          fmt::format("parameter({}); allowed: a number from 0 to {}", in.literal, kMax - 1));
    const auto i = static_cast<size_t>(*n);
    if (c.parameters.size() <= i) c.parameters.resize(i + 1, -1);
    if (c.parameters[i] >= 0) return error(fmt::format("parameter({}) is defined twice", i));
    c.parameters[i] = index;
    return Ok{};
  }

  // Reads names of operands, each of which may follow its shape.
  Status operands(HloInstruction& in) {
    while (!at_.take(")")) {
      TextCursor here = at_;
      std::string name = at_.word();
      at_.skip();
      if (name.empty() || at_.peek() == '[' || at_.peek() == '(') {
        at_ = here;
        TWINRUN_RETURN_IF_ERROR(shape(0));
        name = at_.word();
      }
      const auto found = names_.find(name);
      if (found == names_.end()) {
        if (name.empty()) return unexpected("the name of an operand");
        std::vector<std::string> known;
        for (const auto& [other, index] : names_) {
          if (known.size() < 2000) known.push_back(other);
        }
        return error(fmt::format("'{}' is not an earlier instruction of this computation", name),
                     did_you_mean(name, known));
      }
      in.operands.push_back(found->second);
      at_.skip();
      if (!at_.take(",") && at_.peek() != ')') return unexpected("',' or ')' after an operand");
    }
    return Ok{};
  }

  Status attributes(HloInstruction& in) {
    while (at_.take(",")) {
      const std::string key = at_.word();
      if (key.empty() || !at_.take("=")) return unexpected("an attribute, as in 'dimensions={0}'");
      std::string value = trimmed(at_.until(",\n"));
      if (key == "metadata") {
        in.op_name = field(value, "op_name");
        const std::string file = field(value, "source_file");
        if (!file.empty()) in.source = base_name(file) + ":" + field(value, "source_line");
        const auto frame = frames_.find(field(value, "stack_frame_id"));
        if (in.source.empty() && frame != frames_.end()) in.source = frame->second;
      } else {
        if (value.starts_with('%')) value.erase(0, 1);
        in.attributes[key] = std::move(value);
      }
    }
    return Ok{};
  }

  Result<HloShape> shape(int depth) {
    constexpr int kMaxNested = 8;
    HloShape s;
    if (at_.take("(")) {
      if (depth >= kMaxNested) return error("tuples nested too deeply");
      while (!at_.take(")")) {
        TWINRUN_ASSIGN(HloShape part, shape(depth + 1));
        s.parts.push_back(std::move(part));
        at_.skip();
        if (!at_.take(",") && at_.peek() != ')') return unexpected("',' or ')' in a tuple's shape");
      }
      return s;
    }
    s.dtype = at_.word();
    if (s.dtype.empty() || !at_.take("[")) return unexpected("a shape, as in 'f32[8,16]{1,0}'");
    while (!at_.take("]")) {
      const bool look = use_ == HloUse::kLookAt;
      const bool unknown = look && at_.take("?");
      if (look && at_.take("<=")) s.dynamic = true;
      const std::string size = unknown ? "?" : at_.word();
      if (!(unknown ? s.append_unknown() : s.append(number(size).value_or(-1))))
        return error(HloShape::refusal(size.empty() ? shortened(at_.rest_of_line()) : size));
      if (!at_.take(",")) {
        at_.skip();
        if (at_.peek() != ']') return unexpected("',' or ']' in a shape");
      }
    }
    if (at_.peek() == '{') {  // the layout in memory, which does not matter here
      at_.take("{");
      at_.until("");
      if (!at_.take("}")) return unexpected("'}' after a layout");
    }
    return s;
  }

  HloModule module_;
  const HloUse use_;
  std::unordered_map<std::string, int> names_;  // instructions of the current computation
  std::map<std::string, std::string> files_, locations_, frames_;
};

}  // namespace

Result<HloModule> parse_hlo(std::string_view text, const std::string& file, HloUse use) {
  return HloParser(text, file, use).parse();
}

}  // namespace twinrun
