// The page that inside.h fills in, as text: inside_page.html.
#pragma once

#include <string_view>

namespace needle {

extern const std::string_view kInsidePage;

}  // namespace needle
