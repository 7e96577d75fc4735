#include "backends/device.h"

#include "backends/cpu/cpu_backend.h"

namespace needle {

Device cpu() {
  static CpuBackend backend;
  return Device(backend);
}

const std::vector<Device>& all_devices() {
  static const std::vector<Device> devices{cpu()};
  return devices;
}

Device device_of(std::string_view name) {
  std::string names;
  for (const Device device : all_devices()) {
    if (device.name() == name) return device;
    names += (names.empty() ? "" : ", ") + device.name();
  }
  fail("device: there is no '", name, "' here; this build and machine offer: ", names);
}

}  // namespace needle
