#include "needle/ops/attention_watch.h"

namespace needle {

namespace {
thread_local const AttentionWatch* watch = nullptr;
}  // namespace

AttentionWatch::AttentionWatch(Receive receive) : receive_(std::move(receive)), previous_(watch) {
  watch = this;
}
AttentionWatch::~AttentionWatch() { watch = previous_; }

const AttentionWatch* AttentionWatch::current() { return watch; }

}  // namespace needle
