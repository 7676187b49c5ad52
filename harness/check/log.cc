// Compares a log with the table of messages. A message may be wrapped anywhere, so that letters are
// compared without spaces, over a window of a few lines; a message belongs to the line in which it
// begins. The first letters of each wording are looked up at each place of the log; only where
// they stand the rest is compared, over a bounded length: time is linear in the size of the log.
#include "harness/check/log.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <unordered_map>

namespace twinrun {
namespace check {
namespace {

constexpr size_t kPiece = 16 << 10;     // a longer line is read as several
constexpr size_t kLinesTogether = 8;    // over which a message may be wrapped
constexpr size_t kLettersAhead = 2048;  // of the lines after the first
constexpr size_t kMaxArgument = 300;    // letters
constexpr size_t kMaxShown = 240;       // bytes of a text or argument that is kept
constexpr size_t kKey = 5;              // letters of a wording that are looked up
constexpr size_t kFewestOwn = 6;        // letters of a wording in a piece with an argument
constexpr size_t kFewestAlone = 12;     // letters of a piece without one
constexpr size_t kMostOfAPiece = 3;     // messages that a piece may belong to

// A wording cut at its arguments.
struct Pattern {
  const Message* message;
  std::string_view wording;
  std::vector<std::string> literals;   // not empty, letters only
  std::vector<std::string> names;      // of the arguments
  bool leads = false, trails = false;  // begins, ends with an argument
  std::string_view before;             // what stands before a leading argument: "The "
  size_t weight = 0;                   // letters of all literals
};

Pattern pattern_of(const Message& message, std::string_view whole) {
  std::string_view wording = whole;
  Pattern p{&message, whole, {}, {}};
  p.leads = wording.starts_with('{');
  p.trails = wording.ends_with('}');
  while (!wording.empty()) {
    const size_t open = std::min(wording.find('{'), wording.size());
    std::string literal = letters_of(wording.substr(0, open));
    p.weight += literal.size();
    if (!literal.empty()) p.literals.push_back(std::move(literal));
    wording.remove_prefix(open);
    if (wording.empty()) break;
    const size_t close = wording.find('}');
    std::string name(wording.substr(1, close - 1));
    p.names.push_back(name.empty() ? std::to_string(p.names.size() + 1) : std::move(name));
    wording.remove_prefix(close + 1);
  }
  // What is too short to be looked up belongs to the argument after it.
  if (p.literals[0].size() < kKey) {
    p.before = whole.substr(0, whole.find('{'));
    p.leads = true;
    p.literals.erase(p.literals.begin());
  }
  return p;
}

class Patterns {
 public:
  Patterns() {
    for (const Message& m : messages()) {
      for (const std::string_view w : wordings(m)) all_.push_back(pattern_of(m, w));
    }
    for (const Pattern& p : all_) {
      by_key_[p.literals[0].substr(0, kKey)].push_back(&p);
      seen_[hash(p.literals[0].data())] = true;
    }
  }
  // Those whose first literal may begin here; `letters` has kKey of them at least.
  const std::vector<const Pattern*>* at(const char* letters) const {
    if (!seen_[hash(letters)]) return nullptr;
    const auto found = by_key_.find(std::string(letters, kKey));
    return found == by_key_.end() ? nullptr : &found->second;
  }
  const std::deque<Pattern>& all() const { return all_; }

 private:
  static uint16_t hash(const char* letters) {
    uint32_t bits = 0;
    std::memcpy(&bits, letters, sizeof bits);
    bits = bits * 2654435761U + static_cast<unsigned char>(letters[kKey - 1]) * 40503U;
    return static_cast<uint16_t>(bits >> 16);
  }
  std::deque<Pattern> all_;
  std::unordered_map<std::string, std::vector<const Pattern*>> by_key_;
  std::vector<bool> seen_ = std::vector<bool>(1 << 16);
};

const Patterns& patterns() {
  static const Patterns all;
  return all;
}

// A line and those after it, as one row of letters.
struct Window {
  std::vector<const LogLine*> lines;
  std::vector<size_t> begins;
  std::string letters;

