// Evaluates updates twice: by the recorded calls, and by the optimizer's formula.
#include "harness/trace/update_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/formulas.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Undefined;
using aten::Value;
using Numbers = std::vector<double>;

// Norms that an optimizer reads of half precision: a formula has two, with an error of 2^-9 each.
constexpr double kLeastOfNorms = 4 * 0x1p-9;
constexpr const char* kWeights = "the weights";
constexpr double kMostNumbers = 0x1p28;
constexpr int64_t kMostEvents = 1 << 14, kFewestElements = 1 << 16;

Numbers numbers_of(const Value& v) {
  switch (v.kind) {
    case Value::Kind::kBool:
    case Value::Kind::kInteger:
      return {static_cast<double>(v.integer)};
    case Value::Kind::kNumber:
      return {v.number};
    case Value::Kind::kTensor:
      return {v.tensor.elements() == 1 ? v.tensor.at(0) : NAN};
    case Value::Kind::kNone:
      return {NAN};
    default:
      return {};
  }
}

Settings settings_of(const Call& update) {
  constexpr std::string_view kPrefix = "setting.";
  Settings out;
  for (const auto& [key, value] : update.kwargs) {
    if (!key.starts_with(kPrefix)) continue;
    const std::string name = key.substr(kPrefix.size());
    Numbers to;
    if (value.kind == Value::Kind::kText) out.texts[name] = value.text;
    if (value.kind == Value::Kind::kList) {
      for (const Value& item : value.items)
        for (const double x : numbers_of(item)) to.push_back(x);
    } else {
      to = numbers_of(value);
    }
    if (name == "beta1" || name == "beta2") {
      Numbers& both = out.numbers["betas"];
      both.resize(2, NAN);
      if (!to.empty()) both[name == "beta1" ? 0 : 1] = to[0];
    }
    // An option that is None is one that was not given.
    if (!to.empty() && (to.size() > 1 || !std::isnan(to[0]))) out.numbers[name] = std::move(to);
  }
  return out;
}

// One parameter of an update.
struct Given {
  const TensorView *weight = nullptr, *gradient = nullptr, *after = nullptr;
  std::map<std::string, const Value*> state, state_after;
};

const TensorView& tensor(const Value& v) {
  if (v.kind != Value::Kind::kTensor) throw Undefined("a gradient or weight that is no tensor");
  return v.tensor;
}

std::vector<Given> given_to(const Call& update) {
  const Value* weights = named(update, "parameters");
  const Value* gradients = named(update, "gradients");
  if (weights == nullptr || gradients == nullptr ||
      weights->items.size() != gradients->items.size() ||
      weights->items.size() != update.written.size())
    throw Undefined("its record is not complete");
  std::vector<Given> out(weights->items.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].weight = &tensor(weights->items[i]);
    out[i].gradient = &tensor(gradients->items[i]);
    out[i].after = &update.written[i];
  }
  const auto add = [&](const std::string& name, const Value& values, auto member) {
    for (size_t i = 0; i < std::min(out.size(), values.items.size()); ++i)
      if (values.items[i].kind != Value::Kind::kNone) (out[i].*member)[name] = &values.items[i];
  };
  constexpr std::string_view kPrefix = "state.";
  for (const auto& [key, values] : update.kwargs)
    if (key.starts_with(kPrefix)) add(key.substr(kPrefix.size()), values, &Given::state);
  const std::vector<Value>& after = update.result.items;
  for (size_t k = 1; k < after.size() && k <= after[0].items.size(); ++k)
    if (const std::string& key = after[0].items[k - 1].text; key.starts_with(kPrefix))
      add(key.substr(kPrefix.size()), after[k], &Given::state_after);
  return out;
}

// The groups of one call of an optimizer's step.
struct Event {
  int64_t first = 0, end = 0;
  int32_t step = 0;
  std::string optimizer;
  int64_t before = 0;  // updates of this optimizer that the trace has before
  std::vector<const Call*> groups;
};

