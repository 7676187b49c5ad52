// Digests of a step: those that are kept, and those that are compared.
#include "harness/trace/known_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;

void add_numbers(const aten::Value& v, std::vector<double>& to) {
  if (v.kind == aten::Value::Kind::kNumber) to.push_back(v.number);
  for (const aten::Value& item : v.items) add_numbers(item, to);
}

std::optional<Digest> digest_of_numbers(const Call& call) {
  std::vector<double> numbers;
  for (const aten::Value& v : call.args) add_numbers(v, numbers);
  for (const auto& [name, v] : call.kwargs) add_numbers(v, numbers);
  if (numbers.empty()) return std::nullopt;
  DigestBuilder out;
  out.add_bytes(numbers.data(), numbers.size() * sizeof(double));
  return out.finish();
}

KnownStep digests_of(const TraceFile& trace) {
  const TraceValues values = values_of(trace);
  KnownStep out;
  out.framework = fmt::format("{} {}", trace.framework, trace.version);
  out.script = trace.script;
  out.steps = trace.steps;
  out.accelerator = trace.on_accelerator;
  out.settings = trace.settings;
  std::map<int64_t, DigestBuilder> given;
  for (const TraceInput& input : values.inputs) given[input.call->index].add(input.digest);
  for (const Call& call : trace.calls) {
    KnownCall c;
    c.step = call.step;
    c.op = call.op;
    c.module = call.module;
    c.place = call.place.substr(0, call.place.find('\n'));
    const auto at = static_cast<size_t>(call.index);
    DigestBuilder reads;
    for (const Digest& d : values.reads[at]) reads.add(d);
    c.reads = reads.finish();
    c.numbers = digest_of_numbers(call);
    if (given.contains(call.index)) c.given = given[call.index].finish();
    for (size_t i = values.of_call[at].first; i < values.of_call[at].second; ++i) {
      c.results.emplace_back(values.results[i].view->type(), values.results[i].digest);
      c.draw = c.draw || values.results[i].draw;
    }
    out.calls.push_back(std::move(c));
  }
  return out;
}

bool same_kind(const KnownCall& a, const KnownCall& b) {
  return a.op == b.op && a.step == b.step && a.results.size() == b.results.size() &&
         std::ranges::equal(
             a.results, b.results, {}, [](const auto& r) { return r.first; },
             [](const auto& r) { return r.first; });
}

class Verifier {
 public:
  Verifier(const KnownStep& known, const TraceFile& trace)
      : known_(known), trace_(trace), here_(digests_of(trace)) {}

  KnownVerdict verify(ThreadPool* pool, const StopFlag* stop, Progress* progress) {
    v_.calls = static_cast<int64_t>(known_.calls.size());
    list_changes();
    if (!compare()) return v_;
    if (v_.differing == 0) {
      v_.verdict = VerdictClass::kIdentical;
      v_.headline = fmt::format("all {} calls give the bits that are known", v_.calls);
      return v_;
    }
    judge(pool, stop, progress);
    return v_;
  }

 private:
  void list_changes() {
    std::map<std::string, std::string> now(here_.settings.begin(), here_.settings.end());
    if (known_.framework != here_.framework)
      v_.changed.push_back({"framework", known_.framework, here_.framework});
    for (const auto& [name, value] : known_.settings) {
      if (now[name] != value) v_.changed.push_back({name, value, now[name]});
    }
  }

  KnownVerdict::Where where(size_t i, size_t which) const {
    const KnownCall& c = here_.calls[i];
    KnownVerdict::Where w;
    w.call = static_cast<int64_t>(i);
    w.step = c.step;
    w.op = c.op;
    w.module = c.module;
    w.place = c.place;
    if (which < c.results.size()) w.type = c.results[which].first;
    return w;
  }

  // False where the steps cannot be compared, which is said then.
  bool compare() {
    const size_t n = std::min(known_.calls.size(), here_.calls.size());
    for (size_t i = 0; i < n; ++i) {
      const KnownCall &then = known_.calls[i], &now = here_.calls[i];
      if (!same_kind(then, now)) {
        return other_program(i,
                             fmt::format("call {} is {}, and {} was recorded", i, now.op, then.op));
      }
      if (then.given != now.given) {
        return other_program(
            i, fmt::format("call {} ({}) is given another tensor from outside", i, now.op));
      }
      if (!then.steady) continue;
      size_t which = 0;
      while (which < now.results.size() && now.results[which].second == then.results[which].second)
        ++which;
      const bool same_reads = then.reads == now.reads;
      // A number may follow from results, which other kernels round otherwise.
      if (v_.differing == 0 && then.numbers && then.numbers != now.numbers)
        return other_program(i,
                             fmt::format("call {} ({}) is given other numbers than were recorded, "
                                         "such as another learning rate",
                                         i, now.op));
      if (v_.differing == 0 && !same_reads) {
        return other_program(i, fmt::format("call {} ({}) reads other values than were recorded, "
                                            "and no call before it gave others",
                                            i, now.op));
      }
      if (which == now.results.size()) continue;
      if (now.draw && same_reads)
        return other_program(i, fmt::format("call {} ({}) draws other numbers", i, now.op));
      ++v_.differing;
      if (same_reads) origins_.push_back(i);
      if (!v_.first) v_.first = where(i, which);
    }
    if (known_.calls.size() != here_.calls.size()) {
      return other_program(n, fmt::format("{} calls were recorded, and {} are made here",
                                          known_.calls.size(), here_.calls.size()));
    }
    return true;
  }
  bool other_program(size_t i, std::string why) {
    v_.verdict = VerdictClass::kProgram;
    v_.headline = "this is not the step that was recorded: " + std::move(why);
    if (known_.framework != here_.framework)
      v_.headline += fmt::format("; it was recorded with {}, and this is {}", known_.framework,
                                 here_.framework);
    if (i < here_.calls.size()) v_.first = where(i, 0);
    return false;
  }