  explicit Window(const std::deque<LogLine>& from) {
    for (const LogLine& line : from) {
      const size_t own = from.front().letters.size();
      const size_t room = lines.empty() ? own : own + kLettersAhead - letters.size();
      lines.push_back(&line);
      begins.push_back(letters.size());
      letters.append(line.letters, 0, room);
      if (room < line.letters.size()) break;
    }
  }
  // The text from one letter up to another, joined by spaces where it is wrapped.
  std::string text(size_t from, size_t to) const {
    std::string out;
    for (size_t i = 0; i < lines.size() && begins[i] < to && out.size() < kMaxShown; ++i) {
      const size_t end = i + 1 < lines.size() ? begins[i + 1] : letters.size();
      const size_t a = std::max(from, begins[i]), b = std::min(to, end);
      if (a >= b) continue;
      const LogLine& line = *lines[i];
      const size_t first = line.at[a - begins[i]], last = line.at[b - 1 - begins[i]];
      out += (out.empty() ? "" : " ") + line.text.substr(first, last - first + 1);
    }
    if (out.size() > kMaxShown) out.resize(kMaxShown);
    return out;
  }
  // The rest of the line after the letter before `from`.
  std::string rest(size_t from) const {
    const auto line = std::ranges::upper_bound(begins, from - 1) - begins.begin() - 1;
    const LogLine& l = *lines[static_cast<size_t>(line)];
    const size_t used = from - begins[static_cast<size_t>(line)];
    return l.text.substr(l.at[used - 1] + 1, kMaxShown);
  }
  // What stands before a letter of the first line.
  std::string before(size_t to) const {
    const std::string& text = lines[0]->text;
    const size_t end = lines[0]->at[to];
    const size_t from = end > kMaxShown ? end - kMaxShown : 0;
    return text.substr(from, end - from);
  }
};

std::string trimmed(std::string_view s) {
  constexpr std::string_view kEnds = " '\"`";
  s.remove_prefix(std::min(s.find_first_not_of(kEnds), s.size()));
  while (!s.empty() && (kEnds.find(s.back()) != std::string_view::npos || s.back() == '.' ||
                        s.back() == ',' || s.back() == ';'))
    s.remove_suffix(1);
  return std::string(s);
}

// An argument at the end of a message: a number ends at a space, other words where TensorFlow
// appends explanations and names of nodes.
std::string last_argument(const std::string& rest) {
  const size_t from = rest.find_first_not_of(' ');
  if (from == std::string::npos) return "";
  const bool number = rest[from] >= '0' && rest[from] <= '9';
  const size_t end =
      number ? rest.find(' ', from) : std::min(rest.find(" [[", from), rest.find(" (", from));
  return trimmed(std::string_view(rest).substr(0, end));
}

// What follows the name of the exception.
std::string after_exception(const std::string& before) {
  const size_t colon = before.rfind(": ");
  return colon == std::string::npos ? before : before.substr(colon + 2);
}

struct Match {
  const Pattern* pattern = nullptr;
  size_t from = 0, to = 0;  // letters of the window, first to last literal
  std::vector<LogArgument> arguments;
};

std::optional<Match> match(const Pattern& p, const Window& w, size_t from) {
  const std::string_view letters = w.letters;
  if (!letters.substr(from).starts_with(p.literals[0])) return std::nullopt;
  Match m{&p, from, from + p.literals[0].size(), {}};
  const auto add = [&](std::string value) {
    m.arguments.push_back({p.names[m.arguments.size()], std::move(value)});
  };
  if (p.leads) {
    std::string value = after_exception(w.before(from));
    if (value.starts_with(p.before)) value.erase(0, p.before.size());
    add(trimmed(value));
  }
  for (size_t i = 1; i < p.literals.size(); ++i) {
    const std::string& literal = p.literals[i];
    const size_t found = letters.substr(m.to, kMaxArgument + literal.size()).find(literal);
    if (found == std::string_view::npos) return std::nullopt;
    add(trimmed(w.text(m.to, m.to + found)));
    m.to += found + literal.size();
  }
  if (p.trails) add(last_argument(w.rest(m.to)));
  return m;
}

// How many letters of a piece are the wording's own, if the wording explains the piece from its
// first letter, which is letter `from` of a literal, to its last; else 0.
size_t own_letters(const Pattern& p, std::string_view piece, size_t literal, size_t from) {
  for (size_t own = 0;; ++literal, from = 0) {
    const std::string_view next = std::string_view(p.literals[literal]).substr(from);
    const size_t both = std::min(next.size(), piece.size());
    if (next.substr(0, both) != piece.substr(0, both)) return 0;
    own += both;
    piece.remove_prefix(both);
    if (piece.empty()) return own;
    const bool last = literal + 1 == p.literals.size();
    if (last && !p.trails) return 0;
    const size_t argument = last ? piece.npos : piece.find(p.literals[literal + 1]);
    if (argument == piece.npos) return own;
    piece.remove_prefix(argument);
  }
}

size_t own_letters(const Pattern& p, std::string_view piece) {
  size_t most = 0;
  for (size_t i = 0; i < p.literals.size(); ++i) {
    for (size_t from = 0; from < p.literals[i].size(); ++from)
      most = std::max(most, own_letters(p, piece, i, from));
  }
  return most;
}

// The wordings that a pasted piece is taken from, at least half of it word for word; none if they
// are many.
std::vector<const Pattern*> wordings_with(std::string_view piece) {
  std::vector<const Pattern*> best;
  size_t most = std::max(kFewestOwn, (piece.size() + 1) / 2);
  for (const Pattern& p : patterns().all()) {
    const size_t own = own_letters(p, piece);
    if (own < most || (own == piece.size() && own < kFewestAlone)) continue;
    if (own > most) best.clear();
    most = own;
    if (best.empty() || best.back()->message != p.message) best.push_back(&p);
  }
  if (best.size() > kMostOfAPiece) best.clear();
  return best;
}

class LogReader {
 public:
  explicit LogReader(std::string name) { out_.name = std::move(name); }

