// Finds the definitions of a StableHLO text, and edits it by insertions.
#include "program/import/barriers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "program/import/names.h"
#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

// HLO's "s32" is MLIR's "i32", "u8" is "ui8", "pred" is "i1".
std::string type_text(const HloShape& shape) {
  std::string out = "tensor<";
  for (const int64_t size : shape.dims) out += fmt::format("{}x", size);
  const std::string& t = shape.dtype;
  const bool numbered = t.size() > 1 && number(t.substr(1)).has_value();
  return out +
         (t == "pred"               ? "i1"
          : t[0] == 's' && numbered ? "i" + t.substr(1)
          : t[0] == 'u' && numbered ? "ui" + t.substr(1)
                                    : t) +
         ">";
}

// Types of arrays; a token, for instance, is none.
bool is_array(const HloShape& shape) {
  static const std::set<std::string_view> types = {"pred", "s8",  "s16", "s32",  "s64", "u8", "u16",
                                                   "u32",  "u64", "f16", "bf16", "f32", "f64"};
  return !shape.dynamic && types.contains(shape.dtype);
}

bool ends_function(const MlirOp& op) {
  return op.name == "return" || op.name == "func.return" || op.name == "stablehlo.return";
}

// Whether an op computes nothing of a constant that it reads.
bool only_constant(const std::string& op) {
  static const std::set<std::string_view> ops = {"stablehlo.constant", "stablehlo.iota",
                                                 "stablehlo.broadcast_in_dim", "stablehlo.convert",
                                                 "stablehlo.reshape"};
  return ops.contains(op);
}

// The names of the results: "5#0", "5#1"; "5".
std::vector<std::string> names_of(const std::vector<MlirOp::Result>& results) {
  std::vector<std::string> out;
  for (const MlirOp::Result& r : results) {
    for (size_t i = 0; i < r.count; ++i)
      out.push_back(r.count == 1 ? r.name : fmt::format("{}#{}", r.name, i));
  }
  return out;
}

std::string list_of(const std::vector<std::string>& names, std::string_view prefix) {
  std::string out;
  for (const std::string& name : names)
    out += fmt::format("{}%{}{}", out.empty() ? "" : ", ", prefix, name);
  return out;
}

std::string types_of(const std::vector<HloShape>& types) {
  std::string out;
  for (const HloShape& type : types) out += (out.empty() ? "" : ", ") + type_text(type);
  return out;
}

// The names that an op and its regions read and do not define themselves.
void outer_reads(const MlirOp& op, std::set<std::string> inner, std::vector<std::string>& reads) {
  for (const std::string& ref : op.operands) {
    std::string name = ref.substr(0, ref.find('#'));
    if (!inner.contains(name)) reads.push_back(std::move(name));
  }
  for (const MlirRegion& region : op.regions) {
    std::set<std::string> within = inner;
    for (const MlirArgument& a : region.arguments) within.insert(a.name);
    for (const MlirOp& o : region.ops) {
      outer_reads(o, within, reads);
      for (const MlirOp::Result& r : o.results) within.insert(r.name);
    }
  }
}

constexpr std::string_view kBarred = "barred_", kOp = "stablehlo.optimization_barrier";

}  // namespace

Result<BarrierText> BarrierText::parse(std::string text, const std::string& file) {
  TWINRUN_ASSIGN(const MlirModule module, parse_mlir(text, file));
  if (text.find(fmt::format("%{}", kBarred)) != std::string::npos)
    return Error{fmt::format("names of values begin with {}", kBarred), file, ""};
  BarrierText out;
  out.text_ = std::move(text);
  for (const MlirFunction& f : module.functions) {
    const bool is_main = f.name == "main";
    if (is_main) {
      out.main_ = f;
      out.arguments_ = f.body.arguments;
    }
    out.collect(module, f.body, is_main);
  }
  out.main_.body = {};
  return out;
}

