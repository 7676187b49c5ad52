// MLIR text -> MlirModule. One reader for all ops, because their forms differ in where types,
// attributes and operands appear, but not in how each is written: %x is an operand, key = value an
// attribute, and types follow the colon.
// Source: the MLIR language reference, https://mlir.llvm.org/docs/LangRef/.
#include <fmt/format.h>

#include <unordered_set>

#include "program/import/mlir.h"
#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

using Angles = TextCursor::Angles;

class MlirParser : private TextReader {
 public:
  MlirParser(std::string_view text, const std::string& file, HloUse use)
      : TextReader(text, file), use_(use) {
    module_.file = file;
  }

  Result<MlirModule> parse() {
    int open = 0;  // modules that are open
    for (at_.skip(); !at_.at_end(); at_.skip()) {
      const std::string word = at_.peek_word();
      if (at_.peek() == '#' || at_.peek() == '!') {
        TWINRUN_RETURN_IF_ERROR(alias());
      } else if (word == "module") {
        if (open++ > 0) return error("a module inside of a module");
        TWINRUN_RETURN_IF_ERROR(module());
      } else if (word == "func.func") {
        TWINRUN_RETURN_IF_ERROR(function());
      } else if (open > 0 && at_.take("}")) {
        --open;
        TWINRUN_RETURN_IF_ERROR(location());
      } else if (at_.peek() == '"') {
        return error(fmt::format("'{}'; allowed: StableHLO text in its pretty form",
                                 shortened(at_.rest_of_line())),
                     "in JAX: jax.jit(step).lower(...).as_text(debug_info=True)");
      } else if (word == "sdy.mesh") {
        TWINRUN_RETURN_IF_ERROR(mesh());
      } else if (word.find('.') != std::string::npos) {
        at_.until("\n", Angles::kBrackets);  // an op that has no meaning here
      } else {
        return unexpected("'func.func' or the end of the module");
      }
    }
    if (open > 0) return error("the module is not closed");
    if (module_.functions.empty()) return error("the module has no function");
    return std::move(module_);
  }

 private:
  Status expect(std::string_view token) {
    if (at_.take(token)) return Ok{};
    return unexpected(fmt::format("'{}'", token));
  }
  // The text between the brackets here.
  Result<std::string> inside(char close) {
    if (const auto text = at_.inside(close)) return std::string(*text);
    return error(fmt::format("no '{}' to the bracket that opens", close));
  }

  // #loc12 = loc("jit(step)/add"(#loc7))
  Status alias() {
    const bool attribute = at_.take("#");
    if (!attribute) at_.take("!");
    const std::string name = "#" + at_.word();
    TWINRUN_RETURN_IF_ERROR(expect("="));
    at_.skip();
    std::string value = trimmed(at_.until("\n", Angles::kBrackets));
    if (attribute && value.starts_with("loc(") && value.ends_with(')'))
      module_.locations[name] = value.substr(4, value.size() - 5);
    return Ok{};
  }

  // module @jit_step attributes {mhlo.num_replicas = 1 : i32} {
  Status module() {
    at_.word();
    if (at_.take("@")) module_.name = symbol();
    if (at_.take("attributes")) {
      at_.skip();
      if (at_.peek() != '{') return unexpected("the module's attributes in braces");
      TWINRUN_ASSIGN(const std::string attributes, inside('}'));
      module_.replicas = count_of(attributes, "mhlo.num_replicas");
      module_.partitions = count_of(attributes, "mhlo.num_partitions");
    }
    return expect("{");
  }

  // sdy.mesh @mesh = <["data"=4, "model"=2]> {attributes}
  Status mesh() {
    at_.word();
    if (!at_.take("@")) return unexpected("the mesh's name, as in '@mesh'");
    const std::string name = symbol();
    TWINRUN_RETURN_IF_ERROR(expect("="));
    at_.skip();
    if (at_.peek() != '<') return unexpected("a mesh, as in '<[\"x\"=2]>'");
    TWINRUN_ASSIGN(const std::string axes, inside('>'));
    module_.meshes[name] = "<" + axes + ">";
    at_.until("\n", Angles::kBrackets);
    return Ok{};
  }

