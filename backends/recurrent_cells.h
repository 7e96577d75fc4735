// The cells of recurrent layers, written once for host and device: what one unit computes in one step, and
// its gradient.
#pragma once

#include "backends/math.h"

namespace needle {

/// Elman's network with tanh or ReLU, the gated recurrent unit (Cho et al. 2014, section 2.3; its reset gate
/// acts on the finished product h U + c), long short-term memory (Hochreiter and Schmidhuber 1997; with the
/// forget gate of Gers et al. 2000).
enum class RecurrentCell { tanh, relu, gru, lstm };

/// What a step of one unit starts from: the sums x W + b (`input`) and h U + c (`hidden`) of each gate, its
/// state and, for an LSTM, its cell.
template <class T, int kGates>
struct CellInput {
  T input[kGates], hidden[kGates];
  T state, cell;
};

/// The gradients of a CellInput.
template <class T, int kGates>
struct CellGradient {
  T input[kGates], hidden[kGates];
  T state, cell;
};

// A cell has kGates gates and keeps kKept numbers a unit and step for its gradient, the cell last. forward()
// gives the next state; gradient() takes the gradients of the next state and cell.

template <bool kRectified>
struct ElmanCell {
  static constexpr int kGates = 1, kKept = 0;
  template <class T>
  HOST_DEVICE static T forward(const CellInput<T, 1>& x, T*) {
    const T sum = x.input[0] + x.hidden[0];
    return kRectified ? (sum > T(0) ? sum : T(0)) : math::tanh(sum);
  }
  template <class T>
  HOST_DEVICE static CellGradient<T, 1> gradient(T next_state, T, T, const T*, T dnext, T) {
    const T slope = kRectified ? T(next_state > T(0)) : T(1) - next_state * next_state;
    return {{dnext * slope}, {dnext * slope}, T(0), T(0)};
  }
};

/// Gates: reset r, update z, new n = tanh(x W + b + r (h U + c)); h' = (1 - z) n + z h.
struct GruCell {
  static constexpr int kGates = 3, kKept = 4;  // r, z, n, h U + c of n
  template <class T>
  HOST_DEVICE static T forward(const CellInput<T, 3>& x, T* kept) {
    const T r = math::sigmoid(x.input[0] + x.hidden[0]), z = math::sigmoid(x.input[1] + x.hidden[1]);
    const T n = math::tanh(x.input[2] + r * x.hidden[2]);
    kept[0] = r;
    kept[1] = z;
    kept[2] = n;
    kept[3] = x.hidden[2];
    return (T(1) - z) * n + z * x.state;
  }
  template <class T>
  HOST_DEVICE static CellGradient<T, 3> gradient(T, T state, T, const T* kept, T dnext, T) {
    const T r = kept[0], z = kept[1], n = kept[2];
    const T dn = dnext * (T(1) - z) * (T(1) - n * n), dz = dnext * (state - n) * z * (T(1) - z),
            dr = dn * kept[3] * r * (T(1) - r);
    return {{dr, dz, dn}, {dr, dz, dn * r}, dnext * z, T(0)};
  }
};

/// Gates: input i, forget f, candidate g, output o; c' = f c + i g, h' = o tanh(c').
struct LstmCell {
  static constexpr int kGates = 4, kKept = 5;  // i, f, g, o, c'
  template <class T>
  HOST_DEVICE static T forward(const CellInput<T, 4>& x, T* kept) {
    const T i = math::sigmoid(x.input[0] + x.hidden[0]), f = math::sigmoid(x.input[1] + x.hidden[1]);
    const T g = math::tanh(x.input[2] + x.hidden[2]), o = math::sigmoid(x.input[3] + x.hidden[3]);
    const T cell = f * x.cell + i * g;
    kept[0] = i;
    kept[1] = f;
    kept[2] = g;
    kept[3] = o;
    kept[4] = cell;
    return o * math::tanh(cell);
  }
  template <class T>
  HOST_DEVICE static CellGradient<T, 4> gradient(T, T, T cell, const T* kept, T dnext, T dcell) {
    const T i = kept[0], f = kept[1], g = kept[2], o = kept[3], t = math::tanh(kept[4]);
    const T dc = dcell + dnext * o * (T(1) - t * t);
    const T di = dc * g * i * (T(1) - i), df = dc * cell * f * (T(1) - f), dg = dc * i * (T(1) - g * g),
            d_o = dnext * t * o * (T(1) - o);
    return {{di, df, dg, d_o}, {di, df, dg, d_o}, T(0), dc * f};
  }
};

/// function(Cell{}) for a cell's type.
template <class Function>
auto dispatch_cell(RecurrentCell cell, const Function& function) {
  switch (cell) {
    case RecurrentCell::tanh:
      return function(ElmanCell<false>{});
    case RecurrentCell::relu:
      return function(ElmanCell<true>{});
    case RecurrentCell::gru:
      return function(GruCell{});
    case RecurrentCell::lstm:
      break;
  }
  return function(LstmCell{});
}

/// Gates of a cell, and numbers that it keeps, a unit.
inline int gates_of(RecurrentCell cell) {
  return dispatch_cell(cell, [](auto kind) { return decltype(kind)::kGates; });
}
inline int kept_of(RecurrentCell cell) {
  return dispatch_cell(cell, [](auto kind) { return decltype(kind)::kKept; });
}

}  // namespace needle
