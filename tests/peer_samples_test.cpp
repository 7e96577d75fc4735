// Every row of tests/reference/peer_samples: a peer's own test inputs, with its float64 values and gradients.
#include <gtest/gtest.h>

#include <functional>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/reference_file.h"

namespace needle {
namespace {

/// One row: its inputs by name, and its parameters.
struct Sample {
  std::map<std::string, Tensor> inputs;
  nlohmann::json parameters;

  const Tensor& operator[](const std::string& name) const { return inputs.at(name); }
  bool has(const std::string& name) const { return inputs.contains(name); }
  Tensor optional(const std::string& name) const { return has(name) ? inputs.at(name) : Tensor(); }
  /// x0, x1, ...
  Tensors list() const {
    Tensors all;
    for (const auto& [name, tensor] : inputs) all.push_back(tensor);
    return all;
  }
  int axis() const { return parameters.at("axis").get<int>(); }
  Axes axes() const { return parameters.at("axes").get<Axes>(); }
  bool keep() const { return parameters.at("keep").get<bool>(); }
  Shape shape() const { return Shape(parameters.at("shape").get<std::vector<std::int64_t>>()); }
  std::int64_t diagonal() const { return parameters.at("diagonal").get<std::int64_t>(); }
  double epsilon() const { return parameters.at("epsilon").get<double>(); }
};

Tensor run_cross_entropy(const Sample& s) {
  const CrossEntropySettings settings{s.parameters.at("ignore_index").get<std::int64_t>(),
                                      s.parameters.at("label_smoothing").get<double>()};
  const std::string reduction = s.parameters.at("reduction");
  if (reduction == "none") return cross_entropy_rows(s["x"], s["targets"].array(), settings);
  return cross_entropy(s["x"], s["targets"].array(), {settings, reduction == "sum" ? 1.0 : 0.0});
}

Tensor run_attention(const Sample& s) {
  AttentionOptions options{.causal = s.parameters.at("causal").get<bool>()};
  if (!s.parameters.at("scale").is_null()) options.scale = s.parameters.at("scale").get<double>();
  if (s.parameters.contains("offset")) options.offset = s.parameters.at("offset").get<std::int64_t>();
  const auto four = [](const Tensor& x) {
    Shape shape = x.shape();
    while (shape.rank() < 4) shape.insert(0, 1);
    return reshape(x, shape);
  };
  if (s.has("allowed")) options.allowed = four(s["allowed"]).array();
  return attention(s["q"], s["k"], s["v"], options, s.has("bias") ? four(s["bias"]) : Tensor());
}

using Run = std::function<Tensor(const Sample&)>;

const std::map<std::string, Run>& ops() {
  static const std::map<std::string, Run> table = {
      {"abs", [](const Sample& s) { return abs(s["x"]); }},
      {"add", [](const Sample& s) { return s["x"] + s["other"]; }},
      {"attention", run_attention},
      {"broadcast_to", [](const Sample& s) { return broadcast_to(s["x"], s.shape()); }},
      {"concatenate", [](const Sample& s) { return concatenate(s.list(), s.axis()); }},
      {"cross_entropy", run_cross_entropy},
      {"divide", [](const Sample& s) { return s["x"] / s["other"]; }},
      {"embedding", [](const Sample& s) { return gather_rows(s["table"], s["ids"].array()); }},
      {"equal", [](const Sample& s) { return equal(s["x"], s["other"]); }},
      {"exp", [](const Sample& s) { return exp(s["x"]); }},
      {"flip", [](const Sample& s) { return flip(s["x"], s.axes()); }},
      {"gelu", [](const Sample& s) { return gelu(s["x"]); }},
      {"greater", [](const Sample& s) { return greater(s["x"], s["other"]); }},
      {"layer_norm",
       [](const Sample& s) {
         return layer_norm(s["x"], s.optional("weight"), s.optional("bias"), s.epsilon());
       }},
      {"less_equal", [](const Sample& s) { return less_equal(s["x"], s["other"]); }},
      {"log", [](const Sample& s) { return log(s["x"]); }},
      {"log_softmax", [](const Sample& s) { return log_softmax(s["x"], s.axis()); }},
      {"logsumexp", [](const Sample& s) { return logsumexp(s["x"], s.axes(), s.keep()); }},
      {"matmul", [](const Sample& s) { return matmul(s["x"], s["other"]); }},
      {"max", [](const Sample& s) { return max(s["x"], s.axes(), s.keep()); }},
      {"maximum", [](const Sample& s) { return maximum(s["x"], s["other"]); }},
      {"mean", [](const Sample& s) { return mean(s["x"], s.axes(), s.keep()); }},
      {"min", [](const Sample& s) { return min(s["x"], s.axes(), s.keep()); }},
      {"minimum", [](const Sample& s) { return minimum(s["x"], s["other"]); }},
      {"multiply", [](const Sample& s) { return s["x"] * s["other"]; }},
      {"negate", [](const Sample& s) { return -s["x"]; }},
      {"pad",
       [](const Sample& s) {
         return pad(s["x"],
                    s.parameters.at("widths").get<std::vector<std::pair<std::int64_t, std::int64_t>>>(),
                    s.parameters.at("value").get<double>());
       }},
      {"permute", [](const Sample& s) { return permute(s["x"], s.axes()); }},
      {"power_scalar",
       [](const Sample& s) { return power(s["x"], s.parameters.at("exponent").get<double>()); }},
      {"relu", [](const Sample& s) { return relu(s["x"]); }},
      {"reshape", [](const Sample& s) { return reshape(s["x"], s.shape()); }},
      {"rms_norm", [](const Sample& s) { return rms_norm(s["x"], s.optional("weight"), s.epsilon()); }},
      {"sigmoid", [](const Sample& s) { return sigmoid(s["x"]); }},
      {"silu", [](const Sample& s) { return silu(s["x"]); }},
      {"softmax", [](const Sample& s) { return softmax(s["x"], s.axis()); }},
      {"softplus", [](const Sample& s) { return softplus(s["x"]); }},
      {"sqrt", [](const Sample& s) { return sqrt(s["x"]); }},
      {"stack", [](const Sample& s) { return stack(s.list(), s.axis()); }},
      {"subtract", [](const Sample& s) { return s["x"] - s["other"]; }},
      {"sum", [](const Sample& s) { return sum(s["x"], s.axes(), s.keep()); }},
      {"tanh", [](const Sample& s) { return tanh(s["x"]); }},
      {"tril", [](const Sample& s) { return lower_triangle(s["x"], s.diagonal()); }},
      {"triu", [](const Sample& s) { return upper_triangle(s["x"], s.diagonal()); }},
      {"where", [](const Sample& s) { return where(s["condition"], s["x"], s["other"]); }},
  };
  return table;
}

/// The value of a row and the gradients of its inputs, by name.
struct Outcome {
  NDArray output;
  std::map<std::string, NDArray> gradients;
};

/// Runs a row in `dtype`, on inputs that were rounded to `rounded` first.
Outcome run(const Run& op, const ReferenceFile& file, const nlohmann::json& row, DType rounded, DType dtype) {
  const std::string prefix = row.at("id").get<std::string>() + ".";
  const auto names = row.at("gradients").get<std::vector<std::string>>();
  const auto read = [&](const std::string& name) {
    const NDArray x = file.array(prefix + name, rounded);
    return is_floating(x.dtype()) ? x.cast(dtype) : x;
  };
  Sample sample{{}, row.at("parameters")};
  for (const std::string name : row.at("inputs")) {
    const bool wanted = std::find(names.begin(), names.end(), name) != names.end();
    sample.inputs.emplace(name, Tensor(read(name), wanted));
  }
  const Tensor y = op(sample);
  Outcome outcome{y.array(), {}};
  if (names.empty()) return outcome;
  y.backward(read("output_gradient"));
  for (const std::string& name : names) outcome.gradients.emplace(name, sample[name].grad());
  return outcome;
}

class PeerSamples : public testing::TestWithParam<std::tuple<std::tuple<Device, DType>, std::string>> {};

TEST_P(PeerSamples, ValuesAndGradientsAgree) {
  const auto& [place, name] = GetParam();
  const auto& [device, dtype] = place;
  const ReferenceFile file("peer_samples/" + name, device), on_cpu("peer_samples/" + name);
  for (const nlohmann::json& row : file.metadata("samples")) {
    SCOPED_TRACE(row.dump());
    const std::string prefix = row.at("id").get<std::string>() + ".";
    const Outcome ours = run(ops().at(name), file, row, dtype, dtype);
    // Float32 is held against our own float64 on the same inputs, float64 against the peer.
    const Outcome exact =
        dtype == DType::f64 ? Outcome{} : run(ops().at(name), on_cpu, row, dtype, DType::f64);
    const bool peer = dtype == DType::f64;
    EXPECT_TRUE(
        agrees(ours.output, peer ? file.stored(prefix + "output") : exact.output, bound_of(dtype), 1));
    for (const auto& [input, gradient] : ours.gradients) {
      SCOPED_TRACE("gradient of " + input);
      const double incoming = largest_magnitude(file.stored(prefix + "output_gradient"));
      const NDArray right = peer ? file.stored(prefix + "gradient." + input) : exact.gradients.at(input);
      EXPECT_TRUE(agrees(gradient, right, bound_of(dtype), std::max(incoming, 1.0)));
    }
  }
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const auto& [name, op] : ops()) names.push_back(name);
  return names;
}

std::string sample_name(const testing::TestParamInfo<PeerSamples::ParamType>& row) {
  const auto& [place, name] = row.param;
  return name + "_" + std::string(name_of(std::get<1>(place))) + "_" + test_name(std::get<0>(place).name());
}

INSTANTIATE_TEST_SUITE_P(, PeerSamples,
                         testing::Combine(testing::ValuesIn(devices_and_dtypes()),
                                          testing::ValuesIn(op_names())),
                         sample_name);

}  // namespace
}  // namespace needle
