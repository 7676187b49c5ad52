// Tests of the judgement of a compiled step, on an engine whose compiler is wrong where it joins a
// dynamic_update_slice and the reshape that reads it, as XLA's is on a CPU (openxla/xla#49176).
// Nothing of XLA is needed.
#include "harness/fusion/joined_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "backends/core/wrapped.h"
#include "backends/registry.h"
#include "harness/diagnose/pipeline.h"
#include "harness/experiment/imported.h"
#include "program/import/import.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

const std::string kFixtures = TWINRUN_SOURCE_DIR "/tests/harness/fusion/fixtures/";

// What the compiler makes of a text: it multiplies in place of updating where it joins both ops.
std::string miscompiled(const std::string& text, const std::string& updater,
                        const std::string& reader) {
  const auto module = parse_mlir(text, "text");
  if (!module) return text;
  std::string out = text;
  for (const MlirFunction& f : module->functions) {
    for (const MlirOp& update : f.body.ops) {
      if (update.name != updater) continue;
      const bool joined = std::ranges::any_of(f.body.ops, [&](const MlirOp& op) {
        return op.name == reader && op.operands.front() == update.results.front().name;
      });
      if (!joined) continue;
      const std::string& x = update.operands.front();
      out.replace(update.begin, update.end - update.begin,
                  "%" + update.results.front().name + " = stablehlo.multiply %" + x + ", %" + x +
                      " : tensor<128x1xf32>");
      return out;
    }
  }
  return out;
}

// Compiles whole steps by way of `cpu`; a trace is of the program that was asked for.
class Compiler : public WrappedBackend {
 public:
  using Compile = std::function<std::string(const std::string&)>;
  Compiler(std::unique_ptr<Backend> inner, Compile compile)
      : WrappedBackend(std::move(inner)), compile_(std::move(compile)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    TWINRUN_ASSIGN(auto traced, inner_->prepare(program));
    auto engine = std::make_unique<Compiled>(std::move(traced), *inner_, compile_);
    TWINRUN_RETURN_IF_ERROR(engine->run_text(program.source->text));
    return std::unique_ptr<Engine>(std::move(engine));
  }

 private:
  class Compiled : public WrappedEngine {
   public:
    Compiled(std::unique_ptr<Engine> traced, Backend& backend, Compile compile)
        : WrappedEngine(std::move(traced)), backend_(backend), compile_(std::move(compile)) {}
    const std::string* module_text() const override { return &text_; }
    Status run_text(const std::string& text) override {
      text_ = text;
      const Program& asked = program();
      StepBinding binding;
      for (const StateVar& var : asked.state) {
        binding.state.push_back(var.name);
        binding.roles.push_back(var.role);
      }
      for (size_t i = 0; i + asked.state.size() < asked.source->parameters.size(); ++i)
        binding.inputs.push_back(asked.inputs[i].name);
      binding.results = asked.source->next;
      binding.loss = asked.source->outputs[0];
      TWINRUN_ASSIGN(const HloModule module, parse_program(compile_(text), "compiled"));
      TWINRUN_ASSIGN(const ImportedStep step, import_step(module, binding));
      TWINRUN_ASSIGN(untraced_, backend_.prepare(step.program));
      return Ok{};
    }
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink* sink, OpHooks* hooks) override {
      Engine& engine = sink == nullptr ? *untraced_ : *inner_;
      return engine.step(step, states, inputs, outputs, sink, hooks);
    }

   private:
    Backend& backend_;
    Compile compile_;
    std::string text_;
    std::unique_ptr<Engine> untraced_;
  };
  Compile compile_;
};

Result<std::unique_ptr<Backend>> compiler(const BackendOptions& options,
                                          Compiler::Compile compile) {
  TWINRUN_ASSIGN(auto cpu, make_backend("cpu", options));
  return std::unique_ptr<Backend>(std::make_unique<Compiler>(std::move(cpu), std::move(compile)));
}

Report diagnosed(const Compiler::Compile& compile, const std::string& directory) {
  auto e = import_experiment({.program = kFixtures + "fused_wrong.mlir"});
  EXPECT_TRUE(e) << e.error().message();
  DiagnoseOptions o;
  o.subject = "compiler";
  o.directory = directory;
  o.make_subject = [&](const BackendOptions& options) { return compiler(options, compile); };
  const auto d = diagnose(*std::move(e), o, nullptr, nullptr);
  EXPECT_TRUE(d) << d.error().message();
  return d ? d->report : Report{};
}

