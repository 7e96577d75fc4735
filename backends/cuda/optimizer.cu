// What a training step does with its gradients, for all parameters in few launches: a launch takes the places
// of up to kArrays arrays as its argument, and a block a piece of one of them.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"
#include "backends/optimizer_steps.h"

namespace needle {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kPiece = 4096;  // elements of a block
constexpr int kArrays = 48;            // whose places fit a kernel's arguments of 4 KiB

struct Place {
  float *parameter, *first, *second;
  const float* gradient;
  void* rounded;
  DType rounded_dtype;
  std::int64_t count;
  double weight_decay;
  int blocks_before;  // of this launch
};

/// The arrays of a launch.
struct Places {
  Place of[kArrays];
  int count = 0, blocks = 0;

  void add(Place place) {
    place.blocks_before = blocks;
    blocks += static_cast<int>((place.count + kPiece - 1) / kPiece);
    of[count++] = place;
  }
  /// The number of the array that this block works on.
  __device__ int mine() const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (of[middle].blocks_before <= static_cast<int>(blockIdx.x))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

static_assert(sizeof(Places) + sizeof(AdamSettings) + sizeof(void*) <= 4096);

/// The elements of the block's piece.
struct Range {
  std::int64_t first, last;
  __device__ explicit Range(const Place& place)
      : first((static_cast<int>(blockIdx.x) - place.blocks_before) * kPiece),
        last(min(first + kPiece, place.count)) {}
};

/// The sum of squares of a block's piece.
struct PieceSum {
  double sum;
  int array;
};

__global__ void __launch_bounds__(kThreads)
    sum_of_squares_kernel(Places places, int arrays_before, PieceSum* sums) {
  NEEDLE_SHARED(double, scratch, [32]);
  const int mine = places.mine();
  const Place& place = places.of[mine];
  const Range range(place);
  double sum = 0;
  for (std::int64_t i = range.first + threadIdx.x; i < range.last; i += kThreads) {
    const double element = static_cast<double>(place.gradient[i]);
    sum += element * element;
  }
  sum = cuda::block_reduce(sum, scratch, Sum{});
  if (threadIdx.x == 0) {
    sums[blockIdx.x].sum = sum;
    sums[blockIdx.x].array = arrays_before + mine;
  }
}

__global__ void __launch_bounds__(kThreads)
    finish_clipping_kernel(ClippingSettings settings, const PieceSum* sums, int pieces, StepState* state) {
  NEEDLE_SHARED(double, scratch, [32]);
  NEEDLE_SHARED(int, first_scratch, [32]);
  constexpr int kNone = 0x7fffffff;
  double total = 0;
  int first_bad = kNone;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    total += sums[i].sum;
    if (!std::isfinite(sums[i].sum)) first_bad = min(first_bad, sums[i].array);
  }
  total = cuda::block_reduce(total, scratch, Sum{});
  first_bad = cuda::block_reduce(first_bad, first_scratch, Min{});
  if (threadIdx.x != 0) return;
  state->first_bad = first_bad == kNone ? -1.0 : static_cast<double>(first_bad);
  finish_clipping(settings, total, *state);
}

__global__ void __launch_bounds__(32) begin_adam_kernel(AdamSettings settings, StepState* state) {
  if (threadIdx.x == 0) begin_adam(settings, *state);
}

__global__ void __launch_bounds__(32) begin_sgd_kernel(StepState* state) {
  if (threadIdx.x == 0 && state->first_bad < 0) state->steps += 1;
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamSettings settings, Places places, const StepState* state) {
  if (state->first_bad >= 0) return;
  const Place& place = places.of[places.mine()];
  const AdamNumbers<float> numbers(settings, *state);
  const DecayNumbers<float> decay(settings, *state, place.weight_decay);
  const Range range(place);
  for (std::int64_t i = range.first + threadIdx.x; i < range.last; i += kThreads) {
    float w = place.parameter[i], m = place.first[i], v = place.second[i];
    numbers.step(decay, place.gradient[i], w, m, v);
    place.parameter[i] = w;
    place.first[i] = m;
    place.second[i] = v;
    if (place.rounded) cuda::store(cuda::Stored(place.rounded, place.rounded_dtype), i, w);
  }
}

__global__ void __launch_bounds__(kThreads)
    sgd_kernel(SgdSettings settings, Places places, const StepState* state) {
  if (state->first_bad >= 0) return;
  const Place& place = places.of[places.mine()];
  const SgdNumbers<float> numbers(settings, *state);
  const float decay = static_cast<float>(place.weight_decay);
  const Range range(place);
  for (std::int64_t i = range.first + threadIdx.x; i < range.last; i += kThreads) {
    float w = place.parameter[i];
    if (place.first) {
      float u = place.first[i];
      numbers.step(decay, place.gradient[i], w, u);
      place.first[i] = u;
    } else {
      numbers.step(decay, place.gradient[i], w);
    }
    place.parameter[i] = w;
    if (place.rounded) cuda::store(cuda::Stored(place.rounded, place.rounded_dtype), i, w);
  }
}

/// body(places, number of the first array) for the arrays of `all` in groups of a launch; place_of(x) says
/// where an array lies.
template <class Arrays, class PlaceOf, class Body>
void for_each_launch(const Arrays& all, const PlaceOf& place_of, const Body& body) {
  for (std::size_t first = 0; first < all.size();) {
    Places places;
    const std::size_t begin = first;
    for (; first < all.size() && places.count < kArrays; ++first) places.add(place_of(all[first]));
    body(places, static_cast<int>(begin));
  }
}

Place place_of(const ParameterArrays& x) {
  cuda::require_float32("optimizer", x.parameter.dtype);
  return {x.parameter.as<float>(), x.first.as<float>(), x.second.as<float>(),
          x.gradient.as<float>(),  x.rounded.data,      x.rounded.dtype,
          x.parameter.count(),     x.weight_decay,      0};
}

cuda::LaunchConfig blocks_for(const Places& places) {
  return {dim3(static_cast<unsigned>(places.blocks)), dim3(kThreads)};
}

}  // namespace

