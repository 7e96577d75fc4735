// Shapes and strides: up to eight sizes held inline, and the arithmetic on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "backends/error.h"
#include "backends/host_device.h"

namespace needle {

inline constexpr int kMaxRank = 8;

/// A short list of 64-bit numbers, at most kMaxRank of them: sizes or strides (in elements), outermost first.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
    require(sizes.size() <= kMaxRank, "shape: at most ", kMaxRank, " sizes are possible, got ", sizes.size());
    std::copy(sizes.begin(), sizes.end(), sizes_);
  }
  explicit Shape(const std::vector<std::int64_t>& sizes) : Shape(std::span<const std::int64_t>(sizes)) {}
  /// `rank` times the same number.
  static Shape filled(int rank, std::int64_t value) {
    return Shape(std::vector(static_cast<std::size_t>(rank), value));
  }

  HOST_DEVICE int rank() const { return rank_; }
  HOST_DEVICE std::int64_t operator[](int axis) const { return sizes_[axis]; }
  HOST_DEVICE std::int64_t& operator[](int axis) { return sizes_[axis]; }
  /// The size of `axis`, which may count from the end (-1 is the last).
  std::int64_t at(int axis) const {
    require(axis >= -rank_ && axis < rank_, "shape: axis ", axis, " is out of range for ", rank_, " axes");
    return sizes_[axis < 0 ? axis + rank_ : axis];
  }
  const std::int64_t* begin() const { return sizes_; }
  const std::int64_t* end() const { return sizes_ + rank_; }

  /// Product of all sizes: 1 for no sizes at all.
  HOST_DEVICE std::int64_t count() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= sizes_[axis];
    return product;
  }
  void push_back(std::int64_t size) {
    require(rank_ < kMaxRank, "shape: at most ", kMaxRank, " sizes are possible");
    sizes_[rank_++] = size;
  }
  void insert(int axis, std::int64_t size) {
    push_back(size);
    std::rotate(sizes_ + axis, sizes_ + rank_ - 1, sizes_ + rank_);
  }
  void erase(int axis) {
    std::copy(sizes_ + axis + 1, sizes_ + rank_, sizes_ + axis);
    --rank_;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int axis = 0; axis < shape.rank_; ++axis) out << (axis ? ", " : "") << shape.sizes_[axis];
    return out << ']';
  }

 private:
  std::int64_t sizes_[kMaxRank] = {};
  int rank_ = 0;
};

using Strides = Shape;

/// Strides of a row-major array without gaps.
inline Strides compact_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

/// The axis counted from 0; `axis` may be negative. A 0-dimensional shape accepts 0 and -1. Throws when out
/// of range.
inline int normalized_axis(const char* op, int axis, int rank) {
  const int limit = std::max(rank, 1);
  require(axis >= -limit && axis < limit, op, ": axis ", axis, " is out of range for ", rank, " axes");
  return axis < 0 ? axis + limit : axis;
}

/// The shape that both broadcast to (aligned at the last axis, size 1 stretches). Throws, naming `op` and
/// both.
inline Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  Shape result = Shape::filled(std::max(a.rank(), b.rank()), 1);
  for (int back = 1; back <= result.rank(); ++back) {
    const std::int64_t size_a = back <= a.rank() ? a[a.rank() - back] : 1;
    const std::int64_t size_b = back <= b.rank() ? b[b.rank() - back] : 1;
    require(size_a == size_b || size_a == 1 || size_b == 1, op, ": shapes do not broadcast: ", a, " and ", b);
    result[result.rank() - back] = size_a == 1 ? size_b : size_a;
  }
  return result;
}

}  // namespace needle
