// Vector types. Included by cuda_runtime.h.
#pragma once

#include "cuda_emu/qualifiers.h"

struct uint3 {
  unsigned x, y, z;
};
struct int2 {
  alignas(8) int x;
  int y;
};
struct float2 {
  alignas(8) float x;
  float y;
};
struct double2 {
  alignas(16) double x;
  double y;
};
struct uint2 {
  alignas(8) unsigned x;
  unsigned y;
};
struct int4 {
  alignas(16) int x;
  int y, z, w;
};
struct uint4 {
  alignas(16) unsigned x;
  unsigned y, z, w;
};
struct float4 {
  alignas(16) float x;
  float y, z, w;
};
__forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__forceinline__ int2 make_int2(int x, int y) { return {x, y}; }
__forceinline__ int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
__forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// (Functions that return a struct are always inlined: the compiler's access hooks do not see
// "*p = f()" when the result is a struct and f is a real call.)
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
