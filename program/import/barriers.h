// Edits a StableHLO text so that a compiler may not join chosen ops: a stablehlo.optimization_barrier
// stands after the definition of a value, and every reader reads the barrier's result. Used to find
// which ops of a step a compiler computes wrongly only where it joins them.
//
//   TWINRUN_ASSIGN(const BarrierText text, BarrierText::parse(module, "step.mlir"));
//   text.definitions()[7].label;              // "dense1/dot_general@train.py:31"
//   text.with_barriers({7, 9});               // the module, with two barriers
//   text.excerpt({7, 8}).text;                // a module of these two ops alone
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "program/import/mlir.h"

namespace twinrun {

// An op that defines values, and after which a barrier may stand. Constants and what only spreads
// or converts them are none of them: they are read where they are needed.
struct DefinedOp {
  std::string label;   // where it is in the user's source: "dense1/add@train.py:31"; else its name
  std::string opcode;  // "stablehlo.add"
  std::string value;   // the name of its first value, without %
  int line = 0;
  // It is an op of @main itself, in no loop, branch or other function.
  bool in_main = false;
};

// A module whose @main computes some ops of another's, as its text has them.
struct Excerpt {
  // An array that is passed in or returned, by its name in the text: "3", "5#1".
  struct Array {
    std::string name;
    HloShape shape;
  };
  std::string text;
  std::vector<Array> arguments, results;
};

class BarrierText {
 public:
  static Result<BarrierText> parse(std::string text, const std::string& file);

  const std::string& text() const { return text_; }
  const std::vector<DefinedOp>& definitions() const { return definitions_; }
  const std::vector<MlirArgument>& arguments() const { return arguments_; }  // of @main

  // The text with a barrier after each of these definitions (ascending numbers).
  std::string with_barriers(const std::vector<int>& after) const;
  // With a barrier after every definition, and the values of these definitions, which are in @main,
  // as further results of the step. `added`: those results, in order.
  std::string with_results(const std::vector<int>& of, std::vector<Excerpt::Array>& added) const;
  // These definitions of @main as a module: what they read from others is an argument behind a
  // barrier, and what others read of them is a result, followed by a zero that serves as a loss.
  Excerpt excerpt(const std::vector<int>& of) const;

  // The definitions of @main that compute what this one reads, and those that read what it computes.
  std::vector<int> producers(int definition) const;
  std::vector<int> readers(int definition) const;

 private:
  struct Op {
    size_t begin = 0, values_end = 0, end = 0;  // in the text
    std::vector<MlirOp::Result> results;
    std::vector<HloShape> types;
    int definition = -1;
    std::vector<int> reads;  // ops of @main; negative: -1 - i for argument i of @main
    bool read_by_return = false;
  };

  void collect(const MlirModule& module, const MlirRegion& region, bool in_main,
               std::set<std::string> constants = {});
  const Op& op_of(int definition) const {
    return ops_[static_cast<size_t>(op_of_[static_cast<size_t>(definition)])];
  }
  // What to put into the text, by position.
  using Insertions = std::multimap<size_t, std::string>;
  Insertions barriers(const std::vector<int>& after) const;
  std::string edited(const Insertions& insertions) const;

  std::string text_;
  std::vector<DefinedOp> definitions_;
  std::vector<Op> ops_;        // all ops that define something, in order; those of @main are linked
  std::vector<int> op_of_;     // [definition]
  std::vector<int> main_ops_;  // of @main, in order
  MlirFunction main_;          // without its body
  std::vector<MlirArgument> arguments_;  // of @main
  size_t return_begin_ = 0, return_end_ = 0;
};

}  // namespace twinrun
