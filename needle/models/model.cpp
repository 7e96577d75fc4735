#include "needle/models/model.h"

#include "needle/models/convolutional.h"
#include "needle/models/decoder.h"
#include "needle/models/encoder_decoder.h"
#include "needle/models/patches.h"
#include "needle/models/recurrent.h"

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
      return std::make_unique<RecurrentModel>(config, random, device, dtype);
    case ModelKind::convolution:
      return std::make_unique<ConvolutionalModel>(config, random, device, dtype);
  }
  fail("model: of an unknown kind");
}

}  // namespace needle
