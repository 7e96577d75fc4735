// Random numbers: a pure function of seed and position, the same as on the CPU.
#include "backends/convert.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

/// body(index, word number in its block, block) for `count` numbers of a stream; a thread takes whole blocks
/// of four. A stream that is replayed is `moved` on.
template <class Body>
__global__ void __launch_bounds__(256)
    random_kernel(PhiloxStream stream, const std::uint64_t* moved, std::int64_t count, Body body) {
  stream.position += *moved;
  const std::uint64_t first = stream.position / 4;
  const std::int64_t blocks =
      static_cast<std::int64_t>((stream.position + static_cast<std::uint64_t>(count) + 3) / 4 - first);
  for (std::int64_t i = cuda::grid_index(); i < blocks; i += cuda::grid_stride()) {
    const PhiloxBlock bits = philox(stream.seed, first + static_cast<std::uint64_t>(i));
    for (int word = 0; word < 4; ++word) {
      const std::int64_t index = 4 * i + word - static_cast<std::int64_t>(stream.position % 4);
      if (index >= 0 && index < count) body(index, word, bits);
    }
  }
}

struct BernoulliBody {
  MergedAxes<1> axes;
  float chance;
  bool* y;
  __device__ void operator()(std::int64_t i, int word, const PhiloxBlock& bits) const {
    y[cuda::offsets_of(axes, i)[0]] = uniform_from_bits(bits.words[word]) < chance;
  }
};

struct UniformBody {
  MergedAxes<1> axes;
  float low, high;
  cuda::Stored y;
  __device__ void operator()(std::int64_t i, int word, const PhiloxBlock& bits) const {
    cuda::store(y, cuda::offsets_of(axes, i)[0], uniform_between(bits.words[word], low, high));
  }
};

struct NormalBody {
  MergedAxes<1> axes;
  float mean, deviation;
  cuda::Stored y;
  __device__ void operator()(std::int64_t i, int word, const PhiloxBlock& bits) const {
    const int pair = word & ~1;
    const float normal = normal_from_bits(bits.words[pair], bits.words[pair + 1], word != pair);
    cuda::store(y, cuda::offsets_of(axes, i)[0], mean + deviation * normal);
  }
};

struct DropoutBody {
  MergedAxes<2> axes;  // of x and y
  float drop, scale;
  cuda::Stored x, residual, y;
  __device__ void operator()(std::int64_t i, int word, const PhiloxBlock& bits) const {
    const auto at = cuda::offsets_of(axes, i);
    const bool keeps = uniform_from_bits(bits.words[word]) >= drop;
    float value = keeps ? cuda::load<float>(x, at[0]) * scale : 0.0f;
    if (residual.data) value += cuda::load<float>(residual, i);
    cuda::store(y, at[1], value);
  }
};

}  // namespace

template <class Body>
void CudaBackend::run_random(PhiloxStream stream, std::int64_t count, const Body& body) {
  run_elements(random_kernel<Body>, count == 0 ? 0 : count / 4 + 2, stream, moved_.get(), count, body);
}

void CudaBackend::random(const Distribution& distribution, PhiloxStream stream, const View& y) {
  const MergedAxes<1> axes({y});
  const float a = static_cast<float>(distribution.a), b = static_cast<float>(distribution.b);
  if (distribution.kind == Distribution::Kind::bernoulli) {
    require(y.dtype == DType::boolean, "random: wants bool, got ", name_of(y.dtype));
    return run_random(stream, y.count(), BernoulliBody{axes, a, y.as<bool>()});
  }
  require(is_floating(y.dtype), "random: wants a floating type, got ", name_of(y.dtype));
  cuda::require_no_float64("random", y.dtype);
  if (distribution.kind == Distribution::Kind::normal)
    run_random(stream, y.count(), NormalBody{axes, a, b, y});
  else
    run_random(stream, y.count(), UniformBody{axes, a, b, y});
}

void CudaBackend::dropout(double p, PhiloxStream stream, const View& x, const View& residual, const View& y) {
  require(is_floating(y.dtype), "dropout: wants a floating type, got ", name_of(y.dtype));
  cuda::require_no_float64("dropout", y.dtype);
  const float scale = static_cast<float>(p < 1 ? 1 / (1 - p) : 0);
  run_random(stream, y.count(),
             DropoutBody{MergedAxes<2>({x, y}), static_cast<float>(p), scale, x, residual, y});
}

}  // namespace needle
