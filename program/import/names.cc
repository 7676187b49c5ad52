// JAX's names of ops without the transformations around them.
#include "program/import/names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace twinrun {
namespace {

std::vector<std::string_view> pieces_of(std::string_view text) {
  std::vector<std::string_view> pieces;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i == text.size() || (text[i] == '/' && depth == 0)) {
      pieces.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return pieces;
}

constexpr std::array<std::string_view, 11> kTransformations = {"jit",
                                                               "pjit",
                                                               "jvp",
                                                               "transpose",
                                                               "vmap",
                                                               "remat",
                                                               "checkpoint",
                                                               "rematted_computation",
                                                               "custom_jvp",
                                                               "custom_vjp",
                                                               "custom_vjp_call"};

// Words that JAX adds where it lowers a loop, a call or a rematerialised function.
bool is_plumbing(std::string_view piece, std::string_view next) {
  if (piece == "while" || piece == "cond") {
    const bool branch = piece == "cond" && next.starts_with("branch_") && next.ends_with("_fun");
    return branch || next == "body" || next == "cond" || next == "body_pred";
  }
  return piece == "closed_call" || piece == "core_closed_call" || piece == "checkpoint" ||
         piece == "rematted_computation" || piece == "custom_jvp_call" ||
         piece == "custom_vjp_call";
}

}  // namespace

SourcePath source_path(std::string_view op_name) {
  constexpr size_t kMax = 200;
  SourcePath out;
  op_name = op_name.substr(0, 4 * kMax);
  bool first = true;
  const std::vector<std::string_view> pieces = pieces_of(op_name);
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::string_view piece = pieces[i];
    const std::string_view next = i + 1 < pieces.size() ? pieces[i + 1] : "";
    if (is_plumbing(piece, next)) {
      if (piece == "while" || piece == "cond") ++i;
      first = false;
      continue;
    }
    const bool lowered = first && piece.starts_with("jit(");
    out.absolute = out.absolute || lowered;
    first = false;
    if (lowered) continue;
    for (size_t open = piece.find('('); open != std::string_view::npos && piece.ends_with(')');
         open = piece.find('(')) {
      const std::string_view word = piece.substr(0, open);
      if (std::ranges::find(kTransformations, word) == kTransformations.end()) break;
      out.gradient = out.gradient || word == "transpose";
      piece = piece.substr(open + 1, piece.size() - open - 2);
    }
    if (piece.empty()) continue;
    if (!out.path.empty()) out.path += '/';
    out.path += piece;
  }
  if (out.path.size() > kMax) out.path.resize(kMax);
  for (char& c : out.path) {
    const auto u = static_cast<unsigned char>(c);
    if (u <= ' ' || u >= 0x7F || c == ',' || c == '*' || c == '?' || c == '@') c = '_';
  }
  return out;
}

}  // namespace twinrun
