// The repositories of released packages, and the commits of XLA that jaxlib is built from.
#include "harness/bisect/comparison_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "harness/bisect/release_version.h"

namespace twinrun::bisect {
namespace {

struct TaggedPackage {
  std::string_view name, repository, tag;
  // From this version on another form of tag.
  std::string_view changed = {}, later_tag = {};
};

constexpr TaggedPackage kTagged[] = {
    {"jax", "jax-ml/jax", "jax-v"},
    // jax and jaxlib are released from one commit since 0.4.33.
    {"jaxlib", "jax-ml/jax", "jaxlib-v", "0.4.33", "jax-v"},
    {"torch", "pytorch/pytorch", "v"},
    {"tensorflow", "tensorflow/tensorflow", "v"},
    {"tensorflow-cpu", "tensorflow/tensorflow", "v"},
    {"keras", "keras-team/keras", "v"},
    {"flax", "google/flax", "v"},
    {"optax", "google-deepmind/optax", "v"},
    {"numpy", "numpy/numpy", "v"},
};

struct XlaPin {
  std::string_view release, commit;
};

// XLA_COMMIT in third_party/xla/revision.bzl (before 0.7 workspace.bzl, before 0.4.15 WORKSPACE)
// at the tag of each release of jaxlib.
constexpr XlaPin kXlaPins[] = {
    {"0.4.13", "12de6ec95841"}, {"0.4.14", "9f26b9390f5a"}, {"0.4.15", "61e12edca8c1"},
    {"0.4.16", "f089a9224682"}, {"0.4.17", "7a32bc798bfd"}, {"0.4.18", "fabb55217b91"},
    {"0.4.19", "ecb73da4b7b2"}, {"0.4.20", "ca31652cdbeb"}, {"0.4.21", "96c964be6e99"},
    {"0.4.22", "a487d8ba5da8"}, {"0.4.23", "a487d8ba5da8"}, {"0.4.24", "12eee889e1f2"},
    {"0.4.25", "4ccfe33c7166"}, {"0.4.26", "4e8e23f16bc9"}, {"0.4.27", "873d09720f83"},
    {"0.4.28", "d60579f54a0b"}, {"0.4.29", "32ba408c0e2b"}, {"0.4.30", "79fd5733f99b"},
    {"0.4.31", "95e3eea8d2ae"}, {"0.4.32", "720b2c533466"}, {"0.4.33", "720b2c533466"},
    {"0.4.34", "cd6e808c59f5"}, {"0.4.35", "76da73017931"}, {"0.4.36", "30f22f4d6cb5"},
    {"0.4.37", "30f22f4d6cb5"}, {"0.4.38", "20a482597b7d"}, {"0.5.0", "a91d9c30c545"},
    {"0.5.1", "75916151739a"},  {"0.5.2", "75916151739a"},  {"0.5.3", "df971129bd82"},
    {"0.6.0", "0d1b60216ea1"},  {"0.6.1", "47a47140b5f7"},  {"0.6.2", "3d5ece643216"},
    {"0.7.0", "3d25fed55713"},  {"0.7.1", "31eb6029e897"},  {"0.7.2", "0fccb8a60370"},
    {"0.8.0", "9f150f6b75c0"},  {"0.8.1", "a7e58876b73d"},  {"0.8.2", "913ae2eaa3cb"},
    {"0.8.3", "913ae2eaa3cb"},  {"0.9.0", "bb760b047bdb"},  {"0.9.0.1", "bb760b047bdb"},
    {"0.9.1", "3cc8846c1005"},  {"0.9.2", "187a5eb58277"},  {"0.10.0", "b6f37ab7767f"},
    {"0.10.1", "9b635916ecc6"}, {"0.10.2", "5a9e73cbd925"}, {"0.11.0", "131bf41acb46"},
};

std::string tag_of(const TaggedPackage& package, std::string_view version) {
  const auto v = ReleaseVersion::parse(version), changed = ReleaseVersion::parse(package.changed);
  const bool later = v.ok() && changed.ok() && *v >= *changed;
  return fmt::format("{}{}", later ? package.later_tag : package.tag, version);
}

std::string_view xla_of(std::string_view version) {
  const auto v = ReleaseVersion::parse(version);
  const auto pin = std::ranges::find_if(kXlaPins, [&](const XlaPin& p) {
    const auto release = ReleaseVersion::parse(p.release);
    return v.ok() && release.ok() && *v == *release;
  });
  return pin == std::end(kXlaPins) ? std::string_view{} : pin->commit;
}

std::string comparison(std::string_view repository, std::string_view before,
                       std::string_view after) {
  return fmt::format("https://github.com/{}/compare/{}...{}", repository, before, after);
}

}  // namespace

std::vector<std::string> comparison_links(std::string_view package, std::string_view before,
                                          std::string_view after) {
  const auto row =
      std::ranges::find_if(kTagged, [&](const TaggedPackage& p) { return p.name == package; });
  if (row == std::end(kTagged) || !ReleaseVersion::parse(before) || !ReleaseVersion::parse(after))
    return {};
  std::vector<std::string> links{
      comparison(row->repository, tag_of(*row, before), tag_of(*row, after))};
  const std::string_view a = xla_of(before), b = xla_of(after);
  if (row->repository == "jax-ml/jax" && !a.empty() && !b.empty() && a != b)
    links.push_back(comparison("openxla/xla", a, b));
  return links;
}

}  // namespace twinrun::bisect
