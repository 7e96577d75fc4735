// Everything: `#include "needle/needle.h"`.
#pragma once

#include "needle/autograd.h"
#include "needle/counters.h"
#include "needle/generate/generator.h"
#include "needle/models/decoder.h"
#include "needle/models/encoder.h"
#include "needle/models/encoder_decoder.h"
#include "needle/models/patches.h"
#include "needle/ndarray.h"
#include "needle/nn/attention.h"
#include "needle/nn/convolution.h"
#include "needle/nn/recurrent.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "needle/optim/schedule.h"
#include "needle/precision.h"
#include "needle/threads.h"
