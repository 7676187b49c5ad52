// Tests of optimizers: three steps by hand in double against cpu:f64 up to the last bits (constants
// rounded to f32, as the program stores them), and against cpu within the rounding of binary32.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/backends/small_programs.h"

namespace twinrun::optimizers_test {
namespace {

using small::Hand;
using small::numbers;
using small::Trial;
using Vec = std::vector<double>;

constexpr double kRate = 0.13;
const Vec kStart = {0.57, -1.23, 2.01};
// Gradients of the three steps: loss = sum of w c, so that dL/dw = c. Small ones show where epsilon
// is added.
const Vec kGradients[3] = {{1.03, -0.51, 0.0079}, {0.27, 1.51, -0.0041}, {-2.03, 0.77, 0.0153}};

double rounded(double x) { return static_cast<float>(x); }

Program program_of(const OptimizerSpec& spec) {
  Hand h;
  const ValueId w = h.param("w", {3});
  const ValueId c = h.input("c", {DType::kF32, {3}});
  return training_step(h.forward(h.b.reduce(h.b.mul(w, c), {0}, Reducer::kSum), spec));
}

// by_hand(w, g) does one step; it is called three times in order.
void expect_steps(const OptimizerSpec& spec, const std::function<void(Vec&, const Vec&)>& by_hand) {
  const Program p = program_of(spec);
  Trial exact("cpu:f64", p), single("cpu", p);
  Vec w = kStart;
  exact.set("w", small::f64({3}, kStart));
  exact.set("learning_rate", small::f64({}, {kRate}));
  single.set("w", small::f32({3}, {kStart.begin(), kStart.end()}));
  single.set("learning_rate", Tensor::scalar(static_cast<float>(kRate)));
  for (int step = 0; step < 3; ++step) {
    const Vec& g = kGradients[step];
    by_hand(w, g);
    exact.set("c", small::f64({3}, g));
    single.set("c", small::f32({3}, {g.begin(), g.end()}));
    exact.step(step);
    single.step(step);
    EXPECT_EQ(numbers(exact.output("w.grad")), g);
    const Vec in_double = numbers(exact.state("w")), in_single = numbers(single.state("w"));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(in_double[i], w[i], 1e-14) << "step " << step << " element " << i;
      // Each step has some dozen roundings of numbers up to 4.
      EXPECT_NEAR(in_single[i], w[i], 3 * 12 * 4 * 0x1p-24) << "step " << step << " element " << i;
    }
  }
}

TEST(Optimizers, Sgd) {
  expect_steps({OptimizerSpec::Kind::kSgd}, [](Vec& w, const Vec& g) {
    for (size_t i = 0; i < 3; ++i) w[i] -= kRate * g[i];
  });
  EXPECT_EQ(program_of({OptimizerSpec::Kind::kSgd}).state.size(), 1u) << "no slots";
}

TEST(Optimizers, Momentum) {
  Vec a(3, 0.0);
  expect_steps({.kind = OptimizerSpec::Kind::kMomentum, .momentum = 0.7},
               [&](Vec& w, const Vec& g) {
                 for (size_t i = 0; i < 3; ++i) {
                   a[i] = a[i] * rounded(0.7) + g[i];
                   w[i] -= kRate * a[i];
                 }
               });
}

TEST(Optimizers, NesterovLooksAheadWithTheNewMomentum) {
  Vec a(3, 0.0);
  expect_steps({.kind = OptimizerSpec::Kind::kMomentum, .momentum = 0.7, .nesterov = true},
               [&](Vec& w, const Vec& g) {
                 for (size_t i = 0; i < 3; ++i) {
                   a[i] = a[i] * rounded(0.7) + g[i];
                   w[i] -= kRate * g[i] + kRate * rounded(0.7) * a[i];
                 }
               });
}

// optax/_src/transform.py, scale_by_adam with nesterov: the moment's part has the bias correction
// of the next step.
TEST(Optimizers, NadamAsOptaxHasIt) {
  OptimizerSpec spec{.kind = OptimizerSpec::Kind::kAdam};
  spec.nesterov = spec.nesterov_apart = true;
  spec.beta1 = 0.8;
  spec.epsilon = 1e-3;
  spec.epsilon_form = OptimizerSpec::Epsilon::kAfter;
  const double b1 = rounded(spec.beta1), b2 = rounded(spec.beta2), epsilon = rounded(spec.epsilon);
  Vec m(3, 0.0), v(3, 0.0);
  int t = 0;
  expect_steps(spec, [&](Vec& w, const Vec& g) {
    ++t;
    for (size_t i = 0; i < 3; ++i) {
      m[i] += (g[i] - m[i]) * rounded(1 - spec.beta1);
      v[i] += (g[i] * g[i] - v[i]) * rounded(1 - spec.beta2);
      const double ahead = b1 * m[i] / (1 - std::pow(b1, t + 1)) +
                           rounded(1 - spec.beta1) * g[i] / (1 - std::pow(b1, t));
      w[i] -= kRate * ahead / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + epsilon);
    }
  });
}

