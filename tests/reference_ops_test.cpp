// Ops against the values and gradients of tests/reference, in float64 and float32.
#include <gtest/gtest.h>

#include <functional>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/reference_file.h"

namespace needle {
namespace {

class ReferenceOps : public testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  /// The files hold float32 values: no arithmetic agrees with them better than they are rounded.
  double bound() const { return dtype() == DType::f64 ? 1e-6 : 1e-5; }

  /// Runs `function` on the file's `inputs`; its value and gradients must be the file's `output`,
  /// `gradients`.
  void expect_reference(const ReferenceFile& file, const std::vector<std::string>& inputs,
                        const std::string& output, const std::vector<std::string>& gradients,
                        const std::function<Tensor(const Tensors&)>& function) const {
    Tensors leaves;
    for (const std::string& name : inputs) leaves.emplace_back(file.array(name, dtype()), true);
    const Tensor y = function(leaves);
    EXPECT_TRUE(agrees(y.array(), file.stored(output), bound())) << output;
    const NDArray incoming = file.array("dout", dtype());
    y.backward(incoming);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(agrees(leaves[i].grad(), file.stored(gradients[i]), bound(), largest_magnitude(incoming)))
          << gradients[i];
    }
  }
};

TEST_P(ReferenceOps, Activations) {
  const std::pair<const char*, Tensor (*)(const Tensor&)> functions[] = {
      {"gelu_erf", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }},
      {"silu", silu},
      {"sigmoid", sigmoid},
      {"tanh", tanh},
      {"relu", relu},
      {"softplus", softplus}};
  const ReferenceFile file("activations", device());
  for (const auto& [name, function] : functions) {
    expect_reference(file, {"x"}, std::string("out.") + name, {std::string("grad.") + name},
                     [f = function](const Tensors& in) { return f(in[0]); });
  }
}

TEST_P(ReferenceOps, Softmax) {
  const ReferenceFile file("softmax", device());
  expect_reference(file, {"x"}, "softmax", {"grad.softmax"},
                   [](const Tensors& in) { return softmax(in[0]); });
  expect_reference(file, {"x"}, "log_softmax", {"grad.log_softmax"},
                   [](const Tensors& in) { return log_softmax(in[0]); });
  const Tensor x(file.array("x", dtype()), true), y = logsumexp(x, {-1});
  EXPECT_TRUE(agrees(y.array(), file.stored("logsumexp"), bound()));
  y.backward(file.array("dout", dtype()).slice(-1, 0, 1).squeeze(-1));
  EXPECT_TRUE(agrees(x.grad(), file.stored("grad.logsumexp"), bound(), 1));
}

TEST_P(ReferenceOps, Norms) {
  for (const char* rows : {"plain", "constant_rows", "large_mean", "tiny", "huge"}) {
    SCOPED_TRACE(rows);
    const ReferenceFile file(std::string("layer_norm_") + rows, device());
    expect_reference(file, {"x", "weight", "bias"}, "out", {"grad.x", "grad.weight", "grad.bias"},
                     [](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); });
  }
  const ReferenceFile file("rms_norm", device());
  expect_reference(file, {"x", "weight"}, "out", {"grad.x", "grad.weight"},
                   [](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); });
}

TEST_P(ReferenceOps, CrossEntropy) {
  for (const char* name :
       {"plain_smoothing_0.0", "plain_smoothing_0.1", "shifted_smoothing_0.0", "shifted_smoothing_0.1",
        "large_smoothing_0.0", "large_smoothing_0.1", "all_ignored"}) {
    SCOPED_TRACE(name);
    const ReferenceFile file(std::string("cross_entropy_") + name, device());
    const nlohmann::json about = file.metadata("case");
    const CrossEntropySettings settings{about.at("ignore").get<std::int64_t>(),
                                        about.at("label_smoothing").get<double>()};
    const Tensor logits(file.array("logits", dtype()), true);
    const Tensor loss = cross_entropy(logits, file.stored("labels"), {settings, 0});
    EXPECT_TRUE(agrees(loss.array().reshape({1}), file.stored("loss"), bound()));
    loss.backward();
    EXPECT_TRUE(agrees(logits.grad(), file.stored("grad.logits"), bound(), 1));
  }
}

TEST_P(ReferenceOps, Embedding) {
  const ReferenceFile file("embedding", device());
  expect_reference(file, {"weight"}, "out", {"grad.weight"},
                   [&](const Tensors& in) { return gather_rows(in[0], file.stored("ids")); });
}

TEST_P(ReferenceOps, S45_RotaryPositions) {
  const ReferenceFile file("rotary_positions", device());
  const std::pair<const char*, RotaryPairs> forms[] = {{"halves", RotaryPairs::halves},
                                                       {"interleaved", RotaryPairs::interleaved}};
  for (const auto& [name, pairs] : forms) {
    expect_reference(file, {"x"}, std::string("out.") + name, {std::string("grad.") + name},
                     [&, form = pairs](const Tensors& in) {
                       return rotary(in[0], file.stored("positions"), 10000, form);
                     });
  }
}

