#include "needle/data/sources.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "backends/error.h"
#include "needle/data/corpus.h"
#include "needle/random.h"

namespace needle {
namespace {

struct Line {
  std::string_view text;
  std::int64_t number;  // in its file, from 1
};

std::vector<Line> lines_with_text(std::string_view text) {
  std::vector<Line> lines;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back({text.substr(0, end), number});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The vocabulary of `text`, validation part included, so that no character there is unknown.
Tokenizer make_tokenizer(const FileOptions& options, std::string_view text, const std::string& name) {
  if (options.tokenizer) return *options.tokenizer;
  require(options.tokens == Tokenizer::Kind::bytes || options.tokens == Tokenizer::Kind::characters,
          "data: of a text, tokens of bytes or of characters can be made; others are those of a checkpoint");
  return options.tokens == Tokenizer::Kind::bytes ? Tokenizer::bytes() : Tokenizer::characters(text, name);
}

// The same without line ends, which no row holds.
Tokenizer make_line_tokenizer(const FileOptions& options, std::string text, const std::string& name) {
  make_tokenizer(options, text, name);  // throws with the right line where the text isn't UTF-8
  std::erase(text, '\n');
  return make_tokenizer(options, text, name);
}

// With the tokens that begin and end a row in that vocabulary.
RowFormat format_for(const Tokenizer& tokenizer, RowFormat format) {
  const auto begin = tokenizer.begin_id(), end = tokenizer.end_id();
  require(begin && end,
          "data: this vocabulary has no tokens that begin and end a row (bos_token_id and eos_token_id in "
          "config.json); take windows of a text");
  format.begin_id = *begin;
  format.end_id = *end;
  return format;
}

std::vector<TokenRow> encode_lines(const std::vector<Line>& lines, const Tokenizer& tokenizer,
                                   const RowFormat& format, const std::string& name) {
  std::vector<TokenRow> rows;
  std::int64_t too_long = 0, first_line = 0, first_need = 0;
  for (const Line& line : lines) {
    rows.push_back(tokenizer.encode(line.text, name, line.number));
    const auto need = static_cast<std::int64_t>(rows.back().size()) + 1;
    if (need <= format.context) continue;
    if (too_long++ == 0) std::tie(first_line, first_need) = std::tie(line.number, need);
  }
  require(format.crop || too_long == 0, name, ": line ", first_line, " needs a context of ", first_need,
          ", got ", format.context, " (", too_long, " of ", lines.size(),
          " lines are too long); take a larger context");
  return rows;
}

void check_share(double share) {
  require(share > 0 && share < 1, "data: the validation share must lie between 0 and 1, got ", share);
}

std::vector<std::string> sample_sentences(const Corpus& corpus, Generator generator, std::int64_t count) {
  std::vector<std::string> sentences;
  for (std::int64_t index = 0; index < count; ++index) sentences.push_back(corpus.sample(generator));
  return sentences;
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(!std::filesystem::is_directory(path), "data: ", path.string(), " is a folder, wanted a file");
  require(file.good(), "data: can't read ", path.string());
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  require(!file.bad(), "data: reading ", path.string(), " failed");
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);

  std::size_t kept = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool line_end = text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n';
    if (!line_end) text[kept++] = text[at];
  }
  text.resize(kept);
  return text;
}

std::unique_ptr<Dataset> rows_from_file(const std::filesystem::path& path, const FileOptions& options) {
  check_share(options.validation_share);
  const std::string text = read_text(path), name = path.filename().string();
  const std::vector<Line> lines = lines_with_text(text);
  require(lines.size() >= 2, name, ": ", lines.size(),
          " lines with text, wanted at least 2: one to train on, ", "one for validation");
  Tokenizer tokenizer = make_line_tokenizer(options, text, name);
  const RowFormat format = format_for(tokenizer, options.format);
  std::vector<TokenRow> rows = encode_lines(lines, tokenizer, format, name);

  const Generator streams(options.seed);
  streams.child(0).shuffle(rows);
  const double share = std::round(static_cast<double>(rows.size()) * options.validation_share);
  const auto count = std::clamp<std::ptrdiff_t>(std::lround(share), 1, std::ssize(rows) - 1);
  std::vector<TokenRow> validation(std::make_move_iterator(rows.begin()),
                                   std::make_move_iterator(rows.begin() + count));
  rows.erase(rows.begin(), rows.begin() + count);
  const std::set<TokenRow> held_out(validation.begin(), validation.end());
  const std::size_t before = rows.size();
  const std::size_t equal = std::erase_if(rows, [&](const TokenRow& row) { return held_out.contains(row); });

  require(equal < before, name, ": every training line equals one of the ", validation.size(),
          " validation lines, so none is left to train on");

  DatasetSettings settings{.tokenizer = std::move(tokenizer),
                           .format = format,
                           .seed = streams.child(1).seed(),
                           .name = name,
                           .remark = {},
                           .floor = {}};
  if (equal > 0)
    settings.remark = std::to_string(equal) + " training lines equal to a validation line left out";
  return std::make_unique<RowsDataset>(std::move(rows), std::move(validation), std::move(settings));
}

std::unique_ptr<Dataset> stream_from_file(const std::filesystem::path& path, const FileOptions& options) {
  check_share(options.validation_share);
  const std::string text = read_text(path), name = path.filename().string();
  require(!text.empty(), name, ": no text in it");
  Tokenizer tokenizer = make_tokenizer(options, text, name);
  std::vector<std::int64_t> training = tokenizer.encode(text, name);
  const double share = static_cast<double>(training.size()) * (1 - options.validation_share);
  const auto split = training.begin() + static_cast<std::ptrdiff_t>(share);
  std::vector<std::int64_t> validation(split, training.end());
  training.erase(split, training.end());
  DatasetSettings settings{.tokenizer = std::move(tokenizer),
                           .format = options.format,
                           .seed = options.seed,
                           .name = name,
                           .remark = {},
                           .floor = {}};
  return std::make_unique<StreamDataset>(std::move(training), std::move(validation), std::move(settings));
}

std::vector<Batch> batches_of_lines(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                    const RowFormat& wanted, std::int64_t size) {
  require(size > 0, "data: wanted a positive batch, got ", size);
  const RowFormat format = format_for(tokenizer, wanted);
  const std::string text = read_text(path), name = path.filename().string();
  const std::vector<TokenRow> rows = encode_lines(lines_with_text(text), tokenizer, format, name);
  require(!rows.empty(), name, ": no text in it");
  std::vector<Batch> batches;
  for (std::span<const TokenRow> left = rows; !left.empty();) {
    const std::size_t count = std::min(left.size(), static_cast<std::size_t>(size));
    batches.push_back(make_rows_batch(left.first(count), format));
    left = left.subspan(count);
  }
  return batches;
}

std::vector<Batch> batches_of_text(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                   std::int64_t context, std::int64_t size) {
  require(size > 0 && context > 0, "data: wanted a positive batch and context, got ", size, " and ", context);
  const std::string name = path.filename().string();
  const std::vector<std::int64_t> tokens = tokenizer.encode(read_text(path), name);
  const std::int64_t targets = std::ssize(tokens) - 1;
  require(targets > 0, name, ": ", tokens.size(), " tokens, wanted at least 2");
  std::vector<Batch> batches;
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0; start + context <= targets; start += context) {
    starts.push_back(start);
    if (std::ssize(starts) < size && start + 2 * context <= targets) continue;
    batches.push_back(make_stream_batch(tokens, starts, context));
    starts.clear();
  }
  if (const std::int64_t rest = targets % context; rest > 0) {
    batches.push_back(make_stream_batch(tokens, std::vector{targets - rest}, rest));
  }
  return batches;
}

std::unique_ptr<Dataset> rows_from_corpus(std::uint64_t seed, std::int64_t training_count,
                                          std::int64_t validation_count, RowFormat format) {
  const Corpus corpus;
  const Tokenizer tokenizer = corpus.tokenizer();
  const Generator streams(seed);
  const std::vector<std::string> training = sample_sentences(corpus, streams.child(0), training_count);
  const std::vector<std::string> validation = sample_sentences(corpus, streams.child(1), validation_count);
  const auto encode = [&](const std::vector<std::string>& sentences) {
    std::vector<TokenRow> rows;
    for (const std::string& sentence : sentences) rows.push_back(tokenizer.encode(sentence));
    return rows;
  };
  std::ostringstream remark;
  remark.precision(3);
  remark << 100 * overlap(training, validation) << " % of the validation sentences also occur in training";
  return std::make_unique<RowsDataset>(
      encode(training), encode(validation),
      DatasetSettings{.tokenizer = tokenizer,
                      .format = format,
                      .seed = streams.child(2).seed(),
                      .name = "corpus",
                      .remark = remark.str(),
                      .floor = corpus.mean_negative_log_probability(validation)});
}

}  // namespace needle
