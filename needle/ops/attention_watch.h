// The weights of attention, for those who ask: the fused kernels never hold them.
#pragma once

#include <functional>
#include <string>

#include "needle/ndarray.h"

namespace needle {

/// As long as it lives, every attention of this thread tells `receive` its module's path and a function that
/// computes its weights [batch, heads, queries, keys] by the definition, to be called during the telling or
/// not at all. The last one made is told.
class AttentionWatch {
 public:
  using Receive = std::function<void(const std::string& path, const std::function<NDArray()>& weights)>;
  explicit AttentionWatch(Receive receive);
  AttentionWatch(const AttentionWatch&) = delete;
  AttentionWatch& operator=(const AttentionWatch&) = delete;
  ~AttentionWatch();

  /// The one that is to be told on this thread, or none.
  static const AttentionWatch* current();
  void tell(const std::string& path, const std::function<NDArray()>& weights) const {
    receive_(path, weights);
  }

 private:
  Receive receive_;
  const AttentionWatch* previous_;
};

}  // namespace needle
