// Memory of the pool for the length of a kernel.
#pragma once

#include "backends/memory_pool.h"

namespace needle {

/// `count` elements of T, given back to the pool at the end of the scope; not set to anything.
template <class T>
class Scratch {
 public:
  Scratch(MemoryPool& pool, std::size_t count)
      : pool_(pool), bytes_(count * sizeof(T)), data_(pool.allocate(bytes_)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { pool_.release(data_, bytes_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  MemoryPool& pool_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace needle
