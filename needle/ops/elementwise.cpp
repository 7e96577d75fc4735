#include "needle/ops/elementwise.h"

#include "needle/ops/shape.h"

namespace needle {

namespace {

constexpr double kSqrtHalf = 0.7071067811865475244, kInverseSqrt2Pi = 0.3989422804014326779;
constexpr double kTwoOverSqrtPi = 1.1283791670955125739, kSqrt2OverPi = 0.7978845608028653559;

/// An op that maps one functor over one input.
template <class Functor>
struct UnaryFunctionOp : Op {
  UnaryFunctionOp() = default;
  explicit UnaryFunctionOp(Functor with) : functor(with) {}
  Functor functor;
  NDArrays compute(const NDArrays& inputs) override { return {unary(functor, inputs[0])}; }
};

/// Same, with a functor for the fast gradient; `kReadsOutput` says whether that reads the output or the
/// input.
template <class Functor, class GradientFunctor, bool kReadsOutput = false>
struct FastUnaryOp : UnaryFunctionOp<Functor> {
  Reads reads() const override { return kReadsOutput ? Reads{0, 1} : Reads{1, 0}; }
  void add_gradient(NDArrays out_grads, const Saved& saved, GradientSums& into) override {
    const NDArray& read = kReadsOutput ? saved.output_array(0) : saved.input_array(0);
    into.add(0, binary(GradientFunctor{}, read, out_grads[0]));
  }
};

/// An op that maps one functor over two inputs of one shape.
template <class Functor>
struct BinaryFunctionOp : Op {
  NDArrays compute(const NDArrays& inputs) override { return {binary(Functor{}, inputs[0], inputs[1])}; }
};

/// Applies O to both after broadcasting them to their common shape.
template <class O>
Tensor broadcast_and_apply(const char* name, const Tensor& a, const Tensor& b) {
  require(a.dtype() == b.dtype(), name, ": operands have different types: ", name_of(a.dtype()), " and ",
          name_of(b.dtype()), "; cast one of them");
  const Shape shape = broadcast_shape(name, a.shape(), b.shape());
  return apply_op<O>({broadcast_to(a, shape), broadcast_to(b, shape)});
}

// --- arithmetic ----------------------------------------------------------------------------------------

struct AddOp final : BinaryFunctionOp<Add> {
  const char* name() const override { return "add"; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {g[0], g[0]}; }
};

struct SubtractOp final : BinaryFunctionOp<Subtract> {
  const char* name() const override { return "subtract"; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {g[0], -g[0]}; }
};

struct MultiplyOp final : BinaryFunctionOp<Multiply> {
  const char* name() const override { return "multiply"; }
  Reads reads() const override { return {3, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    return {needs[0] ? g[0] * saved.input(1) : Tensor(), needs[1] ? g[0] * saved.input(0) : Tensor()};
  }
};

struct DivideOp final : BinaryFunctionOp<Divide> {
  const char* name() const override { return "divide"; }
  Reads reads() const override { return {3, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    const Tensor a = saved.input(0), b = saved.input(1);
    return {needs[0] ? gradient_product(g[0], 1.0 / b) : Tensor(),
            needs[1] ? gradient_product(g[0], -a / (b * b)) : Tensor()};
  }
};

struct PowerOp final : BinaryFunctionOp<Power> {
  const char* name() const override { return "power"; }
  Reads reads() const override { return {3, 1}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    const Tensor a = saved.input(0), b = saved.input(1), zero = constant_like(a, 0);
    Tensors result(2);
    if (needs[0]) result[0] = where(equal(b, zero), zero, gradient_product(g[0], b * power(a, b - 1.0)));
    if (needs[1]) result[1] = where(equal(a, zero), zero, gradient_product(g[0], saved.output(0) * log(a)));
    return result;
  }
};

struct MaximumOp final : BinaryFunctionOp<Maximum> {
  const char* name() const override { return "maximum"; }
  Reads reads() const override { return {3, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor a = saved.input(0), b = saved.input(1),
                 shared = where(equal(a, b), g[0] * 0.5, constant_like(a, 0));
    return {where(greater(a, b), g[0], shared), where(less(a, b), g[0], shared)};
  }
};

struct MinimumOp final : BinaryFunctionOp<Minimum> {
  const char* name() const override { return "minimum"; }
  Reads reads() const override { return {3, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor a = saved.input(0), b = saved.input(1),
                 shared = where(equal(a, b), g[0] * 0.5, constant_like(a, 0));
    return {where(less(a, b), g[0], shared), where(greater(a, b), g[0], shared)};
  }
};

struct GradientProductOp final : BinaryFunctionOp<GradientProduct> {
  const char* name() const override { return "gradient_product"; }
  Reads reads() const override { return {3, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    return {needs[0] ? gradient_product(g[0], saved.input(1)) : Tensor(),
            needs[1] ? gradient_product(g[0], saved.input(0)) : Tensor()};
  }
};

struct NegateOp final : UnaryFunctionOp<Negate> {
  const char* name() const override { return "negate"; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {-g[0]}; }
};

struct AddScalarOp final : UnaryFunctionOp<AddScalar> {
  using UnaryFunctionOp::UnaryFunctionOp;
  const char* name() const override { return "add_scalar"; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {g[0]}; }
};

struct MultiplyScalarOp final : UnaryFunctionOp<MultiplyScalar> {
  using UnaryFunctionOp::UnaryFunctionOp;
  const char* name() const override { return "multiply_scalar"; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {g[0] * functor.value}; }
};

struct PowerScalarOp final : UnaryFunctionOp<PowerScalar> {
  using UnaryFunctionOp::UnaryFunctionOp;
  const char* name() const override { return "power_scalar"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const double exponent = functor.exponent;
    // The factor 0 of a constant must win over the infinity of 0^-1.
    if (exponent == 0) return {g[0] * 0.0};
    return {gradient_product(g[0], power(saved.input(0), exponent - 1) * exponent)};
  }
};

// --- functions -----------------------------------------------------------------------------------------

struct ExpOp final : UnaryFunctionOp<Exp> {
  const char* name() const override { return "exp"; }
  Reads reads() const override { return {0, 1}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {gradient_product(g[0], saved.output(0))};
  }
};

struct LogOp final : UnaryFunctionOp<Log> {
  const char* name() const override { return "log"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {gradient_product(g[0], 1.0 / saved.input(0))};
  }
};

struct SqrtOp final : UnaryFunctionOp<Sqrt> {
  const char* name() const override { return "sqrt"; }
  Reads reads() const override { return {0, 1}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {gradient_product(g[0], 0.5 / saved.output(0))};
  }
};

struct TanhOp final : FastUnaryOp<Tanh, TanhGradient, true> {
  const char* name() const override { return "tanh"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor y = saved.output(0);
    return {g[0] * (1.0 - y * y)};
  }
};

struct SinOp final : UnaryFunctionOp<Sin> {
  const char* name() const override { return "sin"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * cos(saved.input(0))};
  }
};

struct CosOp final : UnaryFunctionOp<Cos> {
  const char* name() const override { return "cos"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {-g[0] * sin(saved.input(0))};
  }
};

struct ErfOp final : UnaryFunctionOp<Erf> {
  const char* name() const override { return "erf"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0);
    return {g[0] * (exp(-(x * x)) * kTwoOverSqrtPi)};
  }
};

struct SigmoidOp final : FastUnaryOp<Sigmoid, SigmoidGradient, true> {
  const char* name() const override { return "sigmoid"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor y = saved.output(0);
    return {g[0] * y * (1.0 - y)};
  }
};

struct ReluOp final : FastUnaryOp<Relu, ReluGradient> {
  const char* name() const override { return "relu"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor zero = constant_like(g[0], 0);
    return {where(less_equal(saved.input(0), zero), zero, g[0])};
  }
};

struct GeluOp final : FastUnaryOp<Gelu, GeluGradient> {
  const char* name() const override { return "gelu"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0);
    const Tensor distribution = 0.5 * (1.0 + erf(x * kSqrtHalf)),
                 density = exp(x * x * -0.5) * kInverseSqrt2Pi;
    return {g[0] * (distribution + x * density)};
  }
};

struct GeluTanhOp final : FastUnaryOp<GeluTanh, GeluTanhGradient> {
  const char* name() const override { return "gelu_tanh"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0), square = x * x;
    const Tensor t = tanh(kSqrt2OverPi * (x + 0.044715 * square * x));
    const Tensor inner_slope = kSqrt2OverPi * (1.0 + 3 * 0.044715 * square);
    return {g[0] * (0.5 * (1.0 + t + x * (1.0 - t * t) * inner_slope))};
  }
};

struct SiluOp final : FastUnaryOp<Silu, SiluGradient> {
  const char* name() const override { return "silu"; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0), s = sigmoid(x);
    return {g[0] * (s * (1.0 + x * (1.0 - s)))};
  }
};

struct SoftplusOp final : UnaryFunctionOp<Softplus> {
  const char* name() const override { return "softplus"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * sigmoid(saved.input(0))};
  }
};

struct AbsOp final : UnaryFunctionOp<Abs> {
  const char* name() const override { return "abs"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * Tensor(unary(Sign{}, saved.input_array(0)))};
  }
};