  LogReading read(std::istream& in) {
    std::string piece(kPiece, '\0');
    size_t bytes = 0, number = 1;
    while (in && bytes < kMaxLogBytes) {
      in.getline(piece.data(), static_cast<std::streamsize>(piece.size()));
      const auto got = static_cast<size_t>(in.gcount());
      if (got == 0 && !in) break;
      bytes += got;
      const bool partial = in.fail() && got == piece.size() - 1;
      const bool ended = !partial && !in.eof();
      if (partial) in.clear();
      add(clean_line(std::string_view(piece).substr(0, ended ? got - 1 : got), number));
      out_.lines = number;
      if (!partial) ++number;
    }
    out_.cut = bytes >= kMaxLogBytes && in && in.peek() != std::istream::traits_type::eof();
    while (!ahead_.empty()) take_first();
    if (allocations_) keep_allocations();
    if (out_.findings.empty() && lines_ == 1 && first_.letters.size() <= kMaxShown) find_piece();
    std::ranges::stable_sort(out_.findings, {},
                             [](const LogFinding& f) { return f.message->kind; });
    return std::move(out_);
  }

 private:
  void add(LogLine line) {
    if (line.letters.empty()) return;
    if (lines_++ == 0) first_ = line;
    ahead_.push_back(std::move(line));
    if (ahead_.size() > kLinesTogether) take_first();
  }

  // People also paste a few words of a message, as into a search.
  void find_piece() {
    for (const Pattern* p : wordings_with(first_.letters)) {
      LogFinding f;
      f.message = p->message;
      f.part_of = p->wording;
      f.line = first_.number;
      f.count = 1;
      f.text = first_.text;
      out_.findings.push_back(std::move(f));
    }
  }

  void take_first() {
    const Window w(ahead_);
    std::vector<Match> found;
    const size_t end = ahead_.front().letters.size();
    for (size_t at = 0; at < end && at + kKey <= w.letters.size(); ++at) {
      const std::vector<const Pattern*>* candidates = patterns().at(w.letters.data() + at);
      if (candidates == nullptr) continue;
      for (const Pattern* p : *candidates) {
        if (std::optional<Match> m = match(*p, w, at)) found.push_back(*std::move(m));
      }
    }
    if (allocations_) {
      if (!allocations_->read(ahead_.front().text)) {
        keep_allocations();
        allocations_.reset();
      }
    }
    keep(std::move(found), w);
    base_ += end;
    ahead_.pop_front();
  }