std::vector<Event> events_of(const TraceFile& trace) {
  std::vector<Event> out;
  std::map<std::string, int64_t> count;
  for (const Call& u : trace.updates) {
    const Value* first = named(u, "first");
    const int64_t from = first == nullptr ? -1 : first->integer;
    if (from < 0 || from >= u.index) continue;
    if (out.empty() || out.back().first != from || out.back().end != u.index ||
        out.back().optimizer != u.op)
      out.push_back({from, u.index, u.step, u.op, count[u.op]++, {}});
    out.back().groups.push_back(&u);
  }
  if (static_cast<int64_t>(out.size()) > kMostEvents) throw Undefined("there are too many updates");
  // One that wraps another does nothing itself.
  std::erase_if(out, [&](const Event& e) {
    return formula_of(e.optimizer) == nullptr && std::ranges::any_of(out, [&](const Event& inner) {
             return &inner != &e && inner.first >= e.first && inner.end <= e.end &&
                    formula_of(inner.optimizer) != nullptr;
           });
  });
  return out;
}

double largest(const Numbers& x) {
  double most = 0;
  for (const double v : x) most = std::fmax(most, std::fabs(v));
  return most;
}
double apart(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(a[i] - b[i]);
    if (std::isnan(d) && !(std::isnan(a[i]) && std::isnan(b[i])) && a[i] != b[i]) return INFINITY;
    most = std::fmax(most, d);
  }
  return most;
}
double relative(double difference, double size) {
  return difference == 0 ? 0 : size == 0 ? INFINITY : difference / size;
}

// What the calls make of a parameter, beside what a formula makes of it.
struct Apart {
  double off = 0;
  std::string what;  // "the weights", "its state exp_avg_sq"
};

// A parameter before and after an update, in binary64.
struct Row {
  const TensorView* weight = nullptr;
  Settings settings;
  Slot before, after;
  Numbers changed;  // the gradient, where calls of the update have written it; otherwise none
};

// The names of torch.optim for what others call otherwise.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOtherNames = {
    {{"m", "exp_avg"},
     {"v", "exp_avg_sq"},
     {"t", "step"},
     {"momentum", "momentum_buffer"},
     {"velocity", "momentum_buffer"},
     {"square", "square_avg"}}};
std::string public_name(const std::string& name) {
  const auto* at =
      std::ranges::find(kOtherNames, name, [](const auto& pair) { return pair.first; });
  return at == kOtherNames.end() ? name : std::string(at->second);
}

Apart compare(const Row& row, const Formula& formula, Departure departure) {
  const auto with = [&](const Numbers& gradient) {
    Slot slot = row.before;
    slot.gradient = gradient;
    if (row.settings.number_or("found_inf", 0) == 0) formula.apply(row.settings, departure, slot);
    const double rounding = 8 * 0x1p-53 * largest(row.before.weight);
    const double difference = apart(row.after.weight, slot.weight);
    Apart out{
        difference <= rounding ? 0 : relative(difference, apart(slot.weight, row.before.weight)),
        kWeights};
    for (const auto& [name, value] : row.after.state) {
      const auto expected = slot.state.find(name);
      if (expected == slot.state.end()) continue;
      const double off = relative(apart(value, expected->second), largest(expected->second));
      if (off > UpdateCheck::kLeast && off > out.off) out = {off, "its state " + name};
    }
    return out;
  };
  Apart out = with(row.before.gradient);
  // A closure of the script's that clips them runs within the update.
  if (out.off > UpdateCheck::kLeast && !row.changed.empty())
    if (Apart other = with(row.changed); other.off < out.off) out = std::move(other);
  return out;
}

double least_of(const Row& row, const Formula& formula) {
  return formula.reads_norms && aten::is_half(row.weight->element) ? kLeastOfNorms
                                                                   : UpdateCheck::kLeast;
}

