// TensorBoard's event files: TFRecord files (scenarios/data/record_reader.h) of the messages in
// tensorboard_event.proto.
//
//   write_file_atomically("T/events.out.tfevents.0.twinrun", event_file(curves));
//   TWINRUN_ASSIGN(EventCurves read, read_events("logs/train"));       // a file, or a run's folder
#pragma once

#include "harness/foreign/curve.h"
#include "program/base/result.h"

namespace twinrun {

// Whether a path is an event file by its name ("events.out.tfevents.1700000000.host"), or a folder
// that contains such files.
bool is_event_path(const std::string& path);

// One event per step that has values, in the order of steps; values are rounded to binary32, as
// TensorBoard's are. The result depends on the curves alone: the time of an event is its step, in
// seconds.
std::string event_file(const std::vector<Curve>& curves);

struct EventCurves {
  std::vector<Curve> curves;  // one per tag, in the order of their first values
  // Number of values replaced by a later one of the same tag and step. A resumed run writes steps
  // again.
  int64_t replaced = 0;
};

// Skips images, texts and histograms. Errors name the file and the record: cut short, a wrong CRC,
// not an event; a folder without event files.
Result<EventCurves> read_events(const std::string& path);

}  // namespace twinrun
