// NDArray: a strided array as a value. Views share storage and never copy; this is the only place that
// compacts.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/device.h"
#include "backends/view.h"
#include "needle/random.h"

namespace needle {

/// A block of device memory; counts the writes made after its arrays were first filled.
class Storage {
 public:
  Storage(std::size_t bytes, Device device)
      : device_(device), bytes_(bytes), data_(device->allocate(bytes)) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() { device_->release(data_, bytes_); }

  Device device() const { return device_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t writes() const { return writes_; }
  void count_write() { ++writes_; }

 private:
  friend class NDArray;
  Device device_;
  std::size_t bytes_;
  void* data_;
  std::uint64_t writes_ = 0;
  // Of NDArray::rounded(): the copy, its type, and the writes before it was made. Passes without gradients
  // may share weights between threads.
  std::mutex mutex_;
  std::shared_ptr<Storage> rounded_;
  DType rounded_dtype_ = DType::f32;
  std::uint64_t rounded_writes_ = 0;
};

/// Axes of a reduction; empty means all of them.
using Axes = std::vector<int>;

/// A strided array of up to eight axes on a device. Copies are cheap and share the elements; whoever writes
/// does so through mutable_view(), which is counted.
class NDArray {
 public:
  /// No array at all; defined() is false.
  NDArray() = default;

  // Creation. Elements of `empty` are not set.
  static NDArray empty(const Shape& shape, DType dtype = DType::f32, Device device = cpu());
  static NDArray full(const Shape& shape, double value, DType dtype = DType::f32, Device device = cpu());
  static NDArray zeros(const Shape& shape, DType dtype = DType::f32, Device device = cpu());
  static NDArray ones(const Shape& shape, DType dtype = DType::f32, Device device = cpu());
  /// start, start + step, ...: `count` of them, [count].
  static NDArray arange(std::int64_t count, DType dtype = DType::f32, Device device = cpu(), double start = 0,
                        double step = 1);
  /// Independent numbers of `distribution`, drawn from `random`.
  static NDArray random(const Distribution& distribution, const Shape& shape, Generator& random,
                        DType dtype = DType::f32, Device device = cpu());
  /// The given numbers in row-major order. Throws when their count is not the shape's.
  template <class T>
  static NDArray from(std::span<const T> values, const Shape& shape, Device device = cpu());
  template <class T>
  static NDArray from(const std::vector<T>& values, const Shape& shape, Device device = cpu()) {
    return from(std::span<const T>(values), shape, device);
  }
  /// A 0-dimensional array.
  static NDArray scalar(double value, DType dtype = DType::f32, Device device = cpu()) {
    return full({}, value, dtype, device);
  }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  int rank() const { return shape_.rank(); }
  std::int64_t count() const { return shape_.count(); }
  /// The size of `axis`; -1 is the last.
  std::int64_t size(int axis) const { return shape_.at(axis); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }

  // Views: no element is copied (reshape copies when no strides can express the result).
  NDArray reshape(Shape shape) const;  ///< one size may be -1: whatever is left
  NDArray permute(const std::vector<int>& axes) const;
  NDArray transpose(int axis_a = -2, int axis_b = -1) const;
  NDArray broadcast_to(const Shape& shape) const;
  /// Indices start, start + step, ... before stop along `axis`; negative indices count from the end, as in
  /// Python.
  NDArray slice(int axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1) const;
  NDArray flip(const Axes& axes) const;
  NDArray unsqueeze(int axis) const;
  NDArray squeeze(int axis) const;
  /// Element `index` of the first axis, which disappears; negative counts from the end.
  NDArray operator[](std::int64_t index) const;

  /// Itself if row-major without gaps, else a copy that is.
  NDArray compact() const;
  /// A compact copy in storage of its own.
  NDArray copy() const;
  /// The same numbers in another type or on another device (itself when nothing changes).
  NDArray cast(DType dtype) const;
  /// cast(), kept beside the elements until these are written again: so a weight is converted once a step.
  NDArray rounded(DType dtype) const;
  /// The copy that rounded() keeps now, or none.
  NDArray kept_rounded() const;
  NDArray to(Device device) const;
  bool is_compact() const { return needle::is_compact(view()); }
  /// Whether nobody else holds the storage and every element stands alone in it.
  bool is_exclusive() const;
  /// Whether `other` is the same view of the same storage.
  bool is_same(const NDArray& other) const {
    return storage_ == other.storage_ && offset_ == other.offset_ && shape_ == other.shape_ &&
           strides_ == other.strides_ && dtype_ == other.dtype_;
  }
  /// Whether both are views of one storage.
  bool shares_elements_with(const NDArray& other) const { return storage_ == other.storage_; }
  std::uint64_t writes() const { return storage_ ? storage_->writes() : 0; }
  /// The memory that it is a view of, without holding it.
  std::weak_ptr<const Storage> storage() const { return storage_; }

  /// What kernels read; also how a fresh array is first filled.
  View view() const;
  /// The same, or a view without data when there is no array: how kernels take what is optional.
  View optional_view() const { return defined() ? view() : View{}; }
  /// What kernels overwrite later on: the write is counted, so that autograd can notice it.
  View mutable_view();
  /// The same with the copy that rounded() keeps of them, for a kernel that overwrites both alike; the second
  /// has no data where there is no copy.
  std::pair<View, View> mutable_views();
  /// Overwrites the elements with those of `x` (broadcast, converted).
  void assign(const NDArray& x);

  /// The only element, as double. Throws if there are more or none.
  double item() const;
  /// The element at `index`.
  double item(std::initializer_list<std::int64_t> index) const;
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;

 private:
  NDArray with(const Shape& shape, const Strides& strides, std::int64_t offset) const;

  std::shared_ptr<Storage> storage_;
  std::int64_t offset_ = 0;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::f32;
};

/// Shape, type and numbers as nested brackets; long axes are shortened to their ends.
std::ostream& operator<<(std::ostream& out, const NDArray& array);

// Kernels on whole arrays. Each allocates its result. Shapes of `binary` and `select` must broadcast.
NDArray unary(const UnaryOp& op, const NDArray& x);
NDArray binary(const BinaryOp& op, const NDArray& a, const NDArray& b);
/// condition (bool) ? a : b.
NDArray select(const NDArray& condition, const NDArray& a, const NDArray& b);
/// Over `axes` (none given: all); `keep` leaves them with size 1.
NDArray reduce(const ReduceOp& op, const NDArray& x, const Axes& axes = {}, bool keep = false);
/// The shape that a reduction gives.
Shape reduced_shape(const char* op, const Shape& shape, const Axes& axes, bool keep);
/// x summed over the axes along which `shape` was broadcast to x's shape.
NDArray sum_to(const NDArray& x, const Shape& shape);
/// [..., n, k] x [..., k, m] with broadcast batch axes; a vector on either side loses its axis again.
NDArray matmul(const NDArray& a, const NDArray& b);
/// into += a b, or into = a b when not `accumulate`; `into` has the exact shape of the product.
void matmul_into(const NDArray& a, const NDArray& b, NDArray& into, bool accumulate);
/// The shape of the product. Throws when inner sizes differ.
Shape matmul_shape(const Shape& a, const Shape& b);
/// into += x, in place.
void add_into(const NDArray& x, NDArray& into);

/// Values must be on one device; throws an Error that names `op`.
void require_same_device(const char* op, const NDArray& a, const NDArray& b);
/// Values must be of one dtype; throws an Error that names `op` and both.
void require_same_dtype(const char* op, const NDArray& a, const NDArray& b);

}  // namespace needle