// The update over the formula's where it is a multiple of it; NaN where it is none.
double factor_of(const Row& row, const Formula& formula) {
  Slot slot = row.before;
  formula.apply(row.settings, Departure::kNone, slot);
  double both = 0, squares = 0;
  for (size_t i = 0; i < slot.weight.size(); ++i) {
    const double expected = slot.weight[i] - row.before.weight[i];
    both += expected * (row.after.weight[i] - row.before.weight[i]);
    squares += expected * expected;
  }
  if (squares == 0) return NAN;
  Numbers scaled = row.before.weight;
  for (size_t i = 0; i < scaled.size(); ++i)
    scaled[i] += both / squares * (slot.weight[i] - row.before.weight[i]);
  const double off = relative(apart(row.after.weight, scaled), apart(scaled, row.before.weight));
  return off <= least_of(row, formula) ? both / squares : NAN;
}

// An update whose calls are evaluated again.
class Evaluated {
 public:
  Evaluated(const TraceFile& trace, const Event& event, ThreadPool* pool, const StopFlag* stop)
      : event_(event),
        pool_(pool),
        stop_(stop),
        most_elements_(kFewestElements + trace.bytes),
        again_(trace, event.first, event.end, storages(), pool, Again::What::kUpdate) {
    again_.run(event_.end, {}, 0, -1, [&](const Call& call) {
      for (const TensorView* t : read_by(call)) hold(*t);
      for (const TensorView* t : computed_by(call, read_by(call))) given_[t->storage] = t->version;
    });
  }

  // Calls f of each parameter, as long as it returns true.
  template <typename F>
  void each(F f) const {
    for (const Call* group : event_.groups) {
      const Settings settings = settings_of(*group);
      for (const Given& m : given_to(*group)) {
        if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
        if (!f(row_of(m, settings))) return;
      }
    }
  }

 private:
  std::unordered_set<uint64_t> storages() const {
    std::unordered_set<uint64_t> found;
    for (const Call* group : event_.groups) {
      for (const Given& m : given_to(*group)) {
        found.insert({m.weight->storage, m.gradient->storage, m.after->storage});
        for (const auto& [name, value] : m.state) found.insert(value->tensor.storage);
        for (const auto& [name, value] : m.state_after) found.insert(value->tensor.storage);
      }
    }
    found.erase(0);
    return found;
  }

  // What the update's calls leave is what the next of them reads, or others have written it.
  void hold(const TensorView& view) const {
    const auto at = given_.find(view.storage);
    if (at != given_.end() && at->second != view.version)
      throw Undefined(fmt::format("{} was changed by a call that was not recorded", view.type()));
  }
  void allow(const TensorView& view) const {
    if (view.elements() > most_elements_) throw Undefined("a tensor of too many elements");
  }
  Numbers recorded(const TensorView& view) const {
    allow(view);
    const aten::Array x = aten::held_array_of(view, pool_);
    return {x.value.begin(), x.value.end()};
  }
  Numbers again(const TensorView& view) const {
    if (!aten::is_float(view.element)) return recorded(view);
    allow(view);
    const aten::Array x = again_.read(view);
    return {x.value.begin(), x.value.end()};
  }
  Row row_of(const Given& m, const Settings& settings) const {
    hold(*m.after);
    if (!given_.contains(m.after->storage))
      throw Undefined(fmt::format("no recorded call wrote the parameter {}", m.after->type()));
    Row row{m.weight,
            settings,
            {m.weight->dims, recorded(*m.weight), recorded(*m.gradient), {}},
            {m.after->dims, again(*m.after), {}, {}},
            {}};
    if (row.before.weight.size() != row.before.gradient.size() ||
        row.before.weight.size() != row.after.weight.size())
      throw Undefined("a weight of another size than its gradient");
    if (given_.contains(m.gradient->storage)) row.changed = again(*m.gradient);
    if (const double scale = settings.number_or("grad_scale", 1); scale != 1)
      for (double& g : row.before.gradient) g /= scale;
    for (const auto& [name, value] : m.state)
      row.before.state[public_name(name)] =
          value->kind == Value::Kind::kTensor ? recorded(value->tensor) : numbers_of(*value);
    for (const auto& [name, value] : m.state_after) {
      if (value->kind == Value::Kind::kTensor) hold(value->tensor);
      row.after.state[public_name(name)] =
          value->kind == Value::Kind::kTensor ? again(value->tensor) : numbers_of(*value);
    }
    // Others than PyTorch's may count their steps elsewhere.
    if (formula_of(event_.optimizer) == nullptr)
      row.before.state.try_emplace("step", 1, static_cast<double>(event_.before));
    // Of Adafactor, None stands for the unit of the weight's type.
    if (const auto eps = row.settings.numbers.find("eps");
        eps != row.settings.numbers.end() && std::isnan(eps->second[0]))
      eps->second[0] = std::ldexp(1, m.weight->element == aten::Element::kF64    ? -52
                                     : m.weight->element == aten::Element::kF16  ? -10
                                     : m.weight->element == aten::Element::kBF16 ? -7
                                                                                 : -23);
    return row;
  }

