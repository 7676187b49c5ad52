// report.json, key by key: one description of each struct, which both the writer (json.cc) and the
// reader (read_json.cc) go over. A new field is one line here, in the order of the document, and
// one in docs/reference/report-schema.md.
//
//   a("key", field)              a string, bool, integer, number, optional (nullopt: null), vector
//                                or map of these, or another struct
//   a.measured("key", x)         a statistic; when not measured it is negative here, null in JSON
//   a.present("key", there, x)   null unless `there`
//   a.derived("key", text)       written for other programs; our reader ignores it
//   a.group("key", [&](A& in) {...})   an object whose keys are fields of the same struct
#pragma once

#include <fmt/format.h>

#include <bit>
#include <type_traits>

#include "program/base/bits.h"
#include "reports/report.h"

namespace twinrun::json {

// T for a reader, which fills the struct; const T for a writer.
template <typename A, typename T>
using Of = std::conditional_t<A::kReads, T, const T>;

template <typename A>
void keys(A& a, Of<A, TensorPicture>& p) {
  a("dims", p.dims);
  a("across", p.across);
  a("cells", p.cells);
}

template <typename A>
void keys(A& a, Of<A, StateDivergence>& p) {
  a("pair", p.pair);
  a("steps", p.steps);
  a("first_step", p.first_step);
}

template <typename A>
void keys(A& a, Of<A, WeightDrift::Row>& r) {
  a("variable", r.variable);
  a("distance", r.distance);
}

template <typename A>
void keys(A& a, Of<A, WeightDrift>& w) {
  a("pair", w.pair);
  a("steps", w.steps);
  a("rows", w.rows);
}

template <typename A>
void keys(A& a, Of<A, StepCoverage>& s) {
  a("steps", s.steps);
  a("screened", s.screened);
  a("judged", s.judged);
  a("set_aside", s.set_aside);
  a("outside", s.outside);
  a("left_out", s.left_out);
  a("not_exercised", s.not_exercised);
}

template <typename A>
void keys(A& a, Of<A, ManyCoresRow>& r) {
  a("cores", r.cores);
  a("asked", r.asked);
  a("samples", r.samples);
  a("gradient", r.gradient);
  a("normalised", r.normalised);
  a("statistic_noise", r.statistic_noise);
  a("additions", r.additions);
  a("rounding_bound", r.rounding_bound);
  a("rounding_typical", r.rounding_typical);
}

template <typename A>
void keys(A& a, Of<A, ManyCores>& m) {
  a("rows", m.rows);
  a("sentences", m.sentences);
}

template <typename A>
void keys(A& a, Of<A, LossBand>& b) {
  a("source", b.source);
  a("low", b.low);
  a("high", b.high);
}

template <typename A>
void keys(A& a, Of<A, Finding>& f) {
  a("class", f.verdict);
  a("cause", f.cause);
  a("sentence", f.sentence);
  a("step", f.step);
  a("phase", f.phase);
  a("op", f.op);
  a("op_kind", f.op_kind);
  a("core", f.core);
  a("elements", f.elements);
  a("fingerprint", f.fingerprint);
  a("share", f.share);
  a("level", f.level);
  a("number", f.number);
  a("bound", f.bound);
  a("number_text", f.number_text);
  a("bound_source", f.bound_source);
  a("hex", f.hex);
  a("evidence", f.evidence);
  a("facts", f.facts);
  a("reproduce", f.reproduce);
  a("picture", f.picture);
  a("call", f.call);
  a("place", f.place);
  a("module", f.module);
  a("outside", f.outside);
  a("composed", f.composed);
}

template <typename A>
void keys(A& a, Of<A, Answer>& x) {
  a("outcome", x.outcome);
  a("what", x.what);
}

template <typename A>
void keys(A& a, Of<A, Answers>& x) {
  for (const Question& q : questions()) a(q.key.data(), x.*q.answer);
}

template <typename A>
void keys(A& a, Of<A, OpenQuestion>& q) {
  a("what", q.what);
  a("how", q.how);
  a("place", q.place);
  a("times", q.times);
}

template <typename A>
void keys(A& a, Of<A, DetailTable::Column>& c) {
  a("key", c.key);
  a("title", c.title);
}

template <typename A>
void keys(A& a, Of<A, DetailTable>& t) {
  a("id", t.id);
  a("title", t.title);
  a("note", t.note);
  a("columns", t.columns);
  a("rows", t.rows);
}

template <typename A>
void keys(A& a, Of<A, DotFigure::Row>& r) {
  a("name", r.name);
  a("values", r.values);
}

template <typename A>
void keys(A& a, Of<A, DotFigure>& f) {
  a("title", f.title);
  a("description", f.description);
  a("x_label", f.x_label);
  a("rows", f.rows);
}

template <typename A>
void keys(A& a, Of<A, RunSummary>& r) {
  // The loss of a step is binary32; a run without its curve has only the number in the summary.
  const float last = r.losses.empty() ? static_cast<float>(r.train_loss) : r.losses.back();
  a("name", r.name);
  a("engine", r.engine);
  a("settings", r.settings);
  a("meaning", r.meaning);
  a("root_digest", r.root_digest);
  a("steps", r.steps);
  a("train_loss", r.train_loss);
  a.derived("train_loss_hex", fmt::format("0x{:08x}", to_bits(last)));
  a.present("eval_loss", r.evaluated, r.eval_loss);
  a.derived("eval_loss_hex", fmt::format("0x{:016x}", std::bit_cast<uint64_t>(r.eval_loss)),
            r.evaluated);
  a.present("eval_accuracy", r.scored, r.eval_accuracy);
  a("seconds", r.seconds);
  a("kept", r.kept);
  a("ended", r.ended);
  a("losses", r.losses);
  a("core_digests", r.core_digests);
}

template <typename A>
void keys(A& a, Of<A, Control>& c) {
  a("name", c.name);
  a("run", c.run);
  a("passed", c.passed);
  a("detail", c.detail);
  a("failure", c.failure);
}

template <typename A>
void keys(A& a, Of<A, ProbeRow>& row) {
  a("op", row.op);
  a("kind", row.kind);
  a("phase", row.phase);
  a("worst_ratio", row.worst_ratio);
  a("elements", row.elements);
  a("outside", row.outside);
  a("untestable", row.untestable);
  a.measured("operand_residual", row.operand_residual);
}

template <typename A>
void keys(A& a, Of<A, EngineProbe>& p) {
  a("pair", p.pair);
  a("engine", p.engine);
  a("policy", p.policy);
  a("steps_probed", p.steps_probed);
  a("steps", p.steps);
  a("ops", p.ops);
  a("elements", p.elements);
  a("untestable", p.untestable);
  a.measured("dot_residual", p.dot_residual);
  a("dot_residual_text", p.dot_residual_text);
  a("rows", p.rows);
}

template <typename A>
void keys(A& a, Of<A, AblationRow>& s) {
  a("cause", s.cause);
  a("direction", s.direction);
  a("drift_before", s.drift_before);
  a("drift_after", s.drift_after);
  a("envelope", s.envelope);
  a("explains", s.explains);
  a("share", s.share);
  a("note", s.note);
}

template <typename A>
void keys(A& a, Of<A, ProofRow>& p) {
  a("program", p.program);
  a("gradient", p.gradient);
  a("update", p.update);
  a("statistics", p.statistics);
  a("points", p.points);
  a("degree", p.degree);
  a("log2_error", p.log2_error);
  a("parts_at", p.diverges_at);
  a("parts_reads", p.diverging_operand);
  a("unproven", p.unproven);
}

template <typename A>
void keys(A& a, Of<A, TrajectoryRow>& t) {
  a("pair", t.pair);
  a("meaning", t.meaning);
  a("metric", t.metric);
  a("differences", t.differences);
  a("mean", t.mean);
  a("low", t.low);
  a("high", t.high);
  a("level", t.level);
  a("detectable", t.detectable);
  a("must_see", t.must_see);
  a("seed_spread", t.seed_spread);
  a("would_decide", t.would_decide);
  a("margin", t.margin);
  a("margin_source", t.margin_source);
  a("outcome", t.outcome);
}

template <typename A>
void keys(A& a, Of<A, CureRow>& c) {
  a("run", c.run);
  a("reference", c.reference);
  a("cure", c.cure);
  a("command", c.command);
  a("seeds", c.seeds);
  a("loss_before", c.loss_before);
  a("loss", c.loss);
  a("loss_reference", c.loss_reference);
  a("accuracy_before", c.accuracy_before);
  a("accuracy", c.accuracy);
  a("accuracy_reference", c.accuracy_reference);
  a("left", c.left);
  a("outcome", c.outcome);
}

template <typename A>
void keys(A& a, Of<A, EnsembleRow>& e) {
  a("run", e.run);
  a("metric", e.metric);
  a("steps", e.steps);
  a("members", e.members);
  a("subject", e.subject);
  a("low", e.low);
  a("high", e.high);
  a("p", e.p);
  a("outcome", e.outcome);
}

template <typename A>
void keys(A& a, Of<A, ChecklistRow>& c) {
  a("point", c.point);
  a("done", c.done);
  a("what", c.what);
  a("command", c.command);
}

// Every key but `schema`, which comes first.
template <typename A>
void keys(A& a, Of<A, Report>& r) {
  a("kind", r.kind);
  a.group("verdict", [&](A& in) {
    in("class", r.verdict);
    in("side", r.side);
    in("row", r.verdict_row);
    in("effect", r.effect);
    in("metric", r.effect_metric);
    in("effect_text", r.effect_text);
    in("subject", r.subject);
    in("confidence", r.confidence);
    in.derived("exit_code", exit_code(r.verdict, r.effect));
    in("headline", r.headline);
  });
  a("answers", r.answers);
  a("open", r.open);
  a.group("scenario", [&](A& in) {
    in("name", r.scenario_name);
    in("description", r.scenario_description);
    in("digest", r.scenario_digest);
    in("toml", r.scenario_toml);
  });
  a("command", r.command);
  a.group("asked", [&](A& in) {
    in("baseline", r.asked.baseline);
    in("subject", r.asked.subject);
    in("faults", r.asked.faults);
    in("quick", r.asked.quick);
    in("files", r.asked.files);
  });
  a("injected", r.injected);
  a("findings", r.findings);
  a("runs", r.runs);
  a("loss_band", r.loss_band);
  a("state_partings", r.state_divergences);
  a("weight_drift", r.weight_drift);
  a("step_coverage", r.step_coverage);
  a("controls", r.controls);
  a("probes", r.probes);
  a("switches", r.ablations);
  a("proofs", r.proofs);
  a("many_cores", r.many_cores);
  a("trajectories", r.trajectories);
  a("cures", r.cures);
  a("ensembles", r.ensembles);
  a("unexplained", r.unexplained);
  a("smallest_effect", r.smallest_effect);
  a("ruled_out", r.ruled_out);
  a("checklist", r.checklist);
  a("next_steps", r.next_steps);
  a("remarks", r.remarks);
  a("notes", r.notes);
  a("program", r.program_excerpt);
  a("counts", r.counts);
  a("numbers", r.numbers);
  a("details", r.details);
  a("figure", r.figure);
  a("environment", r.environment);
  a("directory", r.directory);
}

template <typename A, typename T>
concept Described = requires(A& a, T& value) {
  keys(a, value);
};

}  // namespace twinrun::json
