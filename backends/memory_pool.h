// A caching memory pool: what is released is kept by size class and handed out again, so that after the first
// step of the largest shape nothing is asked of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace needle {

/// Bytes of a device's pool. live and peak count what was requested; cached is what waits for reuse.
struct MemoryStats {
  std::size_t live = 0, peak = 0, cached = 0;
  std::uint64_t system_allocations = 0;  ///< how often the system was asked for memory, ever
};

/// Hands out blocks from the system through size classes (four to each power of two), and keeps them when
/// released; a large request may get one a quarter larger. Safe to use from several threads.
class MemoryPool {
 public:
  /// Whether a large request may get a block of the next classes. With `exact`, the same requests in the same
  /// order find in the second round what they left in the first.
  enum class Fit { near, exact };
  using Allocate = std::function<void*(std::size_t)>;
  using Free = std::function<void(void*)>;
  /// `about` adds to the message of a request that fails what the system still has; `forget` is told of each
  /// block that is kept for reuse, with its size.
  MemoryPool(Allocate allocate, Free free, std::function<std::string()> about = {},
             std::function<void(void*, std::size_t)> forget = {}, Fit fit = Fit::near)
      : allocate_(std::move(allocate)),
        free_(std::move(free)),
        about_(std::move(about)),
        forget_(std::move(forget)),
        fit_(fit) {}
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  ~MemoryPool() { trim(); }

  /// A block of at least `bytes`; throws Error when neither the pool nor the system has it.
  void* allocate(std::size_t bytes);
  /// Takes back a block that was allocated with the same `bytes`.
  void release(void* block, std::size_t bytes);
  /// Gives all cached blocks back to the system.
  void free_cached();
  /// The same, and sets the peak to what is live.
  void trim();
  MemoryStats stats() const;
  /// Whether the block came from this pool.
  bool owns(void* block) const;

  /// The size of the block that serves a request of `bytes`.
  static std::size_t size_class(std::size_t bytes);

 private:
  void give_back();

  Allocate allocate_;
  Free free_;
  std::function<std::string()> about_;
  std::function<void(void*, std::size_t)> forget_;
  Fit fit_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> cached_;
  std::unordered_map<void*, std::size_t> sizes_;  // of all blocks
  MemoryStats stats_;
};

}  // namespace needle
