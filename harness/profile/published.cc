// Published results of training ResNet-50 on a TPU v2-8.
#include "harness/profile/published.h"

namespace twinrun {
namespace {

constexpr double kImages = 1281167;  // per epoch of ImageNet
// Hours per epoch: the time between the first and the last of 90 epochs in the entries' tables,
// with a checkpoint at the end of each.
constexpr double kHoursOfEpoch18 = (9.889842777782222 - 0.1429763889288889) / 89;
constexpr double kHoursOfEpoch111 = (8.003105833262222 - 0.10494388845166666) / 89;

constexpr double per_second(double hours) { return kImages / (3600 * hours); }

}  // namespace

std::vector<PublishedFigure> published_figures(const Scenario& s, std::string_view generation) {
  if (s.name != "resnet50" || s.train.batch != 1024 || s.tpu.cores != 8 || generation != "v2")
    return {};
  return {{"Cloud TPU v2-8, TensorFlow 1.8, bf16 activations, real data, April 2018",
           "DAWNBench, ImageNet/train/google_resnet50_tpu_tensorflow18.tsv",
           per_second(kHoursOfEpoch18)},
          {"Cloud TPU v2-8, TensorFlow 1.11, bf16 activations, real data, September 2018",
           "DAWNBench, ImageNet/train/google_resnet50_tpu_tensorflow111.tsv",
           per_second(kHoursOfEpoch111)}};
}

}  // namespace twinrun
