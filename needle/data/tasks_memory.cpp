// Tasks that differ in what must be remembered, and for how long: copy, recall, brackets.
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>

#include "backends/error.h"
#include "needle/data/tasks.h"

namespace needle {

namespace {

constexpr std::int64_t kDefaultDistance = 24, kMostDistance = 1'000'000;

std::int64_t checked_distance(const char* task, std::int64_t distance, std::int64_t least) {
  if (distance == 0) return kDefaultDistance;
  require(distance >= least && distance <= kMostDistance, task, ": distance must be in [", least, ", ",
          kMostDistance, "], got ", distance);
  return distance;
}

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  text.precision(3);
  (text << ... << parts);
  return text.str();
}

/// A random one of the ids.
std::int64_t one_of(const TokenRow& ids, Generator& random) {
  return ids[static_cast<std::size_t>(random.below(std::ssize(ids)))];
}

}  // namespace

Task copy_task(std::int64_t distance) {
  constexpr std::int64_t kLength = 8;
  distance = checked_distance("copy", distance, kLength);
  Task task;
  task.name = "copy";
  task.tokenizer = Tokenizer::characters("abcdefghijklmnop.>");
  const TokenRow letters = task.tokenizer.encode("abcdefghijklmnop");
  const std::int64_t filler = task.tokenizer.encode(".")[0], mark = task.tokenizer.encode(">")[0];
  task.longest_row = 1 + distance + kLength;
  task.chance = 1.0 / static_cast<double>(letters.size());
  task.remark = text_of("strings of ", kLength, " to repeat from ", kLength, " to ", distance,
                        " positions back; chance is ", 100 * task.chance, " %");
  task.example = [=](Generator& random, DataPart) {
    const std::int64_t delay = random.below(distance - kLength + 1);
    TokenRow string(kLength);
    for (std::int64_t& letter : string) letter = one_of(letters, random);
    TaskExample example;
    example.add(kBeginId);
    // What the delay leaves of the row stands before the string, so that all rows are equally long.
    for (std::int64_t i = 0; i < distance - kLength - delay; ++i) example.add(filler);
    for (const std::int64_t letter : string) example.add(letter);
    for (std::int64_t i = 0; i < delay; ++i) example.add(filler);
    for (std::size_t i = 0; i < string.size(); ++i)
      example.add(i == 0 ? mark : string[i - 1], string[i], kLength + delay);
    return example;
  };
  return task;
}

Task recall_task(std::int64_t distance) {
  distance = checked_distance("recall", distance, 2);
  require(distance % 2 == 0, "recall: distance must be even, since a pair takes two positions, got ",
          distance);
  // In slots of two positions. Few keys and many questions: what matters is the distance, not the crowd.
  constexpr std::int64_t kMostPairs = 6;
  const std::int64_t slots = distance / 2, pairs = std::min((slots + 1) / 2, kMostPairs);
  Task task;
  task.name = "recall";
  const std::string keys_text = "abcdefghijkl", values_text = "01234567";
  task.tokenizer = Tokenizer::characters(keys_text + values_text + ".");
  const TokenRow keys = task.tokenizer.encode(keys_text), values = task.tokenizer.encode(values_text);
  const std::int64_t filler = task.tokenizer.encode(".")[0];
  task.longest_row = 1 + 2 * distance;
  task.chance = 1.0 / static_cast<double>(values.size());
  task.remark =
      text_of("keys asked for, last seen 2 to ", distance,
              " positions back; beyond a receptive field there is chance alone, ", 100 * task.chance, " %");
  task.example = [=](Generator& random, DataPart) {
    // A row is told in parts. In each the pairs come first, with filler between them; then keys are asked
    // for, with filler between these. How long a part is and how much filler it has differ, so that distances
    // of every order occur, and parts that are as if they were made for a shorter distance.
    const auto of_some_order = [&](double most) { return std::pow(most, random.uniform()); };
    struct Pair {
      std::int64_t key, value, slot;
    };
    std::int64_t slot = 0;
    TaskExample example;
    example.add(kBeginId);
    while (slot < 2 * slots) {
      const std::int64_t longest = (2 * slots - slot) / 2;
      if (longest < pairs) {
        example.add(filler), example.add(filler);
        ++slot;
        continue;
      }
      const double stretch = of_some_order(static_cast<double>(longest) / static_cast<double>(pairs));
      const auto half = static_cast<std::int64_t>(static_cast<double>(pairs) * stretch + 0.5);
      const double asked_share = 1 / of_some_order(stretch);
      std::vector<char> is_pair(static_cast<std::size_t>(half));
      std::fill_n(is_pair.begin(), pairs, 1);
      random.shuffle(is_pair);
      TokenRow new_keys = keys;
      random.shuffle(new_keys);
      std::vector<Pair> known;  // each key with the last slot that shows it
      for (std::int64_t i = 0; i < 2 * half; ++i, ++slot) {
        std::erase_if(known, [&](const Pair& pair) { return pair.slot < slot - slots; });  // too far back
        if (i >= half && !known.empty() && (i == half || random.uniform() < asked_share)) {
          Pair& asked = known[static_cast<std::size_t>(random.below(std::ssize(known)))];
          example.add(asked.key, asked.value, 2 * (slot - asked.slot));
          example.add(asked.value);
          asked.slot = slot;
        } else if (i < half && is_pair[static_cast<std::size_t>(i)]) {
          known.push_back({new_keys.back(), one_of(values, random), slot});
          new_keys.pop_back();
          example.add(known.back().key);
          example.add(known.back().value);
        } else {
          example.add(filler), example.add(filler);
        }
      }
    }
    return example;
  };
  return task;
}

Task brackets_task(std::int64_t distance) {
  distance = checked_distance("brackets", distance, 1);
  const std::int64_t pairs = (distance + 1) / 2;
  Task task;
  task.name = "brackets";
  task.tokenizer = Tokenizer::characters("([{)]}+-");
  const TokenRow opening = task.tokenizer.encode("([{"), closing = task.tokenizer.encode(")]}");
  const std::int64_t right = task.tokenizer.encode("+")[0], wrong = task.tokenizer.encode("-")[0];
  task.longest_row = 1 + 2 * pairs;
  task.chance = 0.5;
  task.remark = text_of("the opening bracket up to ", 2 * pairs - 1, " positions back, up to ", pairs,
                        " open at once; chance is ", 100 * task.chance, " %");
  task.example = [=](Generator& random, DataPart) {
    TaskExample example;
    example.add(kBeginId);
    struct Open {
      std::int64_t position, after;  // pairs that follow it on its level
      std::size_t kind;
    };
    std::vector<Open> stack;
    std::int64_t to_come = pairs;
    while (to_come > 0 || !stack.empty()) {
      if (to_come > 0) {  // any number of them within the next pair is as likely, which makes long distances
        const std::int64_t inside = random.below(to_come);
        const auto kind = static_cast<std::size_t>(random.below(3));
        stack.push_back({std::ssize(example.ids), to_come - 1 - inside, kind});
        example.add(opening[kind]);
        to_come = inside;
      } else {
        const Open open = stack.back();
        stack.pop_back();
        const bool is_right = random.uniform() < 0.5;
        const auto shift = static_cast<std::size_t>(is_right ? 0 : 1 + random.below(2));
        example.add(closing[(open.kind + shift) % closing.size()], is_right ? right : wrong,
                    std::ssize(example.ids) - open.position);
        to_come = open.after;
      }
    }
    return example;
  };
  return task;
}

}  // namespace needle