struct ClampOp final : UnaryFunctionOp<Clamp> {
  using UnaryFunctionOp::UnaryFunctionOp;
  const char* name() const override { return "clamp"; }
  Reads reads() const override { return {1, 0}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0), zero = constant_like(g[0], 0);
    const Tensor above = where(greater_equal(x, constant_like(x, functor.low)), g[0], zero);
    return {where(less_equal(x, constant_like(x, functor.high)), above, zero)};
  }
};

struct WhereOp final : Op {
  const char* name() const override { return "where"; }
  Reads reads() const override { return {1, 0}; }
  NDArrays compute(const NDArrays& inputs) override { return {select(inputs[0], inputs[1], inputs[2])}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor condition = saved.input(0), zero = constant_like(g[0], 0);
    return {Tensor(), where(condition, g[0], zero), where(condition, zero, g[0])};
  }
};

struct CastOp final : Op {
  explicit CastOp(DType to) : dtype(to) {}
  DType dtype;
  const char* name() const override { return "cast"; }
  NDArrays compute(const NDArrays& inputs) override { return {inputs[0].cast(dtype)}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {cast(g[0], saved.input_dtype(0))};
  }
};

Tensor compare(const char* name, const BinaryOp& op, const Tensor& a, const Tensor& b) {
  require(a.dtype() == b.dtype(), name, ": operands have different types: ", name_of(a.dtype()), " and ",
          name_of(b.dtype()), "; cast one of them");
  return Tensor(binary(op, a.array(), b.array()));
}

}  // namespace

