// Writing, reading and verifying run files; their digests.
#include "checkpoints/run.h"

#include <algorithm>
#include <charconv>

#include "checkpoints/checkpoint_group.h"

namespace twinrun {

using checkpoint_format::check_digest;
using checkpoint_format::guarded;
using checkpoint_format::kCheckpointFormat;
using checkpoint_format::kDamagedFix;
using checkpoint_format::kRunFormat;
using checkpoint_format::read_digest;
using checkpoint_format::read_group;
using checkpoint_format::read_int;
using checkpoint_format::read_preamble;
using checkpoint_format::write_group;
using checkpoint_format::write_preamble;

namespace {

template <typename T>
void add_number(DigestBuilder& builder, T value) {
  builder.add_bytes(&value, sizeof value);
}

template <typename T>
void add_count(DigestBuilder& builder, const std::vector<T>& rows) {
  add_number<uint64_t>(builder, rows.size());
}

}  // namespace

Digest RunFile::root_digest() const {
  DigestBuilder builder;
  builder.add(engine);
  builder.add(engine_settings);
  builder.add(scenario_digest);
  for (const int64_t value : {int64_t{contract}, int64_t{cores}, first_step, batch}) {
    add_number(builder, value);
  }
  add_count(builder, steps);
  for (const StepScalars& row : steps) {
    for (const float v : {row.loss, row.loss_replica0, row.learning_rate, row.gradient_norm}) {
      add_number(builder, v);
    }
  }
  add_count(builder, state_digests);
  for (const Digest& state : state_digests) builder.add(state);
  add_count(builder, evaluations);
  for (const Evaluation& row : evaluations) {
    add_number(builder, row.step);
    add_number(builder, row.loss);
    add_number(builder, row.accuracy);
  }
  add_count(builder, trace);
  for (const OpTraceRow& row : trace) {
    add_number(builder, row.step);
    add_number(builder, row.replica);
    builder.add(row.op);
    builder.add(row.digest);
    for (const double v : {row.minimum, row.maximum, row.mean}) add_number(builder, v);
    for (const int64_t v : {row.nans, row.infs}) add_number(builder, v);
  }
  add_count(builder, checkpoints);
  for (const Checkpoint& checkpoint : checkpoints) builder.add(checkpoint.root_digest());
  builder.add(to_string(ended));
  return builder.finish();
}

namespace {

// Digest of the fields that the root digest leaves out.
Digest header_digest(const RunFile& run) {
  DigestBuilder builder;
  builder.add(run.scenario);
  for (const auto& [key, value] : run.environment) {
    builder.add(key);
    builder.add(value);
  }
  return builder.finish();
}

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, float>     ? DType::kF32
                           : std::is_same_v<T, int32_t> ? DType::kI32
                                                        : DType::kF64;

// One column of a table: field `member` of every row, with its unit.
template <typename Row, typename T>
Status write_column(Hdf5Group& group, const char* name, const char* unit,
                    const std::vector<Row>& rows, T Row::*member) {
  std::vector<T> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(row.*member);
  auto written = [&]() -> Result<Hdf5Dataset> {
    if constexpr (std::is_same_v<T, int64_t>) {
      return group.write_i64(name, values);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return group.write_strings(name, values);
    } else {
      Tensor tensor = Tensor::empty({kDTypeOf<T>, {static_cast<int64_t>(values.size())}});
      std::copy(values.begin(), values.end(), tensor.as<T>().begin());
      return group.write_tensor(name, tensor);
    }
  }();
  if (!written.ok()) return written.error();
  return written->set_text("unit", unit);
}

template <typename T>
Result<std::vector<T>> read_values(const Hdf5Dataset& dataset) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return dataset.read_i64();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return dataset.read_strings();
  } else {
    TWINRUN_ASSIGN(const Tensor tensor, dataset.read_tensor());
    if (tensor.dtype() != kDTypeOf<T> || tensor.dims().size() != 1) {
      return Error{fmt::format("is {}; expected one column of {}", to_string(tensor.type()),
                               to_string(kDTypeOf<T>)),
                   dataset.where(), kDamagedFix};
    }
    const auto values = tensor.as<T>();
    return std::vector<T>(values.begin(), values.end());
  }
}