  void judge(ThreadPool* pool, const StopFlag* stop, Progress* progress) {
    std::map<int64_t, OracleVerdict> said;
    const TraceVerdict all = judge_trace(trace_, pool, stop, progress, [&](const JudgedResult& r) {
      said[r.call.index].add(r.held);
    });
    const auto fill = [&](KnownVerdict::Where& w) {
      w.elements = w.call < static_cast<int64_t>(trace_.calls.size()) ? elements_of(w) : 0;
      const auto at = said.find(w.call);
      if (at == said.end()) return;
      w.judged = at->second.untestable == 0;
      w.outside = at->second.outside;
      w.worst = at->second.worst;
    };
    fill(*v_.first);
    v_.outside_calls = all.outside_calls;
    if (all.outside_calls > 0) {
      const CallFinding& f = all.findings.front();
      v_.wrong = where(static_cast<size_t>(f.call), 0);
      fill(*v_.wrong);
      if (!f.type.empty()) v_.wrong->type = f.type;
      v_.wrong->elements = f.elements;
      v_.wrong->outside = f.outside;
      v_.wrong->judged = true;
      v_.verdict = VerdictClass::kEngineBug;
      v_.headline =
          fmt::format("this device is wrong: {} computes something else than its definition", f.op);
      return;
    }
    const auto open = std::ranges::find_if(origins_, [&](size_t i) {
      const auto at = said.find(static_cast<int64_t>(i));
      return !trace_.calls[i].composed && (at == said.end() || at->second.untestable > 0);
    });
    if (open != origins_.end()) {
      v_.headline =
          fmt::format("{} gives other bits and could not be judged", here_.calls[*open].op);
      return;
    }
    v_.verdict = VerdictClass::kNoise;
    v_.headline = fmt::format(
        "other kernels, not a wrong device: {} of {} calls give other bits, all within their "
        "bounds",
        v_.differing, v_.calls);
  }
  int64_t elements_of(const KnownVerdict::Where& w) const {
    std::vector<const aten::TensorView*> out;
    const Call& call = trace_.calls[static_cast<size_t>(w.call)];
    aten::collect(call.result, out);
    for (const aten::TensorView& t : call.written) out.push_back(&t);
    for (const aten::TensorView* t : out) {
      if (t->type() == w.type) return t->elements();
    }
    return 0;
  }

  const KnownStep& known_;
  const TraceFile& trace_;
  const KnownStep here_;
  std::vector<size_t> origins_;  // calls that differ although they read what was recorded
  KnownVerdict v_;
};

}  // namespace

Result<KnownStep> know(const TraceFile& trace, const TraceFile* again, ThreadPool* pool,
                       const StopFlag* stop, Progress* progress) {
  if (trace.steps == 0 || trace.calls.empty())
    return Error{"the trace has no complete step", trace.path, "record a training step"};
  KnownStep known = digests_of(trace);
  if (again != nullptr) {
    const KnownStep second = digests_of(*again);
    known.repeated = true;
    if (second.calls.size() != known.calls.size())
      return Error{"two runs of the script do not make the same calls", trace.path,
                   "seed the script, and take its batches in a fixed order"};
    for (size_t i = 0; i < known.calls.size(); ++i) {
      KnownCall& c = known.calls[i];
      const KnownCall& other = second.calls[i];
      if (!same_kind(c, other) || c.given != other.given)
        return Error{fmt::format("call {} ({}) is not the same in two runs of the script", i, c.op),
                     trace.path, "seed the script, and take its batches in a fixed order"};
      c.steady = c.reads == other.reads && c.results == other.results && c.numbers == other.numbers;
      if (!c.steady && c.draw)
        return Error{fmt::format("call {} ({}) draws other numbers in a second run", i, c.op),
                     trace.path, "seed the script"};
    }
  }
  const TraceVerdict judged = judge_trace(trace, pool, stop, progress);
  if (judged.outside_calls > 0)
    return Error{judged.headline(), trace.path,
                 "record on a machine that computes rightly: twinrun diagnose names the call",
                 Error::Kind::kRun};
  return known;
}

KnownVerdict verify_known(const KnownStep& known, const TraceFile& trace, ThreadPool* pool,
                          const StopFlag* stop, Progress* progress) {
  return Verifier(known, trace).verify(pool, stop, progress);
}

}  // namespace twinrun