  // 8 for "mhlo.num_replicas = 8 : i32"; 1 if the key is missing.
  static int64_t count_of(std::string_view attributes, std::string_view key) {
    const size_t at = attributes.find(key);
    if (at == std::string_view::npos) return 1;
    TextCursor rest(attributes.substr(at + key.size()));
    return rest.take("=") ? number(rest.word()).value_or(1) : 1;
  }

  // @main, @"my.op"
  std::string symbol() { return at_.peek() == '"' ? std::string(at_.string()) : at_.word(); }

  // func.func public @main(%arg0: tensor<4xf32> {jax.buffer_donor = true} loc("w"))
  //     -> (tensor<4xf32> {..}) attributes {..} {
  Status function() {
    MlirFunction f;
    f.line = at_.line();
    at_.word();
    const std::string visibility = at_.peek_word();
    if (visibility == "public" || visibility == "private" || visibility == "nested") at_.word();
    f.is_public = visibility == "public" || visibility.empty();
    if (!at_.take("@")) return unexpected("the function's name, as in '@main'");
    f.name = symbol();
    if (!names_.insert(f.name).second)
      return error(fmt::format("function @{} is defined twice", f.name));
    TWINRUN_RETURN_IF_ERROR(expect("("));
    at_.skip();
    if (at_.peek() == '%' || at_.peek() == ')') {
      TWINRUN_RETURN_IF_ERROR(arguments(f.body));
    } else {  // a function without a body has types only
      at_.until("");
      TWINRUN_RETURN_IF_ERROR(expect(")"));
    }
    if (at_.take("->")) {
      at_.skip();
      if (at_.peek() == '(') {
        TWINRUN_RETURN_IF_ERROR(inside(')'));
      } else {
        TWINRUN_RETURN_IF_ERROR(type());
      }
    }
    if (at_.take("attributes")) {
      at_.skip();
      TWINRUN_RETURN_IF_ERROR(inside('}'));
    }
    at_.skip();
    const bool has_body = at_.peek() == '{';
    if (has_body) TWINRUN_RETURN_IF_ERROR(region(f.body));
    TWINRUN_RETURN_IF_ERROR(location());
    if (has_body) module_.functions.push_back(std::move(f));
    return Ok{};
  }

  // { ^bb0(%a: tensor<f32>, %b: tensor<f32>): ops }
  Status region(MlirRegion& r) {
    TWINRUN_RETURN_IF_ERROR(expect("{"));
    if (at_.take("^")) {
      at_.word();
      if (at_.take("(")) TWINRUN_RETURN_IF_ERROR(arguments(r));
      TWINRUN_RETURN_IF_ERROR(expect(":"));
    }
    if (++depth_ > kMaxMlirNested)
      return error(fmt::format("regions nested more than {} deep", kMaxMlirNested));
    while (!at_.take("}")) {
      if (at_.at_end()) return error("a region is not closed");
      if (at_.peek() == '^') return error("more than one block; allowed: one in a region");
      TWINRUN_RETURN_IF_ERROR(op(r));
    }
    --depth_;
    return Ok{};
  }

  // %arg0: tensor<4xf32> {attributes} loc("w"), ...)
  Status arguments(MlirRegion& r) {
    while (!at_.take(")")) {
      MlirArgument a;
      at_.skip();
      if (at_.peek() == '%') a.name = at_.word();
      if (a.name.empty() || !at_.take(":"))
        return unexpected("an argument, as in '%arg0: tensor<4xf32>'");
      TWINRUN_ASSIGN(a.shape, type());
      at_.skip();
      if (at_.peek() == '{') TWINRUN_RETURN_IF_ERROR(inside('}'));
      TWINRUN_ASSIGN(a.location, location());
      r.arguments.push_back(std::move(a));
      at_.skip();
      if (!at_.take(",") && at_.peek() != ')') return unexpected("',' or ')' after an argument");
    }
    return Ok{};
  }

