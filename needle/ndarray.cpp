#include "needle/ndarray.h"

#include <algorithm>
#include <numeric>

namespace needle {

// --- creation ------------------------------------------------------------------------------------------

NDArray NDArray::empty(const Shape& shape, DType dtype, Device device) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    require(size >= 0 && !__builtin_mul_overflow(count, size, &count) && count < (std::int64_t{1} << 60),
            "array: the shape ", shape, " is not possible");
  }
  NDArray result;
  result.storage_ = std::make_shared<Storage>(static_cast<std::size_t>(count) * size_of(dtype), device);
  result.shape_ = shape;
  result.strides_ = compact_strides(shape);
  result.dtype_ = dtype;
  return result;
}

NDArray NDArray::full(const Shape& shape, double value, DType dtype, Device device) {
  const NDArray result = empty(shape, dtype, device);
  device->fill(value, result.view());
  return result;
}

NDArray NDArray::zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}
NDArray NDArray::ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1, dtype, device);
}

NDArray NDArray::arange(std::int64_t count, DType dtype, Device device, double start, double step) {
  const NDArray result = empty({count}, dtype, device);
  device->arange(start, step, result.view());
  return result;
}

NDArray NDArray::random(const Distribution& distribution, const Shape& shape, Generator& random, DType dtype,
                        Device device) {
  const bool chance = distribution.kind == Distribution::Kind::bernoulli;
  const NDArray result = empty(shape, chance ? DType::boolean : dtype, device);
  device->random(distribution, random.reserve(static_cast<std::uint64_t>(result.count())), result.view());
  return result;
}

template <class T>
NDArray NDArray::from(std::span<const T> values, const Shape& shape, Device device) {
  require(static_cast<std::int64_t>(values.size()) == shape.count(), "array: ", values.size(),
          " values do not fill the shape ", shape);
  constexpr DType dtype = std::is_same_v<T, std::uint8_t>
                              ? DType::boolean
                              : dtype_of<std::conditional_t<std::is_same_v<T, std::uint8_t>, bool, T>>();
  const NDArray result = empty(shape, dtype, device);
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    std::vector<std::uint8_t> flags(values.begin(), values.end());
    for (std::uint8_t& flag : flags) flag = flag != 0;
    device->copy_from_host(flags.data(), result.view().data, flags.size());
  } else {
    device->copy_from_host(values.data(), result.view().data, values.size_bytes());
  }
  return result;
}
template NDArray NDArray::from(std::span<const float>, const Shape&, Device);
template NDArray NDArray::from(std::span<const double>, const Shape&, Device);
template NDArray NDArray::from(std::span<const std::int32_t>, const Shape&, Device);
template NDArray NDArray::from(std::span<const std::int64_t>, const Shape&, Device);
template NDArray NDArray::from(std::span<const std::int8_t>, const Shape&, Device);
template NDArray NDArray::from(std::span<const std::uint8_t>, const Shape&, Device);
template NDArray NDArray::from(std::span<const BFloat16>, const Shape&, Device);
template NDArray NDArray::from(std::span<const Float16>, const Shape&, Device);

// --- views ---------------------------------------------------------------------------------------------

NDArray NDArray::with(const Shape& shape, const Strides& strides, std::int64_t offset) const {
  NDArray result = *this;
  result.shape_ = shape;
  result.strides_ = strides;
  result.offset_ = offset;
  return result;
}

namespace {

/// Strides under which the elements of (shape, strides) appear in `wanted` shape, if there are any.
std::optional<Strides> reshaped_strides(const Shape& shape, const Strides& strides, const Shape& wanted) {
  Strides result = compact_strides(wanted);
  if (shape.count() == 0) return result;
  int from = shape.rank() - 1, to = wanted.rank() - 1;
  while (from >= 0 || to >= 0) {
    // A run of old axes that lie behind one another without gaps must hold a run of new ones exactly.
    while (from >= 0 && shape[from] == 1) --from;
    if (from < 0) break;
    std::int64_t run = shape[from], stride = strides[from];
    const std::int64_t inner = stride;
    while (from > 0 && (shape[from - 1] == 1 || strides[from - 1] == stride * shape[from])) {
      --from;
      if (shape[from] == 1) {
        std::int64_t next = from - 1;
        while (next >= 0 && shape[static_cast<int>(next)] == 1) --next;
        if (next < 0 || strides[static_cast<int>(next)] != run * inner) break;
        from = static_cast<int>(next);
      }
      run *= shape[from];
      stride = strides[from];
    }
    --from;
    std::int64_t filled = 1;
    while (to >= 0 && filled < run) {
      result[to] = inner * filled;
      filled *= wanted[to--];
    }
    if (filled != run) return std::nullopt;
  }
  return result;
}

}  // namespace

