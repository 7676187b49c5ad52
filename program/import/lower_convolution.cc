// convolution in any layout: transposed to images [n,h,w,c] and kernels [kh,kw,ci,co]. The forms in
// which JAX writes the gradients of a convolution, with a dilated image or a dilated kernel, become
// our gradient ops, which sum the same products. Other dilated images become an image with zeros
// between its elements. Of three spatial dimensions, the taps along one become channels.
#include <fmt/format.h>

#include <algorithm>

#include "program/import/site.h"

namespace twinrun {
namespace {

struct Form {
  ValueId image, kernel;      // [n,h,w,ci], [kh,kw,ci/g,co]
  Dims out;                   // for each of [n,oh,ow,co]: the dimension of HLO's result
  HloWindow window;           // two dimensions
  int64_t features, batches;  // feature_group_count, batch_group_count
  Dims result;                // sizes of [n,oh,ow,co]
  int64_t depth = 0;          // size of the third dimension, which is part of n; 0: there is none
};

Dims gathered(const Dims& dims, const Dims& order) {
  Dims out;
  for (int64_t i : order) out.push_back(dims[static_cast<size_t>(i)]);
  return out;
}

// Moves the spatial dimension with the smallest window to the front.
void smallest_first(ConvolutionLabels& l, HloWindow& w) {
  const auto i = std::ranges::min_element(w.size) - w.size.begin();
  for (Dims* d : {&l.lhs_spatial, &l.rhs_spatial, &l.out_spatial, &w.size, &w.stride, &w.pad_low,
                  &w.pad_high, &w.lhs_dilate, &w.rhs_dilate, &w.reversal})
    std::rotate(d->begin(), d->begin() + i, d->begin() + i + 1);
}

void check_window(Site& s, const Form& f) {
  const Dims k = s.b.type(f.kernel).dims, in = s.b.type(f.image).dims;
  for (size_t i = 0; i < f.window.size.size(); ++i) {
    if (k[i] != f.window.size[i]) s.refuse("a window of another size than the kernel");
    const int64_t size = (in[i + 1] - 1) * f.window.lhs_dilate[i] + 1;
    const int64_t room =
        size + f.window.pad_low[i] + f.window.pad_high[i] - f.window.rhs_dilate[i] * (k[i] - 1) - 1;
    if (room < 0 || room / f.window.stride[i] + 1 != f.result[i + 1])
      s.refuse(fmt::format("a window that does not give {}", to_string(s.in.shape)));
  }
  if (f.result[0] * f.batches != in[0] || f.result.back() != k.back() ||
      k[k.size() - 2] * f.features != in.back() || k.back() % (f.features * f.batches) != 0)
    s.refuse(fmt::format("a convolution of {} and {} that gives {}", to_string(s.type(0)),
                         to_string(s.type(1)), to_string(s.in.shape)));
}

// Groups of samples, each with its own outputs, become groups of channels.
void batches_to_features(Site& s, Form& f) {
  if (f.batches == 1) return;
  const Dims dims = s.b.type(f.image).dims;
  Dims grouped = dims, order;
  grouped[0] /= f.batches;
  grouped.insert(grouped.begin(), f.batches);
  for (size_t i = 1; i + 1 < grouped.size(); ++i) order.push_back(static_cast<int64_t>(i));
  order.push_back(0);
  order.push_back(static_cast<int64_t>(grouped.size()) - 1);
  Dims merged = dims;
  merged[0] /= f.batches;
  merged.back() *= f.batches;
  const ValueId groups = s.reshape(f.image, grouped, "groups");
  f.image = s.reshape(s.transpose(groups, order, "group_channels"), merged, "group_image");
  f.features = f.batches;
  f.batches = 1;
}

// The first of three spatial dimensions: the image as each of its taps sees it, side by side as
// channels, and each output position along it as a sample.
void depth_to_channels(Site& s, Form& f) {
  HloWindow& w = f.window;
  f.depth = f.result[1];
  f.image = s.widen(f.image, 1, w.pad_low[0], w.pad_high[0], w.lhs_dilate[0] - 1);
  if (w.reversal[0] != 0) f.kernel = s.reverse(f.kernel, 0);
  const Dims k = s.b.type(f.kernel).dims;  // [kd,kh,kw,ci/g,co]
  Dims seen = s.b.type(f.image).dims;      // [n,d,h,w,ci]
  s.check_size({seen[0], f.depth, seen[2], seen[3], seen[4], k[0]});
  seen[1] = f.depth;
  seen[4] = f.features;
  seen.push_back(1);
  seen.push_back(k[3]);
  ValueId taps = kNoValue;
  for (int64_t t = 0; t < k[0]; ++t) {
    const int64_t begin = t * w.rhs_dilate[0];
    const ValueId tap =
        s.reshape(s.cut(f.image, 1, begin, begin + (f.depth - 1) * w.stride[0] + 1, w.stride[0]),
                  seen, "tap");
    taps = taps == kNoValue ? tap : s.b.concatenate(taps, tap, 5, s.name("taps"));
  }
  f.image = s.reshape(taps, {seen[0] * f.depth, seen[2], seen[3], f.features * k[0] * k[3]},
                      "depth_channels");
  const ValueId kernel = s.transpose(f.kernel, {1, 2, 0, 3, 4}, "depth_kernel");
  f.kernel = s.reshape(kernel, {k[1], k[2], k[0] * k[3], k[4]}, "kernel_2d");
  f.result = {f.result[0] * f.depth, f.result[2], f.result[3], f.result[4]};
  for (Dims* d :
       {&w.size, &w.stride, &w.pad_low, &w.pad_high, &w.lhs_dilate, &w.rhs_dilate, &w.reversal})
    d->erase(d->begin());
}

// Reads the convolution's form. If there is only one spatial dimension, a second one of size 1 is
// added.
Form form_of(Site& s) {
  s.expect(2);
  if (s.type(0).dtype != s.type(1).dtype || !is_floating(s.type(0).dtype))
    s.refuse(fmt::format("convolution of {} and {}; allowed: both f32 or both bf16",
                         to_string(s.type(0)), to_string(s.type(1))));
  ConvolutionLabels l = labels_attribute(s.in);
  const size_t spatial = l.lhs_spatial.size(), rank = spatial + 2;
  if (spatial < 1 || spatial > 3 || s.type(0).dims.size() != rank ||
      s.type(1).dims.size() != rank || s.in.shape.dims.size() != rank)
    s.refuse(fmt::format("a convolution over {} spatial dimensions; allowed: 1, 2, 3", spatial));
  Form f;
  f.window = window_attribute(s.in, spatial);
  if (spatial == 3) smallest_first(l, f.window);
  f.features = number_attribute(s.in, "feature_group_count", 1);
  f.batches = number_attribute(s.in, "batch_group_count", 1);
  if (f.features < 1 || f.batches < 1 || (f.features > 1 && f.batches > 1))
    s.refuse("group counts; allowed: one of them above 1");
  Dims image = {l.lhs_batch}, kernel, out = {l.out_batch};
  image.insert(image.end(), l.lhs_spatial.begin(), l.lhs_spatial.end());
  image.push_back(l.lhs_feature);
  kernel = l.rhs_spatial;
  kernel.push_back(l.rhs_input);
  kernel.push_back(l.rhs_output);
  out.insert(out.end(), l.out_spatial.begin(), l.out_spatial.end());
  out.push_back(l.out_feature);
  f.out = out;
  f.result = gathered(s.in.shape.dims, out);
  f.image = s.transpose(s.x[0], image, "image");
  // A kernel that was mirrored by `reverse` is the same as a window with window reversal.
  ValueId taps = s.x[1];
  const Mirrored mirrored = s.mirrored(taps);
  const auto spatial_axis = [&](int64_t axis) {
    return std::ranges::find(l.rhs_spatial, axis) != l.rhs_spatial.end();
  };
  if (mirrored.of != kNoValue && std::ranges::all_of(mirrored.axes, spatial_axis)) {
    taps = mirrored.of;
    for (size_t i = 0; i < spatial; ++i) {
      if (std::ranges::find(mirrored.axes, l.rhs_spatial[i]) != mirrored.axes.end())
        f.window.reversal[i] = 1 - f.window.reversal[i];
    }
  }
  f.kernel = s.transpose(taps, kernel, "kernel");
  check_window(s, f);
  if (spatial == 3) {
    batches_to_features(s, f);
    depth_to_channels(s, f);
  }
  if (spatial == 1) {
    Dims wide = s.b.type(f.image).dims, tall = s.b.type(f.kernel).dims;
    wide.insert(wide.begin() + 2, 1);
    tall.insert(tall.begin() + 1, 1);
    f.result.insert(f.result.begin() + 2, 1);
    f.image = s.reshape(f.image, wide, "image_2d");
    f.kernel = s.reshape(f.kernel, tall, "kernel_2d");
    for (Dims* d : {&f.window.size, &f.window.stride, &f.window.lhs_dilate, &f.window.rhs_dilate})
      d->push_back(1);
    for (Dims* d : {&f.window.pad_low, &f.window.pad_high, &f.window.reversal}) d->push_back(0);
  }
  return f;
}

ValueId restore(Site& s, const Form& f, ValueId y) {
  const auto rank = f.out.size();
  if (rank == 3) {
    Dims flat = s.b.type(y).dims;
    flat.erase(flat.begin() + 2);
    y = s.reshape(y, flat, "result_1d");
  }
  if (f.depth > 0) {
    const Dims flat = s.b.type(y).dims;
    y = s.reshape(y, {flat[0] / f.depth, f.depth, flat[1], flat[2], flat[3]}, "result_3d");
  }
  Dims back(rank);
  for (size_t i = 0; i < rank; ++i) back[static_cast<size_t>(f.out[i])] = static_cast<int64_t>(i);
  return s.transpose(y, back, "result");
}

bool all(const Dims& d, int64_t value) {
  return std::ranges::all_of(d, [&](int64_t v) { return v == value; });
}

// The smallest padding after the image that gives `out` windows; -1 if there is none.
int64_t pad_high(const Window& w, int i, int64_t in, int64_t out) {
  const int64_t needed =
      (out - 1) * w.stride[i] + w.dilation[i] * (w.size[i] - 1) + 1 - in - w.pad_low[i];
  if (needed < 0 && -needed >= w.stride[i]) return -1;
  return std::max<int64_t>(0, needed);
}

// conv(dy dilated by the stride, w reversed), with the kernel's inputs and outputs exchanged, is
// the gradient of a convolution with respect to its image. kNoValue if the convolution does not
// have this form.
ValueId as_input_grad(Site& s, const Form& f) {
  if (!all(f.window.stride, 1) || f.features != 1 || f.batches != 1) return kNoValue;
  const Dims k = s.b.type(f.kernel).dims, dy = s.b.type(f.image).dims;
  const bool mirrored = f.window.reversal == Dims{k[0] > 1 || f.window.reversal[0] == 1,
                                                  k[1] > 1 || f.window.reversal[1] == 1};
  if (!mirrored || (all(f.window.reversal, 0) && all(f.window.lhs_dilate, 1))) return kNoValue;
  Window w;
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i);
    w.size[i] = k[at];
    w.stride[i] = f.window.lhs_dilate[at];
    w.dilation[i] = f.window.rhs_dilate[at];
    w.pad_low[i] = w.dilation[i] * (w.size[i] - 1) - f.window.pad_low[at];
    if (w.pad_low[i] < 0) return kNoValue;
    w.pad_high[i] = pad_high(w, i, f.result[at + 1], dy[at + 1]);
    if (w.pad_high[i] < 0) return kNoValue;
  }
  const ValueId forward = s.transpose(f.kernel, {0, 1, 3, 2}, "forward_kernel");
  return s.b.convolution_input_grad(f.image, forward, f.result, w, s.name());
}

