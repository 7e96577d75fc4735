// Byte pairs: the ids of the package "tokenizers" on hard texts, round trips of any bytes, and what is
// refused. tests/reference/make_byte_pair.py made the files.
#include "needle/data/byte_pair.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "needle/data/tokenizer.h"
#include "needle/io/files.h"
#include "needle/io/tokenizer_files.h"
#include "needle/random.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path reference(const std::string& name) {
  return fs::path(NEEDLE_TEST_REFERENCE) / ("byte_pair_" + name);
}
json reference_json(const std::string& name) {
  const std::string file = reference(name).string();
  return parse_json(read_file(file), file);
}

/// GPT-2's two files, under their published names.
struct Gpt2Folder : TemporaryFolder {
  Gpt2Folder() {
    fs::copy_file(reference("gpt2_vocab.json"), *this / "vocab.json");
    fs::copy_file(reference("gpt2_merges.txt"), *this / "merges.txt");
  }
  Tokenizer tokenizer() const { return read_tokenizer(path(), 600, {}, 0); }
};

/// The two tokenizers of the reference.
std::vector<Tokenizer> tokenizers() {
  return {Gpt2Folder().tokenizer(),
          Tokenizer::byte_pair(BytePair::from_json(reference_json("llama_tokenizer.json")), 503, 504)};
}

TEST(BytePair, GivesTheIdsOfThePackage) {
  const json known = reference_json("expected.json");
  json gpt2 = Gpt2Folder().tokenizer().byte_pairs()->to_json();
  for (const auto& [name, ids] : known.at("ids").items()) {
    if (name != "llama") gpt2["pre_tokenizer"] = known.at("pre_tokenizers").at(name);
    const BytePair pairs =
        BytePair::from_json(name == "llama" ? reference_json("llama_tokenizer.json") : gpt2);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string text = known.at("texts").at(i);
      EXPECT_EQ(json(pairs.encode(text)), ids.at(i)) << name << ": " << text;
    }
  }
}

TEST(BytePair, RoundTripsOfAnyBytesAreExact) {
  std::string all, noise;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  Generator random(3);
  for (int i = 0; i < 20000; ++i) noise += static_cast<char>(random.below(256));
  const json texts = reference_json("expected.json").at("texts");
  std::vector<std::string> cases{all, noise, "cut \xE6\x97", "\xFF", "a\xC3 b\xED\xA0\x80 'll\x80's"};
  cases.insert(cases.end(), texts.begin(), texts.end());
  for (const Tokenizer& tokenizer : tokenizers()) {
    for (const std::string& text : cases) EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(text)), text);
  }
}

TEST(BytePair, LongWordsMergeInTimeThatGrowsWithThem) {
  const std::string word(1 << 20, 'a');
  for (const Tokenizer& tokenizer : tokenizers())
    EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(word)), word);
}

TEST(BytePair, StreamedPiecesAddUp) {
  const std::string text = "caf\u00e9 \U0001f600 \u65e5\u672c";
  for (const Tokenizer& tokenizer : tokenizers()) {
    StreamingDecoder decoder(tokenizer);
    std::string streamed;
    for (const std::int64_t id : tokenizer.encode(text)) streamed += decoder.push(id);
    EXPECT_EQ(streamed + decoder.finish(), text);
  }
}

TEST(BytePair, SpecialTokensHaveIdsNamesAndPlaces) {
  const std::vector<Tokenizer> both = tokenizers();
  const Tokenizer &gpt2 = both[0], &llama = both[1];
  EXPECT_EQ(gpt2.vocabulary_size(), 600);
  EXPECT_EQ(gpt2.begin_id(), 0);  // which ends texts, too
  EXPECT_EQ(gpt2.end_id(), 0);
  EXPECT_EQ(gpt2.text_begin(), std::nullopt);
  EXPECT_EQ(gpt2.special_name(0), "<|endoftext|>");
  EXPECT_EQ(gpt2.special_name(1), std::nullopt);
  EXPECT_EQ(llama.vocabulary_size(), 506);
  EXPECT_EQ(llama.begin_id(), 503);
  EXPECT_EQ(llama.text_begin(), 503);
  EXPECT_EQ(llama.special_name(505), "<|eot_id|>");
  EXPECT_EQ(llama.encode("<|eot_id|>"), std::vector<std::int64_t>{505});
  EXPECT_TRUE(llama.knows("\n"));
  EXPECT_THROW(llama.decode(std::vector<std::int64_t>{506}), Error);
}