void BarrierText::collect(const MlirModule& module, const MlirRegion& region, bool in_main,
                          std::set<std::string> constants) {
  std::map<std::string, int> defined;  // in @main
  for (size_t i = 0; in_main && i < region.arguments.size(); ++i)
    defined[region.arguments[i].name] = -1 - static_cast<int>(i);
  for (const MlirOp& op : region.ops) {
    std::vector<std::string> reads;
    outer_reads(op, {}, reads);
    if (in_main && ends_function(op)) {
      return_begin_ = op.begin;
      return_end_ = op.end;
      for (const std::string& name : reads) {
        if (const auto at = defined.find(name); at != defined.end() && at->second >= 0)
          ops_[static_cast<size_t>(at->second)].read_by_return = true;
      }
    }
    if (op.results.empty()) continue;
    Op o;
    o.begin = op.begin;
    // The parser looks for further types and locations on the lines that follow.
    o.end = op.end;
    while (std::isspace(static_cast<unsigned char>(text_[o.end - 1])) != 0) --o.end;
    o.values_end = text_.find('=', op.begin);
    o.results = op.results;
    o.types = op.types;
    for (const std::string& name : reads) {
      if (const auto at = defined.find(name); at != defined.end()) o.reads.push_back(at->second);
    }
    const bool constant = only_constant(op.name) && std::ranges::all_of(reads, [&](const auto& r) {
                            return constants.contains(r);
                          });
    for (const MlirOp::Result& r : op.results)
      constant ? (void)constants.insert(r.name) : (void)constants.erase(r.name);
    if (!constant && std::ranges::all_of(op.types, is_array)) {
      const MlirPlace place = place_of(module, op.location);
      DefinedOp d;
      d.opcode = op.name;
      d.value = op.results[0].name;
      d.line = op.line;
      d.in_main = in_main;
      d.label = source_path(place.op_name).path;
      if (d.label.empty()) d.label = op.name.substr(op.name.find('.') + 1);
      if (!place.source.empty()) d.label += "@" + place.source;
      o.definition = static_cast<int>(definitions_.size());
      op_of_.push_back(static_cast<int>(ops_.size()));
      definitions_.push_back(std::move(d));
    }
    const int at = static_cast<int>(ops_.size());
    if (in_main) {
      main_ops_.push_back(at);
      for (const MlirOp::Result& r : op.results) defined[r.name] = at;
    }
    ops_.push_back(std::move(o));
    // The regions of a reduction are no places for barriers, nor is the condition of a loop.
    const bool loop = op.name == "stablehlo.while";
    if (!loop && op.name != "stablehlo.if" && op.name != "stablehlo.case") continue;
    for (size_t i = loop ? 1 : 0; i < op.regions.size(); ++i)
      collect(module, op.regions[i], false, constants);
  }
}

BarrierText::Insertions BarrierText::barriers(const std::vector<int>& after) const {
  Insertions out;
  for (const int definition : after) {
    const Op& op = op_of(definition);
    // The values are renamed where they are defined, and the barrier's results take their names.
    for (size_t at = text_.find('%', op.begin); at < op.values_end; at = text_.find('%', at + 1))
      out.emplace(at + 1, kBarred);
    out.emplace(op.end,
                fmt::format("\n    {} {} {} : {}",
                            trimmed(text_.substr(op.begin, op.values_end - op.begin)) + " =", kOp,
                            list_of(names_of(op.results), kBarred), types_of(op.types)));
  }
  return out;
}

std::string BarrierText::edited(const Insertions& insertions) const {
  std::string out;
  size_t from = 0;
  for (const auto& [at, text] : insertions) {
    out.append(text_, from, at - from);
    out += text;
    from = at;
  }
  return out.append(text_, from);
}

std::string BarrierText::with_barriers(const std::vector<int>& after) const {
  return edited(barriers(after));
}

std::string BarrierText::with_results(const std::vector<int>& of,
                                      std::vector<Excerpt::Array>& added) const {
  std::vector<int> all;
  for (int i = 0; i < static_cast<int>(definitions_.size()); ++i) all.push_back(i);
  Insertions insertions = barriers(all);
  std::vector<std::string> names;
  std::vector<HloShape> types;
  for (const int definition : of) {
    const Op& op = op_of(definition);
    const std::vector<std::string> of_op = names_of(op.results);
    for (size_t i = 0; i < of_op.size(); ++i) {
      added.push_back({of_op[i], op.types[i]});
      names.push_back(of_op[i]);
      types.push_back(op.types[i]);
    }
  }
  if (names.empty()) return edited(insertions);
  const bool listed = text_[main_.results_begin] == '(';
  if (!listed) insertions.emplace(main_.results_begin, "(");
  insertions.emplace(main_.results_end - (listed ? 1 : 0),
                     fmt::format(", {}{}", types_of(types), listed ? "" : ")"));
  // return %a, %b : T, T loc(..)
  const std::string_view line =
      std::string_view(text_).substr(return_begin_, return_end_ - return_begin_);
  const size_t colon = line.find(':');
  size_t end = std::min(line.find("loc(", colon), line.size());
  while (end > colon && std::isspace(static_cast<unsigned char>(line[end - 1])) != 0) --end;
  insertions.emplace(return_begin_ + colon, fmt::format(", {} ", list_of(names, "")));
  insertions.emplace(return_begin_ + end, ", " + types_of(types));
  return edited(insertions);
}

