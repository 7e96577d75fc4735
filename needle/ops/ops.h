// All ops.
#pragma once

#include "needle/ops/attention.h"
#include "needle/ops/checkpoint.h"
#include "needle/ops/convolution.h"
#include "needle/ops/cross_entropy.h"
#include "needle/ops/dropout.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/index.h"
#include "needle/ops/matmul.h"
#include "needle/ops/norm.h"
#include "needle/ops/quantized.h"
#include "needle/ops/recurrent.h"
#include "needle/ops/reduce.h"
#include "needle/ops/rotary.h"
#include "needle/ops/shape.h"
#include "needle/ops/softmax.h"
