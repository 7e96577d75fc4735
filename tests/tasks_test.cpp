// The built-in tasks: their answers read again by other means, their distances, splits and widths.
#include "needle/data/tasks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "backends/error.h"
#include "needle/train/names_of_choices.h"
#include "needle/train/trainer.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

/// A scored position of a row.
struct Answer {
  std::int64_t position, distance;
  std::string label;
};

/// A row of a batch as text: BOS is '^', so that character i is position i.
struct TextRow {
  std::string text, source;
  std::vector<Answer> answers;
};

std::string text_of(const Tokenizer& tokenizer, std::span<const std::int64_t> ids) {
  std::string text;
  for (const std::int64_t id : ids)
    text += id == kBeginId ? "^" : id == kEndId ? "$" : tokenizer.decode({&id, 1});
  return text;
}

std::vector<TextRow> rows_of(const Batch& batch, const Tokenizer& tokenizer) {
  std::vector<TextRow> rows;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto part = [row](const auto& all, std::int64_t width) {
      return std::span(all).subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
    };
    TextRow text{text_of(tokenizer, part(batch.ids, batch.time)), {}, {}};
    if (batch.source_time > 0) text.source = text_of(tokenizer, part(batch.source_ids, batch.source_time));
    for (std::int64_t position = 0; position < batch.time; ++position) {
      const auto at = static_cast<std::size_t>(row * batch.time + position);
      if (batch.labels[at] == -100) continue;
      text.answers.push_back({position, batch.distances.empty() ? -1 : batch.distances[at],
                              text_of(tokenizer, {&batch.labels[at], 1})});
    }
    rows.push_back(text);
  }
  return rows;
}

std::vector<TextRow> training_rows(Dataset& data, std::int64_t count) {
  DataPosition position;
  return rows_of(data.next_training_batch(position, count), data.tokenizer());
}

std::string character(const std::string& text, std::int64_t position) {
  return text.substr(static_cast<std::size_t>(position), 1);
}

TEST(Tasks, CopyAnswersWithTheCharacterThatStandsItsDistanceBack) {
  for (const std::int64_t distance : {8, 9, 24, 100}) {
    GeneratedDataset data(copy_task(distance), 3);
    std::set<std::int64_t> distances;
    for (const TextRow& row : training_rows(data, 400)) {
      const std::size_t mark = row.text.find('>');
      const std::size_t begin = row.text.find_first_not_of("^.");
      const std::string string = row.text.substr(begin, 8);
      EXPECT_EQ(std::ssize(row.text), distance + 9);
      EXPECT_EQ(row.text.substr(mark + 1), string.substr(0, 7));
      ASSERT_EQ(row.answers.size(), 8u);
      for (std::size_t i = 0; i < 8; ++i) {
        const Answer& answer = row.answers[i];
        EXPECT_EQ(answer.position, static_cast<std::int64_t>(mark + i));
        EXPECT_EQ(answer.label, string.substr(i, 1));
        EXPECT_EQ(answer.position - answer.distance, static_cast<std::int64_t>(begin + i));
      }
      distances.insert(row.answers[0].distance);
    }
    EXPECT_EQ(*distances.begin(), 8);
    EXPECT_LE(*distances.rbegin(), distance);
    if (distance <= 24) {
      EXPECT_EQ(std::ssize(distances), distance - 7);
    }
  }
}

TEST(Tasks, RecallAnswersWithTheValueThatTheKeyHadWhenLastSeen) {
  for (const std::int64_t distance : {2, 4, 6, 24, 200}) {
    GeneratedDataset data(recall_task(distance), 4);
    for (const TextRow& row : training_rows(data, 50)) {
      EXPECT_EQ(std::ssize(row.text), 1 + 2 * distance);
      EXPECT_FALSE(row.answers.empty());
      std::int64_t before = 0;
      for (const Answer& answer : row.answers) {
        EXPECT_GT(answer.position, before);
        before = answer.position;
        const std::string key = character(row.text, answer.position);
        EXPECT_EQ(character(row.text, answer.position + 1), answer.label);
        const std::size_t last = row.text.rfind(key, static_cast<std::size_t>(answer.position - 1));
        EXPECT_EQ(answer.position - answer.distance, static_cast<std::int64_t>(last));
        EXPECT_EQ(row.text.substr(last + 1, 1), answer.label);
        EXPECT_EQ(answer.distance % 2, 0);
        EXPECT_LE(answer.distance, distance);
      }
    }
  }
}

