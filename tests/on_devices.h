// What tests of arrays and ops share: a fixture that runs on every device, and small ways to build values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>
#include <vector>

#include "needle/autograd.h"

namespace needle {

/// The closest type that a device computes in: float64 on the CPU alone.
inline DType exact_dtype(Device device) { return device == cpu() ? DType::f64 : DType::f32; }
/// The types of 32 bits and more that it computes in.
inline std::vector<DType> computing_dtypes(Device device) {
  if (device == cpu()) return {DType::f64, DType::f32};
  return {DType::f32};
}
/// All devices with each of these types.
inline std::vector<std::tuple<Device, DType>> devices_and_dtypes() {
  std::vector<std::tuple<Device, DType>> all;
  for (const Device device : all_devices()) {
    for (const DType dtype : computing_dtypes(device)) all.emplace_back(device, dtype);
  }
  return all;
}
/// What a device must keep to where the CPU's float64 keeps to `bound`.
inline double bound_on(Device device, double bound) {
  return device == cpu() ? bound : std::max(bound, 1e-5);
}

/// Base of suites that run once a device; their names end in the device's.
class OnDevice : public testing::TestWithParam<Device> {
 protected:
  Device device() const { return GetParam(); }
  DType exact() const { return exact_dtype(device()); }
  std::vector<DType> dtypes() const { return computing_dtypes(device()); }
  double within(double bound) const { return bound_on(device(), bound); }
  /// How often something is repeated that takes long where a device is emulated.
  int many(int times) const { return device() == cpu() ? times : times / 100; }

  /// An array of these numbers.
  NDArray array(const std::vector<double>& values, const Shape& shape, DType dtype) const {
    return NDArray::from(values, shape, device()).cast(dtype);
  }
  NDArray array(const std::vector<double>& values, const Shape& shape) const {
    return array(values, shape, exact());
  }
  NDArray array(const std::vector<double>& values) const {
    return array(values, {static_cast<std::int64_t>(values.size())});
  }
  /// The same as a leaf that requires a gradient.
  Tensor leaf(const std::vector<double>& values, const Shape& shape, DType dtype) const {
    return Tensor(array(values, shape, dtype), true);
  }
  Tensor leaf(const std::vector<double>& values, const Shape& shape) const {
    return leaf(values, shape, exact());
  }
  Tensor leaf(const std::vector<double>& values) const { return Tensor(array(values), true); }
  NDArray ids(const std::vector<std::int64_t>& values, const Shape& shape) const {
    return NDArray::from(values, shape, device());
  }
  NDArray mask(const std::vector<std::uint8_t>& values, const Shape& shape) const {
    return NDArray::from(values, shape, device());
  }
  NDArray normal(const Shape& shape, std::uint64_t seed, DType dtype) const {
    Generator random(seed);
    return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, dtype, device());
  }
  NDArray normal(const Shape& shape, std::uint64_t seed) const { return normal(shape, seed, exact()); }
};

/// Text as a part of a test's name.
inline std::string test_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      name += c;
    else if (!name.empty() && name.back() != '_')
      name += '_';
  }
  return name;
}

inline std::string device_name(const testing::TestParamInfo<Device>& info) {
  return test_name(info.param.name());
}

/// The message of the Error that `function` throws, or a note that it threw none.
template <class F>
std::string error_of(F&& function) {
  try {
    function();
    for (const Device device : all_devices()) device->synchronize();  // some notice only then
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

/// Whether `text` has all `parts`.
inline testing::AssertionResult contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return testing::AssertionFailure() << '"' << text << "\" lacks \"" << part << '"';
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace needle
