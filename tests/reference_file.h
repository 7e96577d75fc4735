// The files of tests/reference: values that are known to be right.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "needle/io/safetensors.h"
#include "needle/ndarray.h"

namespace needle {

/// A file of tests/reference, by its name without the ending.
class ReferenceFile {
 public:
  explicit ReferenceFile(const std::string& name, Device device = cpu())
      : file_(std::string(NEEDLE_TEST_REFERENCE) + "/" + name + ".safetensors"), device_(device) {}

  bool contains(const std::string& name) const { return file_.contains(name); }
  const std::vector<std::string>& names() const { return file_.names(); }
  /// The array `name` as it is stored.
  NDArray stored(const std::string& name) const {
    const RawTensor& raw = file_.tensor(name);
    const NDArray array = NDArray::empty(raw.shape, raw.dtype, device_);
    device_->copy_from_host(raw.bytes.data(), array.view().data, raw.bytes.size());
    return array;
  }
  /// The array `name`, numbers that are not ids or truth values converted to `dtype`.
  NDArray array(const std::string& name, DType dtype) const {
    const NDArray array = stored(name);
    return is_floating(array.dtype()) ? array.cast(dtype) : array;
  }
  /// What the metadata says under `key`.
  nlohmann::json metadata(const std::string& key) const {
    return nlohmann::json::parse(file_.metadata().at(key));
  }

 private:
  SafetensorsFile file_;
  Device device_;
};

}  // namespace needle
