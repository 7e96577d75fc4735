// Host memory.
#include <unistd.h>

#include <cblas.h>

#include <cstdlib>
#include <cstring>

#include "backends/cpu/cpu_backend.h"

namespace needle {

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

}  // namespace

CpuBackend::CpuBackend()
    : pool_(
          [](std::size_t bytes) {
            return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
          },
          [](void* block) { std::free(block); }) {
  constexpr int kOpenMp = 2;
  require(openblas_get_parallel() == kOpenMp,
          "cpu: OpenBLAS must be its OpenMP build, so that all threads are one pool; this one is ",
          openblas_get_config());
}

std::string CpuBackend::name() const { return "cpu"; }
void* CpuBackend::allocate(std::size_t bytes) { return pool_.allocate(bytes); }
void CpuBackend::release(void* data, std::size_t bytes) { pool_.release(data, bytes); }
MemoryStats CpuBackend::memory_stats() const { return pool_.stats(); }
std::size_t CpuBackend::total_memory() const {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
std::size_t CpuBackend::free_memory() const {
  return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
void CpuBackend::trim_memory() { pool_.trim(); }

void CpuBackend::copy_from_host(const void* host, void* data, std::size_t bytes) {
  if (bytes > 0) std::memcpy(data, host, bytes);
}
void CpuBackend::copy_to_host(const void* data, void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, data, bytes);
}
void CpuBackend::synchronize() {}

}  // namespace needle