NDArray NDArray::reshape(Shape shape) const {
  int open = -1;
  std::int64_t known = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != -1) {
      require(shape[axis] >= 0 && !__builtin_mul_overflow(known, shape[axis], &known), "reshape: the shape ",
              shape, " is not possible");
      continue;
    }
    require(open < 0, "reshape: only one size may be -1, got ", shape);
    open = axis;
  }
  if (open >= 0) {
    require(known > 0 && count() % known == 0, "reshape: ", shape_, " does not fit ", shape);
    shape[open] = count() / known;
  }
  require(shape.count() == count() &&
              std::none_of(shape.begin(), shape.end(), [](auto size) { return size < 0; }),
          "reshape: ", shape_, " has ", count(), " elements, ", shape, " wants ", shape.count());
  if (const auto strides = reshaped_strides(shape_, strides_, shape)) return with(shape, *strides, offset_);
  return compact().reshape(shape);
}

NDArray NDArray::permute(const std::vector<int>& axes) const {
  require(static_cast<int>(axes.size()) == rank(), "permute: ", axes.size(), " axes given for the shape ",
          shape_);
  Shape shape = shape_;
  Strides strides = strides_;
  std::vector<bool> used(axes.size());
  for (int to = 0; to < rank(); ++to) {
    const int from = normalized_axis("permute", axes[static_cast<std::size_t>(to)], rank());
    require(!used[static_cast<std::size_t>(from)], "permute: axis ", from, " is given twice");
    used[static_cast<std::size_t>(from)] = true;
    shape[to] = shape_[from];
    strides[to] = strides_[from];
  }
  return with(shape, strides, offset_);
}

NDArray NDArray::transpose(int axis_a, int axis_b) const {
  const int a = normalized_axis("transpose", axis_a, rank()),
            b = normalized_axis("transpose", axis_b, rank());
  NDArray result = *this;
  if (rank() == 0) return result;
  std::swap(result.shape_[a], result.shape_[b]);
  std::swap(result.strides_[a], result.strides_[b]);
  return result;
}

NDArray NDArray::broadcast_to(const Shape& shape) const {
  const int extra = shape.rank() - rank();
  require(extra >= 0, "broadcast_to: ", shape_, " has more axes than ", shape);
  Strides strides = Shape::filled(shape.rank(), 0);
  for (int axis = 0; axis < rank(); ++axis) {
    require(shape_[axis] == shape[axis + extra] || shape_[axis] == 1, "broadcast_to: ", shape_,
            " does not broadcast to ", shape);
    strides[axis + extra] = shape_[axis] == shape[axis + extra] ? strides_[axis] : 0;
  }
  return with(shape, strides, offset_);
}

NDArray NDArray::slice(int axis, std::int64_t start, std::int64_t stop, std::int64_t step) const {
  require(rank() > 0, "slice: a 0-dimensional array has nothing to slice");
  axis = normalized_axis("slice", axis, rank());
  require(step != 0, "slice: the step must not be 0");
  const std::int64_t size = shape_[axis], lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto within = [&](std::int64_t index) {
    return std::clamp(index < 0 ? std::max<std::int64_t>(index + size, lowest) : index, lowest, highest);
  };
  start = within(start);
  // A stop below -size with a negative step means "to the very beginning".
  stop = step < 0 && stop < -size ? -1 : within(stop);
  const std::int64_t span = step > 0 ? stop - start : start - stop, pace = std::abs(step);
  NDArray result = *this;
  result.shape_[axis] = std::max<std::int64_t>(0, (span + pace - 1) / pace);
  if (result.shape_[axis] > 0) result.offset_ += start * strides_[axis];
  result.strides_[axis] *= step;
  return result;
}

NDArray NDArray::flip(const Axes& axes) const {
  NDArray result = *this;
  std::vector<bool> used(static_cast<std::size_t>(std::max(rank(), 1)));
  for (const int given : axes) {
    const int axis = normalized_axis("flip", given, rank());
    require(!used[static_cast<std::size_t>(axis)], "flip: axis ", axis, " is given twice");
    used[static_cast<std::size_t>(axis)] = true;
    if (rank() == 0) continue;
    if (shape_[axis] > 0) result.offset_ += (shape_[axis] - 1) * result.strides_[axis];
    result.strides_[axis] = -result.strides_[axis];
  }
  return result;
}

NDArray NDArray::unsqueeze(int axis) const {
  axis = normalized_axis("unsqueeze", axis, rank() + 1);
  NDArray result = *this;
  result.shape_.insert(axis, 1);
  result.strides_.insert(axis, 1);
  return result;
}

NDArray NDArray::squeeze(int axis) const {
  axis = normalized_axis("squeeze", axis, rank());
  require(rank() > 0 && shape_[axis] == 1, "squeeze: axis ", axis, " of ", shape_, " is not of size 1");
  NDArray result = *this;
  result.shape_.erase(axis);
  result.strides_.erase(axis);
  return result;
}

