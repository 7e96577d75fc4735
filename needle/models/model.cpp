#include "needle/models/model.h"

#include "needle/models/decoder.h"
#include "needle/models/encoder_decoder.h"
#include "needle/models/patches.h"

namespace needle {

std::unique_ptr<SequenceModel> make_model(const ModelConfig& config, Generator& random, Device device,
                                          DType dtype) {
  switch (config.kind) {
    case ModelKind::decoder:
    case ModelKind::encoder:
      return std::make_unique<Decoder>(config, random, device, dtype);
    case ModelKind::encoder_decoder:
      return std::make_unique<EncoderDecoder>(config, random, device, dtype);
    case ModelKind::patches:
      return std::make_unique<Patches>(config, random, device, dtype);
    case ModelKind::rnn:
    case ModelKind::gru:
    case ModelKind::lstm:
    case ModelKind::convolution:
      break;
  }
  fail("model: no such kind yet");
}

}  // namespace needle
