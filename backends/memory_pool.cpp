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
  // For what is large, the next larger class does as well.
  constexpr std::size_t kLarge = 1 << 20;
  const auto found = cached_.lower_bound(size);
  if (found != cached_.end() &&
      found->first <= (size < kLarge || fit_ == Fit::exact ? size : size + size / 4)) {
    block = found->second.back();
    found->second.pop_back();
    stats_.cached -= found->first;
    if (found->second.empty()) cached_.erase(found);
  } else {
    ++stats_.system_allocations;
    block = allocate_(size);
    const std::size_t cached = stats_.cached;
    if (!block) {  // perhaps the cache holds what the system lacks
      give_back();
      block = allocate_(size);
    }
    if (block) sizes_[block] = size;
    if (!block) {
      fail("memory: ", bytes, " bytes were asked for, with ", stats_.live, " in use, ", cached,
           " kept for reuse before, and a peak of ", stats_.peak, about_ ? about_() : "",
           "; a smaller batch (made up for by --accumulate) or --precision bf16 wants less");
    }
  }
  stats_.live += bytes;
  stats_.peak = std::max(stats_.peak, stats_.live);
  return block;
}

void MemoryPool::release(void* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t size = sizes_.at(block);
  if (forget_) forget_(block, size);
  cached_[size].push_back(block);
  stats_.cached += size;
  stats_.live -= bytes;
}

void MemoryPool::give_back() {
  for (auto& [size, blocks] : cached_) {
    for (void* block : blocks) {
      free_(block);
      sizes_.erase(block);
    }
  }
  cached_.clear();
  stats_.cached = 0;
}

void MemoryPool::free_cached() {
  const std::lock_guard lock(mutex_);
  give_back();
}

void MemoryPool::trim() {
  const std::lock_guard lock(mutex_);
  give_back();
  stats_.peak = stats_.live;
}

bool MemoryPool::owns(void* block) const {
  const std::lock_guard lock(mutex_);
  return sizes_.contains(block);
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace needle
