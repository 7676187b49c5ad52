// Searches the definitions after which a barrier makes the step right, then the smallest module of
// ops around them that is wrong by itself.
#include "harness/fusion/joined_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/search/smallest_set.h"
#include "program/import/import.h"

namespace twinrun {
namespace {

using Set = std::vector<int>;  // ascending

// "0-17,20": the name of a candidate of the search.
std::string name_of(const Set& set) {
  std::string out;
  for (size_t i = 0; i < set.size();) {
    size_t end = i;
    while (end + 1 < set.size() && set[end + 1] == set[end] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", set[i]);
    if (end > i) out += fmt::format("-{}", set[end]);
    i = end + 1;
  }
  return out;
}

Set set_of(const std::string& name) {
  Set out;
  for (size_t at = 0; at < name.size();) {
    const size_t comma = std::min(name.find(',', at), name.size());
    const std::string part = name.substr(at, comma - at);
    const size_t dash = part.find('-');
    const int first = std::stoi(part.substr(0, dash));
    const int last = dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
    for (int i = first; i <= last; ++i) out.push_back(i);
    at = comma + 1;
  }
  return out;
}

// Keeps the values of replica 0, by the names that our own text gives them.
class Values : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    named[fmt::format("v{}", event.id)] = event.outputs[0];
  }
  std::map<std::string, Tensor> named;
};

class Search {
 public:
  Search(Backend& backend, const Program& program, const KeptStep& given, const WrongStep& wrong,
         ThreadPool* pool, Progress* progress, const StopFlag* stop)
      : backend_(backend),
        program_(program),
        given_(given),
        wrong_(wrong),
        pool_(pool),
        progress_(progress),
        stop_(stop) {}

  Result<JoinedOps> run() {
    TWINRUN_ASSIGN(engine_, backend_.prepare(program_));
    const std::string module = *engine_->module_text();
    auto parsed = BarrierText::parse(module, "the module");
    if (!parsed) {
      found_.why = "its text cannot be edited: " + parsed.error().message();
      return std::move(found_);
    }
    text_.emplace(*std::move(parsed));
    const auto n = static_cast<int>(text_->definitions().size());
    found_.definitions = n;
    bisect::Session session;
    bisect::Judge judge([&](const std::string& name) { return with_loose(set_of(name)); },
                        {.agree = 1, .skips = 1}, session, progress_, stop_);
    judge.shown_as([n](const std::string& name) {
      return fmt::format("barriers after all of {} ops but {}", n, set_of(name).size());
    });
    TWINRUN_ASSIGN(const bisect::SmallestSet loose, bisect::smallest_set(n, name_of, judge));
    if (loose.end != bisect::Found::End::kFound || loose.changes.empty()) {
      found_.why = "barriers do not tell what is wrong: " + loose.why;
      return std::move(found_);
    }
    Set group = loose.changes;
    for (const int definition : loose.changes) {
      for (const int reader : text_->readers(definition)) group.push_back(reader);
    }
    group = sorted(group);
    TWINRUN_ASSIGN(const Set proved, excerpt_of(group, session));
    for (const int i : proved.empty() ? group : proved)
      found_.ops.push_back(text_->definitions()[static_cast<size_t>(i)]);
    return std::move(found_);
  }

 private:
  static Set sorted(Set set) {
    std::ranges::sort(set);
    set.erase(std::unique(set.begin(), set.end()), set.end());
    return set;
  }

  // The step with barriers after all definitions but these.
  Result<bisect::Execution> with_loose(const Set& loose) {
    Set after;
    for (int i = 0; i < static_cast<int>(text_->definitions().size()); ++i) {
      if (!std::ranges::binary_search(loose, i)) after.push_back(i);
    }
    bisect::Execution out;
    ++found_.compilations;
    if (const Status compiled = engine_->run_text(text_->with_barriers(after)); !compiled) {
      out.why = compiled.error().what;
      return out;
    }
    TWINRUN_ASSIGN(const bool wrong, wrong_(*engine_));
    out.outcome = wrong ? bisect::Outcome::kBad : bisect::Outcome::kGood;
    return out;
  }

