// The task of numbers in English words.
#include <array>

#include "backends/error.h"
#include "needle/data/tasks.h"

namespace needle {

namespace {

constexpr std::int64_t kNumbers = 10000;

constexpr std::array kSmall = {"zero",    "one",     "two",       "three",    "four",
                               "five",    "six",     "seven",     "eight",    "nine",
                               "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                               "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array kTens = {"twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};

std::string below_hundred(std::int64_t number) {
  if (number < std::ssize(kSmall)) return kSmall[static_cast<std::size_t>(number)];
  const std::string tens = kTens[static_cast<std::size_t>(number / 10 - 2)];
  return number % 10 == 0 ? tens : tens + '-' + kSmall[static_cast<std::size_t>(number % 10)];
}

}  // namespace

std::string number_in_words(std::int64_t number) {
  require(number >= 0 && number < kNumbers, "translation: wanted a number in [0, ", kNumbers, "), got ",
          number);
  if (number < 100) return below_hundred(number);
  const std::int64_t unit = number < 1000 ? 100 : 1000, rest = number % unit;
  const std::string most =
      std::string(kSmall[static_cast<std::size_t>(number / unit)]) + (unit == 100 ? " hundred" : " thousand");
  if (rest == 0) return most;
  return most + (rest < 100 ? " and " : " ") + number_in_words(rest);
}

bool is_held_out(std::int64_t number) {
  constexpr std::uint32_t kEvery = 10;
  return philox_word(0, static_cast<std::uint64_t>(number)) % kEvery == 0;
}

Task translation_task() {
  Task task;
  task.name = "translation";
  std::string characters;
  for (std::int64_t number = 0; number < kNumbers; ++number) {
    const std::string source = std::to_string(number), target = number_in_words(number);
    task.longest_source = std::max(task.longest_source, std::ssize(source));
    task.longest_row = std::max(task.longest_row, std::ssize(target) + 1);
    characters += source + target;
  }
  task.tokenizer = Tokenizer::characters(characters);
  task.remark =
      "numbers below 10000 to English words, validated on those of a tenth that is never trained on";
  task.example = [tokenizer = task.tokenizer](Generator& random, DataPart part) {
    std::int64_t number = random.below(kNumbers);
    while (is_held_out(number) != (part == DataPart::validation)) number = random.below(kNumbers);
    TaskExample example;
    example.source = tokenizer.encode(std::to_string(number));
    example.labels = tokenizer.encode(number_in_words(number));
    example.ids = example.labels;
    example.ids.insert(example.ids.begin(), kBeginId);
    example.labels.push_back(kEndId);
    return example;
  };
  return task;
}

}  // namespace needle
