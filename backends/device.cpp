#include "backends/device.h"

#include <deque>

#include "backends/cpu/cpu_backend.h"
#ifdef NEEDLE_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace needle {

Device cpu() {
  static CpuBackend backend;
  return Device(backend);
}

namespace {

/// The CUDA devices, or why there are none.
struct Cuda {
  std::string reason = "this build has no CUDA";
#ifdef NEEDLE_CUDA
  std::deque<CudaBackend> backends;
  Cuda() {
    const CudaDevices found = find_cuda_devices();
    reason = found.reason;
    for (int index = 0; index < found.count; ++index) backends.emplace_back(index);
  }
#endif
};

Cuda& cuda_devices() {
  static Cuda devices;
  return devices;
}

}  // namespace

const std::vector<Device>& all_devices() {
  static const std::vector<Device> devices = [] {
    std::vector<Device> all{cpu()};
#ifdef NEEDLE_CUDA
    for (CudaBackend& backend : cuda_devices().backends) all.emplace_back(backend);
#endif
    return all;
  }();
  return devices;
}

std::string reason_without_cuda() { return cuda_devices().reason; }

Device device_of(std::string_view name) {
  if (name == "cpu") return cpu();  // without a look at the others
  std::string names;
  for (const Device device : all_devices()) {
    if (device.name() == name || (name == "cuda" && device.name() == "cuda:0")) return device;
    names += (names.empty() ? "" : ", ") + device.name();
  }
  const std::string reason = reason_without_cuda();
  fail("device: there is no '", name, "' here; this build and machine offer: ", names,
       name.starts_with("cuda") && !reason.empty() ? " (" + reason + ')' : "");
}

}  // namespace needle
