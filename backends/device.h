// Devices: the handles by which arrays and programs name a Backend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace needle {

/// A device of this machine; a cheap handle to its one Backend.
class Device {
 public:
  explicit Device(Backend& backend) : backend_(&backend) {}
  Backend& operator*() const { return *backend_; }
  Backend* operator->() const { return backend_; }
  std::string name() const { return backend_->name(); }
  friend bool operator==(Device a, Device b) { return a.backend_ == b.backend_; }

 private:
  Backend* backend_;
};

/// The host's processor.
Device cpu();
/// Every device that is built in and present, the CPU first.
const std::vector<Device>& all_devices();
/// Why there is no CUDA device, or which of them cannot be used; "" where all can.
std::string reason_without_cuda();
/// The device of that name ("cuda" is the first one of CUDA); an unknown one is an Error that lists what
/// there is.
Device device_of(std::string_view name);

}  // namespace needle