  const Event& event_;
  ThreadPool* pool_;
  const StopFlag* stop_;
  int64_t most_elements_;  // of a tensor: no more than the trace has bytes, but for small ones
  Again again_;
  std::unordered_map<uint64_t, uint32_t>
      given_;  // the version of each storage that a call has given
};

// An optimizer that is none of PyTorch's: a formula that all of its updates so far agree with.
struct Known {
  const Formula* formula = nullptr;
  Departure departure = Departure::kNone;
};
std::vector<Known> every_formula() {
  std::vector<Known> out;
  for (int d = 0; d < static_cast<int>(Departure::kCount); ++d)
    for (const Formula& f : formulas()) out.push_back({&f, static_cast<Departure>(d)});
  return out;
}

std::string short_name(std::string_view optimizer) {
  return std::string(optimizer.substr(optimizer.rfind('.') + 1));
}
// The longest name of an optimizer of PyTorch that is part of the name of another: "AdamW" of
// "train.MyAdamW". "": none is.
std::string known_name_in(std::string_view optimizer) {
  std::string found;
  for (const Formula& f : formulas()) {
    std::string name = short_name(f.optimizer);
    if (name.size() > found.size() && short_name(optimizer).find(name) != std::string::npos)
      found = std::move(name);
  }
  return found;
}

// Leaves those that agree with an update, too.
void narrow(const Evaluated& update, std::vector<Known>& known) {
  bool any = false;
  update.each([&](const Row& row) {
    any = true;
    std::erase_if(known, [&](const Known& k) {
      try {
        return compare(row, *k.formula, k.departure).off > least_of(row, *k.formula);
      } catch (const Undefined&) {
        return true;  // the optimizer has not the settings of this formula
      }
    });
    return !known.empty();
  });
  if (!any) known.clear();
}

// Holds an update against the formula of its optimizer.
void judge(const TraceFile& trace, const Evaluated& update, const Event& event,
           const Formula& formula, UpdateCheck& out) {
  update.each([&](const Row& row) {
    const Apart c = compare(row, formula, Departure::kNone);
    ++out.parameters;
    out.worst = std::fmax(out.worst, c.off);
    if (c.off <= least_of(row, formula)) return true;
    ++out.wrong;
    if (out.is_wrong) return true;
    out.is_wrong = true;
    out.optimizer = event.optimizer;
    out.step = event.step;
    out.type = trace.shown(row.weight->storage, row.weight->type());
    out.what = c.what;
    out.off = c.off;
    for (int d = 1; d < static_cast<int>(Departure::kCount) && out.looks.empty(); ++d) {
      const auto departure = static_cast<Departure>(d);
      if (compare(row, formula, departure).off <= least_of(row, formula))
        out.looks = fmt::format("it is the formula {}", words_of(departure));
    }
    if (out.looks.empty() && c.what == kWeights)
      if (const double k = factor_of(row, formula); !std::isnan(k))
        out.looks = fmt::format("the update is {:.6g} times the formula's", k);
    return true;
  });
}