void CudaBackend::clip(const ClippingSettings& settings, std::span<const View> gradients, const View& state) {
  int pieces = 0;
  for (const View& x : gradients) {
    cuda::require_float32("clip", x.dtype);
    pieces += static_cast<int>((x.count() + kPiece - 1) / kPiece);
  }
  const auto sums = scratch<PieceSum>(pieces);
  PieceSum* next = sums.data();
  for_each_launch(
      gradients,
      [](const View& x) {
        return Place{nullptr, nullptr, nullptr, x.as<float>(), nullptr, DType::f32, x.count(), 0, 0};
      },
      [&](const Places& places, int before) {
        run(sum_of_squares_kernel, blocks_for(places), places, before, next);
        next += places.blocks;
      });
  run(finish_clipping_kernel, {dim3(1), dim3(kThreads)}, settings, sums.data(), pieces,
      state.as<StepState>());
}

void CudaBackend::adam(const AdamSettings& settings, std::span<const ParameterArrays> parameters,
                       const View& state) {
  run(begin_adam_kernel, {dim3(1), dim3(32)}, settings, state.as<StepState>());
  for_each_launch(parameters, place_of, [&](const Places& places, int) {
    run(adam_kernel, blocks_for(places), settings, places, state.as<StepState>());
  });
}

void CudaBackend::sgd(const SgdSettings& settings, std::span<const ParameterArrays> parameters,
                      const View& state) {
  run(begin_sgd_kernel, {dim3(1), dim3(32)}, state.as<StepState>());
  for_each_launch(parameters, place_of, [&](const Places& places, int) {
    run(sgd_kernel, blocks_for(places), settings, places, state.as<StepState>());
  });
}

}  // namespace needle
