#include "needle/generate/score.h"

#include <algorithm>

#include "needle/generate/sampler.h"

namespace needle {

namespace {

/// Part of a row that is read at once, and the first token that it tells.
struct Window {
  std::size_t row;
  std::int64_t start, stop;  // tokens [start, stop) are read; `stop` itself is told
  std::int64_t first;
};

std::vector<Window> windows_of(const std::vector<TokenRow>& rows, std::int64_t context) {
  std::vector<Window> windows;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::int64_t token = 1; token < std::ssize(rows[row]); ++token) {
      const std::int64_t start = window_start(token, context);
      if (windows.empty() || windows.back().row != row || windows.back().start != start)
        windows.push_back({row, start, token, token});
      windows.back().stop = token;
    }
  }
  return windows;
}

}  // namespace

std::vector<std::vector<double>> score(SequenceModel& model, const std::vector<TokenRow>& rows,
                                       Device device) {
  constexpr std::size_t kWindowsAtOnce = 16;
  constexpr std::int64_t kPositionsAtOnce = 64;
  model.empty_state(1, 0);  // refuses where a token reads those after it
  require(model.config().kind != ModelKind::encoder_decoder,
          "score: an encoder-decoder tells a target by its source, which text alone does not give");
  for (const TokenRow& row : rows) {
    for (const std::int64_t id : row) {
      require(id >= 0 && id < model.vocabulary_size(), "score: wants ids in [0, ", model.vocabulary_size(),
              "), got ", id);
    }
  }
  const NoGrad off;
  std::vector<std::vector<double>> scores(rows.size());
  const std::vector<Window> windows = windows_of(rows, model.context());
  for (std::size_t begin = 0; begin < windows.size(); begin += kWindowsAtOnce) {
    const std::size_t end = std::min(begin + kWindowsAtOnce, windows.size());
    std::int64_t time = 0;
    for (std::size_t i = begin; i < end; ++i) time = std::max(time, windows[i].stop - windows[i].start);
    const Shape shape{static_cast<std::int64_t>(end - begin), time};
    std::vector<std::int64_t> ids(static_cast<std::size_t>(shape.count()), kPadId);
    std::vector<std::uint8_t> real(ids.size());
    for (std::size_t i = begin; i < end; ++i) {
      const Window& window = windows[i];
      const auto at = static_cast<std::ptrdiff_t>(i - begin) * time;
      std::copy(rows[window.row].begin() + window.start, rows[window.row].begin() + window.stop,
                ids.begin() + at);
      std::fill_n(real.begin() + at, window.stop - window.start, std::uint8_t{1});
    }
    const SequenceInput input{NDArray::from(ids, shape, device), NDArray::from(real, shape, device), {}};
    const Tensor states = model.states(model.embed(input, {}), input, {});
    for (std::size_t i = begin; i < end; ++i) {
      const Window& window = windows[i];
      const auto row = static_cast<std::int64_t>(i - begin);
      const Tensor of_row = slice(states, 0, row, row + 1);
      for (std::int64_t from = window.first; from <= window.stop; from += kPositionsAtOnce) {
        const std::int64_t to = std::min(from + kPositionsAtOnce, window.stop + 1);
        // The position before a token tells it.
        const Tensor logits = model.head(slice(of_row, 1, from - 1 - window.start, to - 1 - window.start));
        const std::vector<float> numbers = logits.array().to_vector<float>();
        const auto width = static_cast<std::size_t>(logits.size(-1));
        for (std::int64_t token = from; token < to; ++token) {
          const std::span<const float> of_token(
              numbers.data() + static_cast<std::size_t>(token - from) * width, width);
          const std::int64_t id = rows[window.row][static_cast<std::size_t>(token)];
          scores[window.row].push_back(log_probabilities(of_token)[static_cast<std::size_t>(id)]);
        }
      }
    }
  }
  return scores;
}

}  // namespace needle
