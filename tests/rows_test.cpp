// Batches of rows and of streams, and the data sets that make them: padding, shifting, order, splits, errors.
#include "needle/data/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include "backends/error.h"
#include "needle/data/corpus.h"
#include "needle/data/sources.h"

namespace needle {
namespace {

using Ids = std::vector<std::int64_t>;
using Mask = std::vector<std::uint8_t>;
constexpr std::int64_t kB = kBeginId, kE = kEndId, kP = kPadId, kIgnored = -100;

RowFormat exact(std::int64_t context, PaddingSide side = PaddingSide::right) {
  return {.context = context, .padding = side, .width_multiple = 1};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              ("needle_rows_" + std::to_string(reinterpret_cast<std::uintptr_t>(this)) + ".txt")) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Rows, S13_inputs_mask_and_labels_are_three_things) {
  const std::vector<TokenRow> sequences = {{kB, 5, 6, kE}};
  const Batch batch = make_shifted_batch(sequences, exact(8));
  EXPECT_EQ(batch.ids, (Ids{kB, 5, 6, kE}));
  EXPECT_EQ(batch.labels, (Ids{5, 6, kE, kIgnored}));
  EXPECT_EQ(batch.real, (Mask{1, 1, 1, 1}));
  EXPECT_EQ(batch.valid_targets, 3);
}

TEST(Rows, S13_a_padded_row_scores_its_end_and_no_padding) {
  const std::vector<TokenRow> rows = {{5, 6, 7}, {8}};
  const Batch right = make_rows_batch(rows, exact(8));
  EXPECT_EQ(right.ids, (Ids{kB, 5, 6, 7, kB, 8, kP, kP}));
  EXPECT_EQ(right.labels, (Ids{5, 6, 7, kE, 8, kE, kIgnored, kIgnored}));
  EXPECT_EQ(right.real, (Mask{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(right.valid_targets, 6);
  const Batch left = make_rows_batch(rows, exact(8, PaddingSide::left));
  EXPECT_EQ(left.ids, (Ids{kB, 5, 6, 7, kP, kP, kB, 8}));
  EXPECT_EQ(left.labels, (Ids{5, 6, 7, kE, kIgnored, kIgnored, 8, kE}));
  EXPECT_EQ(left.real, (Mask{1, 1, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(left.valid_targets, 6);
}

TEST(Rows, BR_012_padding_is_known_by_length_not_by_id) {
  // A foreign vocabulary where 2 is both EOS and PAD; the true length is 3.
  const std::vector<TokenRow> sequences = {{5, 6, 2}, {1, 1, 1, 1, 1}};
  const Batch batch = make_shifted_batch(sequences, exact(5));
  EXPECT_EQ(Ids(batch.labels.begin(), batch.labels.begin() + 5), (Ids{6, 2, kIgnored, kIgnored, kIgnored}));
  EXPECT_EQ(Mask(batch.real.begin(), batch.real.begin() + 5), (Mask{1, 1, 1, 0, 0}));
  EXPECT_EQ(batch.valid_targets, 2 + 4);
  // Our own special ids inside a row are tokens like any other.
  EXPECT_EQ(make_rows_batch(std::vector<TokenRow>{{kP, kE}}, exact(4)).valid_targets, 3);
}

TEST(Rows, S17_last_real_column_on_either_side) {
  const std::vector<TokenRow> rows = {{5, 6, 7}, {8}, {}};
  EXPECT_EQ(last_real_columns(make_rows_batch(rows, exact(8))), (Ids{3, 1, 0}));
  EXPECT_EQ(last_real_columns(make_rows_batch(rows, exact(8, PaddingSide::left))), (Ids{3, 3, 3}));
  EXPECT_THROW(last_real_columns(make_shifted_batch(std::vector<TokenRow>{{}}, exact(8))), Error);
}

TEST(Rows, S18_BR_010_positions_count_real_tokens) {
  EXPECT_EQ(positions_of(Mask{0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, 5), (Ids{0, 0, 0, 1, 2, 0, 1, 2, 3, 4}));
  EXPECT_EQ(positions_of(Mask{1, 1, 0, 0}, 4), (Ids{0, 1, 1, 1}));
  EXPECT_EQ(positions_of(Mask{0, 0}, 2), (Ids{0, 0}));
}

TEST(Rows, S19_the_end_is_a_scored_target_and_never_an_unscored_one) {
  const Batch batch = make_rows_batch(std::vector<TokenRow>{{9}, {}}, exact(4));
  EXPECT_EQ(batch.labels, (Ids{9, kE, kE, kIgnored}));
}

TEST(Rows, S22_teacher_forcing_shifts_the_target_by_one) {
  const Ids sat_on_the_mat = {13, 14, 15, 16};
  const Batch batch = make_rows_batch(std::vector<TokenRow>{sat_on_the_mat}, exact(16));
  EXPECT_EQ(batch.ids, (Ids{kB, 13, 14, 15, 16}));
  EXPECT_EQ(batch.labels, (Ids{13, 14, 15, 16, kE}));
}

TEST(Rows, width_is_rounded_up_but_not_above_the_context) {
  for (const auto& [tokens, context, time] :
       {std::tuple{3, 96, 16}, {15, 96, 16}, {16, 96, 32}, {90, 95, 95}, {94, 95, 95}}) {
    const std::vector<TokenRow> rows = {TokenRow(static_cast<std::size_t>(tokens), 7)};
    EXPECT_EQ(make_rows_batch(rows, {.context = context}).time, time) << tokens;
  }
}

TEST(Rows, too_long_a_row_is_an_error_or_cropped_without_its_end) {
  const std::vector<TokenRow> rows = {{5}, {6, 7, 8, 9}};
  EXPECT_EQ(error_of([&] { make_rows_batch(rows, exact(4)); }),
            "rows: row 1 needs a context of 5, got 4; take a larger context or crop the rows");
  RowFormat format = exact(4);
  format.crop = true;
  const Batch batch = make_rows_batch(rows, format);
  EXPECT_EQ(batch.ids, (Ids{kB, 5, kP, kP, kB, 6, 7, 8}));
  EXPECT_EQ(batch.labels, (Ids{5, kE, kIgnored, kIgnored, 6, 7, 8, 9}));
  EXPECT_EQ(batch.valid_targets, 6);
}

TEST(Stream, BR_073_windows_available) {
  for (const auto& [count, starts] : {std::pair{0, 0}, {1, 0}, {8, 0}, {9, 1}, {12, 4}}) {
    const Ids tokens(static_cast<std::size_t>(count), 7);
    for (std::int64_t start = 0; start < starts; ++start) {
      EXPECT_EQ(make_stream_batch(tokens, Ids{start}, 8).labels.size(), 8u);
    }
    EXPECT_THROW(make_stream_batch(tokens, Ids{starts}, 8), Error) << count;
    EXPECT_THROW(make_stream_batch(tokens, Ids{-1}, 8), Error) << count;

    DatasetSettings settings;
    settings.format.context = 8;
    settings.name = "text.txt";
    const Ids long_text(20, 7);
    if (starts > 0) {
      EXPECT_EQ(StreamDataset(tokens, long_text, settings).training_starts(), starts);
    } else {
      EXPECT_EQ(
          error_of([&] { StreamDataset(long_text, tokens, settings); }),
          "text.txt: the validation split has " + std::to_string(count) +
              " tokens, a window needs 9 (context + 1); take a longer text, a smaller context or another "
              "validation share");
    }
  }
}

TEST(Stream, labels_are_the_inputs_shifted_by_one) {
  const Batch batch = make_stream_batch(Ids{10, 11, 12, 13, 14}, Ids{1, 0}, 3);
  EXPECT_EQ(batch.ids, (Ids{11, 12, 13, 10, 11, 12}));
  EXPECT_EQ(batch.labels, (Ids{12, 13, 14, 11, 12, 13}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.real, Mask(6, 1));
  EXPECT_EQ(batch.valid_targets, 6);
}

TEST(Dataset, every_epoch_sees_every_row_once_in_another_order) {
  std::vector<TokenRow> rows;
  for (std::int64_t token = 3; token < 23; ++token) rows.push_back({token});
  RowsDataset data(rows, rows, {.format = exact(4), .seed = 5, .name = "rows", .remark = {}, .floor = {}});
  DataPosition position;
  std::vector<Ids> epochs(2);
  for (Ids& epoch : epochs) {
    for (int step = 0; step < 4; ++step) {
      const Batch batch = data.next_training_batch(position, 5);
      for (std::size_t row = 0; row < 5; ++row) epoch.push_back(batch.ids[row * 2 + 1]);
    }
    EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 20u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(data.validation_batches(8).back().rows, 4);
  EXPECT_EQ(data.validation_batches(8).size(), 3u);
}

TEST(Dataset, order_is_a_function_of_seed_and_position_alone) {
  const TemporaryFile file(
      "It was the best of times, it was the worst of times, it was the age of wisdom.\nEnd\nA");
  FileOptions options{.format = exact(80), .seed = 9};
  const auto make = [&](bool stream) {
    options.format.context = stream ? 5 : 80;
    return stream ? stream_from_file(file.path(), options) : rows_from_file(file.path(), options);
  };
  for (const bool stream : {false, true}) {
    const auto first = make(stream), second = make(stream);
    DataPosition whole, parts;
    const Batch expected = first->next_training_batch(whole, 7);
    Ids ids = second->next_training_batch(parts, 3).ids;
    EXPECT_EQ(parts.examples_seen, 3);
    const auto third = make(stream);  // a restart from the saved position
    const Ids rest = third->next_training_batch(parts, 4).ids;
    if (stream) {
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_EQ(ids, expected.ids);
    }
    EXPECT_EQ(parts.examples_seen, whole.examples_seen);
    EXPECT_EQ(first->next_training_batch(whole, 4).ids, third->next_training_batch(parts, 4).ids);
    EXPECT_EQ(first->hash(), third->hash());
  }
}

TEST(Dataset, hash_is_fnv_1a_and_sees_the_split) {
  EXPECT_EQ(hash_tokens({}), 0xCBF29CE484222325u);
  std::uint64_t expected = (0xCBF29CE484222325u ^ 'a') * 0x100000001B3u;
  for (int zero = 0; zero < 7; ++zero) expected *= 0x100000001B3u;
  EXPECT_EQ(hash_tokens(Ids{'a'}), expected);
  const DatasetSettings settings{.format = exact(4), .name = "rows", .remark = {}, .floor = {}};
  const std::vector<TokenRow> one = {{3}}, two = {{3}, {3}}, joined = {{3, 3}};
  EXPECT_EQ((std::set{RowsDataset(one, two, settings).hash(), RowsDataset(two, one, settings).hash(),
                      RowsDataset(one, joined, settings).hash(), RowsDataset(one, one, settings).hash()})
                .size(),
            4u);
}

TEST(Sources, lines_are_split_and_duplicates_leave_training) {
  const TemporaryFile file(
      "\xEF\xBB\xBF"
      "anna\r\nben\r\n\r\nanna\nclara\nanna\nben");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto data =
        rows_from_file(file.path(), {.validation_share = 0.2, .format = exact(8), .seed = seed});
    DataPosition position;
    const Batch training = data->next_training_batch(position, data->examples_per_epoch());
    const std::vector<Batch> validation = data->validation_batches(10);
    ASSERT_EQ(validation.size(), 1u);
    EXPECT_EQ(validation[0].rows, 1);
    const std::string held_out = data->tokenizer().decode(validation[0].ids);
    std::set<std::string> trained;
    for (std::int64_t row = 0; row < training.rows; ++row) {
      trained.insert(data->tokenizer().decode(std::span(training.ids)
                                                  .subspan(static_cast<std::size_t>(row * training.time),
                                                           static_cast<std::size_t>(training.time))));
    }
    EXPECT_FALSE(trained.contains(held_out)) << held_out;
    EXPECT_EQ(trained.size(), 2u);
    EXPECT_EQ(data->tokenizer().vocabulary_size(), 3 + 7);  // a b c e l n r: neither line ends nor the mark
    const std::int64_t copies = held_out == "anna" ? 2 : held_out == "ben" ? 1 : 0;
    EXPECT_EQ(data->examples_per_epoch(), 5 - copies);
    EXPECT_EQ(data->description().find(std::to_string(copies) + " training lines equal") != std::string::npos,
              copies > 0);
  }
}

TEST(Sources, the_last_part_of_a_stream_is_for_validation) {
  const TemporaryFile file("0123456789");
  const auto data = stream_from_file(file.path(), {.validation_share = 0.5, .format = exact(2)});
  EXPECT_EQ(data->examples_per_epoch(), 2);
  const std::vector<Batch> validation = data->validation_batches(1);
  ASSERT_EQ(validation.size(), 2u);
  EXPECT_EQ(data->tokenizer().decode(validation[0].ids), "56");
  EXPECT_EQ(data->tokenizer().decode(validation[1].labels), "89");
  DataPosition position;
  EXPECT_EQ(data->tokenizer().decode(data->next_training_batch(position, 50).labels).find_first_of("56789"),
            std::string::npos);
}

TEST(Sources, bad_files_are_one_clear_error) {
  const TemporaryFile empty(""), blank("\r\n\n"), single("one\n"), long_lines("a\nabcdef\nabcdefgh\n"),
      not_text("ab\na\xFF\n"), short_text("abc");
  struct Case {
    std::filesystem::path path;
    bool stream;
    std::string message;
  };
  for (const auto& [path, stream, message] : {
           Case{"no/such/file", false, "can't read no/such/file"},
           Case{std::filesystem::temp_directory_path(), true, "is a folder"},
           Case{empty.path(), false, "0 lines with text, wanted at least 2"},
           Case{empty.path(), true, "no text in it"},
           Case{blank.path(), false, "0 lines with text"},
           Case{single.path(), false, "1 lines with text"},
           Case{long_lines.path(), false,
                "line 2 needs a context of 7, got 4 (2 of 3 lines are too long); take a larger context"},
           Case{not_text.path(), false, "line 2, column 2: byte 0xFF"},
           Case{not_text.path(), true, "line 2, column 2: byte 0xFF"},
           Case{short_text.path(), true, "the training split has 2 tokens, a window needs 5"},
       }) {
    const FileOptions options{.format = exact(4)};
    const std::string error =
        error_of([&] { stream ? stream_from_file(path, options) : rows_from_file(path, options); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  for (const double share : {0., 1., -1., std::nan("")}) {
    EXPECT_THROW(rows_from_file(long_lines.path(), {.validation_share = share, .format = exact(9)}), Error);
  }
}

TEST(Sources, byte_tokens_take_any_file) {
  const TemporaryFile file("a\xFF\nb\xC0\n");
  const auto data = rows_from_file(file.path(), {.tokens = Tokenizer::Kind::bytes, .format = exact(4)});
  EXPECT_EQ(data->tokenizer().vocabulary_size(), 259);
  EXPECT_EQ(data->examples_per_epoch(), 1);
}

TEST(Sources, corpus_rows_know_their_floor) {
  const auto data = rows_from_corpus(3, 500, 100);
  EXPECT_EQ(data->examples_per_epoch(), 500);
  EXPECT_NE(data->description().find("% of the validation sentences also occur in training"),
            std::string::npos);
  std::vector<std::string> sentences;
  std::int64_t targets = 0;
  const Corpus corpus;
  for (const Batch& batch : data->validation_batches(1)) {
    sentences.push_back(data->tokenizer().decode(batch.ids));
    targets += batch.valid_targets;
    EXPECT_TRUE(corpus.check(sentences.back()).in_language);
  }
  ASSERT_TRUE(data->floor().has_value());
  EXPECT_NEAR(*data->floor(), corpus.mean_negative_log_probability(sentences), 1e-12);
  double characters = 0;
  for (const std::string& sentence : sentences) characters += static_cast<double>(sentence.size());
  EXPECT_EQ(static_cast<double>(targets), characters + 100);
  EXPECT_NE(rows_from_corpus(4, 500, 100)->hash(), data->hash());
}

}  // namespace
}  // namespace needle