// conv(x, dy dilated by the stride), with samples in place of channels, is the gradient with
// respect to the kernel. kNoValue if the convolution does not have this form.
ValueId as_kernel_grad(Site& s, const Form& f) {
  const ConvolutionLabels l = labels_attribute(s.in);
  const bool samples_first = l.lhs_feature == 0 && l.rhs_input == 0;
  if (!samples_first || f.depth > 0 || !all(f.window.lhs_dilate, 1) || !all(f.window.reversal, 0) ||
      f.features != 1)
    return kNoValue;
  const Dims x = s.b.type(f.image).dims, dy = s.b.type(f.kernel).dims;  // [ci,h,w,n], [oh,ow,n,co]
  const Dims w_dims = {f.result[1], f.result[2], f.result[0], f.result[3]};
  Window w;
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<size_t>(i);
    w.size[i] = w_dims[at];
    w.stride[i] = f.window.rhs_dilate[at];
    w.dilation[i] = f.window.stride[at];
    w.pad_low[i] = f.window.pad_low[at];
    if (w.pad_low[i] < 0) return kNoValue;
    w.pad_high[i] = pad_high(w, i, x[at + 1], dy[at]);
    if (w.pad_high[i] < 0) return kNoValue;
  }
  if (x[0] != w_dims[2] * f.batches || x[3] != dy[2] || dy[3] != w_dims[3] ||
      dy[3] % f.batches != 0)
    s.refuse("a convolution whose sizes do not fit");
  const ValueId image = s.transpose(f.image, {3, 1, 2, 0}, "samples");
  const ValueId grad = s.transpose(f.kernel, {2, 0, 1, 3}, "grad");
  const ValueId y = s.b.convolution_kernel_grad(image, grad, w_dims, w, s.name(), f.batches);
  return s.transpose(y, {2, 0, 1, 3}, "kernel_grad");
}

