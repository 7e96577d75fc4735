// Tasks that differ in what must be remembered, and for how long: copy, recall, brackets.
#include <array>
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

namespace {

/// For each query the number of slots back to its pair, in [1, slots]: query i stands i slots behind the last
/// pair, and no two name the same pair.
std::vector<std::int64_t> slots_back(std::int64_t queries, std::int64_t slots, Generator& random) {
  while (true) {
    // One from each of as many equal parts of the range: each distance is as likely.
    std::vector<std::int64_t> free;
    for (std::int64_t part = 0; part < queries; ++part) {
      const double place = (static_cast<double>(part) + random.uniform()) / static_cast<double>(queries);
      free.push_back(std::min(1 + static_cast<std::int64_t>(place * static_cast<double>(slots)), slots));
    }
    // A late query cannot look a short way back, so it chooses first.
    std::vector<std::int64_t> back(static_cast<std::size_t>(queries));
    std::vector<bool> taken(static_cast<std::size_t>(slots), false);
    bool fits = true;
    for (std::int64_t query = queries - 1; fits && query >= 0; --query) {
      random.shuffle(free);
      const auto chosen = std::find_if(free.begin(), free.end(), [&](std::int64_t candidate) {
        return candidate > query && !taken[static_cast<std::size_t>(slots + query - candidate)];
      });
      fits = chosen != free.end();
      if (!fits) continue;
      back[static_cast<std::size_t>(query)] = *chosen;
      taken[static_cast<std::size_t>(slots + query - *chosen)] = true;
      free.erase(chosen);
    }
    if (fits) return back;
  }
}

}  // namespace

Task recall_task(std::int64_t distance) {
  constexpr std::int64_t kMostQueries = 8, kSlotsOfAQuery = 3;
  distance = checked_distance("recall", distance, 2);
  require(distance % 2 == 0, "recall: distance must be even, since a pair takes two positions, got ",
          distance);
  const std::int64_t slots = distance / 2;
  const std::int64_t queries = std::clamp(slots / kSlotsOfAQuery, std::int64_t{1}, kMostQueries);
  Task task;
  task.name = "recall";
  const std::string_view letters = "abcdefghijklmnopqrstuvwxyz", values = "ABCDEFGHIJKLMNOP";
  task.tokenizer = Tokenizer::characters(std::string(letters) + std::string(values) + ".");
  const TokenRow all_keys = task.tokenizer.encode(letters), all_values = task.tokenizer.encode(values);
  const std::int64_t filler = task.tokenizer.encode(".")[0];
  task.longest_row = 1 + distance + 2 * queries;
  task.chance = 1.0 / static_cast<double>(all_values.size());
  task.remark =
      text_of(queries, " of the keys asked for, first seen 2 to ", distance,
              " positions back; beyond a receptive field there is chance alone, ", 100 * task.chance, " %");
  task.example = [=](Generator& random, DataPart) {
    TokenRow keys = all_keys;
    random.shuffle(keys);
    const TokenRow others(keys.begin() + queries, keys.end());
    std::vector<std::array<std::int64_t, 2>> pairs(static_cast<std::size_t>(slots));
    for (auto& [key, value] : pairs) {
      const bool is_filler = random.uniform() < 0.5;
      key = is_filler ? filler : one_of(others, random);
      value = is_filler ? filler : one_of(all_values, random);
    }
    const std::vector<std::int64_t> back = slots_back(queries, slots, random);
    const auto pair_of = [&](std::int64_t query) -> auto& {
      return pairs[static_cast<std::size_t>(slots + query - back[static_cast<std::size_t>(query)])];
    };
    for (std::int64_t query = 0; query < queries; ++query)
      pair_of(query) = {keys[static_cast<std::size_t>(query)], one_of(all_values, random)};
    TaskExample example;
    example.add(kBeginId);
    for (const auto& [key, value] : pairs) example.add(key), example.add(value);
    for (std::int64_t query = 0; query < queries; ++query) {
      const auto& [key, value] = pair_of(query);
      example.add(key, value, 2 * back[static_cast<std::size_t>(query)]);
      example.add(value);
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
