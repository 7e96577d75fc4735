// `needle bench generate`: what a token costs, beside what reading the weights allows and another program.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>

#include "apps/bench_measure.h"
#include "apps/command.h"
#include "apps/terminal.h"
#include "backends/clock.h"
#include "backends/cpu/roofs.h"
#include "needle/generate/decoding.h"
#include "needle/models/decoder.h"

namespace needle {

namespace {

struct DecodeOptions {
  std::vector<std::string> names{"W2", "W3"};
  std::vector<std::int64_t> batches{1, 8};
  std::int64_t prompt = 32, new_tokens = 128, rounds = 3;
  std::string against, key = "median_ms";
  ComputeOptions compute;
  bool json = false, int8 = false;
};

/// The decoders of `needle bench`, with room for the tokens.
DecoderConfig config_of(const std::string& name, std::int64_t room) {
  if (name == "W1") return DecoderConfig::of_size(65, std::max<std::int64_t>(64, room), 128, 4, 4);
  if (name == "W2") return DecoderConfig::of_size(512, std::max<std::int64_t>(256, room), 384, 6, 6);
  if (name == "W3") return DecoderConfig::of_size(50257, std::max<std::int64_t>(64, room), 768, 12, 12);
  fail("bench: there is no decoder '", name, "'; choose of W1, W2, W3");
}

/// Medians of all tokens: seconds of a prompt and of a pass of one token a row.
struct DecodeTimes {
  double prompt, token;
  std::size_t cache_bytes;
  std::uint64_t allocations;
};

DecodeTimes measure(SequenceModel& model, std::int64_t batch, const DecodeOptions& options, Device device) {
  std::vector<double> prompts, tokens;
  DecodeTimes times{};
  Generator random(1);
  for (std::int64_t round = 0; round <= options.rounds; ++round) {
    std::vector<TokenRow> rows(static_cast<std::size_t>(batch));
    for (TokenRow& row : rows) {
      for (std::int64_t i = 0; i < options.prompt; ++i) row.push_back(random.below(model.vocabulary_size()));
    }
    double start = now();
    Decoding decoding(model, rows, {.room = options.new_tokens}, device);
    std::vector<std::int64_t> next(rows.size());
    const auto choose = [&] {
      const std::vector<std::int64_t> best = argmax(decoding.logits(), -1).to_vector<std::int64_t>();
      std::copy(best.begin(), best.end(), next.begin());
    };
    choose();
    std::vector<double> of_round{now() - start};
    std::uint64_t before = 0;
    for (std::int64_t step = 1; step < options.new_tokens; ++step) {
      if (step == 2) before = device->memory_stats().system_allocations;
      start = now();
      decoding.push(next);
      choose();
      of_round.push_back(now() - start);
    }
    if (round == 0) continue;  // warms up
    prompts.push_back(of_round[0]);
    tokens.insert(tokens.end(), of_round.begin() + 1, of_round.end());
    times.cache_bytes = decoding.cache_bytes();
    times.allocations = device->memory_stats().system_allocations - before;
  }
  times.prompt = median(prompts);
  times.token = median(tokens);
  return times;
}

nlohmann::json measure_decoding(const std::string& name, std::int64_t batch, const DecodeOptions& options,
                                Device device) {
  const DecoderConfig config = config_of(name, options.prompt + options.new_tokens).resolved();
  Generator random(1);
  Decoder model(config, random, device);
  if (options.int8) quantize_weights(model);
  const DecodeTimes times = measure(model, batch, options, device);
  // A token reads the weights once, the position's row alone of its table, and half the cache on average.
  const double weights = 4.0 * static_cast<double>(config.parameter_count() - config.context * config.width),
               positions = static_cast<double>(options.prompt) + static_cast<double>(options.new_tokens) / 2,
               cache = static_cast<double>(times.cache_bytes) * positions /
                       static_cast<double>(options.prompt + options.new_tokens - 1),
               bandwidth = peak_bandwidth(static_cast<std::size_t>(std::max(weights, 1e6)));
  return {{"work", name},
          {"batch", batch},
          {"prompt_tokens", options.prompt},
          {"new_tokens", options.new_tokens},
          {"prompt_ms", 1e3 * times.prompt},
          {"median_ms", 1e3 * times.token},
          {"tokens_per_second", static_cast<double>(batch) / times.token},
          {"bytes_a_token", weights + cache},
          {"bandwidth", bandwidth},
          {"share_of_bandwidth", (weights + cache) / bandwidth / times.token},
          {"allocations_after_two_tokens", times.allocations},
          {"device", device->description()}};
}

void print_decoding(const nlohmann::json& r, bool first) {
  if (first) {
    std::cout << "decoding on " << r.at("device").get<std::string>() << ", "
              << r.at("prompt_tokens").get<std::int64_t>() << " tokens read and "
              << r.at("new_tokens").get<std::int64_t>() << " added: medians\n"
              << "bound: reading the weights and the cache once a token at the bandwidth measured now\n\n"
              << "work  batch  prompt ms  token ms  tokens/s  MB a token  bandwidth GB/s  of the bound  "
                 "allocations\n";
  }
  const auto number = [&](double value, int digits, int width) {
    std::cout << std::right << std::setw(width) << fixed(value, digits);
  };
  std::cout << std::left << std::setw(4) << r.at("work").get<std::string>();
  number(r.at("batch").get<double>(), 0, 7);
  number(r.at("prompt_ms").get<double>(), 1, 11);
  number(r.at("median_ms").get<double>(), 3, 10);
  number(r.at("tokens_per_second").get<double>(), 0, 10);
  number(r.at("bytes_a_token").get<double>() / 1e6, 1, 12);
  number(r.at("bandwidth").get<double>() / 1e9, 1, 16);
  number(100 * r.at("share_of_bandwidth").get<double>(), 0, 13);
  std::cout << '%';
  number(r.at("allocations_after_two_tokens").get<double>(), 0, 13);
  std::cout << std::endl;
}

void run_decoding(const DecodeOptions& options) {
  require(options.prompt >= 1 && options.new_tokens >= 3 && options.rounds >= 1,
          "bench: wants a prompt of at least 1 token, 3 new tokens and 1 round");
  for (const std::int64_t batch : options.batches)
    require(batch >= 1, "bench: --batch must be at least 1, got ", batch);
  for (const std::string& name : options.names) config_of(name, 1);
  require(options.against.empty() || (options.names.size() == 1 && options.batches.size() == 1),
          "bench: --against wants one --work and one --batch");
  const Device device = use(options.compute);
  if (!options.against.empty()) {
    return run_against(
        {{"work", options.names[0] + " decoding"}, {"batch", options.batches[0]}, {"int8", options.int8}},
        [&] {
          return measure_decoding(options.names[0], options.batches[0], options, device)
              .at("median_ms")
              .get<double>();
        },
        options.against, options.key, options.json);
  }
  bool first = true;
  for (const std::string& name : options.names) {
    for (const std::int64_t batch : options.batches) {
      const nlohmann::json result = measure_decoding(name, batch, options, device);
      if (options.json)
        print_json(result);
      else
        print_decoding(result, first);
      first = false;
    }
  }
}

}  // namespace

void add_bench_generate(CLI::App& bench) {
  auto options = std::make_shared<DecodeOptions>();
  CLI::App* command = bench.add_subcommand("generate", "Time of a token, with the past in a cache");
  command->footer("Example: needle bench generate --work W3 --batch 1 --against \"other-program\"");
  command->add_option("--work,--config", options->names, "Decoders: W1, W2, W3")
      ->delimiter(',')
      ->type_name("NAMES")
      ->capture_default_str();
  command->add_option("--batch", options->batches, "Rows that grow together")
      ->delimiter(',')
      ->type_name("INT")
      ->capture_default_str();
  add_value(*command, "--prompt", options->prompt, "Tokens read at first");
  add_value(*command, "--new-tokens", options->new_tokens, "Tokens added");
  add_value(*command, "--rounds", options->rounds, "How often");
  CLI::Option* const against =
      command
          ->add_option("--against", options->against,
                       "By turns with another command, which prints its milliseconds as JSON")
          ->type_name("COMMAND");
  add_value(*command, "--key", options->key, "The name of those milliseconds")->needs(against);
  add_compute_options(*command, options->compute);
  command->add_flag("--int8", options->int8, "Weights of maps in 8 bits; the bound stays that of 32");
  command->add_flag("--json", options->json, "Print one JSON object a row");
  command->callback([options] { run_decoding(*options); });
}

}  // namespace needle
