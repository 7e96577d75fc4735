// Tokenizers: round trips, special ids, errors with their place, and text that arrives in pieces.
#include "needle/data/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "backends/error.h"
#include "needle/data/utf8.h"
#include "needle/random.h"

namespace needle {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<std::int64_t> byte_ids(std::string_view bytes) { return Tokenizer::bytes().encode(bytes); }

TEST(Tokenizer, S19_special_ids_are_distinct_and_no_text_encodes_to_them) {
  EXPECT_EQ(std::set<std::int64_t>({kPadId, kBeginId, kEndId}).size(), 3u);
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  for (const auto& [tokenizer, text] : {std::pair{Tokenizer::bytes(), all_bytes},
                                        std::pair{Tokenizer::characters("añ日😀"), std::string("😀日ña")}}) {
    for (const std::int64_t id : tokenizer.encode(text)) {
      EXPECT_GE(id, kFirstContentId);
      EXPECT_LT(id, tokenizer.vocabulary_size());
    }
    EXPECT_EQ(tokenizer.decode(std::vector{kBeginId, kPadId, kEndId}), "");
  }
}

TEST(Tokenizer, vocabulary_is_sorted_by_code_point) {
  const Tokenizer tokenizer = Tokenizer::characters("banana 😀é");
  EXPECT_EQ(tokenizer.vocabulary_size(), 3 + 6);
  EXPECT_EQ(tokenizer.encode(" abn\xC3\xA9😀"), (std::vector<std::int64_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("é 😀ban")), "é 😀ban");
  EXPECT_EQ(Tokenizer::bytes().vocabulary_size(), 259);
}

TEST(Tokenizer, unknown_character_is_shown_with_its_place) {
  const Tokenizer tokenizer = Tokenizer::characters("abc\n");
  EXPECT_EQ(
      error_of([&] { tokenizer.encode("ab\nc\xC3\xA9", "names.txt"); }),
      "tokenizer: the character 'é' (U+00E9) at names.txt, line 2, column 2 is not among the 4 characters "
      "of this vocabulary");
  EXPECT_NE(error_of([&] { tokenizer.encode("a\t", "", 7); }).find("(U+0009) at line 7, column 2"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              Tokenizer::characters("a\nb\xFF", "x.txt");
            }).find("not UTF-8 at x.txt, line 2, column 2: byte 0xFF"),
            std::string::npos);
}

TEST(Tokenizer, id_outside_the_vocabulary_is_an_error) {
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{259}}) {
    EXPECT_THROW(Tokenizer::bytes().decode(std::vector{id}), Error);
  }
}

TEST(Tokenizer, BR_072_bytes_round_trip_and_invalid_ones_become_marks) {
  struct Case {
    std::string bytes;
    int marks;
  };
  for (const auto& [bytes, marks] :
       {Case{"\xFF", 1}, Case{"\xE6\xAD", 1}, Case{"\xF0\x9F", 1}, Case{"\xC0\x80", 2},
        Case{"\xED\xA0\x80", 3}, Case{"\xF4\x90\x80\x80", 4}, Case{"\xE0\x80", 2}}) {
    std::string expected;
    for (int mark = 0; mark < marks; ++mark) expected += kReplacementMark;
    EXPECT_EQ(Tokenizer::bytes().decode(byte_ids(bytes)), expected);
    EXPECT_EQ(Tokenizer::bytes().decode_bytes(byte_ids(bytes)), bytes);
  }
  EXPECT_EQ(Tokenizer::bytes().decode(byte_ids("a\xE6\xAD"
                                               "b")),
            "a\xEF\xBF\xBD"
            "b");

  Generator generator(72);
  std::string noise;
  for (int index = 0; index < 5000; ++index) noise += static_cast<char>(generator.below(256));
  EXPECT_EQ(Tokenizer::bytes().decode_bytes(byte_ids(noise)), noise);
  EXPECT_EQ(repair_utf8(repair_utf8(noise)), repair_utf8(noise));
}

TEST(Tokenizer, BR_072_streaming_holds_a_character_back_until_it_is_whole) {
  StreamingDecoder decoder(Tokenizer::bytes());
  std::vector<std::string> pieces;
  for (const std::int64_t id : byte_ids("歪😀a")) pieces.push_back(decoder.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "", "歪", "", "", "", "😀", "a"}));
  EXPECT_EQ(decoder.finish(), "");

  decoder.push(byte_ids("\xE6")[0]);
  decoder.push(byte_ids("\xAD")[0]);
  EXPECT_EQ(decoder.push(kEndId), "");
  EXPECT_EQ(decoder.finish(), kReplacementMark);
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, streamed_pieces_add_up_to_the_whole_text) {
  Generator generator(73);
  std::vector<std::int64_t> ids;
  for (int index = 0; index < 3000; ++index) ids.push_back(3 + generator.below(256));
  StreamingDecoder decoder(Tokenizer::bytes());
  std::string streamed;
  for (const std::int64_t id : ids) streamed += decoder.push(id);
  EXPECT_EQ(streamed + decoder.finish(), Tokenizer::bytes().decode(ids));
}

TEST(Tokenizer, json_round_trip) {
  for (const Tokenizer& tokenizer : {Tokenizer::bytes(), Tokenizer::characters("hé😀\n\"")}) {
    EXPECT_EQ(Tokenizer::from_json(nlohmann::json::parse(tokenizer.to_json().dump())), tokenizer);
  }
}

TEST(Tokenizer, bad_json_is_an_error) {
  for (const char* text :
       {"[]", "{}", "3", R"({"kind": 3})", R"({"kind": "words"})", R"({"kind": "characters"})",
        R"({"kind": "characters", "characters": "ba"})", R"({"kind": "characters", "characters": "aa"})"}) {
    EXPECT_THROW(Tokenizer::from_json(nlohmann::json::parse(text)), Error) << text;
  }
}

TEST(Utf8, every_code_point_survives_writing_and_reading) {
  for (std::int32_t code = 0; code <= 0x10FFFF; code += code < 0x1000 ? 1 : 251) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string bytes = write_utf8(code);
    const Utf8Character read = read_utf8(bytes);
    ASSERT_EQ(read.kind, Utf8Character::Kind::whole);
    ASSERT_EQ(read.code_point, code);
    ASSERT_EQ(read.length, bytes.size());
  }
}

}  // namespace
}  // namespace needle
