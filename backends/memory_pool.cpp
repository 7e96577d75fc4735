#include "backends/memory_pool.h"

#include <algorithm>
#include <bit>

#include "backends/error.h"

namespace needle {

std::size_t MemoryPool::size_class(std::size_t bytes) {
  constexpr std::size_t kSmallest = 64;
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

void* MemoryPool::allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (const auto found = cached_.find(size); found != cached_.end() && !found->second.empty()) {
    block = found->second.back();
    found->second.pop_back();
    stats_.cached -= size;
  } else {
    ++stats_.system_allocations;
    block = allocate_(size);
    if (!block) {  // perhaps the cache holds what the system lacks
      free_cached();
      block = allocate_(size);
    }
    require(block != nullptr, "memory: ", bytes, " bytes were asked for beside ", stats_.live,
            " in use, and the device has no more");
  }
  stats_.live += bytes;
  stats_.peak = std::max(stats_.peak, stats_.live);
  return block;
}

void MemoryPool::release(void* block, std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  cached_[size].push_back(block);
  stats_.cached += size;
  stats_.live -= bytes;
}

void MemoryPool::free_cached() {
  for (auto& [size, blocks] : cached_) {
    for (void* block : blocks) free_(block);
  }
  cached_.clear();
  stats_.cached = 0;
}

void MemoryPool::trim() {
  const std::lock_guard lock(mutex_);
  free_cached();
  stats_.peak = stats_.live;
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace needle
