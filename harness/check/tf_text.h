// TensorFlow's graphs in protobuf's text form (.pbtxt), as an Estimator writes graph.pbtxt, turned
// into the binary one that tf_graph.cc reads. Only the fields that it reads are kept.
// Format: https://protobuf.dev/reference/protobuf/textformat-spec/.
//
//   const char* kind = text_kind(bytes);                                  // "GraphDef"
//   TWINRUN_ASSIGN(std::string binary, text_to_wire(bytes, kind, "graph.pbtxt"));
#pragma once

#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun::check {

// "GraphDef", "MetaGraphDef" or "SavedModel" if the bytes begin as the text form of one; else
// nullptr.
const char* text_kind(std::string_view bytes);
// Errors name the file and the line.
Result<std::string> text_to_wire(std::string_view text, const char* kind, std::string_view file);

}  // namespace twinrun::check