Excerpt BarrierText::excerpt(const std::vector<int>& of) const {
  std::set<int> inside;  // ops
  for (const int definition : of) inside.insert(op_of_[static_cast<size_t>(definition)]);
  // Constants that they read belong to them.
  for (auto at = main_ops_.rbegin(); at != main_ops_.rend(); ++at) {
    if (!inside.contains(*at)) continue;
    for (const int read : ops_[static_cast<size_t>(*at)].reads) {
      if (read >= 0 && ops_[static_cast<size_t>(read)].definition < 0) inside.insert(read);
    }
  }
  Excerpt out;
  std::string arguments, body;
  std::set<int> passed;
  const auto pass = [&](const std::string& values, const std::vector<std::string>& names,
                        const std::vector<HloShape>& types) {
    std::vector<std::string> given;
    for (size_t i = 0; i < names.size(); ++i) {
      given.push_back(fmt::format("given_{}", out.arguments.size()));
      arguments += fmt::format("{}%{}: {}", arguments.empty() ? "" : ", ", given.back(),
                               type_text(types[i]));
      out.arguments.push_back({names[i], types[i]});
    }
    body += fmt::format("    {} = {} {} : {}\n", values, kOp, list_of(given, ""), types_of(types));
  };
  const auto values_text = [&](const Op& op) {
    return trimmed(text_.substr(op.begin, op.values_end - op.begin));
  };
  for (const int i : inside) {
    for (const int read : ops_[static_cast<size_t>(i)].reads) {
      if (inside.contains(read) || !passed.insert(read).second) continue;
      if (read < 0) {
        const MlirArgument& a = arguments_[static_cast<size_t>(-1 - read)];
        pass("%" + a.name, {a.name}, {a.shape});
      } else {
        const Op& op = ops_[static_cast<size_t>(read)];
        pass(values_text(op), names_of(op.results), op.types);
      }
    }
  }
  std::set<int> read_outside;
  for (const int i : main_ops_) {
    if (ops_[static_cast<size_t>(i)].read_by_return) read_outside.insert(i);
    if (inside.contains(i)) continue;
    for (const int read : ops_[static_cast<size_t>(i)].reads) read_outside.insert(read);
  }
  std::vector<HloShape> types;
  std::vector<std::string> names;
  for (const int i : inside) {
    const Op& op = ops_[static_cast<size_t>(i)];
    body += "    " + text_.substr(op.begin, op.end - op.begin) + "\n";
    if (op.definition < 0 || !read_outside.contains(i)) continue;
    const std::vector<std::string> of_op = names_of(op.results);
    for (size_t k = 0; k < of_op.size(); ++k) {
      names.push_back(of_op[k]);
      types.push_back(op.types[k]);
      out.results.push_back({of_op[k], op.types[k]});
    }
  }
  types.push_back({"f32", {}, {}, false});
  names.emplace_back("no_loss");
  body += "    %no_loss = stablehlo.constant dense<0.0> : tensor<f32>\n";
  const std::string function =
      fmt::format("func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}", arguments,
                  types_of(types), body, list_of(names, ""), types_of(types));
  out.text = text_.substr(0, main_.begin) + function + text_.substr(main_.end);
  // It runs on one core.
  constexpr std::string_view kReplicas = "mhlo.num_replicas = ";
  if (const size_t at = out.text.find(kReplicas); at < main_.begin) {
    const size_t digits = at + kReplicas.size();
    out.text.replace(digits, out.text.find_first_not_of("0123456789", digits) - digits, "1");
  }
  return out;
}

std::vector<int> BarrierText::producers(int definition) const {
  std::vector<int> out;
  // Through constants nothing is computed from a definition.
  for (const int read : op_of(definition).reads) {
    if (read >= 0 && ops_[static_cast<size_t>(read)].definition >= 0)
      out.push_back(ops_[static_cast<size_t>(read)].definition);
  }
  return out;
}

std::vector<int> BarrierText::readers(int definition) const {
  std::vector<int> out;
  const int at = op_of_[static_cast<size_t>(definition)];
  for (const int i : main_ops_) {
    const Op& op = ops_[static_cast<size_t>(i)];
    if (op.definition >= 0 && std::ranges::find(op.reads, at) != op.reads.end())
      out.push_back(op.definition);
  }
  return out;
}

}  // namespace twinrun
