// Reading and writing safetensors. A file is input from a stranger: no field is used before it is checked.
#include "needle/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "backends/error.h"
#include "needle/io/files.h"

namespace needle {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::pair<std::string_view, DType> kTypeNames[] = {
    {"F64", DType::f64}, {"F32", DType::f32}, {"F16", DType::f16},     {"BF16", DType::bf16},
    {"I64", DType::i64}, {"I32", DType::i32}, {"BOOL", DType::boolean}};

std::string_view type_name(DType dtype) {
  return std::ranges::find(kTypeNames, dtype, [](const auto& entry) { return entry.second; })->first;
}

/// Text from a file for a message: quoted, and free of control characters and broken UTF-8.
std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Bytes of a dense tensor, or nothing if they cannot be counted in 63 bits. A zero does not excuse other
/// sizes that overflow: strides are computed from them.
std::optional<std::uint64_t> byte_count(const Shape& shape, DType dtype) {
  std::uint64_t bytes = size_of(dtype);
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty |= size == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (factor > std::uint64_t{std::numeric_limits<std::int64_t>::max()} / bytes) return std::nullopt;
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

/// Swaps between the file's byte order and this machine's; does nothing on a little-endian machine.
void swap_from_little_endian(std::span<char> bytes, DType dtype) {
  if constexpr (std::endian::native == std::endian::big) {
    const std::size_t size = size_of(dtype);
    for (; !bytes.empty(); bytes = bytes.subspan(size)) std::ranges::reverse(bytes.first(size));
  }
}

std::uint64_t read_length(std::string_view bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return length;
}

std::string written_length(std::uint64_t length) {
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xFF);
  return bytes;
}

/// One header entry; `begin` and `end` count from the start of the data.
struct Entry {
  std::string name;
  std::optional<DType> dtype;  // none: of no use
  Shape shape;
  std::uint64_t begin, end;
};

/// The list of whole numbers at `key`; `where` starts the messages.
std::vector<std::int64_t> whole_numbers(const json& fields, const char* key, const std::string& where) {
  const auto found = fields.find(key);
  require(found != fields.end() && found->is_array(), where, "no list ", key);
  std::vector<std::int64_t> numbers;
  for (const json& number : *found) {
    require(number.is_number_unsigned() &&
                number.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
            where, key, " wants whole numbers below 2^63, got ", found->dump().substr(0, 80));
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

/// With `only_place`, the entry of a tensor of no use, whose type and shape are left aside.
Entry read_entry(const std::string& path, const std::string& name, const json& fields, bool only_place) {
  const std::string where = path + ": tensor " + quoted(name) + ": ";
  require(fields.is_object(), where, "its entry is not a JSON object");
  Entry entry{name, {}, {}, 0, 0};
  if (!only_place) {
    require(fields.contains("dtype") && fields["dtype"].is_string(), where, "no dtype");
    const std::string type = fields["dtype"].get<std::string>();
    const auto known = std::ranges::find(kTypeNames, type, [](const auto& named) { return named.first; });
    require(known != std::end(kTypeNames), where, "unsupported dtype ", quoted(type),
            ", known are F64 F32 F16 BF16 I64 I32 BOOL");
    entry.dtype = known->second;
    const std::vector<std::int64_t> sizes = whole_numbers(fields, "shape", where);
    require(sizes.size() <= kMaxRank, where, sizes.size(), " axes, at most ", kMaxRank, " are possible");
    entry.shape = Shape(sizes);
  }

  const std::vector<std::int64_t> range = whole_numbers(fields, "data_offsets", where);
  require(range.size() == 2, where, "data_offsets wants 2 numbers, got ", range.size());
  require(range[0] <= range[1], where, "data_offsets ", range[0], " to ", range[1], " are reversed");
  entry.begin = static_cast<std::uint64_t>(range[0]);
  entry.end = static_cast<std::uint64_t>(range[1]);
  if (only_place) return entry;

  const std::optional<std::uint64_t> bytes = byte_count(entry.shape, *entry.dtype);
  require(bytes.has_value(), where, "shape ", entry.shape, " overflows");
  require(entry.end - entry.begin == *bytes, where, type_name(*entry.dtype), ' ', entry.shape, " takes ",
          *bytes, " bytes, data_offsets hold ", entry.end - entry.begin);
  return entry;
}

std::map<std::string, std::string> read_metadata(const std::string& path, const json& fields) {
  require(fields.is_object(), path, ": ", kMetadataKey, " is not a JSON object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : fields.items()) {
    require(value.is_string(), path, ": ", kMetadataKey, ' ', quoted(key), " is not a text");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// Sorts by place and throws unless the entries cover `data_bytes` exactly once; `data_start` is the place of
/// the data in the file.
void check_coverage(const std::string& path, std::vector<Entry>& entries, std::uint64_t data_start,
                    std::uint64_t data_bytes) {
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::tie(entry.begin, entry.end); });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    require(entry.end <= data_bytes, path, ": tensor ", quoted(entry.name),
            ": the file is cut short, expected at least ", data_start + entry.end, " bytes, found ",
            data_start + data_bytes);
    require(entry.begin >= covered, path, ": tensor ", quoted(entry.name), ": starts at byte ", entry.begin,
            " of the data, inside another tensor that ends at ", covered);
    require(entry.begin == covered, path, ": tensor ", quoted(entry.name), ": starts at byte ", entry.begin,
            " of the data, but the bytes from ", covered, " on belong to no tensor");
    covered = entry.end;
  }
  require(covered == data_bytes, path, ": bytes behind the last tensor, expected ", data_start + covered,
          " bytes, found ", data_start + data_bytes);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path, bool (*left_out)(std::string_view name))
    : path_(std::move(path)) {
  content_ = read_file(path_);
  const std::string name = path_.string();
  const std::size_t size = content_.size();
  require(size >= kLengthBytes, name, ": the file is cut short, expected at least ", kLengthBytes,
          " bytes, found ", size);
  const std::uint64_t header_bytes = read_length(content_);
  require(header_bytes <= kMaxHeaderBytes, name, ": not a safetensors file: header length ", header_bytes,
          ", at most ", kMaxHeaderBytes, " is allowed and the file has ", size, " bytes");
  const std::uint64_t data_start = kLengthBytes + header_bytes;
  require(data_start <= size, name, ": the file is cut short, expected at least ", data_start,
          " bytes, found ", size);

  const json header = parse_json(std::string_view(content_).substr(kLengthBytes, header_bytes), name);
  require(header.is_object(), name, ": the header is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& [key, fields] : header.items()) {
    if (key == kMetadataKey)
      metadata_ = read_metadata(name, fields);
    else
      entries.push_back(read_entry(name, key, fields, left_out != nullptr && left_out(key)));
  }
  check_coverage(name, entries, data_start, size - data_start);

  for (Entry& entry : entries) {
    if (!entry.dtype) continue;
    const std::span<char> bytes(content_.data() + data_start + entry.begin, entry.end - entry.begin);
    require(
        entry.dtype != DType::boolean || std::ranges::all_of(bytes, [](char c) { return c == 0 || c == 1; }),
        name, ": tensor ", quoted(entry.name), ": a BOOL is neither 0 nor 1");
    swap_from_little_endian(bytes, *entry.dtype);
    tensors_[entry.name] = {*entry.dtype, entry.shape, std::as_bytes(bytes)};
    names_.push_back(std::move(entry.name));
  }
}

const RawTensor& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), path_.string(), ": no tensor ", quoted(std::string(name)));
  return found->second;
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& named : tensors) ordered.push_back(&named);
  std::ranges::stable_sort(ordered, std::greater(),
                           [](const NamedTensor* named) { return size_of(named->tensor.dtype); });

  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor* named : ordered) {
    const auto& [name, tensor] = *named;
    const std::string where = path.string() + ": tensor " + quoted(name) + ": ";
    require(name != kMetadataKey && !header.contains(name), where, "the name stands twice or is reserved");
    require(byte_count(tensor.shape, tensor.dtype) == tensor.bytes.size(), where, name_of(tensor.dtype), ' ',
            tensor.shape, " does not take ", tensor.bytes.size(), " bytes");
    const std::uint64_t end = offset + tensor.bytes.size();
    header[name] = {{"dtype", type_name(tensor.dtype)},
                    {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::type_error&) {
    fail(path.string(), ": names and metadata must be UTF-8");
  }
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  const std::string length = written_length(text.size());
  std::vector<std::string_view> pieces = {length, text};
  std::vector<std::string> swapped(std::endian::native == std::endian::big ? ordered.size() : 0);
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const RawTensor& tensor = ordered[i]->tensor;
    std::string_view bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    if (!swapped.empty()) {
      swapped[i] = bytes;
      swap_from_little_endian(swapped[i], tensor.dtype);
      bytes = swapped[i];
    }
    pieces.push_back(bytes);
  }
  write_file_synced(path, pieces);
}

}  // namespace needle