std::string folder(const std::string& name) {
  static const Folder all;
  return all / name;
}

std::string of_delay_line(const std::string& text) {
  return miscompiled(text, "stablehlo.dynamic_update_slice", "stablehlo.reshape");
}

TEST(JoinedOps, AreNamedAndProved) {
  const Report r = diagnosed(of_delay_line, folder("wrong"));
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << r.headline;
  EXPECT_EQ(r.verdict_row, "joined_ops");
  ASSERT_EQ(r.module.joined,
            (std::vector<std::string>{"delay/dynamic_update_slice@fused_wrong.py:17",
                                      "delay/reshape@fused_wrong.py:17"}));
  EXPECT_NE(r.headline.find("where it joins delay/dynamic_update_slice"), std::string::npos)
      << r.headline;
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].step, 0);
  EXPECT_GT(r.findings[0].number, r.findings[0].bound);
  EXPECT_GT(r.module.outside, 100);
  EXPECT_LE(r.module.compilations, 40) << "about log2(40) for each op of the group";
  EXPECT_TRUE(std::filesystem::exists(folder("wrong") + "/joined_ops.mlir"));
  EXPECT_EQ(r.module.excerpt, "joined_ops.mlir");
  ASSERT_FALSE(r.probes.empty());
  EXPECT_EQ(r.probes[0].rows[0].outside, 0) << "op by op everything is right";
}

TEST(JoinedOps, AHealthyCompilerIsNotAccused) {
  const Report r = diagnosed([](const std::string& text) { return text; }, folder("healthy"));
  EXPECT_EQ(r.verdict, VerdictClass::kIdentical) << r.headline;
  EXPECT_EQ(r.module.steps.size(), 3u);
  EXPECT_GT(r.module.elements, 700);
  EXPECT_EQ(r.module.outside, 0);
  EXPECT_TRUE(r.module.joined.empty());
  EXPECT_FALSE(r.module.compared.empty());
}

// Wrong with every barrier too, so no op is named; the results still prove that the step is wrong.
TEST(JoinedOps, AreNotNamedWhereBarriersChangeNothing) {
  const Report r = diagnosed(
      [](const std::string& text) {
        std::string out = text;
        const size_t at = out.find("dense<0.899999976>");
        if (at != std::string::npos) out.replace(at, 18, "dense<0.5>");
        return out;
      },
      folder("always"));
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << r.headline;
  EXPECT_TRUE(r.module.joined.empty());
  EXPECT_TRUE(r.module.excerpt.empty());
  EXPECT_EQ(r.findings[0].step, 1) << "the delay line is zero at step 0";
}

// A compiler that refuses some of the texts is searched around them.
TEST(JoinedOps, AreFoundAlthoughSomeTextsAreRefused) {
  const auto compile = [](const std::string& text) {
    return text.find("%barred_21 =") != std::string::npos &&
                   text.find("%barred_22 =") == std::string::npos
               ? std::string("refused")
               : of_delay_line(text);
  };
  const Report r = diagnosed(compile, folder("refused"));
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << r.headline;
  EXPECT_EQ(r.module.joined.size(), 2u);
}

TEST(JoinedOps, PassesAreNamedByTheCaller) {
  auto e = import_experiment({.program = kFixtures + "fused_wrong.mlir"});
  ASSERT_TRUE(e);
  DiagnoseOptions o;
  o.subject = "compiler";
  o.directory = folder("passes");
  o.make_subject = [](const BackendOptions& options) { return compiler(options, of_delay_line); };
  std::set<std::string> tried;
  o.wrong_without = [&](const std::string& pass, int64_t last) -> std::optional<bool> {
    EXPECT_EQ(last, 0);
    tried.insert(pass);
    return pass != "algsimp";
  };
  const auto d = diagnose(*std::move(e), o, nullptr, nullptr);
  ASSERT_TRUE(d) << d.error().message();
  EXPECT_EQ(d->report.module.passes, std::vector<std::string>{"algsimp"});
  EXPECT_TRUE(tried.contains("fusion"));
  EXPECT_NE(d->report.headline.find("Without XLA's pass algsimp it is right"), std::string::npos)
      << d->report.headline;
}

}  // namespace
}  // namespace twinrun
