// What tests of arrays and ops share: a fixture that runs on every device, and small ways to build values.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "needle/autograd.h"

namespace needle {

/// Base of suites that run once a device; their names end in the device's.
class OnDevice : public testing::TestWithParam<Device> {
 protected:
  Device device() const { return GetParam(); }

  /// A float64 array of these numbers (another type by `dtype`).
  NDArray array(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64) const {
    return NDArray::from(values, shape, device()).cast(dtype);
  }
  NDArray array(const std::vector<double>& values) const {
    return array(values, {static_cast<std::int64_t>(values.size())});
  }
  /// The same as a leaf that requires a gradient.
  Tensor leaf(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64) const {
    return Tensor(array(values, shape, dtype), true);
  }
  Tensor leaf(const std::vector<double>& values) const { return Tensor(array(values), true); }
  NDArray ids(const std::vector<std::int64_t>& values, const Shape& shape) const {
    return NDArray::from(values, shape, device());
  }
  NDArray mask(const std::vector<std::uint8_t>& values, const Shape& shape) const {
    return NDArray::from(values, shape, device());
  }
  NDArray normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::f64) const {
    Generator random(seed);
    return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, dtype, device());
  }
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
