// The safetensors reader against damaged and hostile files, and the writer's bytes. The hexadecimal files of
// the BR tests are real faults of other readers.
#include "needle/io/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "backends/error.h"
#include "needle/io/files.h"

namespace needle {
namespace {

namespace fs = std::filesystem;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// A file of this header and data, its length field written by hand.
std::string file_of(const std::string& header, const std::string& data = "") {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return bytes + header + data;
}

template <class T>
std::vector<T> values_of(const RawTensor& tensor) {
  EXPECT_EQ(tensor.dtype, dtype_of<T>());
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

template <class T>
RawTensor raw(const std::vector<T>& values, Shape shape) {
  return {dtype_of<T>(), shape, std::as_bytes(std::span(values))};
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest()
      : path_(fs::temp_directory_path() / ("needle_" + std::to_string(::getpid()) + ".safetensors")) {}
  ~SafetensorsTest() override { fs::remove(path_); }

  SafetensorsFile opened(const std::string& bytes) const {
    write_file_synced(path_, bytes);
    return SafetensorsFile(path_);
  }
  /// The message with which `bytes` are refused, checked to start with the path.
  std::string refusal(const std::string& bytes) const {
    try {
      opened(bytes);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path_.string() + ": ")) << message;
      EXPECT_FALSE(contains(message, "\n")) << message;
      return message.substr(path_.string().size() + 2);
    }
    return "(accepted)";
  }

