// What the 32 lanes of a warp compute together: ldmatrix and mma.  The operands lie on the lanes' stacks.
#include "backends/cuda/mma.h"
#include "cuda_emu/internal.h"

namespace needle::cuda::emu {
namespace {

unsigned short half_word(const uint4& row, unsigned column) {
  unsigned short v;
  std::memcpy(&v, reinterpret_cast<const char*>(&row) + 2 * column, 2);
  return v;
}
/// The low and the high half of a word.
template <class T>
float low(unsigned x) {
  return static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(x)));
}
template <class T>
float high(unsigned x) {
  return low<T>(x >> 16);
}

template <bool Transposed>
void load(const std::uint64_t* operands) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    auto* mine = reinterpret_cast<LoadMatrixOperands*>(operands[lane]);
    const unsigned r = lane / 4, c = 2 * (lane % 4);
    for (unsigned tile = 0; tile < 4; ++tile) {
      auto at = [&](unsigned row, unsigned column) -> unsigned {
        return half_word(reinterpret_cast<const LoadMatrixOperands*>(operands[8 * tile + row])->row, column);
      };
      mine->x[tile] = Transposed ? at(c, r) | at(c + 1, r) << 16 : at(r, c) | at(r, c + 1) << 16;
    }
  }
}

template <class T>
void multiply(const std::uint64_t* operands) {
  float a[16][16], b[8][16];  // b by columns
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto* o = reinterpret_cast<const MmaOperands*>(operands[lane]);
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = g + 8 * (i % 2), column = t + 8 * (i / 2);
      a[row][column] = low<T>(o->a->x[i]), a[row][column + 1] = high<T>(o->a->x[i]);
    }
    for (unsigned i = 0; i < 2; ++i)
      b[g][t + 8 * i] = low<T>(o->b->x[i]), b[g][t + 8 * i + 1] = high<T>(o->b->x[i]);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    float* const c = reinterpret_cast<const MmaOperands*>(operands[lane])->c->x;
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      float sum = 0;
      for (unsigned k = 0; k < 16; ++k) sum += a[g + 8 * (i / 2)][k] * b[t + i % 2][k];
      c[i] += sum;
    }
  }
}

}  // namespace

void load_matrix_together(const std::uint64_t* operands) { load<false>(operands); }
void load_matrix_transposed_together(const std::uint64_t* operands) { load<true>(operands); }

void mma_bf16_together(const std::uint64_t* operands) { multiply<BFloat16>(operands); }
void mma_f16_together(const std::uint64_t* operands) { multiply<Float16>(operands); }

}  // namespace needle::cuda::emu