  // The ops around the group that make the smallest module that is wrong by itself; none if there
  // is no such module among those that are tried.
  Result<Set> excerpt_of(const Set& group, bisect::Session& session) {
    const auto& definitions = text_->definitions();
    if (!std::ranges::all_of(group,
                             [&](int i) { return definitions[static_cast<size_t>(i)].in_main; }))
      return Set();
    // From the group outwards, in both directions.
    constexpr size_t kMost = 100;
    std::vector<Set> rings = {group};
    for (Set edge = group; rings.back().size() < kMost;) {
      Set next;
      for (const int i : edge) {
        for (const int p : text_->producers(i)) next.push_back(p);
        for (const int r : text_->readers(i)) next.push_back(r);
      }
      Set wider = rings.back();
      wider.insert(wider.end(), next.begin(), next.end());
      wider = sorted(wider);
      if (wider.size() == rings.back().size()) break;
      rings.push_back(std::move(wider));
      edge = sorted(next);
    }
    TWINRUN_ASSIGN(const bool known, learn_values(rings.back()));
    if (!known) return Set();
    for (const Set& ring : rings) {
      TWINRUN_ASSIGN(const std::optional<StepVerdict> verdict, judge_excerpt(ring));
      if (!verdict || verdict->outside == 0) continue;
      return smallest_excerpt(ring, session);
    }
    return Set();
  }

  Result<Set> smallest_excerpt(const Set& ring, bisect::Session& session) {
    const auto of = [&](const Set& changes) {
      Set ops;
      for (const int c : changes) ops.push_back(ring[static_cast<size_t>(c)]);
      return ops;
    };
    bisect::Judge judge(
        [&](const std::string& name) -> Result<bisect::Execution> {
          bisect::Execution out;
          const Set ops = of(set_of(name));
          out.outcome = bisect::Outcome::kGood;
          if (ops.empty()) return out;
          TWINRUN_ASSIGN(const auto verdict, judge_excerpt(ops));
          out.outcome = !verdict               ? bisect::Outcome::kSkip
                        : verdict->outside > 0 ? bisect::Outcome::kBad
                                               : bisect::Outcome::kGood;
          return out;
        },
        {.agree = 1, .skips = 1}, session, progress_, stop_);
    judge.shown_as([](const std::string& name) {
      return fmt::format("a module of {} ops", set_of(name).size());
    });
    const auto named = [](const Set& set) { return name_of(set); };
    TWINRUN_ASSIGN(const bisect::SmallestSet smallest,
                   bisect::smallest_set(static_cast<int>(ring.size()), named, judge));
    Set ops = smallest.end == bisect::Found::End::kFound ? of(smallest.changes) : ring;
    TWINRUN_ASSIGN(auto verdict, judge_excerpt(ops));
    if (!verdict || verdict->outside == 0) return Set();
    found_.excerpt = text_->excerpt(ops);
    found_.verdict = *std::move(verdict);
    return ops;
  }

  // Learns the values of these definitions, and of all that they read, in the step with a barrier
  // after every definition. False: the engine or the importer refuses.
  Result<bool> learn_values(const Set& ops) {
    Set all = ops;
    for (const int i : ops) {
      for (const int p : text_->producers(i)) all.push_back(p);
    }
    all = sorted(all);
    if (program_.source == nullptr || text_->text() != program_.source->text)
      return learn_by_trace();
    const SourceText& source = *program_.source;
    for (size_t i = 0; i < text_->arguments().size(); ++i) {
      const size_t states = program_.state.size();
      values_[text_->arguments()[i].name] =
          i < states ? given_.before[0].vars[i] : given_.inputs[0][i - states];
    }
    std::vector<Excerpt::Array> added;
    const std::string shown = text_->with_results(all, added);
    StepBinding binding;
    for (const StateVar& var : program_.state) {
      binding.state.push_back(var.name);
      binding.roles.push_back(var.role);
    }
    binding.results = source.next;
    for (size_t i = 0; i + binding.state.size() < source.parameters.size(); ++i)
      binding.inputs.push_back(program_.inputs[i].name);
    binding.loss = source.outputs[0];
    TWINRUN_ASSIGN(const auto run,
                   run_text(shown, binding, given_.before[0].vars, given_.inputs[0]));
    if (!run) return false;
    for (size_t k = 0; k < added.size(); ++k) {
      const std::string result = fmt::format("result{}", source.results.size() + k);
      const auto& outputs = run->step.program.outputs;
      const auto at = std::ranges::find(outputs, result, &Output::name);
      if (at != outputs.end())
        values_[added[k].name] = run->outputs[static_cast<size_t>(at - outputs.begin())];
    }
    return true;
  }