  const fs::path path_;
};

const std::string kValid = from_hex(
    "36000000000000007b2261223a7b226474797065223a22463332222c227368617065223a5b315d2c22646174615f6f6666736574"
    "73"
    "223a5b302c345d7d7d0000803f");

TEST_F(SafetensorsTest, BR063HeaderLengthAndDepth) {
  const SafetensorsFile valid = opened(kValid);
  EXPECT_EQ(values_of<float>(valid.tensor("a")), std::vector<float>{1.0f});
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  const std::pair<std::string, const char*> cases[] = {
      {from_hex("ffffffffffffffff7b7d"), "header length 18446744073709551615"},
      {from_hex("00000000000000807b7d"), "header length 9223372036854775808"},
      {from_hex("03000000000000007b7d"), "expected at least 11 bytes, found 10"},
      {from_hex("0000000000000000"), "not valid JSON"},
      {from_hex("01000000000000"), "expected at least 8 bytes, found 7"},
      {"", "expected at least 8 bytes, found 0"},
      {file_of(std::string(100000, '[')), "nested 100000 deep"},
      {file_of(objects), "nested 100000 deep"},
  };
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [bytes, part] : cases) EXPECT_TRUE(contains(refusal(bytes), part)) << refusal(bytes);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(SafetensorsTest, BR064ShapeProductOverflow) {
  const auto wrap = from_hex(
      "4a000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b343239343936373239362c343239"
      "34"
      "3936373239365d2c22646174615f6f666673657473223a5b302c305d7d7d");
  const auto wrap_small = from_hex(
      "48000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b3436313136383630313834323733"
      "38"
      "373930355d2c22646174615f6f666673657473223a5b302c345d7d7d0000803f");
  const auto true_empty = from_hex(
      "38000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b302c345d2c22646174615f6f6666"
      "73"
      "657473223a5b302c305d7d7d");
  EXPECT_EQ(refusal(wrap), "tensor \"t\": shape [4294967296, 4294967296] overflows");
  EXPECT_EQ(refusal(wrap_small), "tensor \"t\": shape [4611686018427387905] overflows");
  const SafetensorsFile empty = opened(true_empty);
  EXPECT_EQ(empty.tensor("t").shape, (Shape{0, 4}));
  EXPECT_TRUE(empty.tensor("t").bytes.empty());
  const auto zero_and_huge =
      file_of(R"({"t":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})");
  EXPECT_TRUE(contains(refusal(zero_and_huge), "overflows"));
}

TEST_F(SafetensorsTest, BR065FieldsThatDisagree) {
  const std::pair<const char*, const char*> cases[] = {
      {"3e000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b313030302c313030305d2c22646"
       "174"
       "615f6f666673657473223a5b302c345d7d7d0000803f",
       "F32 [1000, 1000] takes 4000000 bytes, data_offsets hold 4"},
      {"36000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b315d2c22646174615f6f6666736"
       "574"
       "73223a5b342c305d7d7d0000803f",
       "data_offsets 4 to 0 are reversed"},
      {"36000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f6f6666736"
       "574"
       "73223a5b302c385d7d7d0000803f",
       "expected at least 70 bytes, found 66"},
      {"37000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b2d315d2c22646174615f6f66667"
       "365"
       "7473223a5b302c345d7d7d0000803f",
       "shape wants whole numbers below 2^63, got [-1]"},
      {"38000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b312e355d2c22646174615f6f666"
       "673"
       "657473223a5b302c345d7d7d0000803f",
       "shape wants whole numbers below 2^63, got [1.5]"},
      {"34000000000000007b2274223a7b226474797065223a22463332222c227368617065223a5b315d2c22646174615f6f6666736"
       "574"
       "73223a5b305d7d7d0000803f",
       "data_offsets wants 2 numbers, got 1"},
      {"35000000000000007b2274223a7b226474797065223a225839222c227368617065223a5b315d2c22646174615f6f666673657"
       "473"
       "223a5b302c345d7d7d0000803f",
       "unsupported dtype \"X9\""},
  };
  for (const auto& [hex, reason] : cases) {
    const std::string message = refusal(from_hex(hex));
    EXPECT_TRUE(message.starts_with("tensor \"t\": ")) << message;
    EXPECT_TRUE(contains(message, reason)) << message;
  }
  // The integer 7 stays an integer; taken for a float it would be 9.8e-45.
  const SafetensorsFile integers = opened(from_hex(
      "36000000000000007b2274223a7b226474797065223a22493332222c227368617065223a5b315d2c22646174615f6f6666"
      "73657473223a5b302c345d7d7d07000000"));
  EXPECT_EQ(values_of<std::int32_t>(integers.tensor("t")), std::vector<std::int32_t>{7});
}

TEST_F(SafetensorsTest, RefusesWhatTheFormatForbids) {
  const std::string four(4, '\0'), eight(8, '\0');
  const auto entry = [](const std::string& name, const std::string& offsets, const char* shape = "[1]") {
    return '"' + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + '}';
  };
  const std::string a = entry("a", "[0,4]");
  const std::pair<std::string, const char*> cases[] = {
      {file_of("{" + a + "," + a + "}", four), "key \"a\" stands twice"},
      {file_of("{" + a + "," + entry("b", "[0,4]") + "}", four),
       "tensor \"b\": starts at byte 0 of the data, inside"},
      {file_of("{" + a + "," + entry("b", "[2,6]") + "}", eight),
       "tensor \"b\": starts at byte 2 of the data, inside"},
      {file_of("{" + a + "," + entry("b", "[2,2]", "[0]") + "}", four), "tensor \"b\": starts at byte 2"},
      {file_of("{" + a + "," + entry("b", "[8,12]") + "}", four + eight),
       "bytes from 4 on belong to no tensor"},
      {file_of("{" + entry("a", "[4,8]") + "}", eight), "bytes from 0 on belong to no tensor"},
      {file_of("{" + a + "}", eight), "bytes behind the last tensor, expected"},
      {file_of("{}", four), "bytes behind the last tensor"},
      {file_of("[]"), "not a JSON object"},
      {file_of("{\"a\":1}"), "tensor \"a\": its entry is not a JSON object"},
      {file_of("{\"a\":{}}"), "tensor \"a\": no dtype"},
      {file_of("{\"a\":{\"dtype\":3}}"), "tensor \"a\": no dtype"},
      {file_of("{\"a\":{\"dtype\":\"F32\"}}"), "tensor \"a\": no list shape"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}"), "tensor \"a\": no list data_offsets"},
      {file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", four),
       "unsupported dtype \"U8\""},
      {file_of("{" + entry("a", "[0,4]", "[1,1,1,1,1,1,1,1,1]") + "}", four),
       "tensor \"a\": 9 axes, at most 8"},
      {file_of("{" + entry("a", "[0,18446744073709551616]") + "}", four), "data_offsets wants whole numbers"},
      {file_of("{" + entry("a", "[18446744073709551612,0]") + "}", four), "data_offsets wants whole numbers"},
      {file_of("{" + entry("a", "[0,9223372036854775804]", "[2305843009213693951]") + "}", four),
       "cut short"},
      {file_of("{\"b\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", "\x01\x02"),
       "neither 0 nor 1"},
      {file_of("{\"__metadata__\":{\"a\":1}}"), "__metadata__ \"a\" is not a text"},
      {file_of("{\"__metadata__\":[]}"), "__metadata__ is not a JSON object"},
      {file_of("{}\x01"), "not valid JSON"},
  };
  for (const auto& [bytes, reason] : cases) {
    const std::string message = refusal(bytes);
    EXPECT_TRUE(contains(message, reason)) << message;
  }
}

TEST_F(SafetensorsTest, BR068FileCutAtEveryLength) {
  ASSERT_EQ(kValid.size(), 66u);
  for (std::size_t length = 0; length < kValid.size(); ++length) {
    const std::string expected = length < 8 ? "8" : length < 62 ? "62" : "66";
    const std::string message = refusal(kValid.substr(0, length));
    EXPECT_TRUE(contains(message, "the file is cut short, expected at least " + expected + " bytes, found " +
                                      std::to_string(length)))
        << message;
  }
}

