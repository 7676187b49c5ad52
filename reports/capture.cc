// Renders a recorded profile for the terminal and as JSON.
#include "reports/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/profile.h"
#include "reports/profile_words.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;
using words::seconds;

constexpr size_t kShownMatches = 15;

std::string several(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const size_t more = names.size() - 1;
  return text::clean(names[0]) + (more == 0 ? "" : fmt::format(" and {} more", more));
}

Json json_of(const CaptureComparison& c) {
  Json j = {{"model", c.model},
            {"step_seconds", c.step_seconds},
            {"input_share", c.input_share},
            {"idle_share", c.idle_share},
            {"uncertainty", c.uncertainty},
            {"same_kind_of_device", c.same_kind},
            {"matched_seconds", c.measured},
            {"matched_predicted_seconds", c.predicted},
            {"only_in_capture_seconds", c.only_measured},
            {"only_in_model_seconds", c.only_predicted}};
  j["matches"] = Json::array();
  for (const CaptureMatch& m : c.matches)
    j["matches"].push_back({{"ops", m.ops},
                            {"units", m.units},
                            {"seconds", m.measured},
                            {"predicted_seconds", m.predicted},
                            {"times_expected", c.against_expected(m)},
                            {"slower_than_expected", c.slower(m)}});
  return j;
}

class CaptureText {
 public:
  CaptureText(const Capture& capture, int width) : c_(capture), width_(width) {}
  std::string run();

 private:
  void line(const std::string& words) { out_ += words + "\n"; }
  void paragraph(const std::string& words, int indent, const std::string& first) {
    bool begun = false;
    for (const std::string& part : text::wrap(text::clean(words), width_ - indent)) {
      std::string head(static_cast<size_t>(indent), ' ');
      if (!begun) head.replace(0, first.size(), first);
      begun = true;
      line(head + part);
    }
  }
  void table(const text::Table& t) {
    for (const std::string& l : t.lines(width_, 2)) line(l);
  }
  void overview();
  void compare(const CaptureComparison& comparison);

  const Capture& c_;
  int width_;
  std::string out_;
};

void CaptureText::overview() {
  const auto row = [&](const std::string& name, const std::string& words) {
    paragraph(words, 16, "  " + name);
  };
  line(fmt::format("{}: {}, {}{}", text::clean(c_.file), text::clean(c_.device),
                   text::plural(c_.devices, "device"),
                   c_.host.empty() ? "" : " of " + text::clean(c_.host)));
  if (c_.steps.empty()) {
    row("recorded", seconds(c_.wall_seconds));
  } else {
    std::string step = seconds(c_.step_seconds);
    if (c_.steps.size() > 1)
      step += fmt::format(" ({} to {}, deviation {})", seconds(c_.shortest), seconds(c_.longest),
                          seconds(c_.deviation));
    row("step", fmt::format("{}, {} of them, from {}", step, c_.steps.size(), c_.steps_from));
  }
  row("device", fmt::format("busy {}, waiting for input {}, idle {} of {}",
                            text::percent(c_.busy_share, 1), text::percent(c_.input_share, 1),
                            text::percent(c_.idle_share, 1), seconds(c_.wall_seconds)));
  if (c_.input_known) row("input", std::string(to_string(input_bound(c_.input_share))));

  line(c_.steps.empty() ? "\ntop ops" : "\ntop ops, of a step on one device");
  text::Table top({{.title = "op", .flexible = true},
                   {.title = "category", .drop = 2},
                   {.title = "place", .flexible = true, .drop = 1},
                   {.title = "time", .right = true},
                   {.title = "share", .right = true}});
  for (size_t i = 0; i < std::min(kTopOps, c_.ops.size()); ++i) {
    const CaptureOp& op = c_.ops[i];
    top.add({text::clean(op.name), text::clean(op.category), several(op.paths), seconds(op.seconds),
             text::percent(op.share, 1)});
  }
  table(top);
}