TEST(BytePair, JsonComesBack) {
  for (const Tokenizer& tokenizer : tokenizers()) {
    const Tokenizer again = Tokenizer::from_json(json::parse(tokenizer.to_json().dump()));
    EXPECT_EQ(again, tokenizer);
    EXPECT_EQ(again.encode("First Citizen's <|eot_id|>"), tokenizer.encode("First Citizen's <|eot_id|>"));
    const TemporaryFolder folder;
    EXPECT_TRUE(write_tokenizer(folder.path(), tokenizer));
    EXPECT_EQ(read_tokenizer(folder.path(), 600, tokenizer.begin_id(), tokenizer.end_id()), tokenizer);
  }
  EXPECT_NE(tokenizers()[0], tokenizers()[1]);
  // A field without which the package refuses the file.
  EXPECT_TRUE(tokenizers()[0].byte_pairs()->to_json()["pre_tokenizer"].contains("trim_offsets"));
}

TEST(BytePair, WhatWouldGiveOtherIdsIsRefusedByName) {
  const json good = reference_json("llama_tokenizer.json");
  for (const auto& [place, value, part] : std::vector<std::tuple<const char*, json, const char*>>{
           {"/normalizer", {{"type", "NFC"}}, "NFC"},
           {"/normalizer", {{"type", 3}}, "normalizer"},
           {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}}, "NFKC"},
           {"/pre_tokenizer/pretokenizers", 7, "not byte-level"},
           {"/pre_tokenizer", nullptr, "not byte-level"},
           {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "Removed"},
           {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", "split pattern ( is wrong"},
           {"/pre_tokenizer/pretokenizers/0", {{"type", "Metaspace"}}, "Metaspace"},
           {"/model/type", "Unigram", "Unigram"},
           {"/model/byte_fallback", true, "byte_fallback"},
           {"/model/dropout", 0.1, "dropout"},
           {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
           {"/model/merges/0", "a", "two tokens"},
           {"/model/merges/0", "a \u2603", "not in the vocabulary"},
           {"/model/vocab/a", -1, "whole number"},
           {"/model/vocab/a", 1.5, "whole number"},
           {"/model/vocab/a", 1ull << 40, "whole number"},
           {"/model/vocab/a", 0, "same id 0"},
           {"/added_tokens/0/lstrip", true, "lstrip"},
           {"/added_tokens/0/id", 3, "same id 3"}}) {
    json bad = good;
    bad[json::json_pointer(place)] = value;
    EXPECT_TRUE(contains(message_of([&] { BytePair::from_json(bad); }), part));
  }
  json lacking = good;
  lacking["model"]["vocab"].erase("!");
  lacking["model"]["merges"] = json::array();
  EXPECT_TRUE(contains(message_of([&] { BytePair::from_json(lacking).encode("!"); }), "the byte 33"));
}

TEST(TokenizerFiles, WithoutThemThereAreIdsAlone) {
  const TemporaryFolder folder;
  const Tokenizer none = read_tokenizer(folder.path(), 61, 1, 2);
  EXPECT_EQ(none.vocabulary_size(), 61);
  EXPECT_EQ(none.end_id(), 2);
  EXPECT_TRUE(contains(message_of([&] { none.encode("a"); }), "there is no tokenizer.json"));
  EXPECT_EQ(Tokenizer::from_json(none.to_json()), none);
  write_file_synced(folder / "tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_TRUE(contains(
      message_of([&] { read_tokenizer(folder.path(), 61, {}, {}).decode(std::vector<std::int64_t>{1}); }),
      "Unigram"));
}

TEST(TokenizerFiles, SettingsNameTheTokensThatBeginAndEnd) {
  const Gpt2Folder folder;
  write_file_synced(folder / "tokenizer_config.json",
                    R"({"bos_token": {"content": "A"}, "eos_token": "B", "add_prefix_space": true})");
  const Tokenizer tokenizer = read_tokenizer(folder.path(), 600, 0, 0);
  EXPECT_EQ(tokenizer.special_name(*tokenizer.begin_id()), "A");
  EXPECT_EQ(tokenizer.special_name(*tokenizer.end_id()), "B");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("x")), " x");
}

}  // namespace
}  // namespace needle
