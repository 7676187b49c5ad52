// Locations of MLIR, mostly through aliases:
// loc("jit(step)/dense1/add"(callsite("apply"("train.py":31:8) at "step"("train.py":40:4))))
#include "program/import/mlir.h"
#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

// Reads one location in a limited number of steps, because aliases may refer to each other.
class Places {
 public:
  explicit Places(const MlirModule& module) : module_(module) {}

  MlirPlace read(TextCursor& at) {
    constexpr int kMax = 200;
    if (++steps_ > kMax) return {};
    at.skip();
    if (at.take("#")) {
      const auto alias = module_.locations.find("#" + at.word());
      constexpr size_t kMaxText = 4096;
      if (alias == module_.locations.end() || alias->second.size() > kMaxText) return {};
      TextCursor there(alias->second);
      return read(there);
    }
    if (at.peek() == '"') return named(at);
    const std::string word = at.word();
    if (word == "callsite" && at.take("(")) {  // callsite(callee at caller)
      MlirPlace callee = read(at);
      if (callee.source.empty() && at.take("at")) callee.source = read(at).source;
      at.until("");
      at.take(")");
      return callee;
    }
    if (word != "fused") return {};
    if (at.peek() == '<') at.inside('>');
    MlirPlace first;
    if (!at.take("[")) return first;
    do {
      MlirPlace p = read(at);
      if (first.op_name.empty()) first.op_name = std::move(p.op_name);
      if (first.source.empty()) first.source = std::move(p.source);
    } while (at.take(","));
    at.take("]");
    return first;
  }

 private:
  // "train.py":31:8 to :20, or "jit(step)/add"(location)
  MlirPlace named(TextCursor& at) {
    const std::string_view text = at.string();
    if (at.peek() == ':') {
      at.take(":");
      MlirPlace p{"", base_name(text) + ":" + at.word()};
      if (at.take(":")) at.word();
      if (at.take("to")) {
        at.word();
        if (at.take(":")) at.word();
      }
      return p;
    }
    MlirPlace p{std::string(text), ""};
    if (at.take("(")) {
      p.source = read(at).source;
      at.until("");
      at.take(")");
    }
    return p;
  }

  const MlirModule& module_;
  int steps_ = 0;
};

}  // namespace

MlirPlace place_of(const MlirModule& module, std::string_view location) {
  TextCursor at(location);
  return Places(module).read(at);
}

}  // namespace twinrun