double size_of(const TraceFile& trace, const Event& event) {
  double numbers = 0;
  for (int64_t i = event.first; i < event.end; ++i)
    for (const TensorView* t : read_by(trace.calls[static_cast<size_t>(i)]))
      numbers += static_cast<double>(t->elements());
  return numbers;
}

// Undefined where it cannot be asked.
UpdateCheck checked(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop) {
  std::vector<Event> events = events_of(trace);
  if (events.empty()) throw Undefined("no update of an optimizer was described in the trace");
  // A state that is wrong shows at the latest in the last step; between, every step costs.
  const int32_t first = events.front().step, last = events.back().step;
  std::erase_if(events, [&](const Event& e) { return e.step != first && e.step != last; });
  UpdateCheck out;
  std::map<std::string, std::vector<Known>> others;  // by optimizer
  double numbers = 0;
  for (const Event& e : events) {
    if (named(*e.groups[0], "hooks") != nullptr) {
      out.why = fmt::format("hooks run within the step of {}", e.optimizer);
      continue;
    }
    const double size = size_of(trace, e);
    if (size > kMostNumbers || (numbers += size) > 4 * kMostNumbers)
      throw Undefined("the update is too large");
    const Evaluated update(trace, e, pool, stop);
    if (const Formula* formula = formula_of(e.optimizer)) {
      judge(trace, update, e, *formula, out);
    } else {
      auto& known = others.try_emplace(e.optimizer, every_formula()).first->second;
      narrow(update, known);
    }
    if (std::ranges::find(out.optimizers, e.optimizer) == out.optimizers.end())
      out.optimizers.push_back(e.optimizer);
    // What is wrong counts, whatever of others is not known.
    if (out.is_wrong) {
      out.why.clear();
      out.place = trace.calls[static_cast<size_t>(e.first)].place;
      out.asked = true;
      return out;
    }
  }
  if (!out.why.empty()) throw Undefined(out.why);
  for (const auto& [optimizer, known] : others) {
    std::string told;
    if (known.empty()) {
      told =
          fmt::format("no published formula is known that the updates of {} agree with", optimizer);
    } else if (const Known& k = known.front(); k.departure != Departure::kNone) {
      told = fmt::format("the updates of {}, which is none of torch.optim's, are those of {} {}",
                         optimizer, k.formula->optimizer, words_of(k.departure));
    } else {
      const std::string name = known_name_in(optimizer);
      const auto has_it = [&](const Known& one) {
        return one.departure == Departure::kNone && short_name(one.formula->optimizer) == name;
      };
      if (!name.empty() && std::ranges::none_of(known, has_it))
        told = fmt::format(
            "the updates of {}, which is none of torch.optim's, are those of {}, not of {}",
            optimizer, k.formula->optimizer, name);
      std::ranges::replace(out.optimizers, optimizer,
                           fmt::format("{}, which {} computes", k.formula->optimizer, optimizer));
    }
    if (told.empty()) continue;
    out.like += (out.like.empty() ? "" : "; ") + told;
    if (known.empty() || known.front().departure != Departure::kNone)
      std::erase(out.optimizers, optimizer);
  }
  out.asked = !out.optimizers.empty();
  if (!out.asked) out.why = out.like;
  return out;
}

}  // namespace

UpdateCheck check_updates(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop) {
  UpdateCheck out;
  if (std::string why = why_not([&] { out = checked(trace, pool, stop); }); !why.empty())
    out.why = std::move(why);
  return out;
}

}  // namespace twinrun