// Fills field `member` of every row. With `first`, the column's length sets the number of rows.
template <typename Row, typename T>
Status read_column(const Hdf5Group& group, const char* name, std::vector<Row>& rows, T Row::*member,
                   bool first = false) {
  TWINRUN_ASSIGN(const Hdf5Dataset dataset, group.dataset(name));
  TWINRUN_ASSIGN(const std::vector<T> values, read_values<T>(dataset));
  if (first) rows.resize(values.size());
  if (values.size() != rows.size()) {
    return Error{fmt::format("has {} rows; the other columns have {}", values.size(), rows.size()),
                 dataset.where(), kDamagedFix};
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
  return Ok{};
}

// A column of digests is stored as text of 32 hex digits.
Status write_digests(Hdf5Group& group, const char* name, const std::vector<Digest>& digests) {
  std::vector<std::string> hex;
  hex.reserve(digests.size());
  for (const Digest& digest : digests) hex.push_back(digest.hex());
  TWINRUN_ASSIGN(Hdf5Dataset dataset, group.write_strings(name, hex));
  return dataset.set_text("unit", "XXH3-128, hexadecimal");
}

Result<std::vector<Digest>> read_digests(const Hdf5Group& group, const char* name) {
  TWINRUN_ASSIGN(const Hdf5Dataset dataset, group.dataset(name));
  TWINRUN_ASSIGN(const std::vector<std::string> hex, dataset.read_strings());
  std::vector<Digest> digests;
  digests.reserve(hex.size());
  for (const std::string& text : hex) {
    const auto digest = Digest::parse(text);
    if (!digest) {
      return Error{fmt::format("row {} is '{}'; expected 32 hex digits", digests.size(), text),
                   dataset.where(), kDamagedFix};
    }
    digests.push_back(*digest);
  }
  return digests;
}

Status write_steps(Hdf5Group& root, const RunFile& run) {
  const auto& rows = run.steps;
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("steps"));
  const char* loss = "the scenario's loss";
  TWINRUN_RETURN_IF_ERROR(write_column(group, "loss", loss, rows, &StepScalars::loss));
  TWINRUN_RETURN_IF_ERROR(
      write_column(group, "loss_replica0", loss, rows, &StepScalars::loss_replica0));
  TWINRUN_RETURN_IF_ERROR(
      write_column(group, "learning_rate", "per step", rows, &StepScalars::learning_rate));
  return write_column(group, "gradient_norm", "L2 norm", rows, &StepScalars::gradient_norm);
}

Status read_steps(const Hdf5Group& root, RunFile& run) {
  auto& rows = run.steps;
  TWINRUN_ASSIGN(const Hdf5Group group, root.group("steps"));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "loss", rows, &StepScalars::loss, true));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "loss_replica0", rows, &StepScalars::loss_replica0));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "learning_rate", rows, &StepScalars::learning_rate));
  return read_column(group, "gradient_norm", rows, &StepScalars::gradient_norm);
}

Status write_evaluations(Hdf5Group& root, const RunFile& run) {
  const auto& rows = run.evaluations;
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("evaluations"));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "step", "steps done", rows, &Evaluation::step));
  TWINRUN_RETURN_IF_ERROR(
      write_column(group, "loss", "the scenario's loss", rows, &Evaluation::loss));
  return write_column(group, "accuracy", "fraction of samples", rows, &Evaluation::accuracy);
}

Status read_evaluations(const Hdf5Group& root, RunFile& run) {
  auto& rows = run.evaluations;
  TWINRUN_ASSIGN(const Hdf5Group group, root.group("evaluations"));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "step", rows, &Evaluation::step, true));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "loss", rows, &Evaluation::loss));
  return read_column(group, "accuracy", rows, &Evaluation::accuracy);
}