NDArray NDArray::operator[](std::int64_t index) const {
  require(rank() > 0, "index: a 0-dimensional array has no axis to index");
  const std::int64_t size = shape_[0], place = index < 0 ? index + size : index;
  require(place >= 0 && place < size, "index: ", index, " is out of range for ", shape_);
  return slice(0, place, place + 1).squeeze(0);
}

// --- copies --------------------------------------------------------------------------------------------

NDArray NDArray::copy() const {
  const NDArray result = empty(shape_, dtype_, device());
  device()->copy(view(), result.view());
  return result;
}

NDArray NDArray::compact() const { return is_compact() ? *this : copy(); }

NDArray NDArray::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  const NDArray result = empty(shape_, dtype, device());
  device()->copy(view(), result.view());
  return result;
}

NDArray NDArray::rounded(DType dtype) const {
  if (dtype == dtype_ || bytes() != storage_->bytes()) return cast(dtype);
  Storage& storage = *storage_;
  NDArray result = *this;
  result.dtype_ = dtype;
  const std::lock_guard lock(storage.mutex_);
  if (!storage.rounded_ || storage.rounded_dtype_ != dtype || storage.rounded_writes_ != storage.writes()) {
    // All elements in the order in which they lie, so that the copy serves transposes as well.
    NDArray all = *this;
    all.shape_ = {count()};
    all.strides_ = compact_strides(all.shape_);
    all.offset_ = 0;
    storage.rounded_.reset();  // so that the new copy can have the old one's place
    storage.rounded_ = all.cast(dtype).storage_;
    storage.rounded_dtype_ = dtype;
    storage.rounded_writes_ = storage.writes();
  }
  result.storage_ = storage.rounded_;
  return result;
}

NDArray NDArray::kept_rounded() const {
  const std::lock_guard lock(storage_->mutex_);
  NDArray result;
  if (!storage_->rounded_) return result;
  result = *this;
  result.storage_ = storage_->rounded_;
  result.dtype_ = storage_->rounded_dtype_;
  return result;
}

NDArray NDArray::to(Device target) const {
  if (target == device()) return *this;
  const NDArray source = compact();
  std::vector<std::byte> host(source.bytes());
  source.device()->copy_to_host(source.view().data, host.data(), host.size());
  const NDArray result = empty(shape_, dtype_, target);
  target->copy_from_host(host.data(), result.view().data, host.size());
  return result;
}

bool NDArray::is_exclusive() const {
  if (storage_.use_count() != 1) return false;
  // Every element in a place of its own: each stride must step over all that the smaller ones span.
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (int axis = 0; axis < rank(); ++axis) {
    if (shape_[axis] > 1) axes.emplace_back(std::abs(strides_[axis]), shape_[axis]);
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t span = 1;
  for (const auto& [stride, size] : axes) {
    if (stride < span) return false;
    span += stride * (size - 1);
  }
  return true;
}

View NDArray::view() const {
  return {static_cast<char*>(storage_->data()) + offset_ * static_cast<std::int64_t>(size_of(dtype_)), dtype_,
          shape_, strides_};
}

View NDArray::mutable_view() {
  storage_->count_write();
  return view();
}

std::pair<View, View> NDArray::mutable_views() {
  Storage& storage = *storage_;
  const std::lock_guard lock(storage.mutex_);
  const bool is_fresh = storage.rounded_ && storage.rounded_writes_ == storage.writes() &&
                        bytes() == storage.bytes() && is_compact();
  storage.count_write();
  if (!is_fresh) return {view(), {}};
  storage.rounded_writes_ = storage.writes();
  return {view(), {storage.rounded_->data(), storage.rounded_dtype_, shape_, strides_}};
}

void NDArray::assign(const NDArray& x) {
  require_same_device("assign", x, *this);
  // A source that may overlap is set aside first.
  const NDArray source = x.storage_ == storage_ ? x.copy() : x;
  device()->copy(source.broadcast_to(shape_).view(), mutable_view());
}

double NDArray::item() const {
  require(count() == 1, "item: wants exactly one element, got the shape ", shape_);
  return to_vector<double>()[0];
}

double NDArray::item(std::initializer_list<std::int64_t> index) const {
  NDArray element = *this;
  for (const std::int64_t i : index) element = element[i];
  return element.item();
}

template <class T>
std::vector<T> NDArray::to_vector() const {
  const NDArray source = cast(dtype_of<T>()).compact();
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count()));
    device()->copy_to_host(source.view().data, bytes.data(), bytes.size());
    return std::vector<bool>(bytes.begin(), bytes.end());
  } else {
    std::vector<T> result(static_cast<std::size_t>(count()));
    device()->copy_to_host(source.view().data, result.data(), result.size() * sizeof(T));
    return result;
  }
}
template std::vector<float> NDArray::to_vector() const;
template std::vector<double> NDArray::to_vector() const;
template std::vector<std::int32_t> NDArray::to_vector() const;
template std::vector<std::int64_t> NDArray::to_vector() const;
template std::vector<bool> NDArray::to_vector() const;

}  // namespace needle