ValueId convolution(Site& s) {
  Form f = form_of(s);
  if (text_attribute(s.in, "operand_precision").find("high") != std::string::npos)
    s.note(
        "operand_precision of a convolution is not followed: the engine's precision holds for all "
        "(tpu.precision)");
  ValueId y = as_kernel_grad(s, f);
  if (y == kNoValue) y = as_input_grad(s, f);
  if (y == kNoValue) {
    batches_to_features(s, f);
    ValueId image = f.image, kernel = f.kernel;
    Window w;
    for (int i = 0; i < 2; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t low = f.window.pad_low[at], high = f.window.pad_high[at];
      const bool inner = f.window.lhs_dilate[at] > 1 || low < 0 || high < 0;
      if (inner) image = s.widen(image, i + 1, low, high, f.window.lhs_dilate[at] - 1);
      if (f.window.reversal[at] != 0) kernel = s.reverse(kernel, i);
      w.size[i] = f.window.size[at];
      w.stride[i] = f.window.stride[at];
      w.dilation[i] = f.window.rhs_dilate[at];
      w.pad_low[i] = inner ? 0 : low;
      w.pad_high[i] = inner ? 0 : high;
    }
    y = s.b.convolution(image, kernel, w, s.name(), f.features);
  }
  return s.convert(restore(s, f, y), s.result().dtype, "result_dtype");
}

}  // namespace

void add_convolution(LoweringTable& table) { table["convolution"] = convolution; }

}  // namespace twinrun