Status write_trace(Hdf5Group& root, const RunFile& run) {
  const auto& rows = run.trace;
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("trace"));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "step", "step", rows, &OpTraceRow::step));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "replica", "replica", rows, &OpTraceRow::replica));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "op", "name", rows, &OpTraceRow::op));
  std::vector<Digest> digests;
  digests.reserve(rows.size());
  for (const OpTraceRow& row : rows) digests.push_back(row.digest);
  TWINRUN_RETURN_IF_ERROR(write_digests(group, "digest", digests));
  const char* value = "value of the output";
  TWINRUN_RETURN_IF_ERROR(write_column(group, "minimum", value, rows, &OpTraceRow::minimum));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "maximum", value, rows, &OpTraceRow::maximum));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "mean", value, rows, &OpTraceRow::mean));
  TWINRUN_RETURN_IF_ERROR(write_column(group, "nans", "elements", rows, &OpTraceRow::nans));
  return write_column(group, "infs", "elements", rows, &OpTraceRow::infs);
}

Status read_trace(const Hdf5Group& root, RunFile& run) {
  auto& rows = run.trace;
  TWINRUN_ASSIGN(const Hdf5Group group, root.group("trace"));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "step", rows, &OpTraceRow::step, true));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "replica", rows, &OpTraceRow::replica));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "op", rows, &OpTraceRow::op));
  TWINRUN_ASSIGN(const std::vector<Digest> digests, read_digests(group, "digest"));
  if (digests.size() != rows.size()) {
    return Error{fmt::format("has {} digests for {} rows", digests.size(), rows.size()),
                 group.where(), kDamagedFix};
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].digest = digests[i];
  TWINRUN_RETURN_IF_ERROR(read_column(group, "minimum", rows, &OpTraceRow::minimum));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "maximum", rows, &OpTraceRow::maximum));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "mean", rows, &OpTraceRow::mean));
  TWINRUN_RETURN_IF_ERROR(read_column(group, "nans", rows, &OpTraceRow::nans));
  return read_column(group, "infs", rows, &OpTraceRow::infs);
}

Status write_checkpoints(Hdf5Group& root, const RunFile& run) {
  TWINRUN_ASSIGN(Hdf5Group group, root.create_group("checkpoints"));
  int64_t last = -1;
  for (const Checkpoint& checkpoint : run.checkpoints) {
    if (checkpoint.step <= last) {
      return Error{
          fmt::format("a checkpoint of step {} follows one of step {}", checkpoint.step, last),
          group.where(), "keep the checkpoints in the order of their steps, one for each step"};
    }
    last = checkpoint.step;
    TWINRUN_ASSIGN(Hdf5Group below, group.create_group(std::to_string(checkpoint.step)));
    TWINRUN_RETURN_IF_ERROR(write_group(below, checkpoint));
  }
  return Ok{};
}

Status read_checkpoints(const Hdf5Group& root, RunFile& run) {
  TWINRUN_ASSIGN(const Hdf5Group group, root.group("checkpoints"));
  TWINRUN_ASSIGN(const auto children, group.children());
  for (const auto& child : children) {
    TWINRUN_ASSIGN(const Hdf5Group below, group.group(child.name));
    TWINRUN_ASSIGN(Checkpoint checkpoint, read_group(below));
    if (child.name != std::to_string(checkpoint.step)) {
      return Error{fmt::format("holds the checkpoint of step {}", checkpoint.step), below.where(),
                   kDamagedFix};
    }
    run.checkpoints.push_back(std::move(checkpoint));
  }
  std::sort(run.checkpoints.begin(), run.checkpoints.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return Ok{};
}

Status write_attributes(Hdf5Group& root, const RunFile& run) {
  TWINRUN_RETURN_IF_ERROR(write_preamble(root, kRunFormat, kRunSchema, run.contract));
  TWINRUN_RETURN_IF_ERROR(root.set_text("engine", run.engine));
  TWINRUN_RETURN_IF_ERROR(root.set_text("engine_settings", run.engine_settings));
  TWINRUN_RETURN_IF_ERROR(root.set_text("scenario", run.scenario));
  TWINRUN_RETURN_IF_ERROR(root.set_text("scenario_digest", run.scenario_digest));
  TWINRUN_RETURN_IF_ERROR(root.set_int("cores", run.cores));
  TWINRUN_RETURN_IF_ERROR(root.set_int("first_step", run.first_step));
  TWINRUN_RETURN_IF_ERROR(root.set_int("batch", run.batch));
  TWINRUN_RETURN_IF_ERROR(root.set_text("ended", to_string(run.ended)));
  TWINRUN_RETURN_IF_ERROR(root.set_text("root_digest", run.root_digest().hex()));
  TWINRUN_RETURN_IF_ERROR(root.set_text("header_digest", header_digest(run).hex()));
  TWINRUN_ASSIGN(Hdf5Group environment, root.create_group("environment"));
  for (const auto& [key, value] : run.environment) {
    TWINRUN_RETURN_IF_ERROR(environment.set_text(key, value));
  }
  return Ok{};
}

Status read_attributes(const Hdf5Group& root, RunFile& run) {
  TWINRUN_ASSIGN(run.contract, read_preamble(root, kRunFormat, kRunSchema));
  TWINRUN_ASSIGN(run.engine, root.text("engine"));
  TWINRUN_ASSIGN(run.engine_settings, root.text("engine_settings"));
  TWINRUN_ASSIGN(run.scenario, root.text("scenario"));
  TWINRUN_ASSIGN(run.scenario_digest, root.text("scenario_digest"));
  TWINRUN_ASSIGN(run.cores, read_int(root, "cores", 1));
  TWINRUN_ASSIGN(run.first_step, root.integer("first_step"));
  TWINRUN_ASSIGN(run.batch, root.integer("batch"));
  TWINRUN_ASSIGN(const std::string ended, root.text("ended"));
  TWINRUN_ASSIGN(run.ended, parse_run_end(ended));
  TWINRUN_ASSIGN(const Hdf5Group environment, root.group("environment"));
  TWINRUN_ASSIGN(const std::vector<std::string> keys, environment.attributes());
  for (const std::string& key : keys) {
    TWINRUN_ASSIGN(run.environment[key], environment.text(key));
  }
  return Ok{};
}

}  // namespace

