// The safetensors file format (github.com/huggingface/safetensors): 8 bytes of header length, a JSON header,
// and the bytes of all tensors without gaps. Everything in a file is little-endian.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/dtype.h"
#include "backends/shape.h"

namespace needle {

/// A row-major tensor as bytes that somebody else owns, in the byte order of this machine. The bytes need not
/// be aligned for their type: copy them.
struct RawTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// A tensor and the name that it has in the file.
struct NamedTensor {
  std::string name;
  RawTensor tensor;
};

/// A safetensors file read into memory and checked completely.
class SafetensorsFile {
 public:
  /// Reads and checks the file. Throws Error, with the path and the tensor's name, unless the header fits the
  /// file, every tensor has a known type and a shape that matches its byte range, and the ranges cover the
  /// data exactly once; a file cut short is told with the size it should have.
  /// `left_out` tells names of tensors that are of no use, whose type may be unknown.
  explicit SafetensorsFile(std::filesystem::path path, bool (*left_out)(std::string_view name) = nullptr);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// All tensors' names in the order of their data.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// The tensor `name`, whose bytes live as long as this object. Throws Error if there is none.
  const RawTensor& tensor(std::string_view name) const;
  /// The free texts that the writer added.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  std::string content_;
  std::vector<std::string> names_;
  std::map<std::string, RawTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a safetensors file and returns once it is on the disk. The same input gives the same bytes: wide
/// types come first, so that every tensor is aligned, otherwise the order is kept. Throws Error when a name
/// stands twice, bytes do not match a shape, or the disk refuses.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace needle
