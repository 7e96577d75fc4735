// What all SVG drawings write: text, numbers and the beginning of a document.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace needle {

/// Text for XML. Control characters, which XML cannot hold, become spaces.
std::string escaped(std::string_view text);
/// How many characters of UTF-8 `text` has.
std::size_t character_count(std::string_view text);
/// The width of `text` in a sans-serif font, roughly.
double text_width(std::string_view text, double size);
/// `value` with `decimals` places, the same in every locale.
std::string digits(double value, std::chars_format format, int decimals);
/// A place on the drawing, with a tenth of a unit.
std::string place(double value);
/// The beginning of a standalone document of width x height units: white ground, grey sans-serif text.
std::string svg_start(std::string_view title, double width, double height, double font_size);

}  // namespace needle