TEST(Tasks, RecallAsksAtAllDistancesAndForAllValuesEvenly) {
  const GeneratedDataset data(recall_task(24), 5, 12000);
  std::map<std::int64_t, double> distances;
  std::map<std::string, double> values;
  double answers = 0;
  for (const Batch& batch : data.validation_batches(500)) {
    for (const TextRow& row : rows_of(batch, data.tokenizer())) {
      for (const Answer& answer : row.answers)
        ++distances[answer.distance], ++values[answer.label], ++answers;
    }
  }
  ASSERT_EQ(distances.size(), 12u);
  ASSERT_EQ(values.size(), 8u);
  for (const auto& [distance, count] : distances) EXPECT_GT(count, 0.02 * answers) << distance;
  // Answers of a row share its few values, so that they scatter more than single draws.
  for (const auto& [value, count] : values) EXPECT_NEAR(count, answers / 8, 0.05 * answers / 8) << value;
}

TEST(Tasks, BracketsAnswerWhetherTheKindIsThatOfTheOpeningOne) {
  for (const std::int64_t distance : {1, 2, 23, 24, 60}) {
    GeneratedDataset data(brackets_task(distance), 6);
    const std::string opening = "([{", closing = ")]}";
    double right = 0, all = 0;
    std::int64_t farthest = 0;
    for (const TextRow& row : training_rows(data, 300)) {
      std::vector<std::int64_t> open;
      std::size_t answered = 0;
      for (std::int64_t position = 1; position < std::ssize(row.text); ++position) {
        const char bracket = row.text[static_cast<std::size_t>(position)];
        if (opening.find(bracket) != std::string::npos) {
          open.push_back(position);
          continue;
        }
        ASSERT_FALSE(open.empty()) << row.text;
        const char wanted = closing[opening.find(row.text[static_cast<std::size_t>(open.back())])];
        const Answer& answer = row.answers.at(answered++);
        EXPECT_EQ(answer.position, position);
        EXPECT_EQ(answer.distance, position - open.back());
        EXPECT_EQ(answer.label, bracket == wanted ? "+" : "-") << row.text << " at " << position;
        right += answer.label == "+" ? 1 : 0;
        all += 1;
        farthest = std::max(farthest, answer.distance);
        open.pop_back();
      }
      EXPECT_TRUE(open.empty());
      EXPECT_EQ(answered, row.answers.size());
    }
    EXPECT_LE(farthest, distance);
    EXPECT_GE(farthest, distance - 1);
    EXPECT_NEAR(right / all, 0.5, 4.5 * 0.5 / std::sqrt(all));
  }
}

TEST(Tasks, NumbersInWords) {
  const std::pair<std::int64_t, const char*> cases[] = {{0, "zero"},
                                                        {7, "seven"},
                                                        {19, "nineteen"},
                                                        {20, "twenty"},
                                                        {21, "twenty-one"},
                                                        {90, "ninety"},
                                                        {100, "one hundred"},
                                                        {101, "one hundred and one"},
                                                        {342, "three hundred and forty-two"},
                                                        {1000, "one thousand"},
                                                        {3047, "three thousand and forty-seven"},
                                                        {5600, "five thousand six hundred"},
                                                        {9999, "nine thousand nine hundred and ninety-nine"}};
  for (const auto& [number, words] : cases) EXPECT_EQ(number_in_words(number), words);
  EXPECT_THROW(number_in_words(10000), Error);
  EXPECT_THROW(number_in_words(-1), Error);
}

TEST(Tasks, S22_TranslationForcesTheTargetAndHoldsNumbersOut) {
  GeneratedDataset data(translation_task(), 7);
  const auto check = [&](const std::vector<TextRow>& rows, bool held_out) {
    for (const TextRow& row : rows) {
      const std::int64_t number = std::stoll(row.source);
      const std::string words = number_in_words(number);
      EXPECT_EQ(is_held_out(number), held_out) << number;
      EXPECT_EQ(row.source, std::to_string(number));
      EXPECT_EQ(row.text, "^" + words);
      std::string labels;
      for (const Answer& answer : row.answers) labels += answer.label;
      EXPECT_EQ(labels, words + "$");
    }
  };
  check(training_rows(data, 500), false);
  for (const Batch& batch : data.validation_batches(300)) check(rows_of(batch, data.tokenizer()), true);
  std::int64_t held_out = 0;
  for (std::int64_t number = 0; number < 10000; ++number) held_out += is_held_out(number) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(held_out), 1000, 100);
}

