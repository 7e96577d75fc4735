// The CPU backend: OpenMP loops and OpenBLAS products. Each file of this folder defines the methods of one
// subject.
#pragma once

#include "backends/backend.h"

namespace needle {

/// Kernels on host memory, on as many threads as OpenMP is set to.
class CpuBackend final : public Backend {
 public:
  CpuBackend();
  std::string name() const override;
  std::string description() const override;
  std::string description(DType operands) const override;
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  MemoryStats memory_stats() const override;
  std::size_t total_memory() const override;
  std::size_t free_memory() const override;
  void trim_memory() override;
  void copy_from_host(const void* host, void* data, std::size_t bytes) override;
  void copy_to_host(const void* data, void* host, std::size_t bytes) override;
  void synchronize() override;
  bool runs_ahead() const override { return false; }
  void copy(const View& x, const View& y) override;
  void fill(double value, const View& y) override;
  void arange(double start, double step, const View& y) override;
  void unary(const UnaryOp& op, const View& x, const View& y) override;
  void binary(const BinaryOp& op, const View& a, const View& b, const View& y) override;
  void select(const View& condition, const View& a, const View& b, const View& y) override;
  void random(const Distribution& distribution, PhiloxStream stream, const View& y) override;
  void dropout(double p, PhiloxStream stream, const View& x, const View& residual, const View& y) override;
  void reduce(const ReduceOp& op, const View& x, const View& y) override;
  void argmax(const View& x, const View& y) override;
  void top_k(const View& x, const View& values, const View& indices) override;
  void cumulative_sum(const View& x, int axis, const View& y) override;
  void matmul(const View& a, const View& b, const View& y, bool accumulate) override;
  void linear(Epilogue epilogue, const View& x, const View& weight, const View& bias, const View& residual,
              const View& y, const View& slope) override;
  void linear_int8(Epilogue epilogue, const View& x, const View& weight, const View& scale, const View& bias,
                   const View& residual, const View& y) override;
  void epilogue_gradient(const View& slope, const View& g, const View& product,
                         const GradientPlace& dbias) override;
  void gather_rows(const View& table, const View& rows, const View& y) override;
  void scatter_add_rows(const View& x, const View& rows, const View& table) override;
  void gather(const View& x, int axis, const View& index, const View& y) override;
  void scatter_add(const View& x, int axis, const View& index, const View& y) override;
  void softmax(SoftmaxForm form, const View& x, const View& y) override;
  void softmax_gradient(SoftmaxForm form, const View& y, const View& dy, const View& dx) override;
  void norm(NormKind kind, double epsilon, const View& x, const View& weight, const View& bias, const View& y,
            const View& mean, const View& inverse_deviation) override;
  void norm_gradient(NormKind kind, const View& x, const View& weight, const View& mean,
                     const View& inverse_deviation, const View& dy, const GradientPlace& dx,
                     const GradientPlace& dweight, const GradientPlace& dbias) override;
  void cross_entropy(const CrossEntropySettings& settings, const View& logits, const View& labels,
                     const View& losses) override;
  void cross_entropy_gradient(const CrossEntropySettings& settings, const View& logits, const View& labels,
                              const View& dlosses, const View& dlogits) override;
  void attention(const AttentionSettings& settings, const AttentionArrays& arrays) override;
  void attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                          const AttentionGradients& gradients) override;
  void rotary(double base, bool interleaved, double direction, const View& positions, const View& x,
              const View& y) override;
  void recurrence(RecurrentCell cell, const RecurrentArrays& arrays) override;
  void recurrence_gradient(RecurrentCell cell, const RecurrentArrays& arrays,
                           const RecurrentGradients& gradients) override;
  void causal_convolution(std::int64_t dilation, Epilogue epilogue, const View& x, const View& weight,
                          const View& bias, const View& residual, const View& y, const View& slope) override;
  void causal_convolution_gradient(std::int64_t dilation, const View& x, const View& weight, const View& dy,
                                   const GradientPlace& dx, const GradientPlace& dweight) override;
  void clip(const ClippingSettings& settings, std::span<const View> gradients, const View& state) override;
  void adam(const AdamSettings& settings, std::span<const ParameterArrays> parameters,
            const View& state) override;
  void sgd(const SgdSettings& settings, std::span<const ParameterArrays> parameters,
           const View& state) override;

 private:
  MemoryPool pool_;
};

}  // namespace needle
