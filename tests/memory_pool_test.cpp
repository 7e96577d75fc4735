// The caching pool: which block serves a request, and what it counts.
#include "backends/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace needle {
namespace {

TEST(MemoryPool, ALargeRequestTakesAKeptBlockOfTheNextClass) {
  MemoryPool pool([](std::size_t bytes) { return std::malloc(bytes); },
                  [](void* block) { std::free(block); });
  constexpr std::size_t kMiB = 1 << 20;
  void* const large = pool.allocate(5 * kMiB);
  pool.release(large, 5 * kMiB);
  EXPECT_EQ(pool.stats().cached, 5 * kMiB);
  void* const smaller = pool.allocate(4 * kMiB);
  EXPECT_EQ(smaller, large);
  EXPECT_EQ(pool.stats().live, 4 * kMiB);
  EXPECT_EQ(pool.stats().cached, 0u);
  EXPECT_EQ(pool.stats().system_allocations, 1u);
  pool.release(smaller, 4 * kMiB);
  EXPECT_EQ(pool.stats().cached, 5 * kMiB);    // the block is what it was
  void* const half = pool.allocate(2 * kMiB);  // not for twice what is wanted
  EXPECT_NE(half, large);
  pool.release(half, 2 * kMiB);
  pool.trim();
  EXPECT_EQ(pool.stats().cached, 0u);
  EXPECT_EQ(pool.stats().live, 0u);
  // Small requests keep to their class.
  void* const small = pool.allocate(80);
  pool.release(small, 80);
  void* const smallest = pool.allocate(64);
  EXPECT_EQ(pool.stats().system_allocations, 4u);
  pool.release(smallest, 64);
}

}  // namespace
}  // namespace needle