enum class EpsilonAt { kHat, kCorrected, kInsideRoot };

// TensorFlow's form of Adam, and forms with epsilon in other places, to show that a test would
// notice them.
std::function<void(Vec&, const Vec&)> adam_by_hand(const OptimizerSpec& spec, EpsilonAt where) {
  struct Slots {
    Vec m = Vec(3, 0.0), v = Vec(3, 0.0);
    double p1, p2;
  };
  auto s = std::make_shared<Slots>();
  const double b1 = rounded(spec.beta1), b2 = rounded(spec.beta2), epsilon = rounded(spec.epsilon);
  s->p1 = b1, s->p2 = b2;
  const double rest1 = rounded(1 - spec.beta1), rest2 = rounded(1 - spec.beta2);
  return [=](Vec& w, const Vec& g) {
    const double correction = std::sqrt(1 - s->p2), alpha = kRate * correction / (1 - s->p1);
    for (size_t i = 0; i < 3; ++i) {
      s->m[i] += (g[i] - s->m[i]) * rest1;
      s->v[i] += (g[i] * g[i] - s->v[i]) * rest2;
      const double root = std::sqrt(s->v[i]);
      switch (where) {
        case EpsilonAt::kHat:
          w[i] -= alpha * s->m[i] / (root + epsilon);
          break;
        case EpsilonAt::kCorrected:
          w[i] -= kRate / (1 - s->p1) * s->m[i] / (root / correction + epsilon);
          break;
        case EpsilonAt::kInsideRoot:
          w[i] -= alpha * s->m[i] / std::sqrt(s->v[i] + epsilon);
          break;
      }
    }
    s->p1 *= b1, s->p2 *= b2;
  };
}

constexpr OptimizerSpec kAdam{
    .kind = OptimizerSpec::Kind::kAdam, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 0.01};

TEST(Optimizers, Adam) { expect_steps(kAdam, adam_by_hand(kAdam, EpsilonAt::kHat)); }

TEST(Optimizers, AdamEpsilonIsOutsideTheBiasCorrection) {
  Vec hat = kStart, corrected = kStart, inside = kStart;
  adam_by_hand(kAdam, EpsilonAt::kHat)(hat, kGradients[0]);
  adam_by_hand(kAdam, EpsilonAt::kCorrected)(corrected, kGradients[0]);
  adam_by_hand(kAdam, EpsilonAt::kInsideRoot)(inside, kGradients[0]);
  // Epsilon in another place changes the third weight by far more than Optimizers.Adam allows.
  EXPECT_GT(std::fabs(hat[2] - corrected[2]), 1e-3);
  EXPECT_GT(std::fabs(hat[2] - inside[2]), 1e-3);
}

TEST(Optimizers, AdamCountsBetaPowers) {
  const Program p = program_of(kAdam);
  Trial run("cpu", p);
  run.set("c", small::f32({3}, {1, 1, 1}));
  float p1 = 0.8f, p2 = 0.95f;
  EXPECT_EQ(numbers(run.state("adam/beta1_power"))[0], p1);
  for (int step = 0; step < 3; ++step) {
    run.step(step);
    p1 *= 0.8f;
    p2 *= 0.95f;
    EXPECT_EQ(numbers(run.state("adam/beta1_power"))[0], p1);
    EXPECT_EQ(numbers(run.state("adam/beta2_power"))[0], p2);
  }
  EXPECT_EQ(p.find_state("adam/beta1_power")->role, StateRole::kCounter);
  EXPECT_EQ(p.find_state("w.adam_m")->role, StateRole::kSlot);
}

TEST(Optimizers, LearningRateIsAnInput) {
  const Program p = program_of({OptimizerSpec::Kind::kSgd});
  Trial run("cpu", p);
  run.set("w", small::f32({3}, {1, 1, 1}));
  run.set("c", small::f32({3}, {1, 2, 4}));
  run.set("learning_rate", Tensor::scalar(0));
  run.step();
  EXPECT_EQ(numbers(run.state("w")), (Vec{1, 1, 1}));
  run.set("learning_rate", Tensor::scalar(0.5f));
  run.step();
  EXPECT_EQ(numbers(run.state("w")), (Vec{0.5, 0, -1}));
}

}  // namespace
}  // namespace twinrun::optimizers_test
