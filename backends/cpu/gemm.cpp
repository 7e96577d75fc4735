#include "backends/cpu/gemm.h"

#include <cblas.h>
#ifdef NEEDLE_ONEDNN
#include <dnnl.hpp>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "backends/cpu/few_rows.h"
#include "backends/cpu/parallel.h"
#include "backends/error.h"

namespace needle {

namespace {

Gemm chosen = Gemm::automatic;
// Whether the user's environment, not we, picked OpenBLAS's kernels.
bool kernels_were_pinned = false;

/// OpenBLAS picks its kernels by the processor's model number, in a constructor of its own, and falls back to
/// those of 2004 on a model that is newer than itself: seven times slower. This earlier constructor picks by
/// instruction set.
__attribute__((constructor(101))) void choose_openblas_kernels() {
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const char* kernels = wide                                                              ? "SkylakeX"
                        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell"
                                                                                          : nullptr;
  const char* pinned = std::getenv("OPENBLAS_CORETYPE");
  kernels_were_pinned = pinned && kernels && std::strcmp(pinned, kernels) != 0;
  if (kernels) setenv("OPENBLAS_CORETYPE", kernels, 0);
#endif
}

/// A single row, where packing b as for a matrix costs more than the product itself. y += a b.
template <class T>
void openblas_row(const Matrix& a, const Matrix& b, T* y, int columns, int inner) {
  const T *left = static_cast<const T*>(a.data), *right = static_cast<const T*>(b.data);
  const auto order = b.transposed() ? CblasNoTrans : CblasTrans;
  const int rows = b.transposed() ? columns : inner, width = b.transposed() ? inner : columns,
            step = static_cast<int>(a.column_stride), leading = static_cast<int>(b.leading());
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemv(CblasRowMajor, order, rows, width, 1, right, leading, left, step, 1, y, 1);
  else
    cblas_dgemv(CblasRowMajor, order, rows, width, 1, right, leading, left, step, 1, y, 1);
}

/// Whether a product is one of few rows with a matrix, in float32; by shape alone.
bool takes_few_rows(const Matrix& a, const Matrix& b, std::int64_t n, std::int64_t m, std::int64_t k) {
  // Where less than a vector lies side by side in b, its loops would not be vector loops.
  return chosen == Gemm::automatic && n <= few_rows::kMost && a.column_stride == 1 &&
         (b.transposed() ? k : m) >= lanes::kLanes<float>;
}

void few_rows_gemm(const Matrix& a, const Matrix& b, float* y, std::int64_t y_stride, std::int64_t n,
                   std::int64_t m, std::int64_t k, bool accumulate) {
  const few_rows::Table<float> x{static_cast<const float*>(a.data), a.row_stride},
      right{static_cast<const float*>(b.data), b.leading()};
  if (!b.transposed()) return few_rows::columns(x, n, right, k, 0, m, y, y_stride, accumulate);
  few_rows::dots(x, n, right, k, 0, m, [&](std::int64_t row, std::int64_t column, float sum) {
    float& element = y[row * y_stride + column];
    element = accumulate ? element + sum : sum;
  });
}

template <class T>
void openblas_gemm(const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride, std::int64_t n,
                   std::int64_t m, std::int64_t k, bool accumulate) {
  const auto ta = a.transposed() ? CblasTrans : CblasNoTrans, tb = b.transposed() ? CblasTrans : CblasNoTrans;
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k),
            lda = static_cast<int>(a.leading()), ldb = static_cast<int>(b.leading()),
            ldy = static_cast<int>(y_stride);
  if (rows == 1) {
    if (!accumulate) std::fill_n(y, columns, T(0));
    return openblas_row(a, b, y, columns, inner);
  }
  const T *left = static_cast<const T*>(a.data), *right = static_cast<const T*>(b.data);
  const T keep = accumulate ? 1 : 0;
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemm(CblasRowMajor, ta, tb, rows, columns, inner, 1, left, lda, right, ldb, keep, y, ldy);
  else
    cblas_dgemm(CblasRowMajor, ta, tb, rows, columns, inner, 1, left, lda, right, ldb, keep, y, ldy);
}

#ifdef NEEDLE_ONEDNN

/// Whether oneDNN computes this product; by shape alone, so that results never depend on timing.
bool takes_onednn(const Matrix& a, std::int64_t n) {
  // OpenBLAS is faster for single rows, and for transposed operands of long rows, which oneDNN copies slowly.
  constexpr std::int64_t kLongRow = 1024;
  if (chosen == Gemm::automatic) return n > 1 && !(a.transposed() && a.leading() >= kLongRow);
  return chosen == Gemm::onednn;
}

void onednn_gemm(const Matrix& a, const Matrix& b, float* y, std::int64_t y_stride, std::int64_t n,
                 std::int64_t m, std::int64_t k, bool accumulate) {
  const auto letter = [](const Matrix& x) { return x.transposed() ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(letter(a), letter(b), n, m, k, 1, static_cast<const float*>(a.data), a.leading(),
                 static_cast<const float*>(b.data), b.leading(), accumulate ? 1 : 0, y, y_stride);
  require(status == dnnl_success, "matmul: oneDNN refuses a product of ", n, " x ", k, " x ", m);
}

#endif

}  // namespace

void choose_gemm(Gemm choice) {
#ifndef NEEDLE_ONEDNN
  require(choice != Gemm::onednn, "gemm: this build has no oneDNN; install libdnnl-dev and build again");
#endif
  chosen = choice;
}

std::vector<Gemm> available_gemms() {
#ifdef NEEDLE_ONEDNN
  return {Gemm::openblas, Gemm::onednn};
#else
  return {Gemm::openblas};
#endif
}

GemmScope::GemmScope(Gemm choice) : previous_(chosen) { choose_gemm(choice); }
GemmScope::~GemmScope() { chosen = previous_; }

std::string gemm_description() {
  std::string text;
#ifdef NEEDLE_ONEDNN
  if (chosen != Gemm::openblas) {
    const dnnl_version_t* version = dnnl_version();
    text = "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) +
           (chosen == Gemm::automatic ? ", few rows by needle, float64 by " : ", float64 by ");
  }
#endif
  return text + openblas_get_config() + ", kernels " + openblas_get_corename() +
         (kernels_were_pinned ? " (pinned by OPENBLAS_CORETYPE)" : "");
}

bool has_bf16_products() {
#if defined(NEEDLE_ONEDNN) && defined(__x86_64__)
  return chosen == Gemm::onednn || (chosen == Gemm::automatic && __builtin_cpu_supports("avx512bf16"));
#else
  return false;
#endif
}

std::string gemm_description(DType operands) {
  if (!is_half(operands)) return gemm_description();
  const std::string name(name_of(operands));
  if (operands == DType::bf16 && has_bf16_products())
    return name + " operands, float32 sums, by " + gemm_description();
  return name + " operands multiplied as float32 (not faster: no " + name + " instructions here), by " +
         gemm_description();
}

#ifdef NEEDLE_ONEDNN

void gemm_bf16(const Matrix& a, const Matrix& b, void* y, DType y_dtype, std::int64_t y_stride,
               std::int64_t n, std::int64_t m, std::int64_t k, bool accumulate) {
  using dnnl::memory;
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  const auto describe = [](memory::dim rows, memory::dim columns, bool wide, memory::dim row,
                           memory::dim column) {
    return memory::desc({rows, columns}, wide ? memory::data_type::f32 : memory::data_type::bf16,
                        memory::dims{row, column});
  };
  const memory::desc left = describe(n, k, false, a.row_stride, a.column_stride),
                     right = describe(k, m, false, b.row_stride, b.column_stride),
                     result = describe(n, m, y_dtype == DType::f32, y_stride, 1);
  dnnl::post_ops after;
  if (accumulate) after.append_sum(1);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(after);
  try {
    // The library keeps primitives that were made before.
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul product(dnnl::matmul::primitive_desc(engine, left, right, result, attributes));
#else
    const dnnl::matmul product(
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(left, right, result), attributes, engine));
#endif
    product.execute(stream, {{DNNL_ARG_SRC, memory(left, engine, const_cast<void*>(a.data))},
                             {DNNL_ARG_WEIGHTS, memory(right, engine, const_cast<void*>(b.data))},
                             {DNNL_ARG_DST, memory(result, engine, y)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    fail("matmul: oneDNN refuses a bf16 product of ", n, " x ", k, " x ", m, ": ", error.what());
  }
}

#else

void gemm_bf16(const Matrix&, const Matrix&, void*, DType, std::int64_t, std::int64_t, std::int64_t,
               std::int64_t, bool) {
  fail("matmul: this build has no oneDNN for bf16 products");
}

#endif

bool prefers_columns([[maybe_unused]] const Matrix& a, std::int64_t n, std::int64_t m,
                     [[maybe_unused]] std::int64_t k, [[maybe_unused]] bool single) {
#ifdef NEEDLE_ONEDNN
  // oneDNN likes columns but for transposed operands and few columns of a long inner axis. Results that fit
  // the caches go by rows nonetheless: what reads them next is shared out by rows.
  constexpr std::int64_t kFewest = 384, kFewRows = 128, kLarge = 1 << 19;
  if (single && takes_onednn(a, n))
    return n < kFewRows ? m > n : !a.transposed() && n * m >= kLarge && m >= kFewest && m > k / 2;
#endif
  return m > n;
}

template <class T>
void gemm(const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride, std::int64_t n, std::int64_t m,
          std::int64_t k, bool accumulate) {
  if constexpr (std::is_same_v<T, float>) {
    if (takes_few_rows(a, b, n, m, k)) return few_rows_gemm(a, b, y, y_stride, n, m, k, accumulate);
  }
  const OneThread alone;
#ifdef NEEDLE_ONEDNN
  if constexpr (std::is_same_v<T, float>) {
    if (takes_onednn(a, n)) return onednn_gemm(a, b, y, y_stride, n, m, k, accumulate);
  }
#endif
  openblas_gemm(a, b, y, y_stride, n, m, k, accumulate);
}

template void gemm<float>(const Matrix&, const Matrix&, float*, std::int64_t, std::int64_t, std::int64_t,
                          std::int64_t, bool);
template void gemm<double>(const Matrix&, const Matrix&, double*, std::int64_t, std::int64_t, std::int64_t,
                           std::int64_t, bool);

}  // namespace needle