  // Of matches that overlap, the one with most words of its own counts.
  void keep(std::vector<Match> found, const Window& w) {
    std::erase_if(taken_, [&](const auto& span) { return span.second <= base_; });
    std::ranges::stable_sort(found, std::greater{},
                             [](const Match& m) { return m.pattern->weight; });
    std::vector<const Match*> kept;
    for (const Match& m : found) {
      const bool overlaps = std::ranges::any_of(taken_, [&](const auto& span) {
        return base_ + m.from < span.second && span.first < base_ + m.to;
      });
      const bool said = std::ranges::any_of(kept, [&](const Match* k) {
        return k->pattern->message == m.pattern->message && k->pattern != m.pattern;
      });
      if (overlaps) continue;
      taken_.emplace_back(base_ + m.from, base_ + m.to);
      if (!said) kept.push_back(&m);
    }
    std::ranges::sort(kept, {}, &Match::from);
    for (const Match* m : kept) record(*m, w);
  }

  void record(const Match& m, const Window& w) {
    const Message* message = m.pattern->message;
    auto f = std::ranges::find(out_.findings, message, &LogFinding::message);
    std::string text = w.text(m.from, m.to);
    if (m.pattern->leads) text = after_exception(w.before(m.from)) + text;
    if (m.pattern->trails) {
      const std::string rest = w.rest(m.to), &value = m.arguments.back().value;
      text += rest.substr(0, rest.find(value) + value.size());
    }
    if (f == out_.findings.end()) {
      LogFinding first;
      first.message = message;
      first.line = w.lines[0]->number;
      first.text = text;
      first.arguments = m.arguments;
      out_.findings.push_back(std::move(first));
      f = out_.findings.end() - 1;
    } else if (m.arguments != f->arguments && f->others.size() < kMaxOtherTexts &&
               std::ranges::find(f->others, text) == f->others.end() && text != f->text) {
      f->others.push_back(text);
    }
    ++f->count;
    if (message->id.starts_with("hbm-")) remember_memory(*f, m);
  }

  void remember_memory(LogFinding& f, const Match& m) {
    if (!f.memory) {
      f.memory.emplace();
      LoggedMemory& memory = *f.memory;
      for (const LogArgument& a : m.arguments) {
        if (a.name == "used") memory.used = logged_bytes(a.value);
        if (a.name == "limit") memory.limit = logged_bytes(a.value);
        if (a.name == "exceeded") memory.exceeded = logged_bytes(a.value);
      }
      if (memory.exceeded == 0) memory.exceeded = std::max<int64_t>(0, memory.used - memory.limit);
    }
    if (allocations_) keep_allocations();
    allocations_.emplace();
    allocations_of_ = f.message;
  }

  // Of several lists the first counts.
  void keep_allocations() {
    const auto f = std::ranges::find(out_.findings, allocations_of_, &LogFinding::message);
    if (f != out_.findings.end() && f->memory->largest.empty())
      f->memory->largest = allocations_->take();
  }

  std::deque<LogLine> ahead_;
  LogLine first_;
  size_t lines_ = 0;                              // that are not empty
  std::vector<std::pair<size_t, size_t>> taken_;  // letters, counted from the log's first
  size_t base_ = 0;                               // of the first line in ahead_
  std::optional<AllocationReader> allocations_;   // after an out-of-memory message
  const Message* allocations_of_ = nullptr;
  LogReading out_;
};

}  // namespace
}  // namespace check

size_t LogReading::count(MessageKind kind) const {
  return static_cast<size_t>(std::ranges::count_if(
      findings, [&](const LogFinding& f) { return f.message->kind == kind; }));
}

LogReading read_log(std::istream& in, std::string name) {
  return check::LogReader(std::move(name)).read(in);
}

}  // namespace twinrun
