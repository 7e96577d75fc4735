#include "needle/generate/beam.h"

#include <algorithm>
#include <cmath>

namespace needle {

namespace {

double score_of(double log_probability, std::int64_t length, double penalty) {
  return log_probability / std::pow((5.0 + static_cast<double>(length)) / 6, penalty);
}

/// One more token for one of the rows.
struct Step {
  std::size_t row;
  std::int64_t id;
  double log_probability;  // of the whole answer
};

/// The likeliest `count` next steps of all rows together.
std::vector<Step> next_steps(const NDArray& logits, const std::vector<Beam>& live,
                             const BeamSettings& settings, std::int64_t count) {
  const std::vector<float> numbers = logits.to_vector<float>();
  const auto width = static_cast<std::size_t>(logits.size(1));
  std::vector<Step> steps;
  for (std::size_t row = 0; row < live.size(); ++row) {
    std::vector<float> of_row(numbers.begin() + static_cast<std::ptrdiff_t>(row * width),
                              numbers.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    if (settings.vocabulary > 0 && settings.vocabulary < std::ssize(of_row))
      of_row.resize(static_cast<std::size_t>(settings.vocabulary));
    const std::vector<double> logs = log_probabilities(of_row);
    for (std::size_t id = 0; id < logs.size(); ++id) {
      require(!std::isnan(logs[id]), "generate: a logit is not a number; the model has diverged");
      steps.push_back({row, static_cast<std::int64_t>(id), live[row].log_probability + logs[id]});
    }
  }
  const auto kept = steps.begin() + std::min<std::int64_t>(count, std::ssize(steps));
  std::partial_sort(steps.begin(), kept, steps.end(), [](const Step& a, const Step& b) {
    if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
    return a.row != b.row ? a.row < b.row : a.id < b.id;
  });
  steps.erase(kept, steps.end());
  return steps;
}

}  // namespace

std::vector<Beam> beam_search(SequenceModel& model, const TokenRow& prompt, const BeamSettings& settings,
                              Device device, const TokenRow& source) {
  require(settings.beams >= 1, "generate: wants at least 1 beam, got ", settings.beams);
  require(std::isfinite(settings.length_penalty), "generate: the length penalty must be finite, got ",
          settings.length_penalty);
  std::vector<Beam> live(1), finished;
  if (settings.new_tokens <= 0) return live;
  const auto finish = [&](Beam beam, Ended why) {
    beam.ended = why;
    beam.score = score_of(beam.log_probability, std::ssize(beam.ids), settings.length_penalty);
    finished.push_back(std::move(beam));
    std::stable_sort(finished.begin(), finished.end(),
                     [](const Beam& a, const Beam& b) { return a.score > b.score; });
    if (std::ssize(finished) > settings.beams) finished.pop_back();
  };
  DecodingSettings decoding = settings.decoding;
  decoding.room = settings.new_tokens;
  Decoding batch(model, {prompt}, decoding, device,
                 source.empty() ? std::vector<TokenRow>{} : std::vector<TokenRow>{source});
  for (std::int64_t length = 1;; ++length) {
    // An end takes a step out of the search, so that twice as many may be needed.
    const std::int64_t wanted = settings.beams * (1 + std::ssize(settings.ends));
    const bool is_full = batch.is_full(0);
    std::vector<Beam> longer;
    std::vector<std::int64_t> rows, ids;
    for (const Step& step : next_steps(batch.logits(), live, settings, wanted)) {
      if (std::ssize(longer) == settings.beams || !std::isfinite(step.log_probability)) break;
      Beam beam{live[step.row].ids, step.log_probability};
      beam.ids.push_back(step.id);
      if (std::find(settings.ends.begin(), settings.ends.end(), step.id) != settings.ends.end()) {
        finish(std::move(beam), Ended::end_token);
        continue;
      }
      longer.push_back(std::move(beam));
      rows.push_back(static_cast<std::int64_t>(step.row));
      ids.push_back(step.id);
    }
    live = std::move(longer);
    if (length == settings.new_tokens || is_full) {
      for (Beam& beam : live)
        finish(std::move(beam), length == settings.new_tokens ? Ended::length : Ended::context);
      return finished;
    }
    // Nothing that is added can help: log probabilities only fall, and no length gives more than the longest.
    const std::int64_t kindest = settings.length_penalty > 0 ? settings.new_tokens : length;
    if (live.empty() ||
        (std::ssize(finished) == settings.beams &&
         score_of(live[0].log_probability, kindest, settings.length_penalty) <= finished.back().score))
      return finished;
    batch.select(rows);
    batch.push(ids);
  }
}

}  // namespace needle