void CaptureText::compare(const CaptureComparison& m) {
  line(fmt::format("\nagainst {}", text::clean(m.model)));
  paragraph(fmt::format("step {} measured, {} predicted, between {} and {}",
                        seconds(c_.steps.empty() ? c_.wall_seconds : c_.step_seconds),
                        seconds(m.step_seconds), seconds(m.step_seconds / m.uncertainty),
                        seconds(m.step_seconds * m.uncertainty)),
            2, "");
  paragraph(fmt::format("waiting for input {} measured, {} predicted; idle {} and {}",
                        text::percent(c_.input_share, 1), text::percent(m.input_share, 1),
                        text::percent(c_.idle_share, 1), text::percent(m.idle_share, 1)),
            2, "");
  if (m.matches.empty()) {
    paragraph(
        "no op of the capture has a name of the model's; record the step that the model is of, "
        "with named scopes (docs/guides/profile.md)",
        2, "");
    return;
  }
  paragraph(fmt::format("matched by name: {} of the capture's ops, {} of the model's; without a "
                        "counterpart {} and {}",
                        seconds(m.measured), seconds(m.predicted), seconds(m.only_measured),
                        seconds(m.only_predicted)),
            2, "");
  if (!m.same_kind)
    paragraph(
        fmt::format("the capture is of a {}, the model of a TPU: what is expected of an op is its "
                    "share of the matched time",
                    c_.device),
        2, "");
  text::Table t({{.title = "op of the capture", .flexible = true},
                 {.title = "of the model", .flexible = true, .drop = 1},
                 {.title = "measured", .right = true},
                 {.title = "predicted", .right = true},
                 {.title = "times expected", .right = true},
                 {.title = ""}});
  for (size_t i = 0; i < std::min(kShownMatches, m.matches.size()); ++i) {
    const CaptureMatch& match = m.matches[i];
    t.add({several(match.ops), several(match.units), seconds(match.measured),
           seconds(match.predicted), words::three_digits(m.against_expected(match)),
           m.slower(match) ? "slower" : ""});
  }
  table(t);
  const auto slower =
      std::ranges::count_if(m.matches, [&](const CaptureMatch& match) { return m.slower(match); });
  paragraph(fmt::format("{} of {} take more than {} times what is expected, the uncertainty of the "
                        "model",
                        slower, m.matches.size(), words::three_digits(m.uncertainty)),
            2, "");
}

std::string CaptureText::run() {
  overview();
  for (const CaptureComparison& comparison : c_.comparison) compare(comparison);
  if (!c_.notes.empty()) line("\nnotes");
  for (const std::string& note : c_.notes) paragraph(note, 4, "  -");
  return std::move(out_);
}

}  // namespace

std::string to_capture_text(const Capture& capture, int width) {
  return CaptureText(capture, width).run();
}

std::string to_capture_json(const Capture& c) {
  Json j = {{"schema", 1},
            {"source", "recorded"},
            {"file", c.file},
            {"host", c.host},
            {"device", c.device},
            {"devices", c.devices},
            {"steps_from", c.steps_from},
            {"step_seconds", c.step_seconds},
            {"deviation", c.deviation},
            {"shortest", c.shortest},
            {"longest", c.longest},
            {"wall_seconds", c.wall_seconds},
            {"busy_share", c.busy_share},
            {"input_share", c.input_share},
            {"idle_share", c.idle_share},
            {"input_known", c.input_known}};
  if (c.input_known) j["bound"] = to_string(input_bound(c.input_share));
  j["steps"] = Json::array();
  for (const CaptureStep& s : c.steps)
    j["steps"].push_back({{"step", s.step}, {"seconds", s.seconds}});
  for (const CaptureComparison& comparison : c.comparison) j["comparison"] = json_of(comparison);
  j["notes"] = c.notes;
  j["ops"] = Json::array();
  for (const CaptureOp& op : c.ops)
    j["ops"].push_back({{"name", op.name},
                        {"program", op.program},
                        {"category", op.category},
                        {"places", op.paths},
                        {"count", op.count},
                        {"seconds", op.seconds},
                        {"share", op.share},
                        {"flops", op.flops},
                        {"bytes", op.bytes}});
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