Status write_run(const std::string& path, const RunFile& run) {
  return guarded(path, [&]() -> Status {
    TWINRUN_ASSIGN(Hdf5File file, Hdf5File::create(path));
    TWINRUN_ASSIGN(Hdf5Group root, file.root());
    TWINRUN_RETURN_IF_ERROR(write_attributes(root, run));
    TWINRUN_RETURN_IF_ERROR(write_steps(root, run));
    TWINRUN_RETURN_IF_ERROR(write_digests(root, "state_digests", run.state_digests));
    TWINRUN_RETURN_IF_ERROR(write_evaluations(root, run));
    TWINRUN_RETURN_IF_ERROR(write_trace(root, run));
    TWINRUN_RETURN_IF_ERROR(write_checkpoints(root, run));
    return std::move(file).save();
  });
}

Result<RunFile> read_run(const std::string& path) {
  return guarded(path, [&]() -> Result<RunFile> {
    TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::open(path));
    TWINRUN_ASSIGN(const Hdf5Group root, file.root());
    RunFile run;
    TWINRUN_RETURN_IF_ERROR(read_attributes(root, run));
    TWINRUN_RETURN_IF_ERROR(read_steps(root, run));
    TWINRUN_ASSIGN(run.state_digests, read_digests(root, "state_digests"));
    TWINRUN_RETURN_IF_ERROR(read_evaluations(root, run));
    TWINRUN_RETURN_IF_ERROR(read_trace(root, run));
    TWINRUN_RETURN_IF_ERROR(read_checkpoints(root, run));
    TWINRUN_ASSIGN(const Digest stored, read_digest(root, "root_digest"));
    TWINRUN_RETURN_IF_ERROR(check_digest(stored, run.root_digest(), "root_digest", path));
    TWINRUN_ASSIGN(const Digest header, read_digest(root, "header_digest"));
    TWINRUN_RETURN_IF_ERROR(check_digest(header, header_digest(run), "header_digest", path));
    return run;
  });
}

Result<std::string> file_kind(const std::string& path) {
  return guarded(path, [&]() -> Result<std::string> {
    TWINRUN_ASSIGN(const Hdf5File file, Hdf5File::open(path));
    TWINRUN_ASSIGN(const Hdf5Group root, file.root());
    TWINRUN_ASSIGN(const std::string format, root.text("format"));
    if (format == kCheckpointFormat) return std::string("checkpoint");
    if (format == kRunFormat) return std::string("run");
    return Error{fmt::format("its format is '{}'; expected '{}' or '{}'", format, kCheckpointFormat,
                             kRunFormat),
                 path, ""};
  });
}

}  // namespace twinrun
