#include "backends/device.h"

#include <cstdlib>
#include <memory>

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

/// The CUDA devices, each begun when it is first wanted, or why there are none.
struct Cuda {
  std::string reason = "this build has no CUDA";
  int count = 0;
#ifdef NEEDLE_CUDA
  std::vector<std::unique_ptr<CudaBackend>> backends;
  Cuda() {
    const CudaDevices found = find_cuda_devices();
    reason = found.reason;
    count = found.count;
    backends.resize(static_cast<std::size_t>(count));
  }
  Device at(int index) {
    std::unique_ptr<CudaBackend>& backend = backends[static_cast<std::size_t>(index)];
    if (!backend) {
      backend = std::make_unique<CudaBackend>(index);
      end_before_cuda();
    }
    return Device(*backend);
  }
  /// Has the devices end before what CUDA itself keeps, which began with the first of them.
  static void end_before_cuda();
#else
  Device at(int) { return cpu(); }  // never asked, as there are none
#endif
};

Cuda& cuda_devices() {
  static Cuda devices;
  return devices;
}

#ifdef NEEDLE_CUDA
void Cuda::end_before_cuda() {
  std::atexit([] { cuda_devices().backends.clear(); });
}
#endif

std::string name_of_cuda(int index) { return "cuda:" + std::to_string(index); }

}  // namespace

const std::vector<Device>& all_devices() {
  static const std::vector<Device> devices = [] {
    std::vector<Device> all{cpu()};
    Cuda& cuda = cuda_devices();
    for (int index = 0; index < cuda.count; ++index) {
      try {
        all.push_back(cuda.at(index));
      } catch (const Error& error) {  // in use by others, say
        cuda.reason += (cuda.reason.empty() ? "" : "; ") + name_of_cuda(index) + ": " + error.what();
      }
    }
    return all;
  }();
  return devices;
}

std::string reason_without_cuda() { return cuda_devices().reason; }

Device device_of(std::string_view name) {
  if (name == "cpu") return cpu();  // without a look at the others
  Cuda& cuda = cuda_devices();
  std::string names = "cpu";
  for (int index = 0; index < cuda.count; ++index) {
    const std::string known = name_of_cuda(index);
    if (name == known || (name == "cuda" && index == 0)) return cuda.at(index);
    names += ", " + known;
  }
  fail("device: there is no '", name, "' here; this build and machine offer: ", names,
       name.starts_with("cuda") && !cuda.reason.empty() ? " (" + cuda.reason + ')' : "");
}

}  // namespace needle
