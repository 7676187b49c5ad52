// Reads the embedded catalogue once.
#include "harness/sharding/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace twinrun {

const std::vector<CataloguedCause>& cause_catalogue() {
  static const std::vector<CataloguedCause> all = [] {
    std::vector<CataloguedCause> causes;
    for (const auto& row : nlohmann::json::parse(cause_files()[0].text)) {
      const auto text = [&](const char* key) { return row.value(key, std::string()); };
      causes.push_back({text("cause"), text("means"), text("shows"), text("subject"), text("share"),
                        text("sentence"), row.value("cures", std::map<std::string, std::string>()),
                        row.value("doors", std::map<std::string, std::string>())});
    }
    return causes;
  }();
  return all;
}

const CataloguedCause* catalogued(std::string_view cause) {
  const auto found = std::ranges::find(cause_catalogue(), cause, &CataloguedCause::cause);
  return found == cause_catalogue().end() ? nullptr : &*found;
}

CauseWords cause_words(std::string_view cause, std::string_view framework,
                       const std::map<std::string, std::string>& facts) {
  const CataloguedCause& row = *catalogued(cause);
  const auto cure = row.cures.find(framework == "torch" ? "torch" : "jax");
  CauseWords words{row.sentence, cure == row.cures.end() ? "" : cure->second};
  for (std::string* text : {&words.sentence, &words.cure}) {
    for (const auto& [name, value] : facts) {
      const std::string place = "{" + name + "}";
      for (size_t at = 0; (at = text->find(place, at)) != std::string::npos; at += value.size())
        text->replace(at, place.size(), value);
    }
  }
  return words;
}

std::string cause_table_markdown() {
  constexpr std::array<std::pair<const char*, const char*>, 4> kDoors = {
      {{"scenario", "scenario"}, {"hlo", "HLO"}, {"torch", "PyTorch"}, {"jax", "JAX"}}};
  std::string out = "| cause | what it means | shows in |", rule = "\n|---|---|---|", reasons;
  for (const auto& [key, name] : kDoors) {
    out += fmt::format(" {} |", name);
    rule += "---|";
    std::vector<std::pair<std::string, std::string>> of_door;  // reason, causes
    for (const CataloguedCause& c : cause_catalogue()) {
      const std::string& told = c.doors.at(key);
      if (!told.starts_with("no: ")) continue;
      const std::string why = told.substr(4);
      const auto known =
          std::ranges::find(of_door, why, &std::pair<std::string, std::string>::first);
      if (known == of_door.end())
        of_door.emplace_back(why, "`" + c.cause + "`");
      else
        known->second += ", `" + c.cause + "`";
    }
    for (const auto& [why, causes] : of_door)
      reasons += fmt::format("- {}: {}: {}.\n", name, causes, why);
  }
  out += rule + "\n";
  for (const CataloguedCause& c : cause_catalogue()) {
    out += fmt::format("| `{}` | {} | {} |", c.cause, c.means, c.shows);
    for (const auto& [key, name] : kDoors) {
      const std::string& told = c.doors.at(key);
      out += told == "yes"             ? " yes |"
             : told.starts_with("as ") ? fmt::format(" `{}` |", told.substr(3))
                                       : " - |";
    }
    out += "\n";
  }
  return out + "\nWhy a door does not name a cause (-):\n\n" + reasons;
}

}  // namespace twinrun