TEST(Tasks, S27_ShapesAreNormalisedPatchesThatDiffer) {
  GeneratedDataset data(shapes_task(), 8);
  DataPosition position;
  constexpr std::size_t kImage = 17 * 16;
  const Batch batch = data.next_training_batch(position, 300);
  ASSERT_EQ(batch.features.size(), 300 * kImage);
  EXPECT_EQ(batch.feature_width, 16);
  EXPECT_EQ(batch.time, 17);
  EXPECT_EQ(batch.valid_targets, 300);
  std::set<std::vector<float>> images;
  std::map<std::string, std::vector<double>> mean_of_digit;
  for (const TextRow& row : rows_of(batch, data.tokenizer())) {
    const std::span<const float> image = std::span(batch.features).subspan(images.size() * kImage, kImage);
    ASSERT_EQ(row.answers.size(), 1u);
    EXPECT_EQ(row.answers[0].position, 0);
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < kImage; ++i) {
      if (i < 16) {
        EXPECT_EQ(image[i], 0);
      }
      mean += image[i] / 256;
      variance += image[i] * image[i] / 256;
    }
    EXPECT_NEAR(mean, 0, 1e-5);
    EXPECT_NEAR(variance, 1, 1e-4);
    EXPECT_TRUE(images.emplace(image.begin(), image.end()).second);
    std::vector<double>& its_mean = mean_of_digit[row.answers[0].label];
    its_mean.resize(kImage);
    for (std::size_t i = 0; i < kImage; ++i) its_mean[i] += image[i];
  }
  ASSERT_EQ(mean_of_digit.size(), 10u);
  // Digits look different: the mean image of each is told from that of all others.
  for (const auto& [digit, mean] : mean_of_digit) {
    for (const auto& [other, its_mean] : mean_of_digit) {
      double product = 0, square = 0, its_square = 0;
      for (std::size_t i = 0; i < kImage; ++i) {
        product += mean[i] * its_mean[i];
        square += mean[i] * mean[i];
        its_square += its_mean[i] * its_mean[i];
      }
      if (digit < other) {
        EXPECT_LT(product / std::sqrt(square * its_square), 0.95) << digit << other;
      }
    }
  }
}

const DataSource kTasks[] = {DataSource::copy, DataSource::recall, DataSource::brackets,
                             DataSource::translation, DataSource::shapes};

TrainSettings settings_for(DataSource source, std::int64_t seed = 1) {
  TrainSettings settings;
  settings.data.source = source;
  settings.seed = seed;
  return settings;
}

TEST(Tasks, ExamplesAreAFunctionOfSeedAndNumber) {
  for (const DataSource source : kTasks) {
    const auto data = make_dataset(settings_for(source)), again = make_dataset(settings_for(source)),
               other = make_dataset(settings_for(source, 2));
    EXPECT_EQ(data->hash(), again->hash());
    EXPECT_NE(data->hash(), other->hash());
    DataPosition position, single;
    const Batch batch = data->next_training_batch(position, 4);
    EXPECT_EQ(position.examples_seen, 4);
    std::vector<float> features;
    std::vector<TextRow> rows;
    for (int i = 0; i < 4; ++i) {  // other batch sizes, the same examples
      const Batch row = again->next_training_batch(single, 1);
      EXPECT_EQ(row.rows, 1);
      features.insert(features.end(), row.features.begin(), row.features.end());
      for (const TextRow& text : rows_of(row, again->tokenizer())) rows.push_back(text);
    }
    EXPECT_EQ(features, batch.features);
    const std::vector<TextRow> expected = rows_of(batch, data->tokenizer());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].text, expected[i].text);
    const std::vector<Batch> validation = data->validation_batches(300);
    ASSERT_EQ(validation.size(), 4u);
    EXPECT_EQ(validation.back().rows, 100);
    const Batch held_out = data->validation_batches(4).front();
    EXPECT_TRUE(held_out.ids != batch.ids || held_out.features != batch.features);
  }
}

TEST(Tasks, BatchesFitTheirWidthAndCountTheirTargets) {
  for (const DataSource source : kTasks) {
    const auto data = make_dataset(settings_for(source));
    std::int64_t longest = 0, targets = 0;
    for (const Batch& batch : data->validation_batches(50)) {
      longest = std::max({longest, batch.time, batch.source_time});
      const auto size = static_cast<std::size_t>(batch.rows * batch.time);
      for (const std::size_t has :
           {batch.ids.size(), batch.labels.size(), batch.real.size(), batch.positions.size()})
        EXPECT_EQ(has, size);
      std::int64_t scored = 0;
      for (std::size_t i = 0; i < size; ++i) {
        scored += batch.labels[i] >= 0 ? 1 : 0;
        EXPECT_GE(batch.real[i], batch.labels[i] >= 0 ? 1 : 0);
        EXPECT_LT(batch.labels[i], data->tokenizer().vocabulary_size());
        if (!batch.distances.empty()) {
          EXPECT_EQ(batch.distances[i] >= 0, batch.labels[i] >= 0);
        }
      }
      EXPECT_EQ(batch.valid_targets, scored);
      targets += scored;
      EXPECT_EQ(batch.source_ids.size(), static_cast<std::size_t>(batch.rows * batch.source_time));
      EXPECT_EQ(batch.source_real.size(), batch.source_ids.size());
      EXPECT_EQ(data->has_source(), !batch.source_ids.empty());
      EXPECT_EQ(data->feature_width(), batch.feature_width);
    }
    EXPECT_EQ(longest, data->longest_row());
    EXPECT_GT(targets, 0);
    EXPECT_TRUE(contains(data->description(), {name_of_choice(source) + ": generated"}));
    EXPECT_EQ(Tokenizer::from_json(data->tokenizer().to_json()), data->tokenizer());
  }
}