  Status op(MlirRegion& r) {
    MlirOp o;
    o.line = at_.line();
    size_t count = 0;
    while (at_.skip(), at_.peek() == '%') {
      MlirOp::Result result{at_.word(), 1};
      if (at_.take(":")) {
        constexpr int64_t kMax = 100'000;
        const auto n = number(at_.word());
        if (!n || *n < 1 || *n > kMax)
          return error(fmt::format("'%{}:': allowed: 1 to {} results", result.name, kMax));
        result.count = static_cast<size_t>(*n);
      }
      count += result.count;
      o.results.push_back(std::move(result));
      if (!at_.take(",")) break;
    }
    if (!o.results.empty()) TWINRUN_RETURN_IF_ERROR(expect("="));
    at_.skip();
    o.name = at_.peek() == '"' ? std::string(at_.string()) : at_.word();
    if (o.name.empty())
      return unexpected("an op, as in '%1 = stablehlo.add %0, %arg0 : tensor<4xf32>'");
    at_.skip_blanks();
    const bool pretty = o.name == "sdy.manual_computation" && at_.peek() == '(';
    TWINRUN_RETURN_IF_ERROR(pretty ? manual_computation(o) : head(o));
    if (at_.peek() == ':') TWINRUN_RETURN_IF_ERROR(signature(o, count));
    if (o.types.size() != count)
      return error(fmt::format("{} of {} results with {} types", o.name, count, o.types.size()));
    TWINRUN_ASSIGN(o.location, location());
    TWINRUN_RETURN_IF_ERROR(regions_after(o));
    r.ops.push_back(std::move(o));
    return Ok{};
  }

  // sdy.manual_computation(%0, %1) in_shardings=[..] out_shardings=[..] manual_axes={..}
  //     (%a: tensor<4xf32>, %b: tensor<2xf32>) { .. }
  Status manual_computation(MlirOp& o) {
    TWINRUN_RETURN_IF_ERROR(expect("("));
    while (!at_.take(")")) {
      at_.skip();
      if (at_.peek() != '%') return unexpected("an operand, as in '%0'");
      o.operands.push_back(at_.word());
      if (at_.peek() == '#') {
        at_.take("#");
        o.operands.back() += "#" + at_.word();
      }
      at_.take(",");
    }
    for (const std::string key : {"in_shardings", "out_shardings", "manual_axes"}) {
      TWINRUN_RETURN_IF_ERROR(expect(key));
      TWINRUN_RETURN_IF_ERROR(expect("="));
      at_.skip();
      const bool axes = key == "manual_axes";
      if (at_.peek() != (axes ? '{' : '[')) return unexpected(axes ? "'{'" : "'['");
      TWINRUN_ASSIGN(const std::string text, inside(axes ? '}' : ']'));
      o.attributes[key] = axes ? "{" + text + "}" : "[" + text + "]";
    }
    MlirRegion& r = o.regions.emplace_back();
    if (at_.take("(")) TWINRUN_RETURN_IF_ERROR(arguments(r));
    TWINRUN_RETURN_IF_ERROR(region(r));
    at_.skip_blanks();
    return Ok{};
  }

