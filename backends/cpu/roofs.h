// What this processor can do at most: the rates that benchmarks measure themselves against.
#pragma once

#include <cstddef>

namespace needle {

/// Float32 operations a second of all threads, multiplying and adding in registers alone; measured, about 20
/// ms.
double peak_operation_rate();
/// Bytes a second of all threads, reading two arrays and writing a third that hold `bytes` together;
/// measured.
double peak_bandwidth(std::size_t bytes);

}  // namespace needle