TEST_P(ReferenceOps, SecondOrder) {
  const ReferenceFile file("second_order", device());
  const Tensor x(file.array("x", dtype()), true), w(file.array("w", dtype()), true);
  const Tensor product = matmul(x, w), f = sum(power(tanh(product), 3) * exp(-power(product, 2)));
  EXPECT_TRUE(agrees(f.array().reshape({1}), file.stored("f"), bound()));
  const Tensors first = gradients(f, {x, w}, {}, true);
  EXPECT_TRUE(agrees(first[0].array(), file.stored("grad.x"), bound(), 1));
  EXPECT_TRUE(agrees(first[1].array(), file.stored("grad.w"), bound(), 1));
  const Tensors second = gradients(sum(first[0] * Tensor(file.array("v", dtype()))), {x, w});
  EXPECT_TRUE(agrees(second[0].array(), file.stored("hvp.x"), bound(), 1));
  EXPECT_TRUE(agrees(second[1].array(), file.stored("hvp.w"), bound(), 1));
}

/// The options that say what a file's matrix `allowed` says.
AttentionOptions options_of(const ReferenceFile& file) {
  const nlohmann::json about = file.metadata("case");
  const auto number = [&](const char* key, double otherwise) {
    return about.contains(key) && about.at(key).is_number() ? about.at(key).get<double>() : otherwise;
  };
  AttentionOptions options;
  options.scale = number("scale", 0);
  options.soft_cap = number("cap", 0);
  options.window = static_cast<std::int64_t>(number("window", 0));
  const std::string mask = about.at("mask");
  options.causal = mask.starts_with("causal");
  options.offset = static_cast<std::int64_t>(number("past", 0));
  // The last query of a causal mask reads every real key.
  if (mask == "causal and key padding") {
    const NDArray allowed = file.stored("allowed");
    options.key_mask = allowed.slice(2, -1, allowed.size(2)).reshape({allowed.size(0), allowed.size(3)});
  }
  return options;
}

TEST_P(ReferenceOps, Attention) {
  for (const char* name :
       {"bias", "causal", "causal_left_padding_empty_rows", "causal_offset", "causal_right_padding",
        "grouped_heads", "large_scores", "plain", "soft_cap", "window", "window_cap_offset_grouped"}) {
    SCOPED_TRACE(name);
    const ReferenceFile file(std::string("attention_") + name, device());
    const Tensor bias = file.contains("bias") ? Tensor(file.array("bias", dtype())) : Tensor();
    const AttentionOptions by_rule = options_of(file);
    AttentionOptions by_matrix{.scale = by_rule.scale, .soft_cap = by_rule.soft_cap};
    if (file.contains("allowed")) by_matrix.allowed = file.stored("allowed");
    for (const AttentionOptions& options : {by_rule, by_matrix}) {
      expect_reference(file, {"q", "k", "v"}, "out", {"grad.q", "grad.k", "grad.v"},
                       [&](const Tensors& in) { return attention(in[0], in[1], in[2], options, bias); });
    }
  }
}

/// Attention whose scores are exactly `scores` [queries, keys]: the keys are the unit vectors.
Tensor attention_of_scores(const NDArray& scores, const NDArray& values, const NDArray& allowed) {
  const std::int64_t queries = scores.size(0), keys = scores.size(1);
  const NDArray unit = one_hot(NDArray::arange(keys, DType::i64, scores.device()), keys, scores.dtype());
  AttentionOptions options{.scale = 1};
  if (allowed.defined()) options.allowed = allowed.reshape({1, 1, queries, keys});
  return attention(Tensor(scores.reshape({1, 1, queries, keys})), Tensor(unit.reshape({1, 1, keys, keys})),
                   Tensor(values.reshape({1, 1, keys, values.size(1)})), options);
}

TEST_P(ReferenceOps, S02_S03_WorkedNumbers) {
  const ReferenceFile file("attention_worked_numbers", device());
  for (const std::string which : {"a", "b"}) {
    const NDArray scores = file.array("scores_" + which, dtype()),
                  values = file.array("values_" + which, dtype()), allowed = file.stored("allowed_" + which);
    const NDArray out = attention_of_scores(scores, values, allowed).array().reshape({1, values.size(1)});
    EXPECT_TRUE(agrees(out, file.stored("out_" + which), bound()));
    const NDArray unit = one_hot(NDArray::arange(3, DType::i64, device()), 3, dtype());
    const NDArray weights = attention_of_scores(scores, unit, allowed).array().reshape({1, 3});
    EXPECT_TRUE(agrees(weights, file.stored("weights_" + which), bound()));
  }
  const NDArray all =
      attention_of_scores(file.array("scores_b", dtype()), file.array("values_b", dtype()), {}).array();
  EXPECT_TRUE(agrees(all.reshape({1, 1}), file.stored("unmasked_out_b"), bound()));
}

INSTANTIATE_TEST_SUITE_P(, ReferenceOps, testing::ValuesIn(devices_and_dtypes()), [](const auto& instance) {
  return std::string(name_of(std::get<1>(instance.param))) + "_" +
         test_name(std::get<0>(instance.param).name());
});

}  // namespace
}  // namespace needle
