// Renders the memory of a step as text, as JSON, and in the words of an out-of-memory error.
#include "reports/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "program/base/sizes.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

double ratio(int64_t a, int64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

std::string padding_of(const MemoryAllocation& a) {
  return fmt::format("{} ({:.1f}x expansion)", size_text(a.bytes - a.unpadded),
                     ratio(a.bytes, a.unpadded));
}

std::string allocation_text(const MemoryAllocation& a, size_t number) {
  std::string out = fmt::format(
      "  {}. Size: {}\n     Operator: op_type=\"{}\" op_name=\"{}\"\n     Shape: {}\n"
      "     Unpadded size: {}\n",
      number, size_text(a.bytes), a.op_type, a.op, a.shape, size_text(a.unpadded));
  if (a.bytes != a.unpadded)
    out += fmt::format("     Extra memory due to padding: {}\n", padding_of(a));
  return out + "     Allocation type: HLO temp\n     ==========================\n\n";
}

bool is_temporary(const MemoryAllocation& a) {
  return a.use != "weights" && a.use != "slots" && a.use != "statistics";
}

std::string change_text(const MemoryChange& c) {
  std::string out = fmt::format("  {:<47} {:>9}  {}", c.change, size_text(c.used),
                                c.fits ? "fits" : "does not fit");
  if (c.extra_flops > 0)
    out += fmt::format(", {:.3g} more GFLOP per step (+{:.1f} %)", c.extra_flops / 1e9,
                       100 * c.extra_flops / std::max(1.0, c.step_flops));
  return out + "\n";
}

Json json_of(const MemoryAllocation& a) {
  Json j = {{"op", a.op},       {"op_type", a.op_type}, {"use", a.use},
            {"shape", a.shape}, {"bytes", a.bytes},     {"unpadded", a.unpadded}};
  j["broken_rule"] = a.broken_rule.empty() ? Json() : Json(a.broken_rule);
  return j;
}

Json json_of(const MemoryChange& c) {
  return {{"change", c.change}, {"set", c.set},     {"used", c.used},
          {"fits", c.fits},     {"batch", c.batch}, {"extra_flops", c.extra_flops}};
}

Json json_of(const MemoryFit& f) {
  return {{"with", f.with}, {"batch", f.batch}, {"multiple", f.multiple}, {"used", f.used}};
}

template <typename T>
Json list(const std::vector<T>& rows) {
  Json out = Json::array();
  for (const T& row : rows) out.push_back(json_of(row));
  return out;
}

// The first line of the text.
std::string memory_line(const MemoryReport& r) {
  return fmt::format("memory of one {} core, batch {} on {}: {} of {} {}", r.generation, r.batch,
                     r.cores == 1 ? "one core" : fmt::format("{} cores", r.cores),
                     size_text(r.used()), size_text(r.usable()),
                     r.fits() ? "used" : "needed: it does not fit");
}

}  // namespace

std::string out_of_memory_text(const MemoryReport& r) {
  if (r.fits()) return "";
  std::string out = fmt::format(
      "Ran out of memory in memory space hbm. Used {} of {} hbm. Exceeded hbm capacity by {}.\n\n"
      "Total hbm usage >= {}:\n    reserved     {:>11}\n    program      {:>11}\n    arguments    "
      "{:>11}\n\n"
      "Output size {}; shares {} with arguments.\n\n"
      "Program hbm requirement {}:\n    HLO temp     {:>11} ({:.1f}% utilization: Unpadded ({}) "
      "Padded ({}), "
      "0.0% fragmentation (0B))\n\n  Largest program allocations in hbm:\n\n",
      size_text(r.used()), size_text(r.usable()), size_text(r.used() - r.usable()),
      size_text(r.used() + r.reserved), size_text(r.reserved), size_text(r.program),
      size_text(r.arguments), size_text(r.arguments), size_text(r.arguments), size_text(r.program),
      size_text(r.program), 100 * ratio(r.program_unpadded, r.program),
      size_text(r.program_unpadded), size_text(r.program));
  size_t number = 0;
  for (const MemoryAllocation& a : r.largest) {
    if (is_temporary(a)) out += allocation_text(a, ++number);
  }
  return out;
}

std::string memory_text(const MemoryReport& r) {
  std::string out = memory_line(r) + "\n";
  for (const MemoryUse& use : r.uses) {
    if (use.bytes == 0) continue;
    out += fmt::format("  {:<13}{:>9}", use.name, size_text(use.bytes));
    if (use.bytes != use.unpadded) out += fmt::format("   unpadded {:>9}", size_text(use.unpadded));
    if (use.name == "slots")
      out += fmt::format("   {:.3g} bytes per weight", r.slot_bytes_per_weight);
    out += "\n";
  }
  out += fmt::format("  peak in the {} pass, at {}\n", r.peak_phase, r.peak_op);
  if (!r.padding.empty()) out += "\nlargest padding\n";
  for (const MemoryAllocation& a : r.padding) {
    out +=
        fmt::format("  {:<44} {:>9}: {} of padding\n", a.shape, size_text(a.bytes), padding_of(a));
    out += fmt::format("    {}{}{}\n", a.op, a.broken_rule.empty() ? "" : ": ", a.broken_rule);
  }
  if (const std::string oom = out_of_memory_text(r); !oom.empty())
    out += "\na TPU's message would be similar to\n\n" + oom;
  if (!r.changes.empty())
    out += r.fits() ? "\npossible changes, planned again\n" : "\nwhat to change, planned again\n";
  for (const MemoryChange& change : r.changes) out += change_text(change);
  if (!r.fit.empty())
    out += fmt::format("\nlargest batch that fits, in multiples of {}\n", r.fit[0].multiple);
  for (const MemoryFit& fit : r.fit) {
    out += fmt::format("  {:<47} {:>9}", fit.with.empty() ? "unchanged" : fit.with,
                       fit.batch == 0 ? "none" : fmt::format("{}", fit.batch));
    out += fit.batch == 0 ? "\n"
                          : fmt::format("  {} of {}\n", size_text(fit.used), size_text(r.usable()));
  }
  if (r.host)
    out += fmt::format("\ntwinrun's engines need {} of tensors for it on this machine\n",
                       size_text(r.host->total()));
  return out;
}

std::string memory_json(const MemoryReport& r) {
  Json uses = Json::array();
  for (const MemoryUse& use : r.uses)
    uses.push_back({{"use", use.name}, {"bytes", use.bytes}, {"unpadded", use.unpadded}});
  Json j = {{"generation", r.generation},
            {"cores", r.cores},
            {"batch", r.batch},
            {"hbm", r.hbm},
            {"reserved", r.reserved},
            {"usable", r.usable()},
            {"used", r.used()},
            {"fits", r.fits()},
            {"arguments", r.arguments},
            {"program", r.program},
            {"program_unpadded", r.program_unpadded},
            {"slot_bytes_per_weight", r.slot_bytes_per_weight},
            {"peak", {{"op", r.peak_op}, {"phase", r.peak_phase}}},
            {"uses", uses},
            {"largest", list(r.largest)},
            {"padding", list(r.padding)},
            {"out_of_memory", r.fits() ? Json() : Json(out_of_memory_text(r))},
            {"changes", list(r.changes)}};
  j["fit"] = r.fit.empty() ? Json() : list(r.fit);
  j["host"] = !r.host ? Json() : Json{{"arena", r.host->arena},         {"states", r.host->states},
                                      {"outputs", r.host->outputs},     {"inputs", r.host->inputs},
                                      {"constants", r.host->constants}, {"total", r.host->total()}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace twinrun