TEST_F(SafetensorsTest, BR071LittleEndianBytes) {
  const auto file = from_hex(
      "36000000000000007b2261223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f6f66667365"
      "74"
      "73223a5b302c385d7d7d0000803f000020c0");
  const std::vector<float> values = {1.0f, -2.5f};
  EXPECT_EQ(values_of<float>(opened(file).tensor("a")), values);

  const NamedTensor tensors[] = {{"a", raw(values, {2})}};
  write_safetensors(path_, tensors);
  const std::string written = read_file(path_);
  EXPECT_EQ(written.substr(written.size() - 8), from_hex("0000803f000020c0"));
  EXPECT_EQ(written.substr(0, 8), from_hex("3800000000000000"));
  EXPECT_EQ(written.substr(8, 56), R"({"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}  )");
}

TEST_F(SafetensorsTest, EveryTypeComesBackBitForBit) {
  const auto single = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  const std::vector<float> floats = {
      -0.0f, single(0x7fc00123u), single(0xff812345u), single(0x00000001u), single(0x7f800000u), 1.5f};
  const std::vector<double> doubles = {-0.0, std::bit_cast<double>(0x7ff0000000000abcULL), 5e-324, 1e308};
  std::vector<BFloat16> brains(3);
  std::vector<Float16> halves(3);
  for (std::uint16_t i = 0; i < 3; ++i) {
    brains[i].bits = static_cast<std::uint16_t>(0x7f81 + i);
    halves[i].bits = static_cast<std::uint16_t>(0xfc01 + i);
  }
  const std::vector<std::int32_t> ints = {INT32_MIN, -1, 7};
  const std::vector<std::int64_t> longs = {INT64_MIN, -2, 1LL << 40};
  const std::byte bools[] = {std::byte{1}, std::byte{0}, std::byte{1}};
  const NamedTensor tensors[] = {{"bool", {DType::boolean, {3}, bools}},
                                 {"half", raw(halves, {3})},
                                 {"brain", raw(brains, {1, 3})},
                                 {"float", raw(floats, {2, 3})},
                                 {"double", raw(doubles, {2, 1, 2})},
                                 {"int", raw(ints, {3})},
                                 {"long", raw(longs, {3})},
                                 {"scalar", raw(std::vector<float>{}, {4, 0})},
                                 {"na\xc3\xafve \"name\"", raw(ints, {3})}};
  const std::map<std::string, std::string> metadata = {
      {"format", "needle"}, {"empty", ""}, {"\n", "\xe2\x82\xac"}};
  write_safetensors(path_, tensors, metadata);
  const std::string once = read_file(path_);
  write_safetensors(path_, tensors, metadata);
  EXPECT_EQ(read_file(path_), once);

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"double", "long", "float", "int", "scalar",
                                                    "na\xc3\xafve \"name\"", "half", "brain", "bool"}));
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(file.contains(name));
    const RawTensor& read = file.tensor(name);
    EXPECT_EQ(read.dtype, tensor.dtype) << name;
    EXPECT_EQ(read.shape, tensor.shape) << name;
    EXPECT_TRUE(std::ranges::equal(read.bytes, tensor.bytes)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.bytes.data()) % size_of(read.dtype), 0u) << name;
  }
}

TEST_F(SafetensorsTest, MissingTensorIsAnErrorWithPathAndName) {
  const SafetensorsFile file = opened(kValid);
  EXPECT_FALSE(file.contains("b"));
  try {
    file.tensor("b");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), path_.string() + ": no tensor \"b\"");
  }
}

TEST_F(SafetensorsTest, WriterRefusesWhatCannotBeReadBack) {
  const std::vector<float> two = {1, 2};
  const std::vector<std::vector<NamedTensor>> cases = {
      {{"a", raw(two, {2})}, {"a", raw(two, {2})}},
      {{"__metadata__", raw(two, {2})}},
      {{"a", raw(two, {3})}},
      {{"\xff", raw(two, {2})}},
  };
  for (const auto& tensors : cases) {
    EXPECT_THROW(write_safetensors(path_, tensors), Error);
    EXPECT_FALSE(fs::exists(path_));
  }
  EXPECT_THROW(write_safetensors(path_, {}, {{"key", "\xff"}}), Error);
  EXPECT_THROW(write_safetensors(path_.string() + "/below", {}), Error);
  write_safetensors(path_, {});
  EXPECT_TRUE(SafetensorsFile(path_).names().empty());
}

}  // namespace
}  // namespace needle
