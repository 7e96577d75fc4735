// What a device can do: about thirty kernels on Views. Shapes are checked above, in needle/; a Backend may
// rely on them. Calls are asynchronous where the device is; copy_to_host waits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backends/memory_pool.h"
#include "backends/philox.h"
#include "backends/recurrent_cells.h"
#include "backends/scalar_ops.h"
#include "backends/view.h"

namespace needle {

/// What random() draws: uniform in [a, b); normal with mean a and deviation b; bernoulli true with chance a.
struct Distribution {
  enum class Kind { uniform, normal, bernoulli } kind = Kind::uniform;
  double a = 0, b = 1;
};

/// How a softmax answers: the probabilities or their logarithms.
enum class SoftmaxForm { probabilities, logarithms };

/// Which mean is removed: layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).
enum class NormKind { layer, rms };

/// What follows a linear map in the same pass over its result.
enum class Epilogue { none, relu, gelu, gelu_tanh };

/// Settings of a cross entropy over classes.
struct CrossEntropySettings {
  std::int64_t ignore_index = -100;  ///< rows with this label count for nothing
  double label_smoothing = 0;        ///< share of the target spread evenly over all classes
  std::int64_t first_row = 0;        ///< of these rows in the whole batch, for messages
};

/// Which keys a query may read, beside the scores' own treatment. Query t of a call stands at absolute
/// position `offset + t`, key j at position j. Absent views have no data.
struct AttentionSettings {
  double scale = 1;         ///< factor on query times key
  double soft_cap = 0;      ///< c > 0: a scaled score s becomes c tanh(s / c)
  bool causal = false;      ///< read keys at positions <= the query's
  std::int64_t offset = 0;  ///< absolute position of query 0
  std::int64_t window = 0;  ///< w > 0: read only positions > the query's - w
  View key_mask;            ///< bool [batch, keys]: true = a real key
  View allowed;             ///< bool [batch or 1, heads or 1, queries, keys]: true = may attend
  View bias;                ///< [batch or 1, heads or 1, queries, keys], added after scale and cap
};

/// Arrays of an attention call. query [batch, heads, queries, width], key [batch, key heads, keys, width],
/// value [batch, key heads, keys, value width], output [batch, heads, queries, value width] with any strides
/// but 1 along the width; log_sum f32 or f64 [batch, heads, queries] compact. All but log_sum and a bias may
/// be bf16 or f16. A row without keys gives output 0 and log_sum -infinity.
struct AttentionArrays {
  View query, key, value, output, log_sum;
};

/// Gradients of an attention call, overwritten; those without data are not wanted. `bias` has the full shape
/// [batch, heads, queries, keys] (the caller sums it over broadcast axes).
struct AttentionGradients {
  View output;  ///< incoming
  View query, key, value, bias;
};

/// Arrays of a recurrence, all compact; `gates` is the cell's number of gates times the width. Absent views
/// have no data.
struct RecurrentArrays {
  View input;   ///< [batch, time, gates]: x W + b of every step
  View weight;  ///< [width, gates]: U
  View bias;    ///< [gates]: c, or absent
  View state;   ///< [batch, width]: before the first step
  View cell;    ///< the same of an LSTM's cells, else absent
  View real;    ///< bool [batch, time], or absent: where it is false, the step is left out
  View states;  ///< [batch, time, width]: result
  View kept;    ///< [batch, time, kept, width]: result, what the gradient reads again; an LSTM's cell last
};

/// Gradients of a recurrence. `hidden` [batch, time, gates] is that of h U + c, from which those of weight
/// and bias follow by one product and one sum; it may be the view `input` for all cells but the gated
/// recurrent unit.
struct RecurrentGradients {
  View states, last_cell;           ///< incoming; the cell's may be absent
  View input, hidden, state, cell;  ///< overwritten
};

/// Where a kernel puts a gradient: over what is there, or added to it. Without data, it is not wanted.
struct GradientPlace {
  View view;
  bool adds = false;
};

/// A parameter, its gradient and its optimizer's state: compact views of one shape.
struct ParameterArrays {
  View parameter, gradient;
  View first, second;  ///< Adam's moments; SGD's momentum is `first`, or absent
  View rounded;        ///< a copy of the parameter in 16 bits that is kept up to date, or absent
  double weight_decay = 0;
};

/// What changes from one optimizer step to the next, kept in the device's memory (an f64 array), so that
/// nothing waits for the host and a recorded step finds it there.
struct StepState {
  double learning_rate = 0;
  double gradient_norm = 0;   ///< of all gradients together, before clipping
  double gradient_scale = 1;  ///< factor on all gradients, which clips them
  double first_bad = -1;      ///< number of the first gradient that is not finite: the step is skipped
  double steps = 0;           ///< taken so far, without those that were skipped
  double correction1 = 1, correction2 = 1;  ///< of Adam: 1 - beta^steps
  double loss_scale = 1;                    ///< factor on the loss, which the gradient scale takes back
  double good_steps = 0;                    ///< since the loss scale changed
};
/// Numbers in a StepState.
inline constexpr std::int64_t kStepNumbers = sizeof(StepState) / sizeof(double);

/// How gradients become the scale of a step.
struct ClippingSettings {
  double limit = 0;           ///< of the norm of all gradients; 0: none
  bool adapts_scale = false;  ///< whether the loss scale follows what it meets (Micikevicius et al. 2018)
};

/// Adam (Kingma and Ba 2015, algorithm 1) or AdamW (Loshchilov and Hutter 2019, algorithm 2).
struct AdamSettings {
  double beta1, beta2, epsilon;
  bool decoupled;  ///< AdamW: decay the parameter, not through the gradient
};

/// SGD with momentum (u = momentum u + g + decay w; w -= rate u, or Nesterov's form).
struct SgdSettings {
  double momentum;
  bool nesterov;
};

/// What clipping does to a StepState once the sum of squares of the scaled gradients is known.
HOST_DEVICE inline void finish_clipping(const ClippingSettings& settings, double sum_of_squares,
                                        StepState& state) {
  constexpr double kGrowAfter = 2000;
  state.gradient_norm = std::sqrt(sum_of_squares) / state.loss_scale;
  const bool clips = settings.limit > 0 && state.gradient_norm > settings.limit;
  state.gradient_scale = (clips ? settings.limit / state.gradient_norm : 1) / state.loss_scale;
  if (!settings.adapts_scale) return;
  const bool good = state.first_bad < 0;
  state.good_steps = good ? state.good_steps + 1 : 0;
  if (!good) state.loss_scale *= 0.5;
  if (state.good_steps < kGrowAfter) return;
  state.loss_scale *= 2;
  state.good_steps = 0;
}

/// Counts a step that Adam takes.
HOST_DEVICE inline void begin_adam(const AdamSettings& settings, StepState& state) {
  if (state.first_bad >= 0) return;
  state.steps += 1;
  state.correction1 = 1 - std::pow(settings.beta1, state.steps);
  state.correction2 = 1 - std::pow(settings.beta2, state.steps);
}

/// Work that a device records, to do it again without the host's part in it.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Does `work`, whose calls must be the same each time, on the same arrays: the first time as always, but
  /// in memory of its own, the second time recording it. From then on it is replayed, with random streams
  /// `moved` positions behind where they were when it was recorded. Nothing in it may wait for the device.
  /// Returns whether `work` itself was called.
  virtual bool run(const std::function<void()>& work, std::uint64_t moved) = 0;
};