  // The same for a text of ours, whose values are those of the program.
  Result<bool> learn_by_trace() {
    const auto name = [](ValueId id) { return fmt::format("v{}", id); };
    for (size_t i = 0; i < program_.state.size(); ++i)
      values_[name(program_.state[i].id)] = given_.before[0].vars[i];
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      values_[name(program_.inputs[i].id)] = given_.inputs[0][i];
    Values traced;
    States after = given_.before;
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(engine_->step(given_.step, after, given_.inputs, outputs, &traced));
    values_.merge(traced.named);
    return true;
  }

  // A text that was imported and run once.
  struct Ran {
    ImportedStep step;
    std::vector<Tensor> inputs, outputs;
  };
  Result<std::optional<Ran>> run_text(const std::string& text, const StepBinding& binding,
                                      const std::vector<Tensor>& state,
                                      const std::vector<Tensor>& inputs) {
    const auto module = parse_program(text, "an excerpt of the module");
    if (!module) return std::optional<Ran>();
    auto step = import_step(*module, binding);
    if (!step) return std::optional<Ran>();
    Ran ran{*std::move(step), inputs, {}};
    const Program& program = ran.step.program;
    ran.inputs.resize(binding.inputs.size());
    for (size_t i = ran.inputs.size(); i < program.inputs.size(); ++i)
      ran.inputs.push_back(ran.step.literals.at(program.inputs[i].name));
    ++found_.compilations;
    auto engine = backend_.prepare(program);
    if (!engine) return std::optional<Ran>();
    States states{{state}};
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR((*engine)->step(given_.step, states, {ran.inputs}, outputs));
    ran.outputs = std::move(outputs[0]);
    return std::optional<Ran>(std::move(ran));
  }

  // Runs these ops as a module on the values that they read in the step. nullopt: it cannot be
  // imported or compiled, or a value is not known.
  Result<std::optional<StepVerdict>> judge_excerpt(const Set& ops) {
    const Excerpt excerpt = text_->excerpt(ops);
    StepBinding binding;
    std::vector<Tensor> inputs;
    for (const Excerpt::Array& a : excerpt.arguments) {
      const auto known = values_.find(a.name);
      if (known == values_.end()) return std::optional<StepVerdict>();
      inputs.push_back(known->second);
      binding.inputs.push_back(a.name);
    }
    binding.loss = static_cast<int64_t>(excerpt.results.size());
    TWINRUN_ASSIGN(const auto ran, run_text(excerpt.text, binding, {}, inputs));
    if (!ran) return std::optional<StepVerdict>();
    TWINRUN_ASSIGN(const Replayed expected,
                   replay_with_radii(ran->step.program, {{}, ran->inputs, {}, {}},
                                     fused_arithmetic(backend_.capabilities()), pool_));
    StepVerdict verdict;
    for (size_t o = 0; o < ran->outputs.size(); ++o) {
      std::string name = ran->step.program.outputs[o].name;  // "result3"
      if (const auto r = static_cast<size_t>(std::atoi(name.c_str() + 6));
          name.starts_with("result") && r < excerpt.results.size())
        name = excerpt.results[r].name;
      verdict.add(judge_tensor(name, expected.outputs[o], ran->outputs[o]));
    }
    return std::optional<StepVerdict>(std::move(verdict));
  }

  Backend& backend_;
  const Program& program_;
  const KeptStep& given_;
  const WrongStep& wrong_;
  ThreadPool* pool_;
  Progress* progress_;
  const StopFlag* stop_;
  std::unique_ptr<Engine> engine_;
  std::optional<BarrierText> text_;
  std::map<std::string, Tensor> values_;  // by name in the text
  JoinedOps found_;
};

}  // namespace

Result<JoinedOps> find_joined_ops(Backend& backend, const Program& program, const KeptStep& given,
                                  const WrongStep& wrong, ThreadPool* pool, Progress* progress,
                                  const StopFlag* stop) {
  return Search(backend, program, given, wrong, pool, progress, stop).run();
}

}  // namespace twinrun
