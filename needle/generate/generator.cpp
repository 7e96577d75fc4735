#include "needle/generate/generator.h"

#include <algorithm>

namespace needle {

std::vector<std::vector<std::int64_t>> generate(SequenceModel& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateSettings& settings, Generator& random,
                                                Device device) {
  const NoGrad off;
  const std::size_t rows = prompts.size();
  std::vector<std::vector<std::int64_t>> answers(rows);
  if (rows == 0 || settings.new_tokens <= 0) return answers;
  std::size_t longest = 0;
  for (const auto& prompt : prompts) {
    require(!prompt.empty(), "generate: a prompt needs at least one token");
    longest = std::max(longest, prompt.size());
  }
  const std::int64_t batch = static_cast<std::int64_t>(rows), time = static_cast<std::int64_t>(longest);
  const std::int64_t context = model.context();
  require(context == 0 || time + settings.new_tokens - 1 <= context, "generate: a prompt of ", time,
          " tokens and ", settings.new_tokens, " new ones do not fit the context of ", context);

  std::vector<std::int64_t> ids(rows * longest, settings.pad);
  std::vector<std::uint8_t> real(rows * longest);
  std::vector<Generator> streams;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t before = longest - prompts[row].size();
    std::copy(prompts[row].begin(), prompts[row].end(),
              ids.begin() + static_cast<std::ptrdiff_t>(row * longest + before));
    std::fill_n(real.begin() + static_cast<std::ptrdiff_t>(row * longest + before), prompts[row].size(),
                std::uint8_t{1});
    streams.push_back(random.child(random.position() + row));
  }
  random.reserve(rows);

  Cache cache = model.empty_state(batch, time + settings.new_tokens - 1);
  const Pass pass{false, nullptr, &cache};
  SequenceInput input{
      NDArray::from(ids, {batch, time}, device), NDArray::from(real, {batch, time}, device), {}};
  std::vector<std::uint8_t> ended(rows);
  for (std::int64_t step = 0;; ++step) {
    const Tensor states = model.states(model.embed(input, pass), input, pass);
    // Only the last position is projected to the vocabulary.
    const Tensor logits = model.head(slice(states, 1, states.size(1) - 1, states.size(1)));
    const std::vector<float> numbers = logits.array().to_vector<float>();
    const std::size_t width = static_cast<std::size_t>(logits.size(-1));
    std::vector<std::int64_t> next(rows, settings.pad);
    for (std::size_t row = 0; row < rows; ++row) {
      if (ended[row]) continue;
      try {
        next[row] = sample({numbers.data() + row * width, width}, settings.sampler, streams[row]);
      } catch (const Error& error) {
        fail("generate: row ", row, ", new token ", step, ": ", error.what());
      }
      answers[row].push_back(next[row]);
      ended[row] = next[row] == settings.end;
      if (settings.on_token) settings.on_token(static_cast<std::int64_t>(row), next[row]);
    }
    if (step + 1 == settings.new_tokens || std::find(ended.begin(), ended.end(), 0) == ended.end())
      return answers;
    input = {NDArray::from(next, {batch, 1}, device), NDArray(), {}};
  }
}

}  // namespace needle
