// Attention, row by row: the plain version.
#include <cmath>
#include <vector>

#include "backends/cpu/cpu_backend.h"

namespace needle {

namespace {

/// Pointers and strides of one call, and which pairs its masks allow.
template <class T>
struct Call {
  const AttentionSettings& s;
  const AttentionArrays& a;
  std::int64_t batch = a.query.shape[0], heads = a.query.shape[1], queries = a.query.shape[2],
               keys = a.key.shape[2];
  std::int64_t width = a.query.shape[3], value_width = a.value.shape[3], group = heads / a.key.shape[1];

  static T* at(const View& x, std::int64_t b, std::int64_t h, std::int64_t t) {
    return x.as<T>() + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
  }
  bool allows(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t position = s.offset + i;
    if (s.causal && j > position) return false;
    if (s.window > 0 && j <= position - s.window) return false;
    if (s.key_mask.data && !s.key_mask.as<bool>()[b * s.key_mask.strides[0] + j * s.key_mask.strides[1]])
      return false;
    const View& m = s.allowed;
    return !m.data || m.as<bool>()[b * m.strides[0] + h * m.strides[1] + i * m.strides[2] + j * m.strides[3]];
  }
  T raw(const T* q, const T* k) const {
    T dot = 0;
    for (std::int64_t c = 0; c < width; ++c) dot += q[c] * k[c];
    return dot * static_cast<T>(s.scale);
  }
  T score(T raw_score, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    T value = s.soft_cap > 0 ? static_cast<T>(s.soft_cap) * math::tanh(raw_score / static_cast<T>(s.soft_cap))
                             : raw_score;
    const View& bias = s.bias;
    if (bias.data)
      value +=
          bias.as<T>()[b * bias.strides[0] + h * bias.strides[1] + i * bias.strides[2] + j * bias.strides[3]];
    return value;
  }
};

template <class T>
void forward(const Call<T>& c) {
#pragma omp parallel for collapse(2) schedule(static)
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      std::vector<T> scores(static_cast<std::size_t>(c.keys));
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const T* q = c.at(c.a.query, b, h, i);
        T* out = c.at(c.a.output, b, h, i);
        T largest = -math::infinity<T>(), total = 0;
        for (std::int64_t j = 0; j < c.keys; ++j) {
          if (!c.allows(b, h, i, j)) continue;
          scores[static_cast<std::size_t>(j)] =
              c.score(c.raw(q, c.at(c.a.key, b, h / c.group, j)), b, h, i, j);
          largest = std::max(largest, scores[static_cast<std::size_t>(j)]);
        }
        for (std::int64_t d = 0; d < c.value_width; ++d) out[d] = 0;
        for (std::int64_t j = 0; j < c.keys; ++j) {
          if (!c.allows(b, h, i, j)) continue;
          const T e = math::exp(scores[static_cast<std::size_t>(j)] - largest);
          total += e;
          const T* v = c.at(c.a.value, b, h / c.group, j);
          for (std::int64_t d = 0; d < c.value_width; ++d) out[d] += e * v[d];
        }
        for (std::int64_t d = 0; d < c.value_width && total > 0; ++d) out[d] /= total;
        c.a.log_sum.template as<T>()[(b * c.heads + h) * c.queries + i] =
            total > 0 ? largest + std::log(total) : -math::infinity<T>();
      }
    }
  }
}

template <class T>
void backward(const Call<T>& c, const AttentionGradients& g, CpuBackend& backend) {
  for (const View* view : {&g.query, &g.key, &g.value, &g.bias}) {
    if (view->data) backend.fill(0, *view);
  }
#pragma omp parallel for collapse(2) schedule(static)
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t kh = 0; kh < c.heads / c.group; ++kh) {
      for (std::int64_t h = kh * c.group; h < (kh + 1) * c.group; ++h) {
        for (std::int64_t i = 0; i < c.queries; ++i) {
          const T *q = c.at(c.a.query, b, h, i), *out = c.at(c.a.output, b, h, i),
                  *incoming = c.at(g.output, b, h, i);
          const T log_sum = c.a.log_sum.template as<T>()[(b * c.heads + h) * c.queries + i];
          T delta = 0;
          for (std::int64_t d = 0; d < c.value_width; ++d) delta += out[d] * incoming[d];
          for (std::int64_t j = 0; j < c.keys; ++j) {
            if (!c.allows(b, h, i, j)) continue;
            const T *k = c.at(c.a.key, b, kh, j), *v = c.at(c.a.value, b, kh, j);
            const T raw = c.raw(q, k), p = math::exp(c.score(raw, b, h, i, j) - log_sum);
            T dp = 0;
            for (std::int64_t d = 0; d < c.value_width; ++d) dp += incoming[d] * v[d];
            T ds = p * (dp - delta);
            if (g.bias.data)
              g.bias.as<T>()[b * g.bias.strides[0] + h * g.bias.strides[1] + i * g.bias.strides[2] +
                             j * g.bias.strides[3]] = ds;
            if (c.s.soft_cap > 0) {
              const T t = math::tanh(raw / static_cast<T>(c.s.soft_cap));
              ds *= 1 - t * t;
            }
            ds *= static_cast<T>(c.s.scale);
            T *dq = g.query.data ? c.at(g.query, b, h, i) : nullptr,
              *dk = g.key.data ? c.at(g.key, b, kh, j) : nullptr;
            T* dv = g.value.data ? c.at(g.value, b, kh, j) : nullptr;
            for (std::int64_t d = 0; d < c.width; ++d) {
              if (dq) dq[d] += ds * k[d];
              if (dk) dk[d] += ds * q[d];
            }
            for (std::int64_t d = 0; d < c.value_width && dv; ++d) dv[d] += p * incoming[d];
          }
        }
      }
    }
  }
}

}  // namespace

void CpuBackend::attention(const AttentionSettings& settings, const AttentionArrays& arrays) {
  dispatch_computing("attention", arrays.query.dtype, [&](auto tag) {
    forward(Call<typename decltype(tag)::type>{settings, arrays});
  });
}

void CpuBackend::attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                                    const AttentionGradients& gradients) {
  dispatch_computing("attention", arrays.query.dtype, [&](auto tag) {
    backward(Call<typename decltype(tag)::type>{settings, arrays}, gradients, *this);
  });
}

}  // namespace needle