  // Reads everything before the types: operands, attributes, words, regions.
  Status head(MlirOp& o) {
    int parentheses = 0;
    bool init = false;
    // The initial values of "reduce(%x init: %a), (%y init: %b)", which become the last operands.
    std::vector<std::string> inits;
    for (;;) {
      parentheses > 0 ? at_.skip() : at_.skip_blanks();
      const char c = at_.peek();
      if (at_.at_end() || (parentheses == 0 && (c == ':' || c == '\n' || c == '}'))) break;
      if (c == ',' || c == ':') {
        at_.take(std::string_view(&c, 1));
      } else if (c == '(') {
        at_.take("(");
        at_.skip();
        if (at_.peek() != '{') {
          ++parentheses;
          continue;
        }
        do {
          TWINRUN_RETURN_IF_ERROR(region(o.regions.emplace_back()));
        } while (at_.take(","));
        TWINRUN_RETURN_IF_ERROR(expect(")"));
      } else if (c == ')' && parentheses > 0) {
        at_.take(")");
        --parentheses;
      } else if (c == '%') {
        std::string name = at_.word();
        if (at_.peek() == '#') {
          at_.take("#");
          name += "#" + at_.word();
        }
        at_.skip_blanks();
        if (at_.peek() == '=') {
          at_.take("=");  // in a loop, "%name =" is its regions' name for the operand that follows
          o.arguments.push_back(std::move(name));
        } else {
          (init ? inits : o.operands).push_back(std::move(name));
          init = false;
        }
      } else if (c == '@') {
        at_.take("@");
        o.symbol = symbol();
      } else if (c == '"') {
        o.words.emplace_back(at_.string());
      } else if (c == '{') {
        TWINRUN_RETURN_IF_ERROR(attributes(o));
      } else if (c == '[') {
        TWINRUN_ASSIGN(o.list, inside(']'));
      } else if (c == '<') {
        at_.take("<");
        at_.skip();
        if (at_.peek() == '{') TWINRUN_RETURN_IF_ERROR(attributes(o));
        at_.until("", Angles::kBrackets);
        TWINRUN_RETURN_IF_ERROR(expect(">"));
      } else if (c == '#') {
        o.words.push_back(trimmed(at_.until(",:\n", Angles::kBrackets)));
      } else {
        if (at_.peek_word() == "loc") break;
        std::string word = at_.word();
        if (word.empty()) return unexpected("operands, attributes, or ':' and types");
        if (at_.peek() == '<') {
          TWINRUN_ASSIGN(const std::string text, inside('>'));
          o.literal = word + "<" + text + ">";
          continue;
        }
        at_.skip_blanks();
        if (at_.peek() == '=') {
          at_.take("=");
          TWINRUN_ASSIGN(o.attributes[word], value());
        } else if (word == "init") {
          init = true;
        } else {
          o.words.push_back(std::move(word));
        }
      }
    }
    o.operands.insert(o.operands.end(), inits.begin(), inits.end());
    return Ok{};
  }

  // {dimension = 1 : i64, unique_indices = false, "jax.name" = "x", unit}
  Status attributes(MlirOp& o) {
    TWINRUN_RETURN_IF_ERROR(expect("{"));
    while (!at_.take("}")) {
      const std::string key = at_.peek() == '"' ? std::string(at_.string()) : at_.word();
      if (key.empty()) return unexpected("an attribute, as in 'dimension = 1 : i64'");
      std::string& to = o.attributes[key];
      to = "unit";
      if (at_.take("=")) {
        TWINRUN_ASSIGN(to, value());
      }
      if (at_.take(":")) {
        const std::string type = trimmed(at_.until(",", Angles::kBrackets));
        // Bytes do not show the shape of their array.
        const bool lists = key == "replica_groups" || key == "source_target_pairs";
        if (lists && to.starts_with("dense<\"")) to += " : " + type;
      }
      at_.skip();
      if (!at_.take(",") && at_.peek() != '}') return unexpected("',' or '}' after an attribute");
      at_.skip();
    }
    return Ok{};
  }

  Result<std::string> value() {
    at_.skip();
    if (at_.peek() == '{') {
      TWINRUN_ASSIGN(const std::string text, inside('}'));
      return "{" + text + "}";
    }
    std::string text = trimmed(at_.until(",:\n", Angles::kBrackets));
    if (text.empty()) return unexpected("a value");
    return text;
  }

  // ": (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>", or ": tensor<4xf32>" for all values, or ":
  // tensor<4xi1>, tensor<4xf32>", whose last type is that of the result if there is one.
  Status signature(MlirOp& o, size_t results) {
    at_.take(":");
    const bool function = at_.take("(");
    TWINRUN_ASSIGN(o.types, types(function));
    if (function) TWINRUN_RETURN_IF_ERROR(expect("->"));
    if (function || at_.take("->")) {
      const bool several = at_.take("(");
      TWINRUN_ASSIGN(o.types, types(several));
    } else if (results == 0) {
      o.types.clear();
    } else if (results == 1) {
      o.types = {o.types.back()};
    }
    return Ok{};
  }

