#include "needle/ops/epilogue.h"

#include "needle/ops/elementwise.h"

namespace needle {

Tensor apply_epilogue(Epilogue epilogue, const Tensor& x) {
  switch (epilogue) {
    case Epilogue::relu:
      return relu(x);
    case Epilogue::gelu:
      return gelu(x);
    case Epilogue::gelu_tanh:
      return gelu(x, GeluForm::tanh);
    case Epilogue::none:
      break;
  }
  return x;
}

NDArray epilogue_gradient(NDArray g, const NDArray& slope, DType dtype, GradientSums* into, int bias) {
  g = g.compact();
  const GradientPlace dbias = into ? into->place(bias) : GradientPlace{};
  const bool changes = slope.defined() || g.dtype() != dtype;
  if (!changes && !dbias.view.data) return g;
  const NDArray product =
      changes && !(g.is_exclusive() && g.dtype() == dtype) ? NDArray::empty(g.shape(), dtype, g.device()) : g;
  const auto rows = [](const NDArray& x) {
    const std::int64_t width = x.size(-1);
    return x.reshape({width == 0 ? 0 : x.count() / width, width}).view();
  };
  g.device()->epilogue_gradient(slope.defined() ? rows(slope) : View{}, rows(g), rows(product), dbias);
  return product;
}

}  // namespace needle