TEST(Tasks, DistanceIsASetting) {
  std::set<std::uint64_t> hashes;
  for (const DataSource source : {DataSource::copy, DataSource::recall, DataSource::brackets}) {
    TrainSettings settings = settings_for(source);
    hashes.insert(make_dataset(settings)->hash());
    settings.data.distance = 40;
    const auto data = make_dataset(settings);
    hashes.insert(data->hash());
    nlohmann::json json = settings;
    EXPECT_EQ(json.get<TrainSettings>().data.distance, 40);
    EXPECT_EQ(json.get<TrainSettings>().data.source, source);
    EXPECT_EQ(settings.data.name(), name_of_choice(source));
    EXPECT_TRUE(contains(data->description(), {"40"}) || source == DataSource::brackets);
    settings.model.context = 32;
    EXPECT_TRUE(contains(error_of([&] { Trainer(settings, *data); }), {"context of 32", "rows of"}));
    json.erase("distance");  // runs of before there were tasks
    EXPECT_EQ(json.get<TrainSettings>().data.distance, 0);
  }
  EXPECT_EQ(hashes.size(), 6u);
  TrainSettings settings;
  settings.data.distance = 24;
  EXPECT_TRUE(contains(error_of([&] { settings.validate(); }), {"distance", "corpus"}));
  EXPECT_TRUE(contains(error_of([] { recall_task(7); }), {"recall", "even", "7"}));
  EXPECT_TRUE(contains(error_of([] { recall_task(-2); }), {"recall", "-2"}));
  EXPECT_TRUE(contains(error_of([] { copy_task(7); }), {"copy", "7"}));
  EXPECT_TRUE(contains(error_of([] { brackets_task(-1); }), {"brackets", "-1"}));
}

TEST(Tasks, AModelThatCannotReadTheDataIsRefused) {
  for (const auto& [source, wanted] :
       {std::pair{DataSource::translation, "encoder-decoder"}, std::pair{DataSource::shapes, "patches"}}) {
    const TrainSettings settings = settings_for(source);
    const auto data = make_dataset(settings);
    EXPECT_TRUE(contains(error_of([&] { Trainer(settings, *data); }), {wanted}));
  }
}

class TasksOnDevice : public OnDevice {};

TEST_P(TasksOnDevice, SourcesAndFeaturesReachTheModel) {
  for (const DataSource source : kTasks) {
    const auto data = make_dataset(settings_for(source));
    DataPosition position;
    const Batch batch = data->next_training_batch(position, 3);
    const SequenceInput input = input_of(batch, device());
    EXPECT_EQ(input.ids.to_vector<std::int64_t>(), batch.ids);
    EXPECT_EQ(input.source_ids.defined(), source == DataSource::translation);
    EXPECT_EQ(input.features.defined(), source == DataSource::shapes);
    if (input.source_ids.defined()) {
      EXPECT_EQ(input.source_ids.to_vector<std::int64_t>(), batch.source_ids);
      EXPECT_EQ(input.source_real.cast(DType::i64).to_vector<std::int64_t>(),
                (std::vector<std::int64_t>(batch.source_real.begin(), batch.source_real.end())));
    }
    if (input.features.defined()) {
      EXPECT_EQ(input.features.shape(), (Shape{3, 17, 16}));
      EXPECT_EQ(input.features.to_vector<float>(), batch.features);
    }
  }
}

TEST_P(TasksOnDevice, ADecoderTrainsOnTasks) {
  for (const DataSource source : {DataSource::copy, DataSource::recall, DataSource::brackets}) {
    TrainSettings settings = settings_for(source);
    settings.model.width = 16;
    settings.model.heads = 2;
    settings.model.layers = 1;
    settings.batch = 2;
    const auto data = make_dataset(settings);
    Trainer trainer(settings, *data, device());
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(std::isfinite(trainer.step().loss));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TasksOnDevice, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