  // Reads at least one type; a list in parentheses may be empty.
  Result<std::vector<HloShape>> types(bool in_parentheses) {
    std::vector<HloShape> out;
    if (in_parentheses && at_.take(")")) return out;
    do {
      TWINRUN_ASSIGN(HloShape shape, type());
      out.push_back(std::move(shape));
    } while (at_.take(","));
    if (in_parentheses) TWINRUN_RETURN_IF_ERROR(expect(")"));
    return out;
  }

  // tensor<4x8xf32>. Other types, which no rule supports, keep their text.
  Result<HloShape> type() {
    HloShape s;
    const bool foreign = at_.take("!");
    const std::string word = at_.word();
    if (word.empty()) return unexpected("a type, as in 'tensor<8x16xf32>'");
    s.dtype = (foreign ? "!" : "") + word;
    if (at_.peek() != '<') return s;
    TWINRUN_ASSIGN(const std::string text, inside('>'));
    if (foreign || word != "tensor") {
      s.dtype += "<" + shortened(text) + ">";
      return s;
    }
    std::string_view rest = text;
    while (!rest.empty() && !std::isalpha(static_cast<unsigned char>(rest.front()))) {
      const size_t end = rest.find('x');
      if (use_ == HloUse::kLookAt && rest.starts_with("?x") && s.append_unknown()) {
        rest.remove_prefix(2);
        continue;
      }
      if (end == std::string_view::npos || !s.append(number(rest.substr(0, end)).value_or(-1)))
        return error(HloShape::refusal(shortened(rest.substr(0, end))));
      rest.remove_prefix(end + 1);
    }
    s.dtype = element(rest);
    if (s.dtype.empty() || s.dtype.find(',') != std::string::npos)
      return error(fmt::format(
          "tensor<{}>; allowed: static sizes and a type, as in 'tensor<8xf32>'", shortened(text)));
    return s;
  }

  // The element type with HLO's name: i1 is pred, i32 is s32, ui8 is u8.
  static std::string element(std::string_view mlir) {
    if (mlir == "i1") return "pred";
    if (mlir.starts_with("ui")) return "u" + std::string(mlir.substr(2));
    const bool integer = mlir.size() > 1 && mlir[0] == 'i' && number(mlir.substr(1)).has_value();
    return integer ? "s" + std::string(mlir.substr(1)) : std::string(mlir);
  }

  // The text between the parentheses of loc(...), if that comes next; else "".
  Result<std::string> location() {
    at_.skip_blanks();
    if (at_.peek_word() != "loc" || at_.peek() == '%') return std::string();
    at_.word();
    at_.skip();
    if (at_.peek() != '(') return unexpected("'(' after loc");
    return inside(')');
  }

  // Reads "reducer(%a: t, %b: t) (%c: u, %d: u) { .. }" of a reduction, "cond { .. } do { .. }" of
  // a loop.
  Status regions_after(MlirOp& o) {
    for (;;) {
      at_.skip();
      const std::string word = at_.peek() == '%' ? "" : at_.peek_word();
      if (word != "reducer" && word != "cond" && word != "do") return Ok{};
      at_.word();
      MlirRegion r;
      std::vector<MlirArgument> values;
      for (size_t i = 0; word != "reducer" && i < o.arguments.size() && i < o.types.size(); ++i)
        r.arguments.push_back({o.arguments[i], o.types[i], ""});
      while (at_.take("(")) {
        MlirRegion pair;
        TWINRUN_RETURN_IF_ERROR(arguments(pair));
        if (pair.arguments.size() != 2) return error("a reducer's arguments; allowed: pairs");
        r.arguments.push_back(std::move(pair.arguments[0]));
        values.push_back(std::move(pair.arguments[1]));
      }
      r.arguments.insert(r.arguments.end(), values.begin(), values.end());
      TWINRUN_RETURN_IF_ERROR(region(r));
      o.regions.push_back(std::move(r));
      TWINRUN_ASSIGN(std::string place, location());
      if (!place.empty()) o.location = std::move(place);
    }
  }

  MlirModule module_;
  const HloUse use_;
  std::unordered_set<std::string> names_;  // of functions
  int depth_ = 0;
};

}  // namespace

Result<MlirModule> parse_mlir(std::string_view text, const std::string& file, HloUse use) {
  return MlirParser(text, file, use).parse();
}

}  // namespace twinrun