/// The kernels of one device. `y`, `dx` and the like are overwritten unless said otherwise.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// What computes its products, for reports.
  virtual std::string description() const = 0;
  /// The same of products with operands of this type.
  virtual std::string description(DType operands) const = 0;

  // Memory, through a caching pool.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data, std::size_t bytes) = 0;
  virtual MemoryStats memory_stats() const = 0;
  /// Bytes of memory that the device has in all.
  virtual std::size_t total_memory() const = 0;
  /// Bytes of it that nobody uses now.
  virtual std::size_t free_memory() const = 0;
  /// Gives cached memory back to the system and starts the peak anew.
  virtual void trim_memory() = 0;
  virtual void copy_from_host(const void* host, void* data, std::size_t bytes) = 0;
  virtual void copy_to_host(const void* data, void* host, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  /// Whether calls return before their work is done, so that asking for a number costs a wait.
  virtual bool runs_ahead() const = 0;
  /// Whether it is no hardware, but a program that does the same slowly.
  virtual bool is_emulated() const { return false; }
  /// For work that will be done again and again; none where the device cannot record.
  virtual std::unique_ptr<Recording> new_recording() { return nullptr; }

  // Elementwise, any strides; `x` broadcasts only by strides of 0.
  /// y = x, converted; any dtypes.
  virtual void copy(const View& x, const View& y) = 0;
  virtual void fill(double value, const View& y) = 0;
  /// y[i] = start + i step, y of one axis.
  virtual void arange(double start, double step, const View& y) = 0;
  virtual void unary(const UnaryOp& op, const View& x, const View& y) = 0;
  /// Operands of one dtype; y has it too, or is boolean for a comparison. y may be a or b.
  virtual void binary(const BinaryOp& op, const View& a, const View& b, const View& y) = 0;
  /// y = condition ? a : b.
  virtual void select(const View& condition, const View& a, const View& b, const View& y) = 0;
  virtual void random(const Distribution& distribution, PhiloxStream stream, const View& y) = 0;
  /// y = x / (1 - p) where the stream keeps the element (with chance 1 - p), else 0; plus the residual
  /// (compact, of y's dtype) where there is one.
  virtual void dropout(double p, PhiloxStream stream, const View& x, const View& residual, const View& y) = 0;

  // Along axes.
  /// y has the rank of x, with size 1 on the reduced axes.
  virtual void reduce(const ReduceOp& op, const View& x, const View& y) = 0;
  /// Index of the (first) largest along the last axis; y i64 of one axis less.
  virtual void argmax(const View& x, const View& y) = 0;
  /// The k largest along the last axis, in falling order, the lower index first among equals.
  virtual void top_k(const View& x, const View& values, const View& indices) = 0;
  virtual void cumulative_sum(const View& x, int axis, const View& y) = 0;

  /// y = a b, or y += a b: [batch..., n, k] x [batch..., k, m] of one floating dtype, batch axes alike
  /// (stride 0 to broadcast); the last two axes of a, b and y row- or column-major (y row-major). Sums are
  /// float32 where the operands are bf16 or f16, and y may be f32 then.
  virtual void matmul(const View& a, const View& b, const View& y, bool accumulate) = 0;

  /// y = f(x weight + bias) + residual, f by the epilogue, and slope = f'(x weight + bias) where it is
  /// wanted: x [rows, in], weight [in, out], bias [out] or absent, residual [rows, out] or absent, y and
  /// slope [rows, out], all compact. x and weight may be bf16 or f16; y, slope and residual are of their
  /// type or f32, bias f32.
  virtual void linear(Epilogue epilogue, const View& x, const View& weight, const View& bias,
                      const View& residual, const View& y, const View& slope) = 0;
  /// y = f(x (weight scale) + bias) + residual of a quantised weight: x and y f32 [rows, inner] and [rows,
  /// width], weight i8 [width, inner], scale f32 [width], bias and residual f32 or absent; all compact.
  virtual void linear_int8(Epilogue epilogue, const View& x, const View& weight, const View& scale,
                           const View& bias, const View& residual, const View& y) = 0;
  /// product = g times the slope, where there is one, and dbias [width] the sum of its rows. product may be
  /// g; g, slope and product may be bf16 or f16.
  virtual void epilogue_gradient(const View& slope, const View& g, const View& product,
                                 const GradientPlace& dbias) = 0;

  // Rows and indices (i64). An index outside is an error that names its position and value.
  /// y[i, :] = table[rows[i], :]; table [rows, width], rows [count], y [count, width].
  virtual void gather_rows(const View& table, const View& rows, const View& y) = 0;
  /// table[rows[i], :] += x[i, :], in the order of i.
  virtual void scatter_add_rows(const View& x, const View& rows, const View& table) = 0;
  /// y[.., i, ..] = x[.., index[.., i, ..], ..] along `axis`; index and y of one shape.
  virtual void gather(const View& x, int axis, const View& index, const View& y) = 0;
  /// y[.., index[.., i, ..], ..] += x[.., i, ..] along `axis`; index and x of one shape.
  virtual void scatter_add(const View& x, int axis, const View& index, const View& y) = 0;

  // Fused, over the last axis; f32 or f64. Rows = all axes but the last; views are compact [rows, width]
  // unless said.
  virtual void softmax(SoftmaxForm form, const View& x, const View& y) = 0;
  virtual void softmax_gradient(SoftmaxForm form, const View& y, const View& dy, const View& dx) = 0;
  /// y = (x - mean) / sqrt(variance + epsilon) * weight + bias; weight and bias [width] or absent. Keeps mean
  /// (layer) and 1 / sqrt(variance + epsilon), each f64 [rows]. y may be bf16 or f16, and then dy too.
  virtual void norm(NormKind kind, double epsilon, const View& x, const View& weight, const View& bias,
                    const View& y, const View& mean, const View& inverse_deviation) = 0;
  /// dx, dweight and dbias [width].
  virtual void norm_gradient(NormKind kind, const View& x, const View& weight, const View& mean,
                             const View& inverse_deviation, const View& dy, const GradientPlace& dx,
                             const GradientPlace& dweight, const GradientPlace& dbias) = 0;
  /// losses [rows] (0 for ignored labels) of logits [rows, classes], any row stride; labels i64 [rows].
  virtual void cross_entropy(const CrossEntropySettings& settings, const View& logits, const View& labels,
                             const View& losses) = 0;
  /// dlogits, given the gradient of each row's loss (any stride); dlogits may be logits.
  virtual void cross_entropy_gradient(const CrossEntropySettings& settings, const View& logits,
                                      const View& labels, const View& dlosses, const View& dlogits) = 0;
  virtual void attention(const AttentionSettings& settings, const AttentionArrays& arrays) = 0;
  virtual void attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                                  const AttentionGradients& gradients) = 0;
  /// Turns pairs of x [batch, heads, time, width] by positions [batch, time] (i64) times `direction` (+1, or
  /// -1 for the gradient) over base^(2r/width); pairs (r, r + width/2), or (2r, 2r + 1) when interleaved (Su
  /// et al. 2021, section 3.2).
  virtual void rotary(double base, bool interleaved, double direction, const View& positions, const View& x,
                      const View& y) = 0;

  /// h_t = cell(x_t W + b, h_{t-1} U + c) for all steps.
  virtual void recurrence(RecurrentCell cell, const RecurrentArrays& arrays) = 0;
  virtual void recurrence_gradient(RecurrentCell cell, const RecurrentArrays& arrays,
                                   const RecurrentGradients& gradients) = 0;
  /// y[b, t] = f(bias + sum over r of x[b, t - r dilation] weight[r]) + residual[b, t], f by the epilogue,
  /// zeros before the start, and its slope where it is wanted: x [batch, time, in], weight [kernel, in, out],
  /// bias [out] or absent, residual [batch, time, out] or absent, y and slope [batch, time, out], all
  /// compact.
  virtual void causal_convolution(std::int64_t dilation, Epilogue epilogue, const View& x, const View& weight,
                                  const View& bias, const View& residual, const View& y,
                                  const View& slope) = 0;
  /// dx and dweight, given dy of the sum before f.
  virtual void causal_convolution_gradient(std::int64_t dilation, const View& x, const View& weight,
                                           const View& dy, const GradientPlace& dx,
                                           const GradientPlace& dweight) = 0;

  // Optimizers, in place, all parameters in one pass. `state` is a StepState; where its first_bad is not
  // negative, parameters and moments stay as they are.
  /// Norm, scale and first_bad of the gradients (compact), of which none may be changed until the step.
  virtual void clip(const ClippingSettings& settings, std::span<const View> gradients, const View& state) = 0;
  virtual void adam(const AdamSettings& settings, std::span<const ParameterArrays> parameters,
                    const View& state) = 0;
  virtual void sgd(const SgdSettings& settings, std::span<const ParameterArrays> parameters,
                   const View& state) = 0;
};

}  // namespace needle
