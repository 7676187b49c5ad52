// The keys of [[model.layers]]: the kinds of layers, and which keys each kind has.
#include "program/graph/initializer.h"
#include "scenarios/keys.h"

namespace twinrun {
namespace {

using namespace allowed;

constexpr std::string_view kKinds =
    "dense|conv2d|depthwise_conv2d|conv2d_transpose|max_pool|avg_pool|global_max_pool|"
    "global_avg_pool|flatten|reshape|relu|relu6|leaky_relu|gelu|quick_gelu|silu|sigmoid|hard_"
    "sigmoid|"
    "tanh|batch_norm|layer_norm|"
    "group_norm|minibatch_stddev|dropout|embedding|position_embedding|attention|masked_mean|add|"
    "concat|l2_normalize|noise";
constexpr std::string_view kConvolutions = "conv2d|depthwise_conv2d|conv2d_transpose";
constexpr std::string_view kWindows = "conv2d|depthwise_conv2d|conv2d_transpose|max_pool|avg_pool";
constexpr std::string_view kWeighted = "dense|conv2d|depthwise_conv2d|conv2d_transpose|attention";
constexpr std::string_view kWithParts =
    "dense|conv2d|depthwise_conv2d|conv2d_transpose|attention|batch_norm|layer_norm|group_norm|"
    "embedding|position_embedding";
constexpr std::string_view kInitialised =
    "dense|conv2d|depthwise_conv2d|conv2d_transpose|attention|embedding|position_embedding";

const Key<LayerSpec> kLayer[] = {
    {"kind", &LayerSpec::kind, one_of(kKinds), "what the layer does", {}, true},
    {"name",
     &LayerSpec::name,
     any(),
     "prefix of its variables and ops: letters, digits, `_`, `-`",
     {},
     false,
     "kind without `2d` and a count: `dense1`"},
    {"input",
     &LayerSpec::input,
     any(),
     "names of the layers it reads, several for `add` and `concat`; `\"data\"` is the sample",
     {},
     false,
     "the layer before"},
    {"part", &LayerSpec::part, one_of("|generator|discriminator"),
     "in a GAN: the part that the layer belongs to; the generator begins with `noise`"},
    {"units", &LayerSpec::units, between(1, 1 << 20), "outputs", "dense|embedding|noise", true},
    {"filters", &LayerSpec::filters, between(1, 1 << 16), "output channels",
     "conv2d|conv2d_transpose", true},
    {"multiplier", &LayerSpec::multiplier, between(1, 1024), "outputs per channel",
     "depthwise_conv2d"},
    {"kernel", &LayerSpec::kernel, between(1, 1024), "height and width of the filter",
     kConvolutions, true},
    {"window", &LayerSpec::window, between(1, 1024), "height and width of the window",
     "max_pool|avg_pool"},
    {"stride", &LayerSpec::stride, between(0, 1024), "step of the window; 0: the default", kWindows,
     false, "1 (convolutions), `window` (pools)"},
    {"dilation", &LayerSpec::dilation, between(1, 1024), "step between the filter's taps",
     "conv2d|depthwise_conv2d"},
    {"padding",
     &LayerSpec::padding,
     {.names = "same|valid", .or_count = true},
     "`same` and `valid` as in TensorFlow; a number: that many cells on every side, as in PyTorch",
     kWindows},
    {"count_padding", &LayerSpec::count_padding, any(),
     "divide by the whole window at the border, too (PyTorch's `count_include_pad`)", "avg_pool"},
    {"flipped", &LayerSpec::flipped, any(),
     "apply the kernel turned by 180 degrees: a convolution, not a cross-correlation", "conv2d"},
    {"transposed", &LayerSpec::transposed, any(),
     "apply the kernel with its height and width exchanged", "conv2d"},
    {"fill", &LayerSpec::fill, one_of("least|zeros"),
     "value of the padding that a maximum reads: below every number, or zero", "max_pool"},
    {"order", &LayerSpec::order, one_of("channels_last|channels_first"),
     "order of an image's features in the result; `channels_first`: channel, height, width",
     "flatten"},
    {"bias", &LayerSpec::bias, any(), "add a learned bias", kWeighted},
    {"unused", &LayerSpec::unused, any(),
     "parameters (`bias`, `gamma`, `embeddings`) that the layer has but does not use: it reads "
     "zeros instead, and their gradient is zero",
     kWithParts},
    {"shape", &LayerSpec::shape, at_least(1), "shape of one sample's result", "reshape", true},
    {"slope", &LayerSpec::slope, between(0, 1),
     "`leaky_relu`: slope below zero; `hard_sigmoid`: slope of its line, 0.2 (Keras 2) or 1/6 "
     "(PyTorch, Keras 3)",
     "leaky_relu|hard_sigmoid"},
    {"at_zero", &LayerSpec::at_zero, one_of("none|half|full"),
     "the gradient where the input is exactly 0: that of numbers below (`none`: `relu` of all "
     "frameworks), of numbers above (`full`: `jax.nn.leaky_relu`), or halfway between (`half`: "
     "`jnp.maximum`, `torch.maximum`)",
     "relu|leaky_relu"},
    {"approximate", &LayerSpec::approximate, any(), "the tanh form instead of erf", "gelu"},
    {"heads", &LayerSpec::heads, between(1, 1024), "number of heads that share the units",
     "attention"},
    {"causal", &LayerSpec::causal, any(), "a token does not see the tokens after it", "attention"},
    {"masked", &LayerSpec::masked, any(), "no token sees padding (the data must have weights)",
     "attention"},
    {"scaled", &LayerSpec::scaled, any(),
     "`attention`: scores are divided by the root of a head's units; `dropout`: what is kept is "
     "divided by 1 - rate",
     "attention|dropout"},
    {"scaled_by", &LayerSpec::scaled_by, one_of("head|units"),
     "scores are divided by the root of a head's units, or of all units", "attention"},
    {"head_units", &LayerSpec::head_units, one_of("blocks|turns"),
     "which units a head has: neighbouring ones, or every `heads`th", "attention"},
    {"terms", &LayerSpec::terms, one_of("all|first|last"),
     "which of its inputs are added; `first`, `last`: that one alone", "add"},
    {"factor", &LayerSpec::factor, any(), "factor of the rows that are looked up", "embedding"},
    {"padding_index", &LayerSpec::padding_index, between(-1, 1 << 24),
     "the token whose row is never updated (PyTorch's `padding_idx`); -1: none", "embedding"},
    {"vocabulary", &LayerSpec::vocabulary, between(0, 1 << 24),
     "number of rows; 0: the data's vocabulary", "embedding"},
    {"groups", &LayerSpec::groups, between(1, 1 << 16), "number of groups of channels",
     "group_norm"},
    {"group", &LayerSpec::group, between(1, 1 << 16), "number of samples that are compared",
     "minibatch_stddev"},
    {"rate", &LayerSpec::rate, below(0, 1), "share of inputs set to zero", "dropout"},
    {"keeps", &LayerSpec::keeps, one_of("high|low"),
     "an input is kept where its uniform number is at least `rate` (`high`), or below 1 - rate",
     "dropout"},
    {"momentum", &LayerSpec::momentum, between(0, 1), "momentum of the running mean and variance",
     "batch_norm"},
    {"epsilon", &LayerSpec::epsilon, above(0), "added to the variance",
     "batch_norm|layer_norm|group_norm"},
    {"variance", &LayerSpec::variance, one_of("auto|tf|biased|unbiased"),
     "form of the running variance; `tf`: unbiased for images, biased for [batch, features]",
     "batch_norm"},
    {"statistics", &LayerSpec::statistics, one_of("batch|running"),
     "statistics that training normalises by; `running`: evaluation mode, which does not update "
     "them",
     "batch_norm"},
    {"unbiased", &LayerSpec::unbiased, any(), "the variance divides by n - 1",
     "layer_norm|group_norm"},
    {"epsilon_to", &LayerSpec::epsilon_to, one_of("variance|deviation"),
     "what epsilon is added to: the variance, or its root", "layer_norm|group_norm"},
    {"axes", &LayerSpec::axes, one_of("features|sample"),
     "what is normalised together: the last dimension, or all of a sample", "layer_norm"},
    {"init", &LayerSpec::init, one_of(kInitializerNames),
     "how the kernel (or the table) is drawn, by Keras's names: numerics.md, \"Initial state\"",
     kInitialised, false, "`glorot_uniform`; `random_uniform` (embeddings)"},
    {"init_scale", &LayerSpec::init_scale, at_least(0),
     "the initializer's stddev, limit, gain or value; 0: its default", kInitialised},
};

}  // namespace

template <>
std::span<const Key<LayerSpec>> keys() {
  return kLayer;
}

}  // namespace twinrun
