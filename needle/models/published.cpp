#include "needle/models/published.h"

#include <algorithm>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "needle/io/safetensors.h"
#include "needle/io/tokenizer_files.h"

namespace needle {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexFile = "model.safetensors.index.json";

/// A tensor of a file that holds some columns of one of ours.
struct Piece {
  std::string name;  // without the prefix
  std::int64_t columns;
};

/// One of our parameters, and where its numbers stand: in pieces side by side, each [in, out] as ours or
/// [out, in]. Without pieces it has no place and is 0.
struct Place {
  Parameter ours;
  std::vector<Piece> pieces;
  bool transposed = false;
};

/// The table of names: ours, GPT-2's, Llama's; blocks.N stands before ours, h.N and layers.N before theirs.
/// Llama's maps are [out, in], as heads are everywhere.
struct Row {
  std::string_view ours, gpt2, llama;
};
constexpr Row kTable[] = {
    {"token_embedding.weight", "wte.weight", "embed_tokens.weight"},
    {"position_embedding.weight", "wpe.weight", ""},
    {"norm.weight", "ln_f.weight", "norm.weight"},
    {"norm.bias", "ln_f.bias", ""},
    {"head.weight", "lm_head.weight", "lm_head.weight"},
    {"head.bias", "", ""},
};
constexpr Row kBlockTable[] = {
    {"norm1", "ln_1", "input_layernorm"},
    {"attention.qkv", "attn.c_attn", "self_attn."},
    {"attention.out", "attn.c_proj", "self_attn.o_proj"},
    {"norm2", "ln_2", "post_attention_layernorm"},
    {"ffn.gate", "", "mlp.gate_proj"},
    {"ffn.up", "mlp.c_fc", "mlp.up_proj"},
    {"ffn.down", "mlp.c_proj", "mlp.down_proj"},
};

/// What stands before the names of everything but the head, in many files.
std::string prefix_of(PublishedNames names) {
  return names == PublishedNames::gpt2 ? "transformer." : "model.";
}
std::string without_prefix(const std::string& name, PublishedNames names) {
  const std::string prefix = prefix_of(names);
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// Constants that some files hold beside the parameters.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

Place place_of(const Parameter& parameter, const ModelConfig& config, PublishedNames names) {
  const bool llama = names == PublishedNames::llama;
  const std::string_view name = parameter.name;
  const Shape& shape = parameter.tensor.shape();
  Place place{parameter, {}, false};
  const std::string_view blocks = "blocks.";
  if (!name.starts_with(blocks)) {
    const Row* const row = std::ranges::find(kTable, name, &Row::ours);
    require(row != std::end(kTable), "published names: there is none for ", name);
    const std::string theirs(llama ? row->llama : row->gpt2);
    if (!theirs.empty()) place.pieces = {{theirs, shape.at(-1)}};
    place.transposed = name == "head.weight";
    return place;
  }
  const std::size_t dot = name.find('.', blocks.size()), last = name.rfind('.');
  const std::string number(name.substr(blocks.size(), dot - blocks.size())), end(name.substr(last));
  const std::string_view part = name.substr(dot + 1, last - dot - 1);
  const Row* const row = std::ranges::find(kBlockTable, part, &Row::ours);
  require(row != std::end(kBlockTable), "published names: there is none for ", name);
  if (!llama) {
    place.pieces = {{"h." + number + '.' + std::string(row->gpt2) + end, shape.at(-1)}};
    return place;
  }
  const std::string theirs = "layers." + number + '.' + std::string(row->llama);
  place.transposed = shape.rank() == 2;
  if (part != "attention.qkv") {
    place.pieces = {{theirs + end, shape.at(-1)}};
    return place;
  }
  const std::int64_t head = config.width / config.heads;
  place.pieces = {{theirs + "q_proj" + end, config.width},
                  {theirs + "k_proj" + end, head * config.key_value_heads},
                  {theirs + "v_proj" + end, head * config.key_value_heads}};
  return place;
}

std::vector<Place> places_of(SequenceModel& model, PublishedNames names) {
  std::vector<Place> places;
  for (const Parameter& parameter : model.state())
    places.push_back(place_of(parameter, model.config(), names));
  return places;
}

/// The shape of a piece in its file.
Shape shape_of(const Piece& piece, const Place& place) {
  const Shape& ours = place.ours.tensor.shape();
  if (ours.rank() == 1) return {piece.columns};
  return place.transposed ? Shape{piece.columns, ours[0]} : Shape{ours[0], piece.columns};
}

/// All tensors of a checkpoint by their names without prefix.
class PublishedTensors {
 public:
  PublishedTensors(const fs::path& folder, PublishedNames names) : folder_(folder.string()) {
    for (const fs::path& path : published_files(folder)) {
      const SafetensorsFile& file = files_.emplace_back(path, is_buffer);
      for (const std::string& name : file.names()) {
        const bool is_new = tensors_.emplace(without_prefix(name, names), &file.tensor(name)).second;
        if (!is_new) complain(name, " stands twice");
      }
    }
  }

  /// Notes what does not fit.
  void check(const std::vector<Place>& places, const ModelConfig& config) {
    std::set<std::string> known;
    for (const Place& place : places) {
      for (const Piece& piece : place.pieces) {
        known.insert(piece.name);
        const auto found = tensors_.find(piece.name);
        const Shape wanted = shape_of(piece, place);
        if (found == tensors_.end())
          complain("missing ", piece.name, ' ', wanted);
        else if (found->second->shape != wanted)
          complain(piece.name, " has shape ", found->second->shape, ", wanted ", wanted);
        else if (!is_floating(found->second->dtype))
          complain(piece.name, " has type ", name_of(found->second->dtype), ", wanted a floating one");
      }
    }
    for (const auto& [name, tensor] : tensors_) {
      if (name == "lm_head.weight" && config.tied)
        check_tied(*tensor, places);
      else if (!known.contains(name))
        complain("unknown ", name, ' ', tensor->shape);
    }
    require(wrong_.empty(), folder_, " does not fit: ", wrong_);
  }

  /// The numbers of one of ours, as float32 on the CPU.
  NDArray array(const Place& place) const {
    const NDArray whole = NDArray::zeros(place.ours.tensor.shape(), DType::f32);
    std::int64_t column = 0;
    for (const Piece& piece : place.pieces) {
      const NDArray read = array_of(*tensors_.at(piece.name)).cast(DType::f32);
      NDArray part = whole.slice(-1, column, column + piece.columns);
      part.assign(place.transposed ? read.transpose() : read);
      column += piece.columns;
    }
    return whole;
  }

 private:
  void check_tied(const RawTensor& head, const std::vector<Place>& places) {
    const auto found = tensors_.find(places.front().pieces.front().name);  // the table of tokens
    if (found != tensors_.end() && !std::ranges::equal(found->second->bytes, head.bytes))
      complain("lm_head.weight differs from ", found->first, ", to which tie_word_embeddings ties it");
  }

  template <class... Parts>
  void complain(const Parts&... parts) {
    std::ostringstream line;
    (line << ... << parts);
    wrong_ += (wrong_.empty() ? "" : "; ") + line.str();
  }

  std::string folder_, wrong_;
  std::list<SafetensorsFile> files_;
  std::map<std::string, const RawTensor*> tensors_;
};

bool is_zero(const NDArray& array) {
  const std::vector<double> numbers = array.to_vector<double>();
  return std::ranges::all_of(numbers, [](double number) { return number == 0; });
}

}  // namespace

std::vector<fs::path> published_files(const fs::path& folder) {
  if (fs::exists(folder / kModelFile)) return {folder / kModelFile};
  const fs::path index = folder / kIndexFile;
  require(fs::exists(index), folder.string(), ": there is neither ", kModelFile, " nor ", kIndexFile,
          "; weights in other files are not read");
  const json object = parse_json(read_file(index), index.string());
  const json map = object.is_object() ? object.value("weight_map", json()) : json();
  require(map.is_object() && !map.empty(), index.string(), ": there is no weight_map");
  std::set<fs::path> files;
  for (const json& name : map) {
    const fs::path file = name.is_string() ? name.get<std::string>() : "";
    require(!file.empty() && file == file.filename(), index.string(), ": ", name.dump().substr(0, 80),
            " is not the name of a file beside it");
    files.insert(folder / file);
  }
  return {files.begin(), files.end()};
}

void load_published(const fs::path& folder, PublishedNames names, SequenceModel& model) {
  PublishedTensors file(folder, names);
  const std::vector<Place> places = places_of(model, names);
  file.check(places, model.config());
  for (const Place& place : places) {
    Tensor ours = place.ours.tensor;
    ours.set_array(file.array(place).cast(ours.dtype()).to(ours.device()));
  }
}

void save_published(const fs::path& folder, SequenceModel& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config();
  const PublishedNames names = published_names_of(config);
  // As those who published them first: GPT-2 without its prefix, as long as there is no head.
  const std::string prefix = names == PublishedNames::gpt2 && config.tied ? "" : prefix_of(names);
  std::vector<Parameter> pieces;
  for (const Place& place : places_of(model, names)) {
    const NDArray whole = place.ours.tensor.array().to(cpu());
    require(!place.pieces.empty() || is_zero(whole), "export: published names have no place for ",
            place.ours.name, ", which is not 0");
    std::int64_t column = 0;
    for (const Piece& piece : place.pieces) {
      const NDArray part = whole.slice(-1, column, column + piece.columns);
      const std::string before = piece.name.starts_with("lm_head.") ? "" : prefix;
      pieces.push_back({before + piece.name, Tensor(place.transposed ? part.transpose() : part), true, {}});
      column += piece.columns;
    }
  }
  save_tensors(folder / kModelFile, pieces, {{"format", "pt"}});
  const json object = published_config(config, tokenizer.begin_id(), tokenizer.end_id());
  write_file_synced(folder / kConfigFile, object.dump(2) + "\n");
  write_tokenizer(folder, tokenizer);
}

}  // namespace needle