Tensor operator+(const Tensor& a, const Tensor& b) { return broadcast_and_apply<AddOp>("add", a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) {
  return broadcast_and_apply<SubtractOp>("subtract", a, b);
}
Tensor operator*(const Tensor& a, const Tensor& b) {
  return broadcast_and_apply<MultiplyOp>("multiply", a, b);
}
Tensor operator/(const Tensor& a, const Tensor& b) { return broadcast_and_apply<DivideOp>("divide", a, b); }
Tensor operator+(const Tensor& a, double b) { return apply_op<AddScalarOp>({a}, AddScalar{b}); }
Tensor operator-(const Tensor& a, double b) { return a + -b; }
Tensor operator*(const Tensor& a, double b) { return apply_op<MultiplyScalarOp>({a}, MultiplyScalar{b}); }
Tensor operator/(const Tensor& a, double b) { return a / constant_like(a, b); }
Tensor operator+(double a, const Tensor& b) { return b + a; }
Tensor operator-(double a, const Tensor& b) { return constant_like(b, a) - b; }
Tensor operator*(double a, const Tensor& b) { return b * a; }
Tensor operator/(double a, const Tensor& b) { return constant_like(b, a) / b; }
Tensor operator-(const Tensor& x) { return apply_op<NegateOp>({x}); }

Tensor power(const Tensor& a, const Tensor& b) { return broadcast_and_apply<PowerOp>("power", a, b); }
Tensor power(const Tensor& x, double exponent) { return apply_op<PowerScalarOp>({x}, PowerScalar{exponent}); }
Tensor maximum(const Tensor& a, const Tensor& b) { return broadcast_and_apply<MaximumOp>("maximum", a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return broadcast_and_apply<MinimumOp>("minimum", a, b); }
Tensor gradient_product(const Tensor& g, const Tensor& derivative) {
  return broadcast_and_apply<GradientProductOp>("gradient_product", g, derivative);
}

Tensor exp(const Tensor& x) { return apply_op<ExpOp>({x}); }
Tensor log(const Tensor& x) { return apply_op<LogOp>({x}); }
Tensor sqrt(const Tensor& x) { return apply_op<SqrtOp>({x}); }
Tensor tanh(const Tensor& x) { return apply_op<TanhOp>({x}); }
Tensor sin(const Tensor& x) { return apply_op<SinOp>({x}); }
Tensor cos(const Tensor& x) { return apply_op<CosOp>({x}); }
Tensor erf(const Tensor& x) { return apply_op<ErfOp>({x}); }
Tensor sigmoid(const Tensor& x) { return apply_op<SigmoidOp>({x}); }
Tensor relu(const Tensor& x) { return apply_op<ReluOp>({x}); }
Tensor gelu(const Tensor& x, GeluForm form) {
  return form == GeluForm::exact ? apply_op<GeluOp>({x}) : apply_op<GeluTanhOp>({x});
}
Tensor silu(const Tensor& x) { return apply_op<SiluOp>({x}); }
Tensor softplus(const Tensor& x) { return apply_op<SoftplusOp>({x}); }
Tensor abs(const Tensor& x) { return apply_op<AbsOp>({x}); }
Tensor clamp(const Tensor& x, double low, double high) {
  require(low <= high, "clamp: wants low <= high, got ", low, " and ", high);
  return apply_op<ClampOp>({x}, Clamp{low, high});
}

Tensor equal(const Tensor& a, const Tensor& b) { return compare("equal", Equal{}, a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return compare("not_equal", NotEqual{}, a, b); }
Tensor less(const Tensor& a, const Tensor& b) { return compare("less", Less{}, a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) { return compare("less_equal", LessEqual{}, a, b); }
Tensor greater(const Tensor& a, const Tensor& b) { return compare("greater", Greater{}, a, b); }
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compare("greater_equal", GreaterEqual{}, a, b);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Shape shape =
      broadcast_shape("where", condition.shape(), broadcast_shape("where", a.shape(), b.shape()));
  return apply_op<WhereOp>(
      {Tensor(condition.array().broadcast_to(shape)), broadcast_to(a, shape), broadcast_to(b, shape)});
}

Tensor constant_like(const Tensor& like, double value) {
  return Tensor(NDArray::scalar(value, like.dtype(), like.device()));
}

Tensor cast(const Tensor& x, DType dtype) { return dtype == x.dtype() ? x : apply_op<CastOp>({x}, dtype); }

}  // namespace needle
