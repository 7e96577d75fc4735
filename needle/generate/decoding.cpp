#include "needle/generate/decoding.h"

#include <algorithm>

namespace needle {

std::int64_t window_start(std::int64_t length, std::int64_t context) {
  if (context == 0 || length <= context) return 0;
  const std::int64_t dropped = std::max<std::int64_t>(context / 2, 1);
  return (length - context + dropped - 1) / dropped * dropped;
}

Decoding::Decoding(SequenceModel& model, std::vector<TokenRow> prompts, const DecodingSettings& settings,
                   Device device, std::vector<TokenRow> sources)
    : model_(&model),
      rows_(std::move(prompts)),
      sources_(std::move(sources)),
      settings_(settings),
      device_(device) {
  const bool translates = model.config().kind == ModelKind::encoder_decoder;
  require(translates ? sources_.size() == rows_.size() : sources_.empty(), "generate: ",
          translates ? "an encoder-decoder wants a source a row"
                     : "only an encoder-decoder reads sources; give the text as a prompt");
  require(settings.chunk >= 0, "generate: a chunk must be at least 0 positions, which is all at once, got ",
          settings.chunk);
  const std::int64_t context = model.context();
  for (const TokenRow& row : rows_) {
    require(!row.empty(), "generate: a prompt needs at least one token");
    require(context == 0 || settings.overflow == Overflow::recompute || std::ssize(row) <= context,
            "generate: a prompt of ", row.size(), " tokens does not fit the context of ", context,
            "; shorten it, or let the window slide (overflow recompute)");
  }
  read_windows();
}

bool Decoding::is_full(std::size_t row) const {
  return settings_.overflow == Overflow::stop && model_->context() > 0 &&
         std::ssize(rows_.at(row)) >= model_->context();
}

TokenRow Decoding::window(const TokenRow& row) const {
  return {row.begin() + window_start(std::ssize(row), model_->context()), row.end()};
}

/// Rows as ids and, where they differ in length, a mask.
SequenceInput Decoding::padded(const std::vector<TokenRow>& rows, bool as_source) const {
  std::size_t longest = 0;
  for (const TokenRow& row : rows) longest = std::max(longest, row.size());
  std::vector<std::int64_t> ids(rows.size() * longest, settings_.pad);
  std::vector<std::uint8_t> real(ids.size());
  const bool left = settings_.padding == PaddingSide::left && !as_source;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto start = static_cast<std::ptrdiff_t>(row * longest + (left ? longest - rows[row].size() : 0));
    std::copy(rows[row].begin(), rows[row].end(), ids.begin() + start);
    std::fill_n(real.begin() + start, rows[row].size(), std::uint8_t{1});
  }
  const Shape shape{std::ssize(rows), static_cast<std::int64_t>(longest)};
  const bool equal = std::find(real.begin(), real.end(), 0) == real.end();
  const NDArray tokens = NDArray::from(ids, shape, device_),
                mask = equal ? NDArray() : NDArray::from(real, shape, device_);
  SequenceInput input;
  (as_source ? input.source_ids : input.ids) = tokens;
  (as_source ? input.source_real : input.real) = mask;
  return input;
}

void Decoding::read_windows() {
  ++rebuilds_;
  if (rows_.empty()) return;
  std::vector<TokenRow> windows;
  std::vector<std::int64_t> lengths;
  for (const TokenRow& row : rows_) {
    windows.push_back(window(row));
    lengths.push_back(std::ssize(windows.back()));
  }
  SequenceInput input = padded(windows, false);
  if (!sources_.empty()) {
    const SequenceInput source = padded(sources_, true);
    input.source_ids = source.source_ids;
    input.source_real = source.source_real;
  }
  const std::int64_t time = input.ids.size(1), context = model_->context();
  // The last token drawn is not read again.
  const std::int64_t wanted = time + std::max<std::int64_t>(settings_.room - pushed_ - 1, 0);
  const std::int64_t longest = context == 0 ? wanted : std::min(wanted, context);
  cache_.reset();  // before the next is made, so that there is one at a time
  cache_.emplace(model_->empty_state(std::ssize(rows_), settings_.cache ? longest : 0, settings_.storage));
  if (!settings_.cache) cache_.reset();  // made none the less: models that must not go on refuse
  read(input, lengths);
}

/// Passes over the input; `lengths` says how many of its tokens are each row's.
void Decoding::read(const SequenceInput& input, std::span<const std::int64_t> lengths) {
  const NoGrad off;
  const Pass pass{false, nullptr, cache_ ? &*cache_ : nullptr};
  const std::int64_t time = input.ids.size(1), rows = input.ids.size(0);
  const std::int64_t step = settings_.chunk > 0 && cache_ ? settings_.chunk : time;
  const bool at_end = settings_.padding == PaddingSide::left || !input.real.defined();
  std::vector<Tensor> last(static_cast<std::size_t>(at_end ? 0 : rows));
  Tensor states;
  for (std::int64_t start = 0; start < time; start += step) {
    const std::int64_t stop = std::min(start + step, time);
    SequenceInput part = input;
    if (stop - start < time) {
      part.ids = input.ids.slice(1, start, stop).copy();
      if (input.real.defined()) part.real = input.real.slice(1, start, stop).copy();
    }
    states = model_->states(model_->embed(part, pass), part, pass);
    // The last state of a row that ends before the padding.
    for (std::int64_t row = 0; row < std::ssize(last); ++row) {
      const std::int64_t end = lengths[static_cast<std::size_t>(row)];
      if (end <= start || end > stop) continue;
      last[static_cast<std::size_t>(row)] =
          slice(slice(states, 0, row, row + 1), 1, end - 1 - start, end - start);
    }
  }
  // Only the last position is projected to the vocabulary (S40).
  const Tensor ends = at_end ? slice(states, 1, states.size(1) - 1, states.size(1)) : concatenate(last, 0);
  const NDArray logits = model_->head(ends).array();
  logits_ = logits.reshape({rows, logits.size(-1)});
}

void Decoding::push(std::span<const std::int64_t> ids) {
  require(ids.size() == rows_.size(), "generate: wants a token for each of ", rows_.size(), " rows, got ",
          ids.size());
  bool slides = false;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    require(!is_full(row), "generate: row ", row, " fills the context of ", model_->context(), " positions");
    const std::int64_t before = window_start(std::ssize(rows_[row]), model_->context());
    rows_[row].push_back(ids[row]);
    slides = slides || window_start(std::ssize(rows_[row]), model_->context()) != before;
  }
  ++pushed_;
  // Shorter rows have room when the padded batch has none: then what is padding is dropped.
  const bool is_used_up = cache_ && cache_->longest() > 0 && cache_->past() == cache_->longest();
  if (!cache_ || slides || is_used_up) return read_windows();
  const std::vector<std::int64_t> next(ids.begin(), ids.end());
  read({NDArray::from(next, {std::ssize(rows_), 1}, device_), {}, {}}, {});
}

void Decoding::select(std::span<const std::int64_t> rows) {
  const auto chosen = [rows](const std::vector<TokenRow>& from) {
    std::vector<TokenRow> result;
    for (const std::int64_t row : rows) result.push_back(from.at(static_cast<std::size_t>(row)));
    return result;
  };
  if (!sources_.empty()) sources_ = chosen(sources_);
  rows_ = chosen(rows_);
  if (cache_) cache_->select(rows);
}

}  // namespace needle
